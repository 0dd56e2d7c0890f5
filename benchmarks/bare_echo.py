"""CPU time that a server of gRPC alone takes for a streamed message: no frontend goes below it.

Python's own, and the native edge where it is built (`make edge`).

Boxes differ, so CPU times of a server mean something only beside this one's.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import grpc
import uvloop

from benchmarks.figures import Figure, run_parts
from fermata.deployments.extensions import ExtensionError
from fermata.deployments.frontend.access.native_server import NativeServer, ServedCalls
from fermata.deployments.frontend.edge.build import EDGE
from fermata.deployments.specs.frontend import ServerOptions
from fermata.foundation.process_memory import keep_freed_memory

SIZES = {"pixels": 150_528, "small": 20_000}
PARTS = {"pixels": "messages of 150 KB", "small": "messages of 20 KB"}
KINDS = {"grpc": "grpc.aio", "native": "native edge"}
ANSWER = bytes(4_100)
"""Scores of a thousand classes."""
SENDERS, STREAMS, RATE_RPS = 4, 8, 400
"""Processes, and streams and messages a second of each."""
METHOD = "Send"
SERVICE = "benchmarks.Echo"
WARMUP_S = 1.5
OPTIONS = (("grpc.max_receive_message_length", 1 << 24),)


async def _answer(_: object, context: grpc.aio.ServicerContext) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(ANSWER)
        Served.count += 1


class Served:
    """Messages that this process has answered."""

    count = 0


def _server(kind: str) -> Any:
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(_answer)}
    others = grpc.method_handlers_generic_handler(SERVICE, handlers)
    if kind == "native":
        calls = ServedCalls(SERVICE, handlers, others, lambda _, begin: begin(), lambda _: None)
        return NativeServer(EDGE.load(), ServerOptions(), calls, 512 << 20)
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((others,))
    return server


async def _serve(pipe: Connection, length_s: float, kind: str) -> None:
    server = _server(kind)
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await asyncio.sleep(WARMUP_S)
    count, cpu_s = Served.count, time.process_time()
    await asyncio.sleep(length_s)
    pipe.send((Served.count - count, time.process_time() - cpu_s))
    # Until it is ended: senders that lose it first would complain.
    await asyncio.Event().wait()


def serve(pipe: Connection, length_s: float, kind: str) -> None:
    # As frontends do.
    keep_freed_memory()
    uvloop.run(_serve(pipe, length_s, kind))


async def _stream(channel: grpc.aio.Channel, data: bytes, first: float, end: float) -> None:
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
    due = first
    while due < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await call.write(data)
        await call.read()
        due += STREAMS / RATE_RPS
    call.cancel()


async def _send(port: int, size: int, length_s: float) -> None:
    now = time.monotonic()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        streams = (
            _stream(channel, bytes(size), now + place / RATE_RPS, now + length_s)
            for place in range(STREAMS)
        )
        await asyncio.gather(*streams)


def send(port: int, size: int, length_s: float) -> None:
    uvloop.run(_send(port, size, length_s))


def message_us(size: int, length_s: float, kind: str) -> tuple[float, float]:
    """CPU time of one, and how many there were a second."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there, length_s, kind), daemon=True)
    server.start()
    port = here.recv()
    given = (port, size, WARMUP_S + length_s)
    senders = [context.Process(target=send, args=given, daemon=True) for _ in range(SENDERS)]
    for each in senders:
        each.start()
    count, cpu_s = here.recv()
    for each in (*senders, server):
        each.terminate()
        each.join()
    return 1e6 * cpu_s / max(1, count), count / length_s


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    for part in parts:
        for kind in _kinds():
            found_us, rps = message_us(SIZES[part], 2.0 if quick else 6.0, kind)
            name = f"bare {KINDS[kind]}, {PARTS[part]} at {rps:,.0f} a second"
            yield Figure(name, found_us, "us of CPU each", 0)


def _kinds() -> tuple[str, ...]:
    try:
        EDGE.load()
    except ExtensionError:
        return ("grpc",)
    return tuple(KINDS)


if __name__ == "__main__":
    run_parts("A server of gRPC alone", measure, PARTS)
