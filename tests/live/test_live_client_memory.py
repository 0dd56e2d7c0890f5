"""Clients' shared memory, traces and logs over gRPC and REST."""

import asyncio
import json
import os
import secrets
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks.one_process import serve_here
from benchmarks.sequence_sums import step
from benchmarks.sequences import APPLICATIONS, request_of
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub

pytestmark = pytest.mark.live

CONFIG = {"applications": [APPLICATIONS[0]], "frontend": {"client_memory": True}}
FOLDER = Path("/dev/shm")


def in_region(message: pb.ModelInferRequest) -> pb.ModelInferRequest:
    """The same request with its input at 0 and its output at 8 of the region."""
    del message.raw_input_contents[:]
    message.outputs.add(name="total")
    for place, tensor in enumerate((message.inputs[0], message.outputs[0])):
        tensor.parameters["shared_memory_region"].string_param = "both"
        tensor.parameters["shared_memory_byte_size"].int64_param = 8
        tensor.parameters["shared_memory_offset"].int64_param = 8 * place
    return message


async def over_grpc(target: str, file: Path) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        stub = InferenceStub(channel)
        key = file.name
        region = pb.SystemSharedMemoryRegisterRequest(name="both", key=f"/{key}", byte_size=16)
        await stub.SystemSharedMemoryRegister(region)
        with pytest.raises(grpc.aio.AioRpcError, match="is registered: unregister it first"):
            await stub.SystemSharedMemoryRegister(region)
        told = await stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest())
        assert told.regions["both"].byte_size == 16
        response = await stub.ModelInfer(in_region(request_of("kept", 1, 0, start=True)))
        assert list(response.raw_output_contents) == [b""]
        total = int(np.frombuffer(file.read_bytes(), np.int64)[1])
        assert total == step(0, 7)
        await stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="not registered for this call"):
            await stub.ModelInfer(in_region(request_of("kept", 1, 0)))
        assert not (await stub.CudaSharedMemoryStatus(pb.CudaSharedMemoryStatusRequest())).regions
        with pytest.raises(grpc.aio.AioRpcError, match="CUDA shared memory is not supported"):
            await stub.CudaSharedMemoryRegister(pb.CudaSharedMemoryRegisterRequest(name="c"))
        await stub.CudaSharedMemoryUnregister(pb.CudaSharedMemoryUnregisterRequest())
        told = await stub.TraceSetting(pb.TraceSettingRequest())
        assert list(told.settings["trace_level"].value) == ["OFF"]
        assert (await stub.LogSettings(pb.LogSettingsRequest())).settings["log_info"].bool_param
        asked = pb.LogSettingsRequest()
        asked.settings["log_info"].bool_param = False
        with pytest.raises(grpc.aio.AioRpcError, match="those of the configuration"):
            await stub.LogSettings(asked)


def call(url: str, body: object = None, post: bool = True) -> Any:
    data = json.dumps(body or {}).encode() if post else None
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=9) as answer:
        said = answer.read()
    return json.loads(said) if said else None


def over_rest(url: str, file: Path) -> None:
    memory = f"{url}/systemsharedmemory"
    call(f"{memory}/region/both/register", {"key": file.name, "byte_size": 16})
    (told,) = call(f"{memory}/region/both/status", post=False)
    assert told == {"name": "both", "key": file.name, "offset": 0, "byte_size": 16}
    place = {"shared_memory_region": "both", "shared_memory_byte_size": 8}
    body = {
        "inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "parameters": place}],
        "outputs": [{"name": "total", "parameters": {**place, "shared_memory_offset": 8}}],
        "parameters": {"sequence_id": 2, "sequence_start": True},
    }
    answer = call(f"{url}/models/kept/infer", body)
    (output,) = answer["outputs"]
    assert output["parameters"]["shared_memory_region"] == "both"
    assert "data" not in output
    assert int(np.frombuffer(file.read_bytes(), np.int64)[1]) == step(0, 7)
    call(f"{memory}/unregister")
    assert call(f"{memory}/status", post=False) == []
    assert call(f"{url}/cudasharedmemory/status", post=False) == []
    assert call(f"{url}/trace/setting", post=False) == {"trace_level": ["OFF"]}
    assert call(f"{url}/logging", post=False)["log_error"]
    for path, given, status in (
        ("systemsharedmemory/region/both/register", {"key": 3}, 400),
        ("systemsharedmemory/region/both/register", {"key": "../x", "byte_size": 1}, 400),
        ("cudasharedmemory/region/c/register", {"raw_handle": {}}, 501),
        ("logging", {"log_info": False}, 501),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            call(f"{url}/{path}", given)
        with caught.value as answer:
            assert answer.code == status, path


def test_tensors_may_lie_in_shared_memory_of_a_client_on_the_same_machine() -> None:
    file = FOLDER / f"test-{os.getpid()}-{secrets.token_hex(4)}"

    async def play() -> None:
        async with serve_here(CONFIG) as frontend:
            file.write_bytes(np.array([7, 0], np.int64).tobytes())
            await over_grpc(f"127.0.0.1:{frontend.server.grpc_port}", file)
            file.write_bytes(np.array([7, 0], np.int64).tobytes())
            url = f"http://127.0.0.1:{frontend.server.http_port}/v2"
            await asyncio.to_thread(over_rest, url, file)

    try:
        asyncio.run(play())
    finally:
        file.unlink(missing_ok=True)
