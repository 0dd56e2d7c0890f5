"""Named tensors through gRPC and REST to a user's function, and back by name."""

import asyncio
import gzip
import json
import sys
import types
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks.one_process import serve_here
from fermata.clients.describe import describe, sample_input, sample_more
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, to_array

pytestmark = pytest.mark.live

SLO_MS = 2000
CONFIG = {
    "applications": [
        {
            "name": "fusion",
            "slo_ms": SLO_MS,
            "inputs": [
                {"name": "a", "shape": [-1]},
                {"name": "b", "dtype": "INT64", "shape": [1]},
                {"name": "note", "dtype": "BYTES", "optional": True},
            ],
            "variants": [{"name": "v", "model": "users_fusion:load", "latency_ms": [1] * 8}],
        },
        {
            "name": "emulated",
            "slo_ms": SLO_MS,
            "inputs": [{"name": "x", "shape": [2]}, {"name": "y", "dtype": "BF16", "shape": [2]}],
            "outputs": [{"name": "z", "dtype": "INT32", "shape": [3]}, {"name": "w"}],
            "variants": [{"name": "e", "latency_ms": [1] * 4}],
        },
    ]
}


def fusion(batch: Mapping[str, Any]) -> dict[str, Any]:
    found = {"sum": batch["a"].sum(1) + batch["b"][:, 0], "twice": 2 * batch["a"]}
    if "note" in batch:
        found["upper"] = np.array([[each.upper()] for each in batch["note"][:, 0]], object)
    return found


@pytest.fixture(autouse=True)
def users_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_fusion")
    module.load = lambda: fusion  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_fusion", module)


def message(count: int, note: bytes = b"", *outputs: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="fusion", id=str(count))
    add_input(request, from_array("a", np.arange(count, dtype=np.float32)))
    add_input(request, from_array("b", np.array([100])))
    if note:
        add_input(request, from_array("note", np.array([note], object)))
    for name in outputs:
        request.outputs.add(name=name)
    return request


def found(response: pb.ModelInferResponse) -> dict[str, Any]:
    return {each.name: to_array(each) for each in response_tensors(response)}


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_function_of_named_inputs_is_served_over_grpc(shared_memory: bool) -> None:
    async def play() -> None:
        async with serve_here(CONFIG, shared_memory=shared_memory) as frontend:
            target = f"127.0.0.1:{frontend.server.grpc_port}"
            async with grpc.aio.insecure_channel(target) as channel:
                stub = InferenceStub(channel)
                asked = [stub.ModelInfer(message(count)) for count in range(1, 9)]
                for count, call in enumerate(asked, 1):
                    answer = found(await call)
                    assert answer["sum"] == 100 + sum(range(count))
                    assert answer["twice"].tolist() == [2.0 * each for each in range(count)]
                answer = found(await stub.ModelInfer(message(3, b"hush", "upper")))
                assert list(answer) == ["upper"]
                assert answer["upper"].tolist() == [b"HUSH"]
                with pytest.raises(grpc.aio.AioRpcError, match="gave no output 'upper'"):
                    await stub.ModelInfer(message(3, b"", "upper"))
                # Its inputs go in one after the other, so these come as typed contents too.
                large = message(40_000)
                typed = pb.ModelInferRequest(model_name="fusion")
                one = typed.inputs.add(name="a", datatype="FP32", shape=[40_000])
                one.contents.fp32_contents.extend(range(40_000))
                one = typed.inputs.add(name="b", datatype="INT64", shape=[1])
                one.contents.int64_contents.append(100)
                both = [found(await stub.ModelInfer(each, timeout=9)) for each in (large, typed)]
                assert both[0]["sum"] == both[1]["sum"]
                emulated = await asyncio.to_thread(describe, target, "emulated")
                request = pb.ModelInferRequest(model_name="emulated")
                for tensor in (sample_input(emulated, 1, 9, 9), *sample_more(emulated, 1)):
                    add_input(request, tensor)
                answer = found(await stub.ModelInfer(request))
                assert {name: each.shape for name, each in answer.items()} == {
                    "z": (1, 3),
                    "w": (1, 1),
                }

    asyncio.run(play())


@pytest.mark.parametrize("shared_memory", [True, False])
def test_rows_are_answered_as_one_also_where_no_batch_takes_them_all(shared_memory: bool) -> None:
    def rows(count: int) -> pb.ModelInferRequest:
        request = pb.ModelInferRequest(model_name="fusion")
        a = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
        add_input(request, from_array("a", a))
        add_input(request, from_array("b", np.arange(count).reshape(count, 1)))
        return request

    async def play() -> None:
        async with serve_here(CONFIG, 2, shared_memory) as frontend:
            target = f"127.0.0.1:{frontend.server.grpc_port}"
            async with grpc.aio.insecure_channel(target) as channel:
                stub = InferenceStub(channel)
                counts = (1, 2, 3, 8, 9, 20, 64)
                asked = [stub.ModelInfer(rows(count)) for count in counts]
                for count, call in zip(counts, asked, strict=True):
                    response = await call
                    answer = found(response)
                    a = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
                    assert answer["twice"].tolist() == (2 * a).tolist()
                    assert answer["sum"].tolist() == (a.sum(1) + np.arange(count)).tolist()
                    assert response.parameters["batch_size"].int64_param <= 8
            assert not frontend.hub.driver.parts.open_parts
            assert not frontend.hub.driver.table.entries

    asyncio.run(play())


def post(url: str, body: bytes, head: int = 0) -> tuple[bytes, int]:
    headers = {"Inference-Header-Content-Length": str(head)} if head else {}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=9) as answer:
        size = answer.headers.get("Inference-Header-Content-Length", "0")
        return answer.read(), int(size)


def test_rest_serves_the_same_function() -> None:
    def ask(url: str) -> None:
        a, b = np.arange(3, dtype=np.float32), np.array([100])
        inputs = [
            {"name": "a", "datatype": "FP32", "shape": [3], "data": [0, 1, 2]},
            {"name": "b", "datatype": "INT64", "shape": [1], "data": [100]},
        ]
        answer = json.loads(post(f"{url}/infer", json.dumps({"inputs": inputs}).encode())[0])
        outputs = {each["name"]: each["data"] for each in answer["outputs"]}
        assert outputs == {"sum": [103.0], "twice": [0.0, 2.0, 4.0]}
        for each, array in zip(inputs, (a, b), strict=True):
            del each["data"]
            each["parameters"] = {"binary_data_size": array.nbytes}
        told = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        head = json.dumps(told).encode()
        body, size = post(f"{url}/infer", head + a.tobytes() + b.tobytes(), len(head))
        outputs = {each["name"]: each["parameters"] for each in json.loads(body[:size])["outputs"]}
        assert outputs["twice"] == {"binary_data_size": 12}
        assert np.frombuffer(body[-12:], np.float32).tolist() == [0.0, 2.0, 4.0]
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(f"{url}/infer", json.dumps({"inputs": [{**inputs[0], "data": [1]}]}).encode())
        assert caught.value.code == 400
        caught.value.close()
        with urllib.request.urlopen(url, timeout=9) as described:
            inputs = json.loads(described.read())["inputs"]
        assert [each["name"] for each in inputs] == ["a", "b", "note"]

    async def play() -> None:
        async with serve_here(CONFIG) as frontend:
            port = frontend.server.http_port
            await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v2/models/fusion")

    asyncio.run(play())


def test_rest_reads_compressed_bodies_and_refuses_what_it_does_not_serve() -> None:
    body = json.dumps(
        {
            "inputs": [
                {"name": "a", "datatype": "FP32", "shape": [3], "data": [0, 1, 2]},
                {"name": "b", "datatype": "INT64", "shape": [1], "data": [100]},
            ]
        }
    ).encode()
    bomb = gzip.compress(bytes(64 << 20))

    def ask(url: str) -> None:
        def send(path: str, data: bytes | None, encoding: str) -> tuple[int, Any]:
            made = urllib.request.Request(url + path, data, {"Content-Encoding": encoding})
            try:
                with urllib.request.urlopen(made, timeout=9) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.loads(error.read())["error"]

        infer = "/v2/models/fusion/infer"
        for encoding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
            status, answer = send(infer, packed, encoding)
            assert (status, answer["outputs"][0]["data"]) == (200, [103.0])
            assert send(infer, packed[:-9], encoding)[0] == 400
        for packed, encoding, said in (
            (bomb, "gzip", "the body is larger than"),
            (body, "gzip", "cannot be decompressed"),
            (body, "br", "use gzip or deflate"),
        ):
            status, answer = send(infer, packed, encoding)
            assert (status, said in answer) == (400, True)
        status, said = send("/v2/systemsharedmemory", None, "identity")
        assert (status, "is not served: see /v2/openapi.json" in said) == (404, True)
        assert send("/v2/models/fusion/infer", None, "identity")[0] == 405

    async def play() -> None:
        async with serve_here(CONFIG) as frontend:
            await asyncio.to_thread(ask, f"http://127.0.0.1:{frontend.server.http_port}")

    asyncio.run(play())


def test_rest_tells_configuration_statistics_and_repository() -> None:
    def ask(url: str) -> None:
        def get(path: str) -> Any:
            with urllib.request.urlopen(f"{url}/v2/{path}", timeout=9) as answer:
                return json.loads(answer.read())

        def refused(path: str, body: bytes) -> tuple[int, str]:
            with pytest.raises(urllib.error.HTTPError) as caught:
                post(f"{url}/v2/{path}", body)
            with caught.value as error:
                return error.code, json.loads(error.read())["error"]

        config = get("models/fusion/config")
        assert [each["name"] for each in config["input"]] == ["a", "b", "note"]
        assert config["input"][1] == {
            "name": "b",
            "data_type": "TYPE_INT64",
            "dims": [-1, 1],
            "optional": False,
        }
        assert config["input"][2]["optional"] is True
        assert config["parameters"]["slo_ms"] == {"string_value": "2000"}
        assert get("models/fusion/versions/1/config") == config
        for path in ("models/fusion/stats", "models/fusion/versions/1/stats"):
            (stats,) = get(path)["model_stats"]
            assert (stats["name"], stats["version"], stats["inference_count"]) == ("fusion", "1", 0)
        names = [each["name"] for each in get("models/stats")["model_stats"]]
        assert sorted(names) == ["emulated", "fusion"]
        index = json.loads(post(f"{url}/v2/repository/index", b"")[0])
        assert {"name": "fusion", "version": "1", "state": "READY", "reason": ""} in index
        ready = json.loads(post(f"{url}/v2/repository/index", b'{"ready": true}')[0])
        assert ready == index
        assert refused("repository/index", b'{"ready": 3}') == (
            400,
            "ready=3 is neither true nor false",
        )
        assert refused("repository/index", b"{")[0] == 400
        assert refused("repository/models/none/load", b"")[0] == 404
        code, said = refused("repository/models/fusion/load", b'{"parameters": {"config": "{}"}}')
        assert (code, "the configuration describes models" in said) == (400, True)
        for verb in ("load", "unload"):
            code, said = refused(f"repository/models/fusion/{verb}", b"")
            assert (code, "set repository: open" in said) == (403, True)

    async def play() -> None:
        async with serve_here(CONFIG) as frontend:
            await asyncio.to_thread(ask, f"http://127.0.0.1:{frontend.server.http_port}")

    asyncio.run(play())
