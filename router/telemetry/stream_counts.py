"""Counts of clients' streams, one by one: an application may be well while a stream is not."""

from array import array
from dataclasses import dataclass

from fermata.foundation.units import seconds


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """The window over which streams are counted."""

    half_ns: int = seconds(30)
    """Half of its length."""
    streams_max: int = 10_000
    """Streams counted at one time; those beyond are not."""
    requests_min: int = 5
    """A stream with fewer is not judged."""


WINDOW = StreamWindow()


class Half:
    """Half a window's counts, in arrays: the router's loop counts one by one, and the worst is
    found in all of them at once."""

    __slots__ = ("all", "bad", "clients", "slots", "was")

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        """By client: where its counts are."""
        self.clients: list[int] = []
        self.all = array("q")
        self.bad = array("q")
        self.was = array("q")
        """Place of its counts in the half before; -1: none."""

    def add(self, client: int, was: int) -> int:
        slot = self.slots[client] = len(self.clients)
        self.clients.append(client)
        self.was.append(was)
        self.all.append(0)
        self.bad.append(0)
        return slot


class StreamCounts:
    """(all, bad) of each stream, over the last half to one minute."""

    __slots__ = ("before", "now", "turned_at_ns", "window")

    def __init__(self, window: StreamWindow = WINDOW) -> None:
        self.window = window
        self.now = Half()
        self.before = Half()
        self.turned_at_ns = 0

    def count(self, now_ns: int, client: int, good: bool) -> None:
        window = self.window
        if now_ns - self.turned_at_ns > window.half_ns:
            self._turn(now_ns)
        now = self.now
        slot = now.slots.get(client)
        if slot is None:
            if client == 0 or len(now.slots) >= window.streams_max:
                return
            slot = now.add(client, self.before.slots.get(client, -1))
        now.all[slot] += 1
        if not good:
            now.bad[slot] += 1

    def of(self, client: int) -> tuple[int, int]:
        """(all, bad) of one stream."""
        found = [0, 0]
        for half in (self.now, self.before):
            slot = half.slots.get(client)
            if slot is not None:
                found[0] += half.all[slot]
                found[1] += half.bad[slot]
        return found[0], found[1]

    def _turn(self, now_ns: int) -> None:
        fresh = now_ns - self.turned_at_ns <= 2 * self.window.half_ns
        self.before = self.now if fresh else Half()
        self.now = Half()
        self.turned_at_ns = now_ns

    def worst(self, now_ns: int) -> tuple[int, int, float]:
        """(streams seen, the worst one, its bad rate); (0, 0, 0.0) where there are none."""
        if now_ns - self.turned_at_ns > self.window.half_ns:
            self._turn(now_ns)
        now, before = self.now, self.before
        if not now.clients and not before.clients:
            return 0, 0, 0.0
        import numpy as np

        # Copies: an array with a view cannot grow.
        was = np.array(now.was)
        both = was >= 0
        here = np.flatnonzero(both)
        total = np.concatenate((now.all, before.all))
        bad = np.concatenate((now.bad, before.bad))
        moved = len(was) + was[both]
        for counts in (total, bad):
            counts[here] += counts[moved]
            counts[moved] = 0
        telling = np.flatnonzero(total >= self.window.requests_min)
        if not len(telling):
            return 0, 0, 0.0
        rates = bad[telling] / total[telling]
        worst = int(rates.argmax())
        slot = int(telling[worst]) - len(was)
        client = now.clients[slot] if slot < 0 else before.clients[slot]
        return len(telling), client, float(rates[worst])
