"""Plain Ray Serve on the same GPU: `@serve.batch`, CUDA graphs, requests through handles.

Handles spare it the network that our own server is measured with. Sweeps replicas of each model.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve

from benchmarks.gpu_models import SHAPE, pixels
from fermata.clients.load.arrivals import poisson

SENDERS = 6
WARMUP_S = 1.0
WAIT_S = 0.003
BATCH = 64


class Plain:
    """One replica of one model."""

    def __init__(self, model: str, hub: str) -> None:
        import torch

        from fermata.deployments.backend.models.loaders import load_runner
        from fermata.deployments.backend.models.memory_budget import MemoryBudget
        from fermata.deployments.specs.backend import ModelSpec

        torch.hub.set_dir(hub)
        spec = ModelSpec(model, f"torchvision:{model}", BATCH, SHAPE, "UINT8")
        self.runner = load_runner(spec, "cuda", MemoryBudget())
        self.pool = ThreadPoolExecutor(1)

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT_S)
    async def __call__(self, items: list[Any]) -> list[Any]:
        loop = asyncio.get_running_loop()
        return list(await loop.run_in_executor(self.pool, self._run, items))

    def _run(self, items: list[Any]) -> Any:
        return self.runner.run(self.runner.stage(items))


class Sender:
    """One process of an open-loop load through handles."""

    async def send(self, models: Sequence[str], rate: float, duration_s: float, seed: int) -> Any:
        """(model, latency in ms or inf) of each request after the warm-up."""
        handles = [serve.get_app_handle(model) for model in models]
        inputs = [pixels(1, seed=0)[0] for _ in models]
        rng = np.random.default_rng(seed)
        at_ns = poisson(rate, int((WARMUP_S + duration_s) * 1e9), rng)
        which = rng.integers(0, len(models), len(at_ns))
        found: list[tuple[int, float]] = []
        begin_ns = time.monotonic_ns() + 300_000_000

        async def one(due_ns: int, model: int) -> None:
            try:
                await asyncio.wait_for(self._ask(handles[model], inputs[model]), 3)
                taken_ms = (time.monotonic_ns() - due_ns) / 1e6
            except TimeoutError:
                taken_ms = float("inf")
            if due_ns >= begin_ns + WARMUP_S * 1e9:
                found.append((model, taken_ms))

        tasks = []
        for offset_ns, model in zip(at_ns.tolist(), which.tolist(), strict=True):
            due_ns = begin_ns + offset_ns
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(left_ns / 1e9)
            tasks.append(asyncio.ensure_future(one(due_ns, model)))
        await asyncio.gather(*tasks)
        return found

    async def _ask(self, handle: Any, item: Any) -> Any:
        return await handle.remote(item)


def sweep(
    folder: Path, models: Sequence[str], replicas: Sequence[int], rates: Sequence[float],
    slo_ms: float, duration_s: float,
) -> Iterator[tuple[int, float, float]]:  # fmt: skip
    """(replicas of each model, rate, share of good answers of the model that fared worst)."""
    ray.init(log_to_driver=False, include_dashboard=False)
    deployment: Any = serve.deployment(Plain)
    sender: Any = ray.remote(Sender)
    senders = [sender.options(num_cpus=0.1).remote() for _ in range(SENDERS)]
    for count in replicas:
        for model in models:
            options = {"num_cpus": 0.1, "num_gpus": 0.9 / count / len(models)}
            bound = deployment.options(
                num_replicas=count, max_ongoing_requests=1000, ray_actor_options=options
            ).bind(model, str(folder / "hub"))
            serve.run(bound, name=model, route_prefix=f"/{model}")
        for rate in rates:
            share = rate / SENDERS
            calls = [
                each.send.remote(models, share, duration_s, 100 * seed + count)
                for seed, each in enumerate(senders)
            ]
            rows = np.array([row for part in ray.get(calls) for row in part])
            good = min(
                float((rows[rows[:, 0] == number, 1] <= slo_ms).mean())
                for number in range(len(models))
            )
            yield count, rate, good
            if good < 0.5:
                break
        for model in models:
            serve.delete(model)
    # Neither says its types.
    for library in (serve, ray):
        end: Any = library.shutdown
        end()
