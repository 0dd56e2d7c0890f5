"""How clients' streams fare, one by one: an application that is well may have one that is not."""

from router.core.units import seconds

HALF_NS = seconds(30)
STREAMS_MAX = 10_000
"""Counted at one time; streams beyond that are not."""
REQUESTS_MIN = 5
"""A stream with fewer says nothing."""


class StreamCounts:
    """(all, bad) of each stream, over the last half to one minute."""

    __slots__ = ("before", "now", "turned_at_ns")

    def __init__(self) -> None:
        self.now: dict[int, list[int]] = {}
        self.before: dict[int, list[int]] = {}
        self.turned_at_ns = 0

    def count(self, now_ns: int, client: int, good: bool) -> None:
        if now_ns - self.turned_at_ns > HALF_NS:
            self._turn(now_ns)
        counts = self.now.get(client)
        if counts is None:
            if client == 0 or len(self.now) >= STREAMS_MAX:
                return
            counts = self.now[client] = [0, 0]
        counts[0] += 1
        if not good:
            counts[1] += 1

    def _turn(self, now_ns: int) -> None:
        fresh = now_ns - self.turned_at_ns <= 2 * HALF_NS
        self.before = self.now if fresh else {}
        self.now = {}
        self.turned_at_ns = now_ns

    def worst(self, now_ns: int) -> tuple[int, int, float]:
        """(streams seen, the worst one, its bad rate); (0, 0, 0.0) where there are none."""
        if now_ns - self.turned_at_ns > HALF_NS:
            self._turn(now_ns)
        found, client, rate = 0, 0, 0.0
        for each in self.now.keys() | self.before.keys():
            all_now, bad_now = self.now.get(each, (0, 0))
            all_before, bad_before = self.before.get(each, (0, 0))
            total = all_now + all_before
            if total < REQUESTS_MIN:
                continue
            found += 1
            bad = (bad_now + bad_before) / total
            if bad > rate or client == 0:
                client, rate = each, bad
        return found, client, rate
