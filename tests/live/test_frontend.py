"""A real frontend on real sockets, with a stand-in for router and backends."""

import importlib.util
import io
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("uvicorn")

from stand_in import Running, ask, jpeg, numbers, options, picture, wait_for

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import (
    RawTensor,
    from_array,
    join_bytes,
    response_tensors,
    to_array,
)
from fermata.deployments.frontend.access.client_ids import client_number
from fermata.deployments.frontend.protocol.rest import LOOP_BYTES_MAX
from fermata.foundation.units import ms
from fermata.router.links.messages import FleetStatus, InputSizeAdvice

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    system = Running(options)
    yield system
    system.close()
    assert not [name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name]


@pytest.fixture(scope="module")
def stub(running: Running) -> Iterator[InferenceStub]:
    with grpc.insecure_channel(running.target) as channel:
        yield InferenceStub(channel)


def test_unary_and_stream_give_the_result_and_what_it_cost(stub: InferenceStub) -> None:
    response = stub.ModelInfer(ask("sum"))
    assert numbers(response) == [6, 0, 3]
    assert response.id == "7"
    assert response.parameters["variant"].string_param == "exact"
    assert response.parameters["batch_size"].int64_param == 1
    assert response.parameters["queue_us"].int64_param > 0
    answers = list(stub.ModelStreamInfer(iter([ask("sum")] * 100)))
    assert [numbers(each.infer_response) for each in answers] == [[6, 0, 3]] * 100


def test_a_batch_dimension_of_one_comes_back_and_labels_on_request(stub: InferenceStub) -> None:
    request = ask("sum", from_array("input", np.arange(4, dtype=np.float32)[None]))
    assert list(stub.ModelInfer(request).outputs[0].shape) == [1, 3]
    wanted = request.outputs.add(name="output")
    wanted.parameters["classification"].int64_param = 2
    tensor = response_tensors(stub.ModelInfer(request))[0]
    assert to_array(tensor).reshape(-1).tolist() == [b"6.000000:0:sum", b"3.000000:2:most"]


def test_pictures_are_decoded_and_large_tensors_pass_through_threads(stub: InferenceStub) -> None:
    red = numbers(stub.ModelInfer(ask("picture", picture(jpeg()))))
    assert red[0] == pytest.approx(32 * 32 * 254 / 255, rel=0.01)
    frame = from_array("input", np.full((48, 64, 3), 51, np.uint8))
    assert numbers(stub.ModelInfer(ask("picture", frame)))[1:] == pytest.approx([0.2, 0.2])
    large = from_array("input", np.ones(200_000, np.float32))
    assert numbers(stub.ModelInfer(ask("large", large)))[0] == 200_000


def test_other_encoded_inputs_are_read_by_a_function_of_the_model(stub: InferenceStub) -> None:
    assert numbers(stub.ModelInfer(ask("letters", picture(b"123")))) == [126, 3, 123]
    with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
        stub.ModelInfer(ask("letters", picture(b"abc")))


def test_a_backend_of_another_node_gets_bytes() -> None:
    system = Running(lambda: options(node="there"))
    with grpc.insecure_channel(system.target) as channel:
        assert numbers(InferenceStub(channel).ModelInfer(ask("sum"))) == [6, 0, 3]
    assert system.stand_in.inline == 1
    system.close()


BAD = {
    "unknown model": (ask("resnet51"), "NOT_FOUND", "'resnet51' is not served here"),
    "wrong shape": (
        ask("sum", from_array("input", np.zeros(5, np.float32))),
        "INVALID_ARGUMENT",
        "takes FP32[4]",
    ),
    "too many rows": (
        ask("sum", from_array("input", np.zeros((1025, 4), np.float32))),
        "INVALID_ARGUMENT",
        "has 1025 rows: send 1 to 1024",
    ),
    "wrong dtype": (
        ask("sum", from_array("input", np.zeros(4, np.int64))),
        "INVALID_ARGUMENT",
        "takes FP32[4]",
    ),
    "wrong name": (
        ask("sum", from_array("x", np.zeros(4, np.float32))),
        "INVALID_ARGUMENT",
        "send 'input'",
    ),
    "truncated JPEG": (
        ask("picture", picture(jpeg()[:300])),
        "INVALID_ARGUMENT",
        "cannot decode the JPEG",
    ),
    "no picture": (ask("picture", picture(b"GIF89a")), "INVALID_ARGUMENT", "no picture"),
    "zero SLO": (ask("sum", timeout=0), "INVALID_ARGUMENT", "set timeout to more than 0"),
    "negative SLO": (ask("sum", timeout=-5), "INVALID_ARGUMENT", "set timeout to more than 0"),
    "NaN": (
        ask("sum", from_array("input", np.array([0, np.nan, 0, 0], np.float32))),
        "INVALID_ARGUMENT",
        "not finite",
    ),
    "lying lengths": (
        ask("picture", RawTensor("input", "BYTES", (1,), struct.pack("<I", 999) + b"abc")),
        "INVALID_ARGUMENT",
        "999 bytes, 3 are left",
    ),
    "overload": (ask("shed"), "RESOURCE_EXHAUSTED", "shed: overload"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_and_the_stream_lives_on(
    stub: InferenceStub, case: str
) -> None:
    request, status, says = BAD[case]
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code().name == status
    assert says in caught.value.details()
    bad, good = sorted(
        stub.ModelStreamInfer(iter([request, ask("sum")])), key=lambda each: not each.error_message
    )
    assert says in bad.error_message
    assert bad.infer_response.id == "7"
    assert bad.infer_response.parameters["status"].string_param == status
    assert numbers(good.infer_response) == [6, 0, 3]


def test_a_picture_is_measured_before_it_is_decoded(stub: InferenceStub, running: Running) -> None:
    huge = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(huge, "PNG")
    with pytest.raises(grpc.RpcError, match="9000x9000 pixels"):
        stub.ModelInfer(ask("picture", picture(huge.getvalue())))


def test_a_message_over_the_limit_is_refused(stub: InferenceStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(ask("large", from_array("input", np.zeros(300_000, np.float32))))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_overload_says_when_to_come_back(stub: InferenceStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(ask("shed"))
    metadata = dict(caught.value.trailing_metadata())
    assert metadata["retry-after-ms"] == metadata["grpc-retry-pushback-ms"] == "70"


def test_silence_ends_by_the_deadline_plus_50_ms(stub: InferenceStub) -> None:
    started_at = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(ask("silent"))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0.1 <= time.monotonic() - started_at < 0.25
    assert "expired" in caught.value.details()


def test_a_client_that_leaves_frees_its_place(running: Running, stub: InferenceStub) -> None:
    call = stub.ModelInfer.future(ask("silent", timeout=20_000_000))
    wait_for(lambda: running.frontend.hub.table.entries)
    (rid,) = running.frontend.hub.table.entries
    call.cancel()
    wait_for(lambda: rid in running.stand_in.cancelled)
    with grpc.insecure_channel(running.target) as channel:
        answers = InferenceStub(channel).ModelStreamInfer(
            iter([ask("silent", timeout=20_000_000)] * 3)
        )
        wait_for(lambda: len(running.frontend.hub.table.entries) == 3)
        answers.cancel()
        wait_for(lambda: not running.frontend.hub.table.entries)
    assert running.frontend.hub.table.payload_bytes == 0


def test_a_stream_that_breaks_mid_message_frees_its_places(running: Running) -> None:
    """A proxy that cuts the connection in the middle of the bytes of a request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def forward() -> None:
        inner = socket.create_connection(("127.0.0.1", running.frontend.server.grpc_port))
        outer, _ = listener.accept()
        back = threading.Thread(target=copy, args=(inner, outer, 1 << 30), daemon=True)
        back.start()
        # Two whole messages of 20 kB and a part of the third.
        copy(outer, inner, 50_000)
        # A close alone ends no connection that another thread reads on.
        inner.shutdown(socket.SHUT_RDWR)
        inner.close()
        outer.close()

    def copy(source: socket.socket, sink: socket.socket, limit: int) -> None:
        try:
            while limit > 0 and (data := source.recv(min(4096, limit))):
                sink.sendall(data)
                limit -= len(data)
        except OSError:
            pass

    thread = threading.Thread(target=forward)
    thread.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    body = from_array("input", np.zeros(20_000, np.uint8))
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
        list(InferenceStub(channel).ModelStreamInfer(iter([ask("bytes", body)] * 3)))
    thread.join()
    listener.close()
    wait_for(lambda: not running.frontend.service.streams)
    assert not running.frontend.hub.table.entries


def test_rest_serves_the_same(running: Running) -> None:
    body = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [4], "data": [0, 1, 2, 3]}]}
    answer = post(running, "/v2/models/sum/infer", json.dumps(body).encode())
    assert answer["outputs"][0]["data"] == [6, 0, 3]
    many = {"name": "input", "datatype": "UINT8", "shape": [20_000], "data": [200] * 20_000}
    large = json.dumps({"inputs": [many]}).encode()
    assert len(large) > LOOP_BYTES_MAX
    assert post(running, "/v2/models/bytes/infer", large)["outputs"]
    assert get(running, "/v2/health/ready") == "ready\n"
    assert json.loads(get(running, "/v2"))["name"] == "fermata"
    assert json.loads(get(running, "/v2/models/sum"))["inputs"][0]["shape"] == [-1, 4]
    image = jpeg()
    element = join_bytes([image])
    header = {
        "inputs": [
            {
                "name": "input",
                "datatype": "BYTES",
                "shape": [1],
                "parameters": {"binary_data_size": len(element)},
            }
        ]
    }
    text = json.dumps(header).encode()
    sizes = {"Inference-Header-Content-Length": str(len(text))}
    assert post(running, "/v2/models/picture/infer", text + element, sizes)["outputs"]
    for path, data, status in (
        ("/v2/models/none/infer", json.dumps(body).encode(), 404),
        ("/v2/models/sum/infer", b"{", 400),
        ("/v2/models/sum/infer", b"[" * 100_000, 400),
        ("/v2/models/shed/infer", json.dumps(body).encode(), 429),
        ("/v2/models/silent/infer", json.dumps(body).encode(), 504),
        ("/v2/models/sum/infer", b" " * (2 << 20), 400),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(running, path, data)
        assert caught.value.code == status
        caught.value.close()


def test_clients_without_a_stream_are_advised(running: Running, stub: InferenceStub) -> None:
    client = client_number("gate", "")
    request = ask("large", fps=10, bandwidth_bps=5_000_000, input_size=160)
    request.parameters["client"].string_param = "gate"
    plain = stub.ModelInfer(ask("large")).parameters
    assert not {"server_us", "input_size"} & set(plain)
    running.frontend.service.driver.on_advice(InputSizeAdvice("large", client, 224, ms(40), True))
    given = stub.ModelInfer(request).parameters
    assert (given["input_size"].int64_param, given["served"].bool_param) == (224, True)
    assert given["network_us"].int64_param == 40_000
    assert given["server_us"].int64_param > 0
    parameters = {"client": "gate", "fps": 10.0, "bandwidth_bps": 5e6, "input_size": 160}
    tensor = {"name": "input", "datatype": "FP32", "shape": [4], "data": [0, 1, 2, 3]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    said = post(running, "/v2/models/large/infer", body)["parameters"]
    assert (said["input_size"], said["network_us"], said["served"]) == (224, 40_000, True)


def test_refusals_of_single_requests_advise_too(running: Running, stub: InferenceStub) -> None:
    """A camera whose frames come too late was never told to send smaller ones."""
    driver = running.frontend.service.driver
    driver.on_advice(InputSizeAdvice("shed", client_number("gate", ""), 128, ms(30), False))
    told = {
        "fermata-input-size": "128",
        "fermata-network-us": "30000",
        "fermata-served": "false",
    }
    request = ask("shed", fps=10, bandwidth_bps=5_000_000, input_size=160)
    for client in ("gate", ""):
        request.parameters["client"].string_param = client
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request)
        trailing = dict(refused.value.trailing_metadata())
        assert {key: trailing.get(key) for key in told} == (told if client else dict.fromkeys(told))
    parameters = {"client": "gate", "fps": 10.0, "bandwidth_bps": 5e6, "input_size": 160}
    tensor = {"name": "input", "datatype": "FP32", "shape": [4], "data": [0, 1, 2, 3]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(running, "/v2/models/shed/infer", body)
    assert {key: caught.value.headers[key] for key in told} == told
    caught.value.close()


def test_who_cannot_be_served_is_told_so(running: Running, stub: InferenceStub) -> None:
    def ready(name: str) -> bool:
        return bool(stub.ModelReady(pb.ModelReadyRequest(name=name)).ready)

    running.call(running.stand_in.tell(FleetStatus(1, 2, ("bytes",))))
    wait_for(lambda: not ready("bytes"))
    assert ready("sum")
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    index = stub.RepositoryIndex(pb.RepositoryIndexRequest())
    assert {each.name for each in index.models if each.state == "UNAVAILABLE"} == {"bytes"}
    running.call(running.stand_in.tell(FleetStatus(1, 0, ("bytes", "sum"))))
    wait_for(lambda: not stub.ServerReady(pb.ServerReadyRequest()).ready)
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    for path in ("/v2/health/ready", "/v2/models/sum/ready"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(running, path)
        assert (caught.value.code, caught.value.read()) == (503, b"no backend is up\n")
    running.call(running.stand_in.tell(FleetStatus(1, 1)))
    wait_for(lambda: stub.ServerReady(pb.ServerReadyRequest()).ready)


def test_description_and_statistics(stub: InferenceStub) -> None:
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name="sum", version="2")).ready
    config = stub.ModelConfig(pb.ModelConfigRequest(name="sum")).config
    assert config.parameters["slo_ms"].string_value == "2000"
    index = stub.RepositoryIndex(pb.RepositoryIndexRequest())
    assert ("sum", "2", "READY") in {(e.name, e.version, e.state) for e in index.models}
    (found,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="sum")).model_stats
    assert found.inference_stats.success.count == found.inference_count > 0
    with pytest.raises(grpc.RpcError) as caught:
        stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="sum"))
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "repository: open" in caught.value.details()


def test_tritonclient_works_unchanged(running: Running) -> None:
    # Not imported here: it brings messages of the same names as ours.
    if importlib.util.find_spec("tritonclient") is None:
        pytest.skip("needs tritonclient, of the dev extra")
    script = Path(__file__).with_name("triton_script.py")
    done = subprocess.run(
        [sys.executable, str(script), running.target], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["unary", "stream", "deadline", "cancel", "refusal", "describe"]
    wait_for(lambda: not running.frontend.hub.table.entries)


def get(running: Running, path: str) -> str:
    with urllib.request.urlopen(running.url + path, timeout=10) as answer:
        return answer.read().decode()


def post(running: Running, path: str, data: bytes, headers: dict[str, str] | None = None) -> Any:
    request = urllib.request.Request(running.url + path, data, headers or {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
