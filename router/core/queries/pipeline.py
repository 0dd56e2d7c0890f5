"""A pipeline: a graph of stages, each an application of the router."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline."""

    application: int
    """Number of the application that runs it; pipelines and direct requests may share it."""
    children: tuple[int, ...] = ()
    """Places of the stages that its results go to, all behind its own."""
    join: bool = False
    """It runs once for a query, when everything before it has ended."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in order; queries enter at the first one."""

    stages: tuple[Stage, ...]
    slo_ns: int
    partial: bool = False
    """A lost part leaves a gap in the answer; without it, the whole query is lost."""
    called: bool = False
    """A function calls its stages, any of them at any time, and says when a query has ended. Those
    that are chained here tell the order in which it usually does so, by which time is planned."""
    newest: bool = False
    """A new query of a stream takes the place of an older one of which nothing has run."""
    before: tuple[frozenset[int], ...] = field(init=False)
    """By stage: all stages whose requests end before a join here."""
    joins: tuple[int, ...] = field(init=False)
    """Places of the stages that run once for a query."""

    def __post_init__(self) -> None:
        found: list[set[int]] = [set() for _ in self.stages]
        for place, stage in enumerate(self.stages):
            assert all(place < child < len(self.stages) for child in stage.children)
            for child in stage.children:
                found[child] |= {place, *found[place]}
        assert all(found[1:]), "a stage is out of reach"
        joins = tuple(place for place, stage in enumerate(self.stages) if stage.join)
        assert 0 not in joins, "nothing comes before the first stage"
        assert not (self.called and joins), "a function waits for what it likes"
        object.__setattr__(self, "before", tuple(map(frozenset, found)))
        object.__setattr__(self, "joins", joins)

    @property
    def applications(self) -> frozenset[int]:
        """Every application that runs some stage of it."""
        return frozenset(stage.application for stage in self.stages)

    def follows(self, place: int) -> bool:
        """Whether results of a stage are handed on to others."""
        return bool(self.stages[place].children) and not self.called

    def due_joins(self, open_: Sequence[int], ended: Sequence[int]) -> list[int]:
        """Joins that nothing is awaited for, and that have not begun; both by stage: requests that
        have not ended, and those that have."""
        found: list[int] = []
        for place in self.joins:
            before = self.before[place]
            due = not open_[place] and not ended[place] and before.isdisjoint(found)
            if due and not any(open_[each] for each in before):
                found.append(place)
        return found

    def longest_ns(self, needs_ns: Callable[[int], int]) -> list[int]:
        """By stage: the longest way from there to the end, where applications need so long."""
        found = [0] * len(self.stages)
        for place in range(len(self.stages) - 1, -1, -1):
            stage = self.stages[place]
            rest_ns = max((found[child] for child in stage.children), default=0)
            found[place] = needs_ns(stage.application) + rest_ns
        return found


class FanOut:
    """Requests that one result of a stage makes at another stage: their mean, as learnt."""

    __slots__ = ("count", "mean", "square", "weight")

    def __init__(self, mean: float = 1.0, weight: float = 0.005) -> None:
        self.mean = mean
        self.square = mean * mean
        """Mean of the squares."""
        self.weight = weight
        """Weight of the newest result: a memory of some hundred results."""
        self.count = 0

    def learn(self, made: int) -> None:
        """One more result has made so many."""
        self.count += 1
        # Young means are plain ones, or the first result would be believed for long.
        weight = max(self.weight, 1.0 / self.count)
        self.mean += weight * (made - self.mean)
        self.square += weight * (made * made - self.square)

    @property
    def variance(self) -> float:
        """How far results differ."""
        return max(0.0, self.square - self.mean * self.mean)


def visits(pipeline: Pipeline, fan_outs: Sequence[Sequence[FanOut]]) -> list[float]:
    """By stage: requests of one query there, on average."""
    found = [0.0] * len(pipeline.stages)
    found[0] = 1.0
    for place, stage in enumerate(pipeline.stages):
        if stage.join:
            found[place] = 1.0
        for edge, child in enumerate(stage.children):
            found[child] += found[place] * fan_outs[place][edge].mean
    return found
