"""Backends of a sub-cluster as its sources see them."""

from collections.abc import Sequence

from fermata.router.core.costs import Costs
from fermata.router.core.events import Apart
from fermata.router.core.lead import Lead
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.lane import Lane
from fermata.router.core.matching.standing import Standing
from fermata.router.core.outbox import Outbox
from fermata.router.core.source import POOL, POOL_ONLY, Source, SourceContext, kind_lane
from fermata.router.core.timers import Timers


class RankView(SourceContext):
    """Answers what sources ask about backends."""

    __slots__ = ("backends", "lanes", "standings", "waits_ns")

    def __init__(self, costs: Costs, timers: Timers, outbox: Outbox, leads: list[Lead]) -> None:
        super().__init__(costs, timers, outbox, leads)
        self.backends: dict[int, BackendState] = {}
        self.lanes: dict[int, Lane] = {POOL: Lane(POOL, costs.swap_in_ns)}
        self.standings: list[dict[int, Standing]] = []
        """By the source's number, then by lane."""
        self.waits_ns: dict[int, float] = {}
        """By the lane of a kind: moving average of how long ripe bids waited there."""

    def free_backends(self, source: Source, lane: int = POOL) -> int:
        free = self.lanes[POOL].free
        return (free & self.standings[source.number][lane].able()).bit_count() if free else 0

    def free_of_kind(self, source: Source, kind: int) -> int:
        pool = self.lanes[POOL]
        able = self.standings[source.number][POOL].able()
        return (pool.free & pool.kinds.get(kind, 0) & able).bit_count()

    def backends_of_kind(self, kind: int) -> int:
        pool = self.lanes[POOL]
        return (pool.up & pool.kinds.get(kind, 0)).bit_count()

    def wait_ns(self, kind: int) -> float:
        return self.waits_ns.get(kind_lane(kind), 0.0)

    def backends_for(self, source: Source) -> int:
        standing = self.standings[source.number][POOL]
        return (standing.lane.up & standing.able()).bit_count()

    def serves(self, source: Source) -> bool:
        if source.owns_backends:
            return source.pool.backends > 0
        return self.backends_for(source) > 0

    def free_at_ns(self, backend: int) -> int:
        return self.backends[backend].free_at_ns

    def resident(self, backend: int) -> frozenset[int] | None:
        return self.backends[backend].resident

    def kind(self, backend: int) -> int:
        return self.backends[backend].kind

    def owner(self, backend: int) -> Source | None:
        return self.backends[backend].owner

    def errors(self, backend: int) -> int:
        return self.backends[backend].errors

    def lanes_of(self, owner: Source | None) -> Sequence[int]:
        if owner is None:
            return POOL_ONLY
        return [each.lane.index for each in self.backends.values() if each.owner is owner]

    def runs_elsewhere(
        self, owner: Source | None, backend: int, variant: int, well: bool = False
    ) -> bool:
        return any(
            each.owner is owner
            and each.backend != backend
            and not each.draining
            and not (well and each.errors)
            and self.runs(each.backend, variant)
            for each in self.backends.values()
        )

    def reaches(self, owner: Source | None, variant: int, apart: Apart) -> bool:
        return any(
            each.owner is owner
            and not each.draining
            and each.backend not in apart.avoid
            and self.runs(each.backend, variant)
            for each in self.backends.values()
        )

    def pool_backends(self, variant: int) -> list[int]:
        return [
            each.backend
            for each in self.backends.values()
            if each.owner is None and not each.draining and self.runs(each.backend, variant)
        ]

    def has_idle(self, owner: Source | None) -> bool:
        return any(
            each.owner is owner and each.running is None and not each.draining
            for each in self.backends.values()
        )
