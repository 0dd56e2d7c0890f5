"""Whole codecs: bytes on the ports of a frontend that serves, with all that reads them there.

An input is a script. It is played on a connection of its own, and then a client that knows how to
ask must be answered as ever. An answer that blames the server, or an error that was logged, breaks
the promise.
"""

import atexit
import logging
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial
from http.client import HTTPConnection
from itertools import islice

import grpc

from fermata.clients.load.http2 import PREFACE, frame
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import SERVICE, STREAM, UNARY
from fermata.deployments.specs.frontend import (
    ConnectionLimits,
    Edge,
    FrontendOptions,
    ServerOptions,
)
from fermata.fault_simulator.fuzzing import seeds
from fermata.fault_simulator.fuzzing.parsers import REGISTRY
from fermata.fault_simulator.fuzzing.stand_in import LINKS, RunningFrontend
from fermata.foundation.logs import LOG
from fermata.foundation.units import ms, seconds

WAIT_S = 8.0
QUIET_S = 0.02
"""A server that says nothing for so long waits for more."""
FRAMES_MAX = 64
BLAME = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
"""Statuses that say that the server broke."""
METHODS = (*UNARY, STREAM, "NoSuchMethod")
RECORD = struct.Struct(">BBBH")
"""A frame in a script: kind, flags, stream and how many bytes follow."""


class ErrorRecorder(logging.Handler):
    """Keeps what was logged as an error, which no stranger should cause."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


class CodecServer:
    """The frontend under test, and a client that is answered whatever others send."""

    def __init__(self, edge: Edge) -> None:
        self.errors = ErrorRecorder()
        for logger in (LOG, logging.getLogger("asyncio"), logging.getLogger("grpc")):
            logger.addHandler(self.errors)
        self.running = RunningFrontend(partial(_options, edge), REGISTRY)
        atexit.register(self.running.close)
        server = self.running.frontend.server
        assert server.native == (edge == "native"), f"edge {edge!r} does not serve"
        self.grpc_port, self.http_port = server.grpc_port, server.http_port
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}")
        self.infer = self.method("ModelInfer")

    def method(self, name: str) -> Callable[..., bytes]:
        """A method that takes and answers bytes."""
        return self.channel.unary_unary(f"/{SERVICE}/{name}")  # type: ignore[no-any-return]

    def check(self) -> None:
        """Ask as clients do, and look for errors."""
        answer = pb.ModelInferResponse.FromString(self.infer(_plain(), timeout=WAIT_S))
        assert answer.outputs, "a plain request has no outputs"
        with closing(HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)) as honest:
            honest.request("GET", "/v2/health/live")
            assert honest.getresponse().status == 200
        said, self.errors.said = self.errors.said, []
        assert not said, said[0]

    def play(self, port: int, data: bytes) -> bytes:
        """Send bytes on a connection of their own; returns what is answered until it is quiet."""
        answer = bytearray()
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
            try:
                connection.sendall(data)
                connection.settimeout(QUIET_S)
                while heard := connection.recv(1 << 16):
                    answer += heard
            except (TimeoutError, ConnectionError):
                pass
        return bytes(answer)


@cache
def _plain() -> bytes:
    """A request that waits as long as a crowded machine needs."""
    request = pb.ModelInferRequest.FromString(seeds.messages()[0])
    request.parameters["timeout"].int64_param = int(WAIT_S * 1e6)
    return request.SerializeToString()


def _options(edge: Edge) -> FrontendOptions:
    # A fuzzer is a flood from one address, which must not be kept out here.
    limits = ConnectionLimits(proxies=frozenset({"127.0.0.1"}), receive_ns=seconds(2))
    server = ServerOptions(
        grpc_port=0,
        http_port=0,
        message_bytes_max=1 << 20,
        drain_ns=ms(100),
        connections=limits,
        edge=edge,
    )
    return FrontendOptions(number=1, node="here", server=server, links=LINKS)


@cache
def server(edge: Edge = "grpc") -> CodecServer:
    """The one of this process, which serves until the process ends."""
    return CodecServer(edge)


def http2(data: bytes, edge: Edge = "grpc") -> None:
    """Frames of HTTP/2. The first byte says whether they are cut right, or sent as they stand."""
    script = data[1:] if data[:1] == b"\x00" else b"".join(islice(_frames(data[1:]), FRAMES_MAX))
    serving = server(edge)
    serving.play(serving.grpc_port, PREFACE + script)
    serving.check()


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + RECORD.size <= len(data):
        kind, flags, stream, size = RECORD.unpack_from(data, at)
        at += RECORD.size
        yield frame(kind, flags, stream, data[at : at + size])
        at += size


def grpc_calls(data: bytes, edge: Edge = "grpc") -> None:
    """A message of any method, as a gRPC client sends it. The first byte names the method."""
    method = METHODS[data[0] % len(METHODS)] if data else "ModelInfer"
    if method.startswith("Repository"):
        # These change what is served.
        return
    serving = server(edge)
    if method == STREAM:
        _stream(serving.channel, data[1:])
    else:
        try:
            serving.method(method)(data[1:], timeout=WAIT_S)
        except grpc.RpcError as error:
            _check_status(error)
    serving.check()


def _stream(channel: grpc.Channel, data: bytes) -> None:
    call = channel.stream_stream(f"/{SERVICE}/{STREAM}")
    try:
        for answer in call(iter((data, _plain())), timeout=WAIT_S):
            pb.ModelStreamInferResponse.FromString(answer)
    except grpc.RpcError as error:
        _check_status(error)


def _check_status(error: grpc.RpcError) -> None:
    assert isinstance(error, grpc.Call)
    assert error.code() not in BLAME, error.details()
    # The client's own clock would give no reason.
    named = any(key == "fermata-reason" for key, _ in error.trailing_metadata() or ())
    assert named or error.code() != grpc.StatusCode.DEADLINE_EXCEEDED, "there was no answer"


def http1(data: bytes) -> None:
    """Bytes on the port of HTTP; what is answered there begins with a status, and blames nobody."""
    answer = server().play(server().http_port, data)
    if answer:
        version, status = answer.split(None, 2)[:2]
        assert version.startswith(b"HTTP/1."), answer[:80]
        assert not 500 <= int(status) <= 502, answer[:200]
    server().check()
