"""Live: a policy that chooses keeps what it promised, in answers that are really right.

The digits family, its run times stretched (`benchmarks.slow_digits`), serves held-out digits at
three Poisson loads. The promise is a simulation of the same policy on the same run times.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from benchmarks.figures import Figure, run
from benchmarks.live_server import fermata
from benchmarks.slow_digits import PACE_MS
from clients.wire.open_inference_pb2 import ModelInferRequest
from clients.wire.parameters import parameter, text
from clients.wire.service import InferenceStub
from clients.wire.tensors import add_input, from_array, response_tensors, to_array
from deployments.models import digits
from simulator.report import report
from simulator.run import simulate
from simulator.scenario import read_scenario

SLO_MS = 150
BACKENDS = 2
BATCH_SIZE_MAX = 8
LOADS_RPS = (8.0, 25.0, 60.0)
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


def promised(policy: str, rate_rps: float, accuracy: dict[str, float]) -> tuple[float, float]:
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
            "rate_rps": rate_rps,
            "duration_s": 300,
            "dispatch_ms": DISPATCH_MS,
            "execution": {"jitter": 0.02},
            "applications": [{"name": "digits", "slo_ms": SLO_MS, "variants": variants}],
        }
    )
    result = report(scenario, simulate(scenario))
    return 100.0 * (result.accuracy or 0.0), 100.0 * result.bad_rate


async def observe(address: str, rate_rps: float, seconds: float, seed: int) -> Seen:
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
            one = _ask(stub, images[index], int(labels[index]), seen)
            calls.append(asyncio.create_task(one))
        await asyncio.gather(*calls)
    return seen


async def _ask(stub: InferenceStub, image: Any, label: int, seen: Seen) -> None:
    request = ModelInferRequest(model_name="digits")
    request.parameters["timeout"].CopyFrom(parameter(SLO_MS * 1000))
    add_input(request, from_array("input", np.asarray(image, np.float32).reshape(1, 64)))
    seen.sent += 1
    begin_s = time.perf_counter()
    try:
        response = await stub.ModelInfer(request, timeout=2.0)
    except grpc.aio.AioRpcError:
        return
    if time.perf_counter() - begin_s > SLO_MS / 1e3:
        return
    seen.in_time += 1
    scores = to_array(response_tensors(response)[0])
    seen.right += int(np.argmax(scores)) == label
    seen.best += text(response.parameters, "variant") == "xl"


def measure(quick: bool) -> Iterator[Figure]:
    accuracy = accuracies()
    for policy, seconds in (("central-queue", 10 if quick else 40), ("ramsis", 5 if quick else 20)):
        backend = {"count": BACKENDS, "device": "cpu", "cpus": 0.2}
        with fermata(applications=[application(policy, accuracy)], backend=backend) as running:
            # The first requests teach the run times and the load.
            asyncio.run(observe(running.address, 20.0, 5.0, seed=0))
            for rate_rps in LOADS_RPS:
                promise = promised(policy, rate_rps, accuracy)
                seen = asyncio.run(observe(running.address, rate_rps, seconds, seed=int(rate_rps)))
                share = seen.best / max(1, seen.in_time)
                name = f"{policy}, {rate_rps:g} req/s ({share:.0%} on the best variant)"
                off = abs(seen.accuracy - promise[0])
                note = f"{name}: accuracy {seen.accuracy:.2f}, promised {promise[0]:.2f}; off by"
                yield Figure(note, off, "points", 1.0, at_most=True)
                late = f"  violations {seen.violation:.2f}, promised {promise[1]:.2f}; off by"
                yield Figure(late, abs(seen.violation - promise[1]), "points", 1.0, at_most=True)


if __name__ == "__main__":
    run("Variants, live", measure)
