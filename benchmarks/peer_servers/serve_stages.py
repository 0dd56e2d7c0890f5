"""Ray Serve's composition of two stages behind an outer deployment, each with `@serve.batch`."""

import argparse
import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.serve.config import gRPCOptions
from ray.serve.handle import DeploymentHandle

from benchmarks.peer_servers.fan_out import CROP_BYTES, crop_count
from benchmarks.peer_servers.setup import VARIABLE, Emulated, read_setup
from benchmarks.plain_serve import RefusedError, StreamAnswers, add_service
from fermata.clients.wire import open_inference_pb2 as pb

MODULE = "benchmarks.peer_servers.serve_stages"
OUTER_ONGOING = 10_000
CPUS = 0.1


def count_rows(calls: list[Any]) -> int:
    """Size of a batch: its rows, not its calls."""
    return sum(len(rows) for rows in calls)


class Stage:
    """One replica of a stage, on one emulated GPU."""

    def __init__(self, path: str, name: str) -> None:
        os.environ[VARIABLE] = path
        self.emulated = Emulated(read_setup(), name)
        model = self.emulated.model
        # `serve.batch` makes more of a method than its type says.
        batched: Any = self.run
        batched.set_max_batch_size(model.batch_size_max)
        batched.set_batch_wait_timeout_s(model.wait_ms / 1e3)

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.0, batch_size_fn=count_rows)
    async def run(self, calls: list[Any]) -> list[int]:
        """The rows of each call."""
        await asyncio.to_thread(self.emulated.run, count_rows(calls))
        return [len(rows) for rows in calls]

    async def __call__(self, rows: Any) -> int:
        # `serve.batch` takes one call and hands many to the method.
        found: Any = await self.run(rows)
        return int(found)


class Outer(StreamAnswers):
    """Calls the first stage with a frame, then the second with its crops."""

    def __init__(
        self, path: str, first: DeploymentHandle[Any], second: DeploymentHandle[Any]
    ) -> None:
        os.environ[VARIABLE] = path
        setup = read_setup()
        self.options = setup.options
        self.rows_max = setup.models[1].batch_size_max if self.options["together"] else 1
        self.first, self.second = first, second

    async def ModelInfer(self, message: bytes) -> pb.ModelInferResponse:  # noqa: N802
        started_s = time.monotonic()
        request = pb.ModelInferRequest.FromString(message)
        frame = np.frombuffer(request.raw_input_contents[0], np.uint8).reshape(1, -1)
        await self._within(started_s, 0, [self.first.remote(frame)])
        count = crop_count(self.options["crops_mean"])
        rows = [min(self.rows_max, count - at) for at in range(0, count, self.rows_max)]
        crops = [np.zeros((each, CROP_BYTES), np.uint8) for each in rows]
        await self._within(started_s, 1, [self.second.remote(each) for each in crops])
        return pb.ModelInferResponse(model_name=request.model_name, id=request.id)

    async def _within(self, started_s: float, stage: int, calls: list[Any]) -> None:
        """Wait for calls; after the stage's deadline cancel them, so that no batch takes them."""
        share = self.options["deadlines"][stage]
        at_s = started_s + 1e-3 * share * self.options["slo_ms"]
        left_s = at_s - time.monotonic() if share else None
        try:
            async with asyncio.timeout(left_s):
                await asyncio.gather(*calls)
        except TimeoutError:
            for each in calls:
                each.cancel()
            raise RefusedError("given up after its deadline") from None


def _application(path: Path) -> Any:
    """Replicas of both stages on their GPUs, and what calls them."""
    os.environ[VARIABLE] = str(path)
    setup = read_setup()
    # By its module's name, so that replicas import it and do not get a copy of `__main__`.
    own = __import__(MODULE, fromlist=["Stage"])

    def deployment(name: str, replicas: int, ongoing: int) -> Any:
        return serve.deployment(
            name=name,
            num_replicas=replicas,
            max_ongoing_requests=ongoing,
            logging_config={"enable_access_log": False},
            ray_actor_options={"num_cpus": CPUS},
        )

    stages = [
        deployment(each.name, len(each.gpus), setup.options["ongoing"])(own.Stage).bind(
            str(path), each.name
        )
        for each in setup.models
    ]
    outer = deployment("outer", setup.options["scripts"], OUTER_ONGOING)(own.Outer)
    return outer.bind(str(path), *stages)


def main() -> None:
    parser = argparse.ArgumentParser(description="A pipeline in Ray Serve, until Ctrl-C")
    parser.add_argument("setup", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("http_port", type=int)
    given = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    service = f"{add_service.__module__}.{add_service.__name__}"
    serve.start(
        http_options={"port": given.http_port},
        logging_config={"enable_access_log": False},
        grpc_options=gRPCOptions(port=given.port, grpc_servicer_functions=[service]),
    )
    serve.run(_application(given.setup))
    ended.wait()
    # The cluster is this process's own; Serve's orderly end takes half a minute here.
    ray.shutdown()


if __name__ == "__main__":
    main()
