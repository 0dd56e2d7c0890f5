"""Goodput of two applications with conflicting libraries, over that of one process for both.

Their models take the time of a GPU's batch, so that all that isolation adds to a batch is lost.
`python -m benchmarks.signatures --only isolation` prints it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.environments import make_environment, write_library
from benchmarks.one_process import PATIENT, serve_here
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, to_array

ALPHA_MS, BETA_MS, BATCH_MAX = 8.0, 20.0, 32
SLO_MS = 500
RATE_RPS = 140.0
"""More than the device can do: what is not lost to isolation counts."""
SHAPE = (3, 224, 224)
FACTORS = {"one": 2, "two": 3}
"""The conflicting versions of the library, by application."""
MODULE = f'''
import time

import numpy as np
import scales


def load():
    def model(batch):
        """As long as a GPU takes; the first number tells which version of the library ran."""
        ends_s = time.perf_counter() + ({BETA_MS} + {ALPHA_MS} * len(batch)) / 1000
        found = batch[:, 0, 0, :1].astype(np.float32) * scales.FACTOR
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        return found

    return model
'''


@dataclass(slots=True)
class Ends:
    """Answers of one run."""

    good: int = 0
    wrong: int = 0
    """Answers of the other application's library."""


def config_of(environments: Mapping[str, str]) -> dict[str, Any]:
    """Both applications on one backend; without environments, in its own process."""
    applications = []
    for name in FACTORS:
        variant = {"name": f"{name}-v", "model": "scaled_models:load", "batch_size_max": BATCH_MAX}
        variant |= {"alpha_ms": ALPHA_MS, "beta_ms": BETA_MS}
        applications.append(
            {
                "name": name,
                "slo_ms": SLO_MS,
                "input": {"dtype": "UINT8", "shape": list(SHAPE)},
                "variants": [variant],
                **({"environment": environments[name]} if environments else {}),
            }
        )
    return {"router": {"fair_shares": False}, "applications": applications}


async def keep_serving(config: Mapping[str, Any]) -> None:
    """Serve until the input ends; the first line of output is the port."""
    async with serve_here(config, options=PATIENT) as frontend:
        print(frontend.server.grpc_port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def send(port: int, seconds: float, factors: Mapping[str, int]) -> Ends:
    """Requests of both applications in turn, at a rate above what the device can do."""
    ends = Ends()
    requests = {}
    for name in factors:
        requests[name] = pb.ModelInferRequest(model_name=name)
        add_input(requests[name], from_array("input", np.full(SHAPE, 7, np.uint8)))

    async def ask(stub: Any, name: str) -> None:
        began_s = time.monotonic()
        try:
            answer = await stub.ModelInfer(requests[name], timeout=10)
        except grpc.aio.AioRpcError:
            return
        (tensor,) = response_tensors(answer)
        ends.wrong += float(to_array(tensor).flat[0]) != 7 * factors[name]
        ends.good += time.monotonic() - began_s <= SLO_MS / 1000

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = InferenceStub(channel)
        asked: list[asyncio.Future[None]] = []
        due_s = time.monotonic()
        end_s = due_s + seconds
        while due_s < end_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            asked.append(asyncio.ensure_future(ask(stub, list(factors)[len(asked) % 2])))
            due_s += 1 / RATE_RPS
        await asyncio.gather(*asked)
    return ends


async def played(config: Mapping[str, Any], path: str, seconds: float, one: bool) -> Ends:
    """The ends of one run against a server in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.isolation",
        json.dumps(config),
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    factors = dict.fromkeys(FACTORS, FACTORS["one"]) if one else FACTORS
    try:
        await send(port, 1.0, factors)
        return await send(port, seconds, factors)
    finally:
        await process.communicate(b"")


async def isolation_figures(quick: bool) -> tuple[float, int]:
    """Goodput of isolated applications over that of one process, and wrong answers.

    The best of several rounds counts for each: whatever else a machine does only takes away.
    """
    seconds, rounds = (5.0, 1) if quick else (10.0, 3)
    best = {True: 0, False: 0}
    wrong = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "scaled_models.py").write_text(MODULE)
        write_library(folder / "library", FACTORS["one"])
        environments = {
            name: make_environment(folder / name, factor) for name, factor in FACTORS.items()
        }
        before = os.environ.get("PYTHONPATH", "")
        for _ in range(rounds):
            for one in (True, False):
                folders = [str(folder), *([str(folder / "library")] if one else []), before]
                path = os.pathsep.join(filter(None, folders))
                found = await played(config_of({} if one else environments), path, seconds, one)
                kind = "one process" if one else "processes of their own"
                print(f"  {kind}: {found.good / seconds:.1f} good a second", file=sys.stderr)
                best[one] = max(best[one], found.good)
                wrong += found.wrong
    return best[False] / max(1, best[True]), wrong


if __name__ == "__main__":
    asyncio.run(keep_serving(json.loads(sys.argv[1])))
