"""Batches that a deadline leaves room for, where several stages share it."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from fermata.foundation.units import SECOND
from fermata.router.core.costs import NO_ROOM_NS, VariantCost
from fermata.router.core.queries.means import mean_times
from fermata.router.core.queries.pipeline import Pipeline

STEP: Final = 8
"""Batches grow by a part of this many, or by one."""


class StageBudget:
    """The target batch of one application, and the time that it takes of a query's."""

    __slots__ = (
        "cost",
        "lead_ns",
        "makers",
        "mean_ns",
        "other_ns",
        "other_size",
        "pace",
        "plan_ns",
        "quick_ns",
        "rps",
        "share",
        "size",
        "turns",
    )

    def __init__(self, plan_ns: Sequence[int], rps: float = 0.0, turns: int = 1) -> None:
        self.plan_ns = plan_ns
        """Planned run times by batch size; index 0 is unused."""
        self.cost: VariantCost | None = None
        """The costs that these are of; None: they are all that is known."""
        self.mean_ns: Sequence[float] = plan_ns
        """Mean run times by batch size, as of the last choice."""
        self.rps = rps
        """Requests a second."""
        self.turns = turns
        """Runs that a request may have to wait for, its own included. With 1 it waits until its
        batch is full, and finds a backend."""
        self.size = 1
        """The target batch."""
        self.pace = 1.0
        """Mean run times of the target batch over planned ones."""
        self.lead_ns = 0
        """Time beside the run: to reach a backend, and to hand results on to the next stage."""
        self.makers: list[tuple[StageBudget, float]] = []
        """Stages whose results come here, each with the requests that one result makes."""
        self.share = 0.0
        """Part of its requests that another variant serves."""
        self.other_size = 1
        """The target batch of that one."""
        self.other_ns = 0.0
        """Mean backend time of one request in it."""
        self.quick_ns = 0
        """Planned run time of the target batch with the quickest variant; 0: there is one alone."""

    def use(self, cost: VariantCost) -> None:
        """Plan with these costs from now on."""
        self.cost, self.plan_ns = cost, cost.plan_ns

    def restart(self) -> None:
        """Begin to choose the target batch: with one request, by what batches take on average."""
        self.size = 1
        self.mean_ns = self.plan_ns if self.cost is None else mean_times(self.cost)

    @property
    def runs(self) -> bool:
        """Whether backends have room for the target batch: times may be those of another kind or
        memory, since it was chosen."""
        return self.size < len(self.plan_ns) and self.plan_ns[self.size] < NO_ROOM_NS

    @property
    def run_ns(self) -> int:
        """Planned run time of the target batch, and the lead."""
        return self.plan_ns[self.size] + self.lead_ns

    @property
    def least_ns(self) -> int:
        """The same of a batch of one."""
        return self.plan_ns[1] + self.lead_ns

    @property
    def quickest_ns(self) -> int:
        """That of the target batch, with the quickest variant."""
        return self.quick_ns + self.lead_ns if self.quick_ns else self.run_ns

    @property
    def falls(self) -> bool:
        """Whether a quicker variant than the one that serves is left."""
        return 0 < self.quick_ns < self.plan_ns[self.size]

    @property
    def each_ns(self) -> float:
        """Planned backend time of one request in such a batch."""
        return self.plan_ns[self.size] / self.size

    @property
    def work_ns(self) -> float:
        """Mean backend time of one request, whichever variant serves it."""
        each_ns = self.pace * self.each_ns
        return each_ns + self.share * (self.other_ns - each_ns) if self.share else each_ns

    @property
    def fill_ns(self) -> int:
        """Time until such a batch is full."""
        return self._fill_ns(self.size)

    def _fill_ns(self, size: int) -> int:
        # Results of one batch of the stage before come together, and wait for nobody.
        together = min((maker.size * made for maker, made in self.makers), default=1.0)
        awaited = size - max(1.0, together)
        return int(awaited * SECOND / self.rps) if awaited > 0.0 and self.rps > 0.0 else 0

    def needs_ns(self, size: int) -> int:
        """Time from a request's arrival to its end in a batch of that size."""
        if self.turns > 1:
            return self.turns * self.plan_ns[size]
        return self.plan_ns[size] + self._fill_ns(size) + self.lead_ns

    def next_size(self) -> int:
        """The next larger batch to try; the same where none costs less for each request.

        Run times are learnt by octave: one size may seem to cost more for each request than those
        on either side of it. What lies beyond such a step is reached in one go.
        """
        size = larger = self.size
        mean_ns = self.mean_ns
        each_ns = mean_ns[size] / size
        last, cheaper = len(mean_ns) - 1, list[int]()
        while larger < last:
            larger = min(larger + 1 + larger // STEP, last)
            if mean_ns[larger] < larger * each_ns:
                if not cheaper and larger <= size + 1 + size // STEP:
                    return larger
                cheaper.append(larger)
        return max(cheaper, key=self.gain, default=size)

    def gain(self, size: int) -> float:
        """Backend time saved a second by such batches, over the time that they cost a query.

        Deadlines need margins. Backend time does not.
        """
        mean_ns = self.mean_ns
        saved = (self.rps or 1.0) * (mean_ns[self.size] / self.size - mean_ns[size] / size)
        return saved / max(1, self.needs_ns(size) - self.needs_ns(self.size))


Timed = Sequence[tuple[Pipeline, int]]
"""Pipelines, each with the time that its batches may take."""


def fit(pipelines: Timed, budgets: Mapping[int, StageBudget]) -> None:
    """Choose the batches, by application, that need the least backend time and end in time.

    All start with one request. Then the one grows that saves the most backend time for the time
    that it costs a query, while every way through every pipeline is in time. Pipelines that share
    no stage take no time from each other, so each such group is looked at by itself.
    """
    rest = dict(budgets)
    for group in groups_of([pipeline for pipeline, _ in pipelines]):
        some = [pipelines[place] for place in group]
        applications = sorted({each for pipeline, _ in some for each in pipeline.applications})
        _fit(some, {each: rest.pop(each) for each in applications})
    _fit((), rest)


def groups_of(pipelines: Sequence[Pipeline]) -> list[list[int]]:
    """Places of pipelines that share stages, directly or through others."""
    groups: list[tuple[list[int], set[int]]] = []
    for place, pipeline in enumerate(pipelines):
        joined, needs = [place], set(pipeline.applications)
        apart: list[tuple[list[int], set[int]]] = []
        for some, applications in groups:
            if needs.isdisjoint(applications):
                apart.append((some, applications))
            else:
                joined, needs = some + joined, needs | applications
        groups = [*apart, (joined, needs)]
    return [sorted(some) for some, _ in groups]


def _fit(pipelines: Timed, budgets: Mapping[int, StageBudget]) -> None:
    for budget in budgets.values():
        budget.restart()
    while True:
        best: tuple[float, StageBudget, int] | None = None
        for application, budget in budgets.items():
            size = budget.next_size()
            gain = budget.gain(size) if size > budget.size else 0.0
            if gain > (best[0] if best else 0.0) and _fits(pipelines, budgets, application, size):
                best = gain, budget, size
        if best is None:
            return
        best[1].size = best[2]


def _fits(
    pipelines: Timed, budgets: Mapping[int, StageBudget], application: int, size: int
) -> bool:
    """Whether all is in time that runs this application in batches of that size."""
    budget = budgets[application]
    before, budget.size = budget.size, size
    fits = all(
        pipeline.longest_ns(lambda each: budgets[each].needs_ns(budgets[each].size))[0] <= time_ns
        for pipeline, time_ns in pipelines
        if application in pipeline.applications
    )
    budget.size = before
    return fits


def as_long(plan_ns: Sequence[int], run_ns: int) -> int:
    """The largest batch that takes no longer than that; at least one."""
    return max(1, bisect_right(plan_ns, run_ns, lo=1) - 1)
