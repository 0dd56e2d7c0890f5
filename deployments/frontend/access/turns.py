"""Turns of clients when more comes than can be worked on: each address in turn."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice

from fermata.foundation.units import ms

SLOT_NS = 600_000
"""Work on the loop that one request is taken for, rather too much. A request that waits in vain
loses one turn of the loop; without turns one client's thousands would go first."""
BACKLOG_NS = ms(12)
"""So much work may have come at once before clients wait for their turns."""
AT_ONCE = 4
"""Requests that begin between two looks of the loop at its sockets, while others wait."""
LOOKED_AT = 64
"""Addresses among which the one with the fewest requests is sought."""

Begin = Callable[[], bool]
"""Begins a request whose turn has come; returns whether there was still anything to begin."""


class Turns:
    """Lets requests through at once while there are few. Beyond that, addresses take turns: one
    that sends thousands waits for itself.

    Every other turn goes to an address with few requests. One that needs more turns than the
    others, and has not sent more than there is time for, then keeps up with what it sends.
    """

    def __init__(self) -> None:
        self.free_at_ns = 0
        """When the work that was let through at once will have been done."""
        self.waiting: dict[str, deque[Begin]] = {}
        """By address, in the order of their turns."""

    def is_free(self, now_ns: int) -> bool:
        """Whether a request may go on at once; it has taken its turn then."""
        if self.waiting:
            return False
        free_at_ns = max(self.free_at_ns, now_ns)
        if free_at_ns - now_ns > BACKLOG_NS:
            return False
        self.free_at_ns = free_at_ns + SLOT_NS
        return True

    def add(self, address: str, begin: Begin) -> None:
        """Begin a request when the address's turn has come."""
        if not self.waiting:
            asyncio.get_running_loop().call_soon(self._give)
        self.waiting.setdefault(address, deque()).append(begin)

    async def wait(self, address: str) -> None:
        """Wait until the address's turn has come."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(address, partial(_end_wait, turn))
        await turn

    def _give(self) -> None:
        given = 0
        while self.waiting and given < AT_ONCE:
            address = next(iter(self.waiting)) if given % 2 else self._smallest()
            queue = self.waiting.pop(address)
            begin = queue.popleft()
            if queue:
                # Behind all others.
                self.waiting[address] = queue
            given += begin()
        if self.waiting:
            asyncio.get_running_loop().call_soon(self._give)

    def _smallest(self) -> str:
        """The address with the fewest requests among the next ones."""
        waiting = self.waiting
        return min(islice(waiting, LOOKED_AT), key=lambda address: len(waiting[address]))


def _end_wait(turn: asyncio.Future[None]) -> bool:
    if turn.done():
        return False
    turn.set_result(None)
    return True
