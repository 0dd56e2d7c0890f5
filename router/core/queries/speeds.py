"""Run times of stages where backends are of several kinds: each backend counts by its speed."""

from collections.abc import Iterable

from fermata.foundation.units import NEVER
from fermata.router.core.costs import VariantCost
from fermata.router.core.engine import Engine
from fermata.router.core.queries.budgets import as_long
from fermata.router.core.queries.flow import Flow


class StageSpeeds:
    """Time is planned with the fastest kind that is there. Backends of the others are worth as much
    less as they take longer, so it does not matter which kind a file names first."""

    __slots__ = ("costs", "room_ns", "sources", "there")

    def __init__(self, engine: Engine) -> None:
        self.costs = engine.costs
        self.sources = engine.sources
        self.there: dict[int, dict[int, int]] = {}
        """By application: its pool's backends, by kind. Empty where all are alike."""
        self.room_ns: dict[int, int] = {}
        """By application: how long its batches may take, beside those of other stages."""

    def look(self, flows: Iterable[Flow]) -> None:
        """See which backends are there, and how much time stages leave each other."""
        kinds = range(len(self.costs.by_kind))
        if len(kinds) == 1:
            return
        self.there, self.room_ns = {}, {}
        for flow in flows:
            for place, stage in enumerate(flow.pipeline.stages):
                application = stage.application
                desk = self.sources[application].desk
                counts = {kind: desk.backends_of_kind(kind) for kind in kinds}
                self.there[application] = {kind: count for kind, count in counts.items() if count}
                others_ns = flow.head_ns[place] + flow.tail_ns[place]
                room_ns = self.room_ns.get(application, NEVER)
                self.room_ns[application] = min(room_ns, flow.pipeline.slo_ns - others_ns)

    def cost(self, application: int, variant: int) -> VariantCost:
        """The costs that time is planned with."""
        return self.costs.of(variant, self._fastest(application, variant))

    def _fastest(self, application: int, variant: int) -> int:
        there = self.there.get(application)
        if not there:
            return 0
        return min(there, key=lambda kind: self.costs.of(variant, kind).p50_ns[1])

    def pace(self, application: int, variant: int, size: int) -> float:
        """Mean time that all backends together take for such a batch, over the planned one. Those
        on which nothing would end in time do no part of it."""
        fastest = self._fastest(application, variant)
        cost = self.costs.of(variant, fastest)
        there = self.there.get(application, {})
        if len(there) < 2:
            return cost.pace(size)
        served = 0.0
        for kind, count in there.items():
            each = self.costs.of(variant, kind)
            room_ns = self.room_ns[application]
            fits = min(size, as_long(each.plan_ns, room_ns))
            if kind == fastest:
                fits = size
            elif each.plan_ns[1] > room_ns:
                continue
            served += count * fits / (each.pace(fits) * each.plan_ns[fits])
        return sum(there.values()) * size / (served * cost.plan_ns[size])
