"""Two applications with conflicting libraries on one backend, and the end of one's process."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks.environments import make_environment
from benchmarks.one_process import serve_here
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, to_array
from tests.isolated_models import MODELS

pytestmark = pytest.mark.live

WAIT_S = 60.0


def application(name: str, function: str, environment: str) -> dict[str, Any]:
    variant = {"name": f"{name}-v", "model": f"own_models:{function}", "latency_ms": [5] * 4}
    return {
        "name": name,
        "slo_ms": 2000,
        "input": {"shape": [3]},
        "environment": environment,
        "variants": [variant],
    }


async def ask(stub: Any, model: str, *values: float) -> float:
    request = pb.ModelInferRequest(model_name=model)
    add_input(request, from_array("input", np.array(values, np.float32)))
    (tensor,) = response_tensors(await stub.ModelInfer(request, timeout=WAIT_S))
    return float(to_array(tensor).flat[0])


async def refusal(stub: Any, model: str, *values: float) -> str:
    try:
        await ask(stub, model, *values)
    except grpc.aio.AioRpcError as error:
        return error.details() or ""
    return ""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "own_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    one = make_environment(tmp_path / "one", 2)
    two = make_environment(tmp_path / "two", 3)
    return {
        "applications": [
            application("twice", "plain", one),
            application("thrice", "plain", two),
            application("troubled", "troubled", two),
        ]
    }


def test_conflicting_libraries_are_served_by_one_backend(config: dict[str, Any]) -> None:
    async def play() -> None:
        async with (
            serve_here(config) as frontend,
            grpc.aio.insecure_channel(f"127.0.0.1:{frontend.server.grpc_port}") as channel,
        ):
            stub = InferenceStub(channel)
            asked = [
                ask(stub, name, 1, 2, each) for each in range(9) for name in ("twice", "thrice")
            ]
            found = await asyncio.gather(*asked)
            assert found == [factor * (3 + each) for each in range(9) for factor in (2, 3)]
            assert "ValueError: the first and the second line" in await refusal(
                stub, "troubled", 11, 0, 0
            )
            pid = int(await ask(stub, "troubled", 0, 0, 0))
            assert "its process ended with exit code 9" in await refusal(stub, "troubled", 15, 0, 0)
            # The others do not notice, and the model comes back by itself.
            assert await ask(stub, "twice", 1, 2, 3) == 12
            async with asyncio.timeout(WAIT_S):
                while await refusal(stub, "troubled", 0, 0, 0):
                    await asyncio.sleep(0.1)
            again = int(await ask(stub, "troubled", 0, 0, 0))
            assert again != pid
            os.kill(again, signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                while await refusal(stub, "troubled", 0, 0, 0):
                    await asyncio.sleep(0.1)
            last = int(await ask(stub, "troubled", 0, 0, 0))
            assert last not in (pid, again)
            end = os.pidfd_open(last)
        # Readable once the process has ended, which it does with the backend.
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(end, ended.set)
        async with asyncio.timeout(WAIT_S):
            await ended.wait()
        loop.remove_reader(end)
        os.close(end)

    asyncio.run(play())
