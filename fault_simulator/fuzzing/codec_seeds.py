"""Scripts that fuzzers of whole codecs begin with."""

import json
import struct

from fermata.clients.load.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    literal,
)
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import SERVICE, STREAM, UNARY
from fermata.fault_simulator.fuzzing import seeds

PRIORITY, PUSH, CONTINUATION = 2, 5, 9


def _record(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">BBBH", kind, flags, stream, len(body)) + body


def _headers(method: str, *more: tuple[str, str]) -> bytes:
    given = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{SERVICE}/{method}"),
        (":authority", "here"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *more,
    )
    return b"".join(literal(name, value) for name, value in given)


def _message(data: bytes, packed: int = 0) -> bytes:
    return struct.pack(">BI", packed, len(data)) + data


def frames() -> list[bytes]:
    """Calls as frames: whole, in parts, reset, and with settings that say otherwise."""
    opening = _record(SETTINGS, 0, 0, b"")
    begin = _record(HEADERS, END_HEADERS, 1, _headers("ModelInfer"))
    message = _message(seeds.messages()[0])
    half = len(message) // 2
    calls = [
        begin + _record(DATA, END_STREAM, 1, message),
        begin + _record(DATA, 0, 1, message[:half]) + _record(DATA, END_STREAM, 1, message[half:]),
        begin + _record(DATA, 0, 1, message[:half]) + _record(RESET, 0, 1, bytes(4)),
        begin + _record(DATA, END_STREAM, 1, _message(seeds.messages()[0], 1)),
        _record(HEADERS, END_HEADERS, 1, _headers(STREAM)) + _record(DATA, END_STREAM, 1, message),
        _record(HEADERS, END_HEADERS | END_STREAM, 1, _headers("ServerLive")),
        _record(HEADERS, 0, 1, _headers("ServerLive")[:40])
        + _record(CONTINUATION, END_HEADERS, 1, _headers("ServerLive")[40:]),
        _record(HEADERS, END_HEADERS, 1, _headers("ModelInfer", ("grpc-timeout", "50m")))
        + _record(DATA, END_STREAM, 1, message),
        _record(HEADERS, END_HEADERS, 1, _headers("ModelInfer", ("grpc-encoding", "gzip")))
        + _record(DATA, END_STREAM, 1, _message(b"\x1f\x8b", 1)),
    ]
    others = [
        _record(PING, 0, 0, bytes(8)),
        _record(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 20)),
        _record(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)),
        _record(GOAWAY, 0, 0, bytes(8)),
        _record(PRIORITY, 0, 1, bytes(5)),
        _record(PUSH, 0, 1, bytes(8)),
    ]
    scripts = [opening + call for call in calls] + [opening + calls[0] + each for each in others]
    return [b"\x01" + each for each in scripts]


def calls() -> list[bytes]:
    """A byte for the method, and its message."""
    methods = list(UNARY)
    infer, stream = methods.index("ModelInfer"), len(methods)
    found = [bytes((infer,)) + each for each in seeds.messages()[:12]]
    found += [bytes((stream,)) + each for each in seeds.messages()[:3]]
    asked = {
        "ModelReady": pb.ModelReadyRequest(name="numbers"),
        "ModelMetadata": pb.ModelMetadataRequest(name="any", version="2"),
        "ModelConfig": pb.ModelConfigRequest(name="numbers"),
        "ModelStatistics": pb.ModelStatisticsRequest(),
    }
    found += [
        bytes((methods.index(name),)) + each.SerializeToString() for name, each in asked.items()
    ]
    return [*found, b"\xff"]


def requests() -> list[bytes]:
    """Requests of HTTP/1.1: reads, bodies whole and in chunks, one behind the other."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [4], "data": [0, 1, 2, 3.5]}
    body = json.dumps({"id": "7", "inputs": [tensor]}).encode()
    infer = b"POST /v2/models/numbers/infer HTTP/1.1\r\nhost: here\r\n"
    sized = infer + b"content-length: %d\r\n\r\n" % len(body) + body
    chunked = infer + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    binary = seeds.bodies()[3]
    size = int.from_bytes(binary[:2], "big")
    head = b"content-length: %d\r\ninference-header-content-length: %d\r\n\r\n"
    paths = ("v2", "v2/health/ready", "v2/models/any/versions/2", "v2/models/numbers/config")
    return [
        sized,
        chunked,
        sized + sized,
        infer.replace(b"numbers", b"stretched") + head % (len(binary) - 2, size) + binary[2:],
        infer + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x8b",
        *(f"GET /{path} HTTP/1.1\r\nhost: here\r\n\r\n".encode() for path in paths),
    ]
