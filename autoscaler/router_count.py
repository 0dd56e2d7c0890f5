"""The number of sub-clusters, each with a router of its own, that the load needs. Pure.

It follows from R_max as it was learnt, the rates of an epoch, and the memory of a backend, by the
packing that `fermata plan --size` starts from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fermata.autoscaler.readings import ClusterReading
from fermata.partitioner.packing import first_fit
from fermata.partitioner.plan import PlacedModel, SubCluster


@dataclass(frozen=True, slots=True)
class CountRules:
    """How soon the number of sub-clusters changes."""

    grow_after: int = 2
    """Epochs in a row that need more, before any is opened."""
    shrink_after: int = 6
    """Epochs in a row that would do with fewer, before one is closed."""
    loaded_max: float = 0.8
    """Share of R_max that fewer routers may be loaded with."""


RULES: Final = CountRules()


def routers_needed(
    models: Sequence[PlacedModel], place: SubCluster, everywhere_rps: float, count_max: int
) -> int:
    """Fewest sub-clusters like `place` that carry these models, beside a rate that all of them
    share; `count_max` where more would be needed. A model above the rate of one fills one."""
    for count in range(1, count_max):
        limit_rps = place.rate_rps_max - everywhere_rps / count
        if limit_rps > 0.0:
            own = [replace(each, rate_rps=min(each.rate_rps, limit_rps)) for each in models]
            if len(first_fit(own, replace(place, rate_rps_max=limit_rps))) <= count:
                return count
    return count_max


class RouterCount:
    """Opens and closes sub-clusters: the first so many serve, and the others have no backends."""

    def __init__(
        self,
        opened: int,
        routers: int,
        open_max: int,
        backends_max: int | None = None,
        rules: CountRules = RULES,
    ) -> None:
        """So many `routers` run, and `open_max` of them can have something to do. `backends_max` is
        the most that the autoscaler may start. Without one the number of backends is fixed. Then
        sub-clusters stay, and what is needed is only told."""
        self.opened = opened
        self.routers = routers
        self.open_max = open_max
        self.backends_max = backends_max
        self.rules = rules
        self.needed = opened
        """Sub-clusters that the last epoch needs."""
        self.above = self.below = 0
        """Epochs in a row that need more, and that would do with fewer."""
        self.opening: frozenset[int] = frozenset()
        """Those that wait for their first backends."""
        self.left = self.closed
        """Those that were closed when the last epoch began, so that nobody is sent there now."""
        self.more = 0
        """Backends that each open one gets for a sub-cluster which has closed."""

    @property
    def closed(self) -> frozenset[int]:
        return frozenset(range(self.opened, self.routers))

    @property
    def held(self) -> frozenset[int]:
        """Sub-clusters whose backends are not counted by their load: it comes, or leaves."""
        return self.closed | self.opening

    def on_epoch(
        self,
        reading: ClusterReading,
        models: Sequence[PlacedModel],
        place: SubCluster,
        everywhere_rps: float,
        load_cost_max: float | None,
    ) -> None:
        """Count anew. `models` have the rates of the epoch that ends, and `place` has R_max."""
        rules = self.rules
        self.needed = routers_needed(models, place, everywhere_rps, self.open_max)
        eased = replace(place, rate_rps_max=rules.loaded_max * place.rate_rps_max)
        at_ease = routers_needed(models, eased, everywhere_rps, self.open_max)
        self.above = self.above + 1 if self.needed > self.opened else 0
        self.below = self.below + 1 if at_ease < self.opened else 0
        self.opening, self.left = frozenset(), self.closed
        if self.backends_max is None or reading.closed or not reading.targets:
            return
        if self.above >= rules.grow_after:
            self._grow(reading.targets)
        elif self.below >= rules.shrink_after:
            last = set(reading.plan.models_of(self.opened - 1))
            cost = sum(2 * each.load_cost for each in models if each.name in last)
            if load_cost_max is None or cost <= load_cost_max:
                self._shrink(reading.targets)

    def _grow(self, targets: Sequence[int]) -> None:
        """Open as many as are needed and have room for their part of the backends: these come
        before others go."""
        assert self.backends_max is not None
        whole = sum(targets)
        for count in range(self.needed, self.opened, -1):
            part = math.ceil(whole / count)
            if whole + part * (count - self.opened) <= self.backends_max:
                self.opening = frozenset(range(self.opened, count))
                self.opened, self.above = count, 0
                return

    def _shrink(self, targets: Sequence[int]) -> None:
        assert self.backends_max is not None
        self.opened, self.below = self.opened - 1, 0
        part = math.ceil(targets[self.opened] / self.opened)
        if sum(targets) + part * self.opened <= self.backends_max:
            self.more = part

    def targets(self, reading: ClusterReading) -> tuple[int, ...]:
        """Backends of each sub-cluster: those that open get their part, and those that have closed
        lose theirs an epoch later, once nothing lives there. Empty where one is not known."""
        found = list(reading.targets)
        if not found:
            return ()
        part = math.ceil(sum(found) / self.opened)
        for number in range(self.opened):
            found[number] = found[number] or part
        for number in self.left & self.closed:
            if not reading.on_their_way and not reading.plan.models_of(number):
                found[number] = 0
        more, self.more = self.more, 0
        return tuple(
            each + more if number < self.opened else each for number, each in enumerate(found)
        )

    def is_open(self, reading: ClusterReading) -> bool:
        """Whether all that were opened have their backends, so that models can go there."""
        return bool(self.opening) and all(
            number not in reading.closed | reading.bare
            and reading.targets
            and reading.sub_clusters[number].backends >= reading.targets[number]
            for number in self.opening
        )
