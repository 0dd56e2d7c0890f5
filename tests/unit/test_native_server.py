"""The native edge's server, asked by gRPC's own client: the same answers, ends and limits."""

import asyncio
import gzip
import socket
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from fermata.clients.load.http2 import (
    ACK,
    END_HEADERS,
    HEADERS,
    PREFACE,
    RESET,
    SETTINGS,
    frame,
    literal,
)
from fermata.deployments.frontend.access.native_call import (
    inflate,
    spelt,
    timeout_of,
    trailers,
)
from fermata.deployments.frontend.access.native_server import NativeServer, ServedCalls
from fermata.deployments.frontend.edge.build import EDGE
from fermata.deployments.specs.frontend import ConnectionLimits, ServerOptions
from fermata.foundation.units import ms

needs_build = pytest.mark.skipif(
    bool(EDGE.reason_not()), reason="the native edge is not built here"
)
SERVICE = "test.Service"
MESSAGE_MAX = 4 << 20
LARGE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Others(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Knows no further method."""

    def service(self, details: object) -> None:
        return None


class Served:
    """A server with a unary method, a stream, and what they have seen."""

    def __init__(self) -> None:
        self.vain: list[str] = []
        self.ends: list[grpc.StatusCode | None] = []
        self.cancelled = 0
        self.metadata: list[tuple[str, Any]] = []
        self.left_s: list[float | None] = []

    async def one(self, messages: object, context: Any) -> bytes:
        context.add_done_callback(lambda each: self.ends.append(each.code()))
        self.left_s.append(context.time_remaining())
        message = await context.read()
        if message is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no message")
        if message == b"refuse":
            more = (("retry-after-ms", "5"), ("raw-bin", b"\x00\xff"))
            await context.abort(grpc.StatusCode.NOT_FOUND, "100% nöt\nhere", more)
        if message == b"break":
            raise ValueError("broken")
        if message == b"headers":
            self.metadata += context.invocation_metadata()
        if message == b"hang":
            try:
                await asyncio.sleep(60)
            finally:
                self.cancelled += 1
        return bytes(message)

    async def echo(self, messages: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    async def flood(self, messages: object, context: Any) -> None:
        for _ in range(100):
            await context.write(bytes(100_000))

    async def start(self, options: ServerOptions) -> tuple[NativeServer, int]:
        methods = {
            "One": grpc.stream_unary_rpc_method_handler(self.one),
            "Echo": grpc.stream_stream_rpc_method_handler(self.echo),
            "Flood": grpc.stream_stream_rpc_method_handler(self.flood),
        }
        calls = ServedCalls(SERVICE, methods, Others(), lambda _, begin: begin(), self.vain.append)
        server = NativeServer(EDGE.load(EDGE.build()), options, calls, 64 << 20)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port


Test = Callable[[Served, NativeServer, Any], Awaitable[None]]


def serving(test: Test, options: ServerOptions | None = None) -> None:
    """Run a test with a server, and a channel to it."""

    async def run() -> None:
        served = Served()
        given = options or ServerOptions(message_bytes_max=MESSAGE_MAX)
        server, port = await served.start(given)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=LARGE) as channel:
            await test(served, server, channel)
        await server.stop(1)
        assert not server.under_way

    asyncio.run(asyncio.wait_for(run(), 60))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def unary(channel: Any, method: str = "One") -> Any:
    return channel.unary_unary(f"/{SERVICE}/{method}")


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@needs_build
def test_messages_of_all_sizes_come_back() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        one = unary(channel)
        for size in (0, 1, 20_000, 150_528, 300_000, MESSAGE_MAX):
            assert await one(b"x" * size) == b"x" * size
        many = [b"%d" % each for each in range(1000)]
        assert await asyncio.gather(*map(one, many)) == many
        await until(lambda: len(served.ends) == 1006)
        assert set(served.ends) == {grpc.StatusCode.OK}
        assert served.left_s[0] is None

    serving(test)


@needs_build
def test_refusals_reach_the_client_with_their_text_and_metadata() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        error = await refused(unary(channel)(b"refuse"))
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "100% nöt\nhere")
        assert tuple(error.trailing_metadata()) == (
            ("retry-after-ms", "5"),
            ("raw-bin", b"\x00\xff"),
        )
        error = await refused(unary(channel)(b"break"))
        assert error.code() == grpc.StatusCode.UNKNOWN
        assert "broken" in error.details()
        error = await refused(unary(channel, "None")(b""))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
        error = await refused(unary(channel)(bytes(MESSAGE_MAX + 1)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await until(lambda: len(served.ends) == 3)
        assert served.ends[:2] == [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN]

    serving(test)


@needs_build
def test_compressed_messages_are_inflated_up_to_the_limit() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        one = unary(channel)
        for each in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            assert await one(bytes(MESSAGE_MAX), compression=each) == bytes(MESSAGE_MAX)
            error = await refused(one(bytes(MESSAGE_MAX + 1), compression=each))
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

    serving(test)


@needs_build
def test_metadata_and_deadline() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        given = (("authorization", "Bearer abc"), ("raw-bin", b"\x01\xfe"))
        await unary(channel)(b"headers", metadata=given, timeout=50)
        assert set(given) <= set(served.metadata)
        left_s = served.left_s[0]
        assert left_s is not None
        assert 49 < left_s <= 50
        error = await refused(unary(channel)(b"hang", timeout=0.1))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: served.cancelled == 1)

    serving(test)


@needs_build
def test_a_client_that_leaves_ends_its_calls() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        call = unary(channel)(b"hang")
        await until(lambda: len(server.under_way) == 1)
        call.cancel()
        await until(lambda: served.cancelled == 1 and not server.under_way)
        assert served.ends == [None]
        hanging = unary(channel)(b"hang")
        await until(lambda: len(server.under_way) == 1)
        await channel.close(None)
        await until(lambda: served.cancelled == 2 and not server.under_way)
        assert hanging.done()

    serving(test)


@needs_build
def test_a_stream_echoes_and_one_that_is_not_read_holds_its_handler_back() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        call = channel.stream_stream(f"/{SERVICE}/Echo")()
        sent = [b"%d" % each * each for each in range(300)]
        for each in sent:
            await call.write(each)
        await call.done_writing()
        assert [each async for each in call] == sent
        assert await call.code() == grpc.StatusCode.OK
        call = channel.stream_stream(f"/{SERVICE}/Flood")()
        await until(lambda: len(server.under_way) == 1)
        await asyncio.sleep(0.1)
        assert len(server.under_way) == 1
        assert sum([len(each) async for each in call]) == 100 * 100_000

    serving(test)


@needs_build
def test_a_server_that_stops_serves_what_it_has_begun() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        call = channel.stream_stream(f"/{SERVICE}/Echo")()
        await call.write(b"first")
        assert await call.read() == b"first"
        stopping = asyncio.ensure_future(server.stop(10))
        await asyncio.sleep(0.05)
        await call.write(b"second")
        assert await call.read() == b"second"
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK
        await asyncio.wait_for(stopping, 5)

    serving(test)


@needs_build
def test_a_connection_that_is_too_old_goes_and_calls_are_served_on_another() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        began_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began_s + 0.8:
            assert await unary(channel)(b"x") == b"x"
        assert set(served.ends) == {grpc.StatusCode.OK}

    serving(test, ServerOptions(connection_age_ns_max=ms(100)))


@needs_build
def test_connections_that_say_nothing_are_closed_and_more_than_the_limit_are_not_taken() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        assert await unary(channel)(b"x") == b"x"
        assert server._listener is not None
        address = server._listener.getsockname()
        loop = asyncio.get_running_loop()
        silent = [socket.create_connection(address) for _ in range(4)]
        for each in silent:
            each.setblocking(False)
        ends = await asyncio.gather(*(_drained(loop, each) for each in silent))
        # Those beyond the limit had no settings even.
        assert sorted(map(bool, ends)) == [False, False, True, True]
        assert await unary(channel)(b"x") == b"x"

    limits = ConnectionLimits(total_max=3, receive_ns=ms(300))
    serving(test, ServerOptions(connections=limits))


async def _drained(loop: asyncio.AbstractEventLoop, one: socket.socket) -> bytes:
    found = b""
    try:
        while heard := await loop.sock_recv(one, 1 << 16):
            found += heard
    except ConnectionError:
        pass
    one.close()
    return found


@needs_build
def test_calls_that_are_reset_as_soon_as_they_are_begun_are_counted_and_not_begun() -> None:
    async def test(served: Served, server: NativeServer, channel: Any) -> None:
        assert server._listener is not None
        fields = (":method", "POST"), (":scheme", "http"), (":authority", "here")
        fields += ((":path", f"/{SERVICE}/One"), ("content-type", "application/grpc"))
        block = b"".join(literal(name, value) for name, value in fields)
        data = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, ACK, 0, b"")
        for stream in range(1, 101, 2):
            data += frame(HEADERS, END_HEADERS, stream, block) + frame(
                RESET, 0, stream, b"\0\0\0\x08"
            )
        with socket.create_connection(server._listener.getsockname()) as one:
            one.sendall(data)
            await until(lambda: len(served.vain) + len(served.ends) == 50)
            assert served.vain[0] == "ipv4:{}:{}".format(*one.getsockname())

    serving(test)


def test_statuses_as_http2_carries_them() -> None:
    assert spelt("100% ä\n") == b"100%25 %C3%A4%0A"
    found = trailers(grpc.StatusCode.NOT_FOUND, "no", (("a", "b"), ("c-bin", b"\xff")))
    assert found == (
        (b"grpc-status", b"5"),
        (b"grpc-message", b"no"),
        (b"a", b"b"),
        (b"c-bin", b"/w=="),
    )


def test_timeouts_as_clients_write_them() -> None:
    assert timeout_of("5S") == 5_000_000_000
    assert timeout_of("99999999n") == 99_999_999
    for wrong in ("", "S", "5", "-5S", "999999999S", "5x", "٣S", "5 S"):
        assert timeout_of(wrong) is None


def test_what_is_inflated_is_bounded_and_whole() -> None:
    assert inflate(gzip.compress(b"abc"), 31, 3) == b"abc"
    assert inflate(zlib.compress(b"abc"), 15, 2) is None
    for wrong in (b"", b"abc", gzip.compress(b"abc")[:-3]):
        with pytest.raises(zlib.error):
            inflate(wrong, 31, 10)
