"""Emulated backends that start, come up, drain and go, as targets of sub-clusters say."""

from collections.abc import Callable

from fermata.router.core.engine import Engine
from fermata.router.policies.ownership import Ownership


class ScaledBackends:
    """The backends of one engine; each costs from its start to the end of its last batch."""

    def __init__(
        self,
        engine: Engine,
        ownership: Ownership,
        enter: Callable[[int, int], None],
        startup_ns: int,
    ) -> None:
        """`enter` has `on_ready` called at a time for a backend."""
        self.engine = engine
        self.ownership = ownership
        self.enter = enter
        self.startup_ns = startup_ns
        self.members: list[set[int]] = [set() for _ in engine.ranks]
        """Backends that are up, by sub-cluster."""
        self.starting: dict[int, int] = {}
        """The sub-cluster of each backend on its way."""
        self.draining: dict[int, int] = {}
        """The sub-cluster of each backend that ends its last batch."""
        self.allocated_ns = 0
        self.counted_at_ns = 0

    def allocated(self) -> int:
        return sum(map(len, self.members)) + len(self.starting) + len(self.draining)

    def count_time(self, now_ns: int) -> None:
        self.allocated_ns += self.allocated() * (now_ns - self.counted_at_ns)
        self.counted_at_ns = now_ns

    def set_target(self, now_ns: int, rank: int, target: int, load_ns: int) -> None:
        """Have so many in a sub-cluster, where a new one has to load for so long."""
        on_their_way = list(self.starting.values()).count(rank)
        change = target - len(self.members[rank]) - on_their_way
        if change > 0:
            self._start(now_ns, rank, change, load_ns)
        elif change < 0:
            self._release(now_ns, rank, -change)

    def bring_up(self, now_ns: int, backend: int, rank: int) -> None:
        self.count_time(now_ns)
        self.members[rank].add(backend)
        owner = self.ownership.take(backend)
        self.engine.on_backend_up(now_ns, backend, rank=rank, owner=owner)

    def on_ready(self, now_ns: int, backend: int) -> None:
        """A backend is up, unless it was released meanwhile."""
        rank = self.starting.pop(backend, None)
        if rank is not None:
            self.bring_up(now_ns, backend, rank)

    def on_idle(self, now_ns: int, backend: int) -> None:
        """A backend may go once it has ended its last batch."""
        if backend in self.draining and not self.engine.backend(backend).batches():
            self.count_time(now_ns)
            del self.draining[backend]
            self.engine.on_backend_down(now_ns, backend)

    def _start(self, now_ns: int, rank: int, count: int, load_ns: int) -> None:
        self.count_time(now_ns)
        taken = {*self.starting, *self.draining}.union(*self.members)
        backend = 0
        for _ in range(count):
            # The lowest numbers: the rank gathers work there, and the others are idle for long.
            while backend in taken:
                backend += 1
            taken.add(backend)
            self.starting[backend] = rank
            self.enter(now_ns + self.startup_ns + load_ns, backend)

    def _release(self, now_ns: int, rank: int, count: int) -> None:
        """First those that are not up yet, then the highest numbers, which are idle longest, of
        the owners that can spare them."""
        self.count_time(now_ns)
        for backend in sorted(self.starting, reverse=True):
            if count and self.starting[backend] == rank:
                del self.starting[backend]
                count -= 1
        for _ in range(count):
            owner = self.ownership.richest()
            backend = max(
                each for each in self.members[rank] if self.ownership.owner[each] == owner
            )
            self.members[rank].discard(backend)
            self.draining[backend] = rank
            self.ownership.release(backend)
            self.engine.on_drain(now_ns, backend)
            self.on_idle(now_ns, backend)
