"""Connections that have been taken, and whose peer has not proven itself yet."""

from typing import Protocol


class Waiting(Protocol):
    """A connection; `turn_out` ends it at once."""

    def turn_out(self) -> None: ...


class Lobby:
    """Bounds their number by cutting the one that has waited longest. A handshake takes
    milliseconds, so that idle strangers keep no peer out."""

    def __init__(self, each_max: int, total_max: int) -> None:
        """`each_max` is the limit for one address, `total_max` for all of them."""
        self.each_max = each_max
        self.total_max = total_max
        self.addresses: dict[Waiting, str] = {}
        """By connection, the oldest first."""
        self.waiting: dict[str, dict[Waiting, None]] = {}
        """By address, the oldest first."""
        self.refused = 0
        """Connections that ended before a proof."""

    def enter(self, link: Waiting, address: str) -> None:
        self.addresses[link] = address
        those = self.waiting.setdefault(address, {})
        those[link] = None
        if len(those) > self.each_max:
            self._turn_out(next(iter(those)))
        elif len(self.addresses) > self.total_max:
            self._turn_out(next(iter(self.addresses)))

    def leave(self, link: Waiting, proven: bool) -> None:
        """Forget a connection that has been proven, or has ended."""
        address = self.addresses.pop(link, None)
        if address is None:
            return
        self.refused += not proven
        those = self.waiting[address]
        del those[link]
        if not those:
            del self.waiting[address]

    def _turn_out(self, link: Waiting) -> None:
        self.leave(link, proven=False)
        link.turn_out()
