"""The true end of a streaming call of grpc.aio."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import grpc

T = TypeVar("T")

WRITE_FAILED = (grpc.StatusCode.INTERNAL, "Internal error from Core")
"""The status that grpc.aio puts in place of a server's after a failed write."""
STATUS_S, STATUS_LOOKS = 1.0, 200
"""How long the server's own status is waited for then, and how often it is looked for."""


class CallStatus:
    """The status with which the server of a call ended it.

    grpc.aio reports a write that fails because the call has ended as an error of its own. That
    error may come before the server's status, which then takes its place, or replace it.
    """

    def __init__(self, call: Any) -> None:
        self.call = call
        self.first: tuple[grpc.StatusCode, str] | None = None
        call.add_done_callback(self._on_done)

    def _on_done(self, call: Any) -> None:
        self.first = _run_now(call.code()), _run_now(call.details())

    async def final(self) -> tuple[grpc.StatusCode, str]:
        """The server's status, once the call has ended."""
        looks = STATUS_LOOKS
        while self.first in (None, WRITE_FAILED) and looks:
            await asyncio.sleep(STATUS_S / STATUS_LOOKS)
            self.first = await self.call.code(), await self.call.details()
            looks -= 1
        assert self.first is not None
        return self.first


def _run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")
