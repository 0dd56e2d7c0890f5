"""When requests are due; the same seed gives the same times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.clients.wire.errors import BadRequestError

Times = npt.NDArray[np.int64]
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SendTimes:
    """Requests in order; one row each."""

    at_ns: Times
    """From the start of the load."""
    target: Times
    """Index of the target it goes to."""
    client: Times
    """Number of its stream; 0 where requests stand alone."""

    def __len__(self) -> int:
        return len(self.at_ns)

    def part(self, index: int, count: int) -> "SendTimes":
        """Every `count`-th request, or client where there are any: a stream stays in one piece."""
        by = np.where(self.client > 0, self.client, np.arange(len(self.at_ns)))
        mine = by % count == index
        return SendTimes(self.at_ns[mine], self.target[mine], self.client[mine])


def poisson(rps: float, duration_ns: int, rng: np.random.Generator) -> Times:
    """Arrivals that know nothing of one another."""
    return gamma(rps, duration_ns, 1.0, rng)


def gamma(rps: float, duration_ns: int, shape: float, rng: np.random.Generator) -> Times:
    """Gaps with a Gamma distribution: bursts below shape 1, ever more regular above."""
    if rps <= 0 or shape <= 0:
        raise BadRequestError(f"rate={rps}, shape={shape}: both must be above 0")
    chunks: list[npt.NDArray[np.float64]] = []
    reached_s, end_s = 0.0, duration_ns / SECOND
    while reached_s < end_s:
        count = int(1.1 * rps * (end_s - reached_s)) + 100
        times = reached_s + np.cumsum(rng.gamma(shape, 1.0 / (rps * shape), count))
        chunks.append(times)
        reached_s = float(times[-1])
    at_ns = (np.concatenate(chunks) * SECOND).astype(np.int64)
    return at_ns[at_ns < duration_ns]


def trace(rps: Sequence[float], step_ns: int, duration_ns: int, rng: np.random.Generator) -> Times:
    """Poisson with a rate for each step; starts over at the end of the trace."""
    if not rps or min(rps) < 0 or step_ns <= 0:
        raise BadRequestError("a trace needs one rate or more, none below 0, and a step above 0")
    parts: list[Times] = []
    for step in range(-(-duration_ns // step_ns)):
        start_ns = step * step_ns
        end_ns = min(start_ns + step_ns, duration_ns)
        count = rng.poisson(rps[step % len(rps)] * (end_ns - start_ns) / SECOND)
        parts.append(np.sort(rng.integers(start_ns, end_ns, count)))
    return np.concatenate(parts)


def cameras(
    count: int, fps: float, duration_ns: int, phase: str, rng: np.random.Generator
) -> tuple[Times, Times]:
    """(times, clients) of periodic streams, numbered from 1."""
    if count < 1 or fps <= 0:
        raise BadRequestError(f"cameras={count}, fps={fps}: both must be above 0")
    phases = {
        "locked": np.zeros(count),
        "staggered": np.arange(count) / count,
        "random": rng.random(count),
    }
    if phase not in phases:
        raise BadRequestError(f"phase={phase!r}: use one of {', '.join(phases)}")
    frames = np.arange(int(duration_ns / SECOND * fps) + 1)
    times = ((frames[None, :] + phases[phase][:, None]) / fps * SECOND).astype(np.int64)
    clients = np.broadcast_to(np.arange(1, count + 1)[:, None], times.shape)
    at_ns, client = times.reshape(-1), clients.reshape(-1)
    order = np.argsort(at_ns, kind="stable")
    at_ns, client = at_ns[order], client[order].astype(np.int64)
    return at_ns[at_ns < duration_ns], client[at_ns < duration_ns]


def single(at_ns: Times, client: Times | None = None) -> SendTimes:
    """Everything goes to one target."""
    zeros = np.zeros(len(at_ns), np.int64)
    return SendTimes(at_ns, zeros, zeros if client is None else client)
