"""Input that is meant to hurt, at a real frontend: refused by name, and nobody else notices."""

import http.client
import json
import resource
import select
import socket
import struct
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import grpc
import numpy as np
import pytest

pytest.importorskip("uvicorn")

from stand_in import Running, ask, numbers, options, picture, wait_for

from benchmarks.attacks.attacker import Aim, Http2, source
from fermata.clients.load.http2 import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    frame,
    length_of,
    literal,
)
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import SERVICE, InferenceStub
from fermata.clients.wire.tensors import from_array
from fermata.deployments.specs.frontend import TableLimits

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    system = Running(options)
    yield system
    system.close()


@pytest.fixture
def stub(running: Running) -> Iterator[InferenceStub]:
    """Afterwards the server still serves, and holds nothing of it."""
    large = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(running.target, options=large) as one:
        yield InferenceStub(one)
        assert numbers(InferenceStub(one).ModelInfer(ask("sum"))) == [6, 0, 3]
    assert running.frontend.hub.table.payload_bytes == 0
    assert running.frontend.hub.driver.decoding == 0


def memory_mb() -> float:
    """The most that this process, server and client, has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def boastful_jpeg(width: int, height: int) -> bytes:
    """100 bytes whose header claims a picture of that size."""
    start = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    frame = b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width)
    frame += b"\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"
    scan = b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00"
    return (start + frame + scan).ljust(98, b"\x00") + b"\xff\xd9"


def test_a_jpeg_of_100_bytes_that_claims_60000_by_60000(
    running: Running, stub: InferenceStub
) -> None:
    huge = boastful_jpeg(60_000, 60_000)
    assert len(huge) == 100
    before_mb = memory_mb()
    for _ in range(20):
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(ask("picture", picture(huge)))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "60000x60000 pixels" in caught.value.details()
    answers = list(stub.ModelStreamInfer(iter([ask("picture", picture(huge))] * 20)))
    assert all("60000x60000 pixels" in each.error_message for each in answers)
    assert memory_mb() - before_mb < 50


def test_a_message_that_grows_a_thousandfold_when_it_is_unpacked(stub: InferenceStub) -> None:
    zeros = ask("large", from_array("input", np.zeros(25_000_000, np.float32)))
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(zeros, compression=grpc.Compression.Gzip)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_bodies_on_their_way_have_memory_for_all_together_alone() -> None:
    """Each is small enough, and none ever ends."""
    system = Running(lambda: options(table=TableLimits(payload_bytes_max=1 << 20)))
    host, port = system.url.removeprefix("http://").split(":")
    head = b"POST /v2/models/sum/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
    clients = [socket.create_connection((host, int(port)), 10) for _ in range(4)]
    for each in clients[:-1]:
        each.sendall(head + b" " * 600_000)
    answered, _, _ = select.select(clients, [], [], 10)
    refusal = http.client.HTTPResponse(answered[0])
    refusal.begin()
    assert refusal.status == 429
    assert json.loads(refusal.read())["reason"] == "memory"
    for each in clients:
        each.close()
    wait_for(lambda: system.frontend.server.rest.receiving_bytes == 0)
    url = f"{system.url}/v2/models/sum/infer"
    assert urllib.request.urlopen(url, f'{{"inputs":[{INPUT}]}}'.encode()).status == 200
    system.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (
            "POST /v2/models/sum/infer HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked",
            400,
        ),
        ("POST /v2/models/sum/infer HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3", 400),
        ("GET /v2 HTTP/1.1\r\nx: a\r\n b", 400),
        ("GET /v2 HTTP/1.1\r\nx : a", 400),
        ("GET /v2 HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket", 200),
        # Where to is the client's own word: nobody is sent there.
        ("GET /v2/ HTTP/1.1\r\nhost: elsewhere", 404),
    ],
)
def test_heads_that_others_would_read_differently(
    running: Running, caplog: pytest.LogCaptureFixture, head: str, status: int
) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(f"{head}\r\n\r\n".encode())
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == status
        assert answer.getheader("location") is None
    # A stranger does not get to write our log.
    assert not caplog.records


INPUT = '{"name": "input", "shape": [4], "datatype": "FP32", "data": [0, 1, 2, 3]}'
BODIES = {
    "nested deeply": '{"inputs":' + "[" * 100_000,
    "data nested deeply": INPUT.replace("[0, 1, 2, 3]", "[" * 900 + "]" * 900),
    "a number of many digits": INPUT.replace("[0,", "[" + "9" * 5000 + ","),
    "a dimension of many digits": INPUT.replace("[4]", "[" + "9" * 4000 + "]"),
    "more elements than memory": INPUT.replace("[4]", "[4000000000, 4000000000]"),
    "half a character in a name": INPUT.replace('"input"', r'"\ud800"'),
    "half a character in an id": r'{"id": "\ud800", "inputs": []}',
    "half a character in a parameter": r'{"parameters": {"\udfff": []}, "inputs": []}',
    "infinite": INPUT.replace("[0,", "[1e999,"),
    "no time": '{"parameters": {"timeout": -9223372036854775808}, "inputs": [' + INPUT + "]}",
}


@pytest.mark.parametrize("size", ["9" * 5000, "-1", "1e3", "99999999", "", "\xb2"])
def test_a_length_of_the_json_that_is_none(
    running: Running, stub: InferenceStub, size: str
) -> None:
    url = f"{running.url}/v2/models/sum/infer"
    headers = {"Inference-Header-Content-Length": size}
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=10)
    assert caught.value.code == 400
    assert json.loads(caught.value.read())["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("case", BODIES)
def test_json_that_is_meant_to_hurt(running: Running, stub: InferenceStub, case: str) -> None:
    text = BODIES[case]
    body = text if text.startswith('{"in') or text.startswith('{"pa') else f'{{"inputs":[{text}]}}'
    url = f"{running.url}/v2/models/sum/infer"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, body.encode()), timeout=10)
    assert caught.value.code == 400
    assert json.loads(caught.value.read())["status"] == "INVALID_ARGUMENT"


def test_messages_of_a_million_parts_are_refused_and_hold_nobody_up(
    running: Running, stub: InferenceStub
) -> None:
    """One field after the other, each empty: protobuf alone would take a second."""
    raw = b"\x2a\x00" * ((1 << 20) // 2 - 100)
    with grpc.insecure_channel(running.target) as channel:
        path = "/inference.GRPCInferenceService/"
        unary = channel.unary_unary(path + "ModelInfer")
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                unary(raw, timeout=10)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "more than 256 parts" in caught.value.details()
        stream = channel.stream_stream(path + "ModelStreamInfer")
        answers = list(stream(iter([raw, ask("sum").SerializeToString()]), timeout=10))
    first, second = (pb.ModelStreamInferResponse.FromString(each) for each in answers)
    assert "more than 256 parts" in first.error_message
    assert numbers(second.infer_response) == [6, 0, 3]


def test_a_large_message_is_served_raw_and_typed_over_both_ways(stub: InferenceStub) -> None:
    values = np.arange(100_000, dtype=np.float32)
    typed = pb.ModelInferRequest(model_name="large")
    tensor = typed.inputs.add(name="input", datatype="FP32", shape=values.shape)
    tensor.contents.fp32_contents.extend(values.tolist())
    wanted = [float(values.sum()), 0.0, 99_999.0]
    both = [ask("large", from_array("input", values)), typed]
    for each in both:
        assert numbers(stub.ModelInfer(each, timeout=10)) == pytest.approx(wanted)
    for answer in stub.ModelStreamInfer(iter(both), timeout=10):
        assert numbers(answer.infer_response) == pytest.approx(wanted)


def test_large_json_is_read_aside_and_holds_nobody_up(
    running: Running, stub: InferenceStub
) -> None:
    """Numbers without end, and one that dies over them: others are answered meanwhile."""
    url = f"{running.url}/v2/models/large/infer"
    count = 100_000
    head = f'{{"inputs": [{{"name": "input", "shape": [{count}], "datatype": "FP32", "data": '
    body = (head + "[" + "1," * (count - 1) + "1]}]}").encode()
    for _ in range(2):
        with urllib.request.urlopen(url, body, timeout=30) as answer:
            assert json.loads(answer.read())["outputs"][0]["data"] == [count, 1, 1]
        process = running.frontend.server.rest.json_process.process
        assert process is not None
        # The next body finds another.
        process.kill()
    for bad in (b'{"inputs":[' + b"{}," * 200_000 + b"{}]}", b"[" * 500_000):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, bad, timeout=30)
        assert caught.value.code == 400
        assert json.loads(caught.value.read())["status"] == "INVALID_ARGUMENT"


def test_every_call_of_a_burst_is_answered_with_a_reason(running: Running) -> None:
    """gRPC itself would cancel some of them at random."""
    with ExitStack() as opened:
        # Connections of their own: one would have calls wait on the client's side.
        own = [("grpc.use_local_subchannel_pool", 1)]
        stubs = [
            InferenceStub(opened.enter_context(grpc.insecure_channel(running.target, own)))
            for _ in range(8)
        ]
        for stub in stubs:
            stub.ModelInfer(ask("sum"), timeout=20)
        calls = [stubs[index % 8].ModelInfer.future(ask("sum")) for index in range(2000)]
        ends = Counter(
            call.code().name
            if call.exception() is None
            else dict(call.trailing_metadata()).get("fermata-reason")
            for call in calls
        )
    assert None not in ends, ends
    assert ends["OK"] > 1000


def test_the_address_of_a_flood_may_not_connect_for_a_while(running: Running) -> None:
    """Others are served meanwhile, and what the flood had sent is not worked on."""
    port = running.frontend.server.grpc_port
    aim = Aim(port, running.frontend.server.http_port, "sum", (4,))
    flood = Http2(aim, number=7)
    with suppress(OSError):
        for _ in range(20_000):
            flood.reset(flood.begin("ModelInfer"))
    flood.close()
    wait_for(lambda: source(7) in running.frontend.server.connections.penalties)
    # The kernel hears of the penalty a moment after it was given.
    wait_for(lambda: not connects(port))
    with grpc.insecure_channel(running.target) as channel:
        assert numbers(InferenceStub(channel).ModelInfer(ask("sum"), timeout=10)) == [6, 0, 3]
    # A look that is under way may still see the flood, and keep it out for another 5 s.
    wait_for(lambda: connects(port), 15.0)


def connects(port: int) -> bool:
    with suppress(TimeoutError):
        socket.create_connection(("127.0.0.1", port), 0.1, (source(7), 0)).close()
        return True
    return False


def test_a_method_whose_name_is_no_text_ends_nothing(running: Running) -> None:
    """One such call of anybody once shut gRPC for all clients, for good."""
    server = running.frontend.server
    aim = Aim(server.grpc_port, server.http_port, "sum", (4,))
    with grpc.insecure_channel(running.target) as channel:
        infer = InferenceStub(channel).ModelInfer
        before = infer(ask("sum"), timeout=10)
        for name in (b"ModelInfer\xe5", b"\xff", b"ModelInfer\x00"):
            odd = Http2(aim)
            odd.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, odd_headers(name)))
            wait_for(odd.read)
            odd.close()
        assert numbers(infer(ask("sum"), timeout=10)) == numbers(before)
        unknown = channel.unary_unary(f"/{SERVICE}/NoSuchMethod")
        with pytest.raises(grpc.RpcError) as caught:
            unknown(b"", timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    server.check()


def odd_headers(name: bytes) -> bytes:
    path = f"/{SERVICE}/".encode() + name
    given = b"".join(
        literal(key, value)
        for key, value in ((":method", "POST"), (":scheme", "http"), (":authority", "here"))
    )
    return given + b"\x00\x05:path" + length_of(path) + path + literal("te", "trailers")
