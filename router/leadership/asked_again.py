"""Questions to an actor that may have died meanwhile: asked again before an answer has come.

Ray holds a call that met a dead process back for a second and more, though the actor is there again
sooner. A call that is made once it is there gets through at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
EVERY_S = 0.1
TIMES = 20


async def first_answer(
    ask: Callable[[], Awaitable[T]], every_s: float = EVERY_S, times: int = TIMES
) -> T:
    """The first answer or error to a question that is asked so many times, one after the other;
    TimeoutError where there is none. A slow answer to an early one counts too."""
    waiting: set[asyncio.Future[T]] = set()
    try:
        for _ in range(times):
            waiting.add(asyncio.ensure_future(ask()))
            done, waiting = await asyncio.wait(
                waiting, timeout=every_s, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                return each.result()
        raise TimeoutError(f"no answer in {every_s * times:g} s")
    finally:
        for each in waiting:
            each.cancel()
