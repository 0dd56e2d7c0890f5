"""The gRPC server: calls are taken as they come, whatever those before them wait for."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from fermata.deployments.frontend.access.grpc_server import AT_ONCE_BUSY, grpc_server

SERVICE = "test.Service"


class Others(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Knows no further method."""

    def service(self, details: object) -> None:
        return None


def at_once(peer: str, begin: Callable[[], None]) -> None:
    """Let nobody wait."""
    assert peer.startswith("ipv4:127.0.0.1:")
    begin()


async def served(method: str, count: int) -> tuple[int, int, list[grpc.StatusCode]]:
    """Begin calls that hold on: the most between two turns of the loop, all, and ends."""
    release, taken, begun = asyncio.Event(), 0, [0]

    async def hold(messages: object, context: Any) -> bytes:
        nonlocal taken
        taken += 1
        begun[-1] += 1
        await release.wait()
        return b""

    def turn() -> None:
        begun.append(0)
        if not release.is_set():
            asyncio.get_running_loop().call_soon(turn)

    handler = grpc.stream_unary_rpc_method_handler(hold)
    methods = {"Busy": handler, "Rare": handler}
    server = grpc_server([], SERVICE, methods, Others(), "Busy", at_once, prompt=("Rare",))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = [channel.unary_unary(f"/{SERVICE}/{method}")(b"") for _ in range(count)]
        turn()
        while taken < count:
            await asyncio.sleep(0.001)
        release.set()
        ends = [await each.code() for each in calls]
    await server.stop(None)
    return max(begun), taken, ends


def test_all_calls_are_taken_before_any_has_ended() -> None:
    for method in ("Busy", "Rare"):
        most, taken, ends = asyncio.run(asyncio.wait_for(served(method, 300), 30))
        assert taken == 300
        assert ends == [grpc.StatusCode.OK] * 300
        assert 1 < most <= AT_ONCE_BUSY


def test_a_method_that_there_is_not_is_refused_and_ends_nothing() -> None:
    async def test() -> None:
        server = grpc_server([], SERVICE, {}, Others(), "Busy", at_once)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(50):
                call = channel.unary_unary(f"/{SERVICE}/None")(b"")
                assert await call.code() == grpc.StatusCode.UNIMPLEMENTED
        await server.stop(None)

    asyncio.run(test())


def test_calls_wait_in_line_without_having_begun_and_one_that_is_let_go_ends_for_its_client() -> (
    None
):
    async def test() -> list[grpc.StatusCode]:
        line: list[Callable[[], None]] = []
        begun = 0

        async def answer(messages: object, context: Any) -> bytes:
            nonlocal begun
            begun += 1
            return b""

        handler = grpc.stream_unary_rpc_method_handler(answer)
        server = grpc_server(
            [], SERVICE, {"Busy": handler}, Others(), "Busy", lambda _, begin: line.append(begin)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            calls = [channel.unary_unary(f"/{SERVICE}/Busy")(b"") for _ in range(300)]
            while len(line) < 300:
                await asyncio.sleep(0.001)
            assert begun == 0
            line.pop()
            while line:
                line.pop()()
            ends = [await each.code() for each in calls]
        assert begun == 299
        await server.stop(None)
        return ends

    ends = asyncio.run(asyncio.wait_for(test(), 30))
    assert ends.count(grpc.StatusCode.OK) == 299
    assert ends.count(grpc.StatusCode.CANCELLED) == 1
