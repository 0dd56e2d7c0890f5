"""gRPC's server, whose calls are taken as they come, and which no name of a method can end.

gRPC's own takes one call at a time, and watches all methods for each. Where many calls wait, one of
another client would wait behind them, before anything here knows whose they are. It also decodes
the name of every method that it does not know, on the task that takes all calls. Bytes that are no
text end this task, and with it the server: one call of any client, without a token, would shut out
all others. So every method that there is is registered by name, and has tasks of its own that take
its calls. All other calls are refused here, whatever they ask for.

A call that has been taken costs a quarter of one that has begun. So calls are taken first, and wait
in lines of our own, where those of one client need not be behind those of another.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NoReturn

import grpc
from grpc._cython import cygrpc

UNKNOWN = "/unknown"
"""Stands for the name of any method that there is not."""
AT_ONCE, AT_ONCE_BUSY = 4, 128
"""Calls of one method that are taken between two looks at the sockets; of the busy one."""

LineUp = Callable[[str, Callable[[], None]], None]
"""Takes a call's peer, as gRPC writes it, and a function that begins the call: now or later."""


def grpc_server(
    options: list[tuple[str, int]],
    service: str,
    methods: Mapping[str, grpc.RpcMethodHandler],
    others: grpc.GenericRpcHandler,
    busy: str,
    line_up: LineUp,
    prompt: Collection[str] = (),
) -> Any:
    """An asyncio server with handlers of `service` by name; `others` refuses all other calls.

    Most unary calls are of the method `busy`. Calls begin when `line_up` says so, those of `prompt`
    methods and of unknown ones at once.
    """
    server = grpc.aio.server(options=options)
    loop = asyncio.get_running_loop()
    server._server = core = _CoreServer(loop, None, (), (), tuple(options), None)
    handlers = {f"/{service}/{name}": handler for name, handler in methods.items()}
    core.busy = f"/{service}/{busy}".encode()
    core.prompt = {None, *(f"/{service}/{name}".encode() for name in prompt)}
    core.line_up, core.under_way = line_up, set()
    core.handlers = cygrpc._MethodResolver([others], handlers)
    server.add_registered_method_handlers(service, dict(methods))
    return server


class _CoreServer(cygrpc.AioServer):  # type: ignore[misc]
    """Takes calls of each method apart, several at once."""

    busy: bytes
    handlers: Any
    line_up: LineUp
    prompt: set[bytes | None]
    under_way: set[asyncio.Task[None]]

    def _make_request_call_future(self, method_bytes: bytes | None) -> Any:
        count = AT_ONCE_BUSY if method_bytes == self.busy else AT_ONCE
        return asyncio.gather(*(self._take(method_bytes) for _ in range(count)))

    async def _take(self, method: bytes | None) -> NoReturn:
        """Take calls of a method, or of unknown ones, until gRPC raises that the server ends."""
        name = UNKNOWN if method is None else method.decode()
        while True:
            if method is None:
                state = await self._request_call()
            else:
                state = await self._request_registered_call(method)
            if method in self.prompt:
                self._begin(name, state)
            else:
                self.line_up(_peer_of(state), partial(self._begin, name, state))
            # A call that nobody begins ends with the last that knows it.
            del state

    def _begin(self, name: str, state: Any) -> None:
        """Answer a call in a task of its own."""
        loop = asyncio.get_running_loop()
        answer = cygrpc._handle_rpc(name, self.handlers, (), state, loop, False)
        task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, name))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)


def _peer_of(state: Any) -> str:
    return cygrpc._ServicerContext(state, None, None, None).peer()  # type: ignore[no-any-return]
