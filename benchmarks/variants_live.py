"""Live: a policy that chooses keeps what it promised, in answers that are really right.

The digits family, its run times stretched (`benchmarks.slow_digits`), serves held-out digits at
three Poisson loads. RAMSIS' promise is that of the tables it uses meanwhile, as the router tells;
the central queue's is a simulation of the same policy on the same run times.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import numpy as np

from benchmarks.figures import Figure, run
from benchmarks.live_server import Running, fermata
from benchmarks.slow_digits import PACE_MS
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.clients.wire.parameters import parameter, text
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, to_array
from fermata.deployments.models import digits
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

SLO_MS = 150
BACKENDS = 2
BATCH_SIZE_MAX = 8
LOADS_RPS = (8.0, 25.0, 60.0)
POLICIES: dict[str, dict[str, object]] = {
    "central-queue": {},
    # Half a second holds four requests of the lowest load: too few to tell one load from another.
    "ramsis": {"window_ms": 5000},
}
SECONDS = 120.0
"""At each load: of 960 requests a point is nine."""
LOOK_S = 1.0
"""Between two looks at what the tables in use promise."""
DISPATCH_MS = 2.0
"""What the simulation allows for links and processes."""


@dataclass(slots=True)
class Seen:
    """What clients saw at one load."""

    sent: int = 0
    right: int = 0
    in_time: int = 0
    best: int = 0
    """Answered by the most accurate variant, in time."""

    @property
    def accuracy(self) -> float:
        return 100.0 * self.right / max(1, self.in_time)

    @property
    def violation(self) -> float:
        return 100.0 * (1.0 - self.in_time / max(1, self.sent))


def accuracies() -> dict[str, float]:
    return {name: digits.load(name).card.accuracy or 0.0 for name in PACE_MS}


def application(policy: str, accuracy: dict[str, float]) -> dict[str, Any]:
    return {
        "name": "digits",
        "slo_ms": SLO_MS,
        "policy": policy,
        "policy_options": POLICIES[policy],
        "input": {"name": "input", "dtype": "FP32", "shape": [64]},
        "variants": [
            {
                "name": name,
                "model": f"benchmarks.slow_digits:{name}",
                "batch_size_max": BATCH_SIZE_MAX,
                "accuracy": accuracy[name],
            }
            for name in PACE_MS
        ],
    }


@dataclass(slots=True)
class Promises:
    """What the tables in use have promised from one look to the next."""

    accuracy: list[float] = field(default_factory=list)
    violation: list[float] = field(default_factory=list)

    async def watch(self, running: Running) -> None:
        while True:
            status = await asyncio.to_thread(running.status)
            figures = status["policies"]["digits"]["figures"]
            if "promised_accuracy" in figures:
                self.accuracy.append(100.0 * figures["promised_accuracy"])
                self.violation.append(100.0 * figures["promised_violation"])
            await asyncio.sleep(LOOK_S)

    def mean(self) -> tuple[float, float]:
        assert self.accuracy, "no tables were made"
        return float(np.mean(self.accuracy)), float(np.mean(self.violation))


def simulated(policy: str, rate_rps: float, accuracy: dict[str, float]) -> tuple[float, float]:
    """Accuracy and violation in percent of a simulation of the same service."""
    variants = [
        {
            "name": name,
            "latency_ms": [batch + each * size for size in range(1, BATCH_SIZE_MAX + 1)],
            "accuracy": accuracy[name],
        }
        for name, (each, batch) in PACE_MS.items()
    ]
    scenario = read_scenario(
        {
            "backends": BACKENDS,
            "policy": policy,
            "policy_options": POLICIES[policy],
            "rate_rps": rate_rps,
            "duration_s": 300,
            "dispatch_ms": DISPATCH_MS,
            "execution": {"jitter": 0.02},
            "applications": [{"name": "digits", "slo_ms": SLO_MS, "variants": variants}],
        }
    )
    result = report(scenario, simulate(scenario))
    return 100.0 * (result.accuracy or 0.0), 100.0 * result.bad_rate


async def observe(
    address: str,
    rate_rps: float,
    seconds: float,
    seed: int,
    model: str = "digits",
    slo_ms: int = SLO_MS,
) -> Seen:
    """Send held-out digits as a Poisson process, and judge the answers."""
    images, labels = digits.held_out()
    rng = np.random.default_rng(seed)
    count = int(rate_rps * seconds)
    gaps_s = rng.exponential(1.0 / rate_rps, count)
    # Every image about equally often: what is judged is the variants, not the draw.
    order = np.concatenate([rng.permutation(len(images)) for _ in range(count // len(images) + 1)])
    seen = Seen()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = InferenceStub(channel)
        calls: list[asyncio.Task[None]] = []
        due_s = time.perf_counter()
        for gap_s, index in zip(gaps_s, order[:count], strict=True):
            due_s += gap_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            one = _ask(stub, model, slo_ms, images[index], int(labels[index]), seen)
            calls.append(asyncio.create_task(one))
        await asyncio.gather(*calls)
    return seen


async def _ask(
    stub: InferenceStub, model: str, slo_ms: int, image: Any, label: int, seen: Seen
) -> None:
    request = ModelInferRequest(model_name=model)
    request.parameters["timeout"].CopyFrom(parameter(slo_ms * 1000))
    add_input(request, from_array("input", np.asarray(image, np.float32).reshape(1, 64)))
    seen.sent += 1
    begin_s = time.perf_counter()
    try:
        response = await stub.ModelInfer(request, timeout=2.0)
    except grpc.aio.AioRpcError:
        return
    if time.perf_counter() - begin_s > slo_ms / 1e3:
        return
    seen.in_time += 1
    scores = to_array(response_tensors(response)[0])
    seen.right += int(np.argmax(scores)) == label
    seen.best += text(response.parameters, "variant").endswith("xl")


async def serve(
    running: Running, rate_rps: float, seconds: float
) -> tuple[Seen, tuple[float, float] | None]:
    """What clients saw at one load and what was promised meanwhile, where the policy says so."""
    promises = Promises()
    watching = asyncio.create_task(promises.watch(running))
    try:
        seen = await observe(running.address, rate_rps, seconds, seed=int(rate_rps))
    finally:
        watching.cancel()
    return seen, promises.mean() if promises.accuracy else None


def measure(only_policy: str, only_rps: float, quick: bool) -> Iterator[Figure]:
    accuracy = accuracies()
    for policy in [only_policy] if only_policy else POLICIES:
        backend = {"count": BACKENDS, "device": "cpu", "cpus": 0.2}
        with fermata(applications=[application(policy, accuracy)], backend=backend) as running:
            # The first requests teach the run times and the load.
            asyncio.run(observe(running.address, 20.0, 5.0, seed=0))
            for rate_rps in [only_rps] if only_rps else LOADS_RPS:
                seconds = 10.0 if quick else SECONDS
                seen, promise = asyncio.run(serve(running, rate_rps, seconds))
                yield from compared(
                    policy, rate_rps, seen, promise or simulated(policy, rate_rps, accuracy)
                )


def compared(
    policy: str, rate_rps: float, seen: Seen, promise: tuple[float, float]
) -> Iterator[Figure]:
    share = seen.best / max(1, seen.in_time)
    name = f"{policy}, {rate_rps:g} req/s ({seen.sent:,} sent, {share:.0%} on the best variant)"
    off = abs(seen.accuracy - promise[0])
    note = f"{name}: accuracy {seen.accuracy:.2f}, promised {promise[0]:.2f}; off by"
    yield Figure(note, off, "points", 1.0, at_most=True)
    late = f"  violations {seen.violation:.2f}, promised {promise[1]:.2f}; off by"
    yield Figure(late, abs(seen.violation - promise[1]), "points", 1.0, at_most=True)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--policy", choices=POLICIES, default="", help="this one alone")
    parser.add_argument("--load", type=float, default=0.0, help="requests a second; this one alone")
    given, _ = parser.parse_known_args()
    run("Variants, live", partial(measure, given.policy, given.load), parser)


if __name__ == "__main__":
    main()
