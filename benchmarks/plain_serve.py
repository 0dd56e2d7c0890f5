"""Plain Ray Serve with `@serve.batch` on the emulated times that Fermata's backends run.

The peer in `benchmarks/live.py`. Its gRPC proxy takes the same messages, in a stream or unary,
its HTTP proxy their inputs.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import ray
from ray import serve
from ray.serve.config import gRPCOptions
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from benchmarks.live_server import Running, started
from benchmarks.ports import free_port
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import SERVICE, InferenceStub
from fermata.deployments.backend.execution.emulated_gpu import EmulatedGpu, sharpen_sleep
from fermata.foundation.units import ms

GPUS = 2
ONGOING = 1000
PROBE_S = 2.0


@dataclass(frozen=True, slots=True)
class Knobs:
    """One configuration of the peer."""

    replicas: int = 2
    """Above `GPUS` they share the emulated accelerators."""
    batch_size: int = 16
    wait_ms: float = 3
    optimized: bool = False
    """Ray Serve's own switch for throughput (RAY_SERVE_THROUGHPUT_OPTIMIZED)."""

    def __str__(self) -> str:
        mode = ", optimized" if self.optimized else ""
        size, wait = f"batches of {self.batch_size}", f"wait {self.wait_ms:g} ms"
        return f"{self.replicas} replicas, {size}, {wait}{mode}"


def add_service(servicer: Any, server: Any) -> None:
    """What Serve's proxy calls to learn of the methods; it replaces each by its own.

    Messages stay bytes until a replica has them: the proxy would pickle each, at 6 ms a message.
    """
    methods = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(servicer.ModelInfer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(servicer.ModelStreamInfer),
    }
    service = grpc.method_handlers_generic_handler(SERVICE, methods)
    server.add_generic_rpc_handlers((service,))


class RefusedError(Exception):
    """A request that is not served; only its own answer says so."""


class StreamAnswers:
    """Answers the requests of a stream as it answers single ones."""

    async def ModelInfer(self, message: bytes) -> pb.ModelInferResponse:  # noqa: N802
        raise NotImplementedError

    async def ModelStreamInfer(  # noqa: N802
        self, messages: AsyncIterator[bytes]
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        """Answers as they are ready, while further requests are read."""
        ready: asyncio.Queue[pb.ModelStreamInferResponse | None] = asyncio.Queue()

        async def answer(message: bytes) -> None:
            try:
                one = pb.ModelStreamInferResponse(infer_response=await self.ModelInfer(message))
            except RefusedError as error:
                rid = pb.ModelInferRequest.FromString(message).id
                refused = pb.ModelInferResponse(id=rid)
                one = pb.ModelStreamInferResponse(error_message=str(error), infer_response=refused)
            ready.put_nowait(one)

        async def read() -> None:
            async with asyncio.TaskGroup() as group:
                async for message in messages:
                    group.create_task(answer(message))
            ready.put_nowait(None)

        reader = asyncio.ensure_future(read())
        try:
            while (one := await ready.get()) is not None:
                yield one
        finally:
            reader.cancel()


class Model(StreamAnswers):
    """One replica: l(b) = 5 + b ms on an emulated accelerator."""

    def __init__(self, folder: str, batch_size: int, wait_ms: float) -> None:
        self.gpu = EmulatedGpu(f"{folder}/gpu-{self._claim(folder) % GPUS}")
        # `serve.batch` makes more of a method than its type says.
        batched: Any = self.run
        batched.set_max_batch_size(batch_size)
        batched.set_batch_wait_timeout_s(wait_ms / 1e3)

    def _claim(self, folder: str) -> int:
        """A number that no other replica has."""
        number = 0
        while True:
            try:
                os.close(os.open(f"{folder}/replica-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                number += 1
            else:
                return number

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.003)
    async def run(self, messages: list[bytes]) -> list[int]:
        """The size of the batch, for each."""
        size = len(messages)
        await asyncio.to_thread(self._run, ms(5) + size * ms(1))
        return [size] * size

    def _run(self, run_ns: int) -> None:
        sharpen_sleep()
        self.gpu.run(run_ns)

    async def __call__(self, request: Request) -> Response:
        return PlainTextResponse(str(await self.run(await request.body())))

    async def ModelInfer(self, message: bytes) -> pb.ModelInferResponse:  # noqa: N802
        size = await self.run(message)
        request = pb.ModelInferRequest.FromString(message)
        answer = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        answer.parameters["batch_size"].int64_param = size
        return answer


@contextmanager
def plain_serve(knobs: Knobs) -> Any:
    """A running peer."""
    port, http_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.plain_serve",
            folder,
            str(port),
            str(http_port),
        ]
        command += [str(knobs.replicas), str(knobs.batch_size), str(knobs.wait_ms)]
        path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
        environment = {"RAY_worker_niceness": "0", "PYTHONPATH": path}
        if knobs.optimized:
            environment["RAY_SERVE_THROUGHPUT_OPTIMIZED"] = "1"
        with started(command, port, _answers, environment, http_port) as running:
            yield running


def _answers(running: Running) -> bool:
    with grpc.insecure_channel(running.address) as channel:
        try:
            InferenceStub(channel).ModelInfer(
                pb.ModelInferRequest(model_name="emulated"), timeout=PROBE_S
            )
        except grpc.RpcError:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Plain Ray Serve, until Ctrl-C")
    parser.add_argument("folder")
    parser.add_argument("port", type=int)
    parser.add_argument("http_port", type=int)
    parser.add_argument("replicas", type=int)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("wait_ms", type=float)
    given = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    service = f"{add_service.__module__}.{add_service.__name__}".replace("__main__", MODULE)
    serve.start(
        http_options={"port": given.http_port},
        logging_config={"enable_access_log": False},
        grpc_options=gRPCOptions(port=given.port, grpc_servicer_functions=[service]),
    )
    deployment = serve.deployment(
        num_replicas=given.replicas,
        max_ongoing_requests=ONGOING,
        logging_config={"enable_access_log": False},
        ray_actor_options={"num_cpus": 0.1},
    )
    # By its module's name, so that replicas import it and do not get a copy of `__main__`.
    model = __import__(MODULE, fromlist=["Model"]).Model
    serve.run(deployment(model).bind(given.folder, given.batch_size, given.wait_ms))
    ended.wait()
    # The cluster is this process's own; Serve's orderly end takes half a minute here.
    ray.shutdown()


MODULE = "benchmarks.plain_serve"

if __name__ == "__main__":
    main()
