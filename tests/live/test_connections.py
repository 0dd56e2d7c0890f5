"""Connections that are too many, or that take for ever, at a real frontend."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest

pytest.importorskip("uvicorn")

from stand_in import Running, ask, numbers, options, wait_for

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.deployments.specs.frontend import ConnectionLimits, ServerOptions, StreamLimits
from fermata.foundation.units import ms, seconds

pytestmark = pytest.mark.live

MOST = 6
BODY = json.dumps(
    {"inputs": [{"name": "input", "datatype": "FP32", "shape": [4], "data": [0, 1, 2, 3]}]}
).encode()
HEAD = b"POST /v2/models/sum/infer HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n"
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    limits = ConnectionLimits(MOST, MOST - 2, idle_ns=seconds(1), receive_ns=seconds(1))
    server = ServerOptions(
        grpc_port=0,
        http_port=0,
        message_bytes_max=1 << 20,
        drain_ns=ms(500),
        connections=limits,
    )
    streams = StreamLimits(idle_ns_max=seconds(1))
    system = Running(lambda: options(server=server, streams=streams))
    yield system
    system.close()


@pytest.fixture
def nobody_inside(running: Running) -> Iterator[None]:
    yield
    wait_for(lambda: running.frontend.server.gate.total == 0, 15)
    assert not running.frontend.server.gate.addresses


def connect(running: Running, port: int = 0, address: str = "127.0.0.1") -> socket.socket:
    port = port or running.frontend.server.http_port
    return socket.create_connection(("127.0.0.1", port), 10, (address, 0))


def send_until_cut(one: socket.socket, block: bytes, count: int) -> bytes:
    """What comes back while these are sent; it is no good if all of them can be."""
    heard = b""
    for _ in range(count):
        try:
            one.sendall(block)
        except OSError:
            return heard
        with suppress(OSError):
            heard += one.recv(1000, socket.MSG_DONTWAIT)
    raise AssertionError("it was never cut")


def read_all(one: socket.socket) -> bytes:
    """Until the other side ends it."""
    parts = []
    while True:
        try:
            part = one.recv(65536)
        except ConnectionResetError:
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET /v2 HT", HEALTH[:-2], HEAD % len(BODY), HEAD % len(BODY) + BODY[:-1]],
    ids=["nothing", "a path", "headers", "no body", "half a body"],
)
def test_a_request_that_never_ends_is_cut(
    running: Running, nobody_inside: None, begin: bytes
) -> None:
    from_s = time.monotonic()
    with connect(running) as one:
        one.sendall(begin)
        answer = read_all(one)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 1 s" in answer
    assert time.monotonic() - from_s < 5


def test_a_byte_now_and_then_is_not_enough(running: Running, nobody_inside: None) -> None:
    with connect(running) as one:
        one.sendall(HEAD % 10_000)
        one.settimeout(0.2)
        answer = b""
        for _ in range(100):
            one.sendall(b" ")
            with suppress(TimeoutError):
                answer = one.recv(1000)
            if answer:
                break
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_line_ends_between_requests_keep_nothing_open(
    running: Running, nobody_inside: None
) -> None:
    with connect(running) as one:
        one.sendall(HEALTH)
        assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        one.sendall(b"\r\n")
        assert b"HTTP/1.1 408 " in read_all(one)


def test_headers_have_an_end(running: Running, nobody_inside: None) -> None:
    with connect(running) as one:
        one.sendall(HEALTH[:-2])
        header = b"x: " + b"y" * 1000 + b"\r\n"
        send_until_cut(one, header, 100 * ConnectionLimits().head_bytes_max // len(header))


def test_an_answer_that_takes_longer_than_a_request_may_is_waited_for(
    running: Running, nobody_inside: None
) -> None:
    running.stand_in.delay_s = 1.5
    with connect(running) as one:
        one.sendall(HEAD % len(BODY) + BODY)
        assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
    running.stand_in.delay_s = 0.0


def test_connections_are_counted_by_address_and_in_all(
    running: Running, nobody_inside: None
) -> None:
    with ExitStack() as inside:
        first = [inside.enter_context(connect(running)) for _ in range(MOST - 2)]
        wait_for(lambda: running.frontend.server.gate.total == MOST - 2)
        with connect(running) as one:
            answer = read_all(one)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"127.0.0.1 has 4 connections open here" in answer
        for _ in range(2):
            inside.enter_context(connect(running, address="127.0.0.2"))
        wait_for(lambda: running.frontend.server.gate.total == MOST)
        with connect(running, address="127.0.0.3") as one:
            assert read_all(one).startswith(b"HTTP/1.1 503 ")
        # Who is inside is served, and makes room by leaving.
        first[0].sendall(HEALTH)
        assert first[0].recv(1000).startswith(b"HTTP/1.1 200 ")
        first[0].close()
        wait_for(lambda: running.frontend.server.gate.total < MOST)
        with connect(running) as one:
            one.sendall(HEALTH)
            assert one.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_read_is_cut(running: Running, nobody_inside: None) -> None:
    ask_much = b"GET /v2/openapi.json HTTP/1.1\r\nhost: here\r\n\r\n"
    with connect(running) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        one.settimeout(1.0)
        # More than the kernel keeps for the two of them.
        for _ in range(64):
            try:
                one.sendall(ask_much * ((1 << 20) // len(ask_much)))
            except OSError:
                break
        wait_for(lambda: running.frontend.server.gate.total == 0, 15)


# gRPC


def test_whoever_does_not_speak_http2_is_cut(running: Running) -> None:
    from_s = time.monotonic()
    with connect(running, running.frontend.server.grpc_port) as one:
        read_all(one)
    assert time.monotonic() - from_s < 8


def test_grpc_connections_have_a_limit_too(running: Running) -> None:
    port = running.frontend.server.grpc_port
    with ExitStack() as inside:
        for number in range(MOST):
            # Two addresses, neither of which is above its own limit.
            inside.enter_context(connect(running, port, f"127.0.0.{2 + number % 2}"))
        # gRPC takes them in threads of its own, and tells nobody how many it has.
        wait_for(lambda: not is_served(running))
    wait_for(lambda: is_served(running), 10)


def test_one_address_does_not_take_all_grpc_connections(running: Running) -> None:
    port = running.frontend.server.grpc_port
    # Those of the test before would take places of the greedy ones.
    wait_for(lambda: not running.frontend.server.connections.here, 10)
    with ExitStack() as inside:
        greedy = [inside.enter_context(connect(running, port, "127.0.0.9")) for _ in range(MOST)]
        # Those above the limit of the address are cut, and not those before them.
        wait_for(lambda: running.frontend.server.connections.cut["too-many"] >= 2)
        wait_for(lambda: is_served(running), 10)
        assert [is_cut(each) for each in greedy] == [False] * (MOST - 2) + [True] * 2


def is_cut(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        # The server's settings come first.
        while one.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def is_served(running: Running) -> bool:
    try:
        with grpc.insecure_channel(running.target) as channel:
            request = pb.ServerLiveRequest()
            return bool(InferenceStub(channel).ServerLive(request, timeout=1).live)
    except grpc.RpcError:
        return False


def test_an_idle_connection_is_closed_and_opened_anew(running: Running) -> None:
    with grpc.insecure_channel(running.target) as channel:
        states: list[Any] = []
        channel.subscribe(states.append)
        stub = InferenceStub(channel)
        assert numbers(stub.ModelInfer(ask("sum"))) == [6, 0, 3]
        wait_for(lambda: states and states[-1] == grpc.ChannelConnectivity.IDLE, 10)
        assert numbers(stub.ModelInfer(ask("sum"))) == [6, 0, 3]


def test_a_stream_without_a_request_is_ended_and_one_with_an_open_one_is_not(
    running: Running,
) -> None:
    running.stand_in.delay_s = 1.8
    done = threading.Event()

    def requests() -> Iterator[pb.ModelInferRequest]:
        yield ask("sum")
        done.wait(20)

    answers: list[Any] = []
    with grpc.insecure_channel(running.target) as channel:
        call = InferenceStub(channel).ModelStreamInfer(requests())
        with pytest.raises(grpc.RpcError) as caught:
            answers.extend(numbers(answer.infer_response) for answer in call)
        done.set()
    running.stand_in.delay_s = 0.0
    assert answers == [[6, 0, 3]]
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "no request came for 1 s: reconnect" in caught.value.details()
