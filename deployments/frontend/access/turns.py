"""Turns of clients when more comes than can be worked on: each address in turn."""

import asyncio
from collections import deque

from fermata.foundation.units import ms

SLOT_NS = 600_000
"""Work on the loop that one request is taken for, rather too much. A request that waits in vain
loses one turn of the loop; without turns one client's thousands would go first."""
BACKLOG_NS = ms(12)
"""So much work may have come at once before clients wait for their turns."""
AT_ONCE = 4
"""Requests that begin between two looks of the loop at its sockets, while others wait."""


class Turns:
    """Lets requests through at once while there are few. Beyond that, addresses take turns: one
    that sends thousands waits for itself."""

    def __init__(self) -> None:
        self.free_at_ns = 0
        """When the work that was let through at once will have been done."""
        self.waiting: dict[str, deque[asyncio.Future[None]]] = {}
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

    async def wait(self, address: str) -> None:
        """Wait until the address's turn has come."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self.waiting:
            loop.call_soon(self._give)
        self.waiting.setdefault(address, deque()).append(turn)
        await turn

    def _give(self) -> None:
        given = 0
        while self.waiting and given < AT_ONCE:
            address = next(iter(self.waiting))
            queue = self.waiting.pop(address)
            turn = queue.popleft()
            if queue:
                # Behind all others.
                self.waiting[address] = queue
            if not turn.done():
                turn.set_result(None)
                given += 1
        if self.waiting:
            asyncio.get_running_loop().call_soon(self._give)
