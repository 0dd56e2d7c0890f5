"""gRPC's server, which no name of a method can end.

gRPC's own decodes the name of every method that it does not know, on the task that takes all calls.
Bytes that are no text end this task, and with it the server: one call of any client, without a
token, would shut out all others. So every method that there is is registered by name, and gRPC need
not decode it. All other calls are refused here, whatever they ask for.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn

import grpc
from grpc._cython import cygrpc

UNKNOWN = "/unknown"
"""Stands for the name of any method that there is not."""


def grpc_server(
    options: list[tuple[str, int]],
    service: str,
    methods: Mapping[str, grpc.RpcMethodHandler],
    others: grpc.GenericRpcHandler,
) -> Any:
    """An asyncio server with handlers of `service` by name; `others` refuses all other calls."""
    server = grpc.aio.server(options=options)
    loop = asyncio.get_running_loop()
    server._server = core = _CoreServer(loop, None, (), (), tuple(options), None)
    core.others = cygrpc._MethodResolver([others], {})
    server.add_registered_method_handlers(service, dict(methods))
    return server


class _CoreServer(cygrpc.AioServer):  # type: ignore[misc]
    """Keeps calls of unknown methods from the task that takes all calls."""

    others: Any

    def _make_request_call_future(self, method_bytes: bytes | None) -> Any:
        if method_bytes is not None:
            return super()._make_request_call_future(method_bytes)
        return asyncio.get_running_loop().create_task(self._answer_others())

    async def _answer_others(self) -> NoReturn:
        """Answer calls of unknown methods, until gRPC raises that the server ends."""
        loop, under_way = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        while True:
            state = await self._request_call()
            answer = cygrpc._handle_rpc(UNKNOWN, self.others, (), state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, UNKNOWN))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
