"""Variants of stages: combinations of one for each, from the most accurate down to the cheapest.

The accuracy of a whole pipeline is the product of its stages' accuracies. Each rung of the ladder
exchanges one variant for a cheaper one: the exchange that loses the least accuracy of the whole for
the backend time that it saves. So the rungs lie on the hull of what can be had, and time between
two of them is best used by a mix of both, which differ in one stage alone.
"""

from collections.abc import Mapping, Sequence

from fermata.foundation.units import SECOND
from fermata.router.core.costs import VariantCost
from fermata.router.core.queries.budgets import StageBudget, Timed, as_long, fit
from fermata.router.core.queries.flow import Flow
from fermata.router.core.queries.speeds import StageSpeeds

Choices = Mapping[int, Sequence[tuple[int, float]]]
"""By application: variants with their accuracies, the most accurate first."""
Places = tuple[tuple[int, int], ...]
"""Applications, each with the place of its variant among its choices."""


class Rung:
    """One combination of variants, with its target batches."""

    __slots__ = ("each_ns", "fits", "path_ns", "places", "sizes")

    def __init__(self, places: Mapping[int, int]) -> None:
        self.places = dict(places)
        """By application with a choice."""
        self.sizes: dict[int, int] = {}
        """Target batches, of every application that runs some stage."""
        self.each_ns: dict[int, float] = {}
        """Mean backend time of one request in such a batch."""
        self.path_ns: list[int] = []
        """By pipeline: run times of such batches on the longest way."""
        self.fits = True
        """Whether single requests would end in time."""

    def backends(self, offered: Mapping[int, float]) -> float:
        """Backends that such rates of requests keep busy."""
        return sum(offered[each] * self.each_ns[each] for each in self.each_ns) / SECOND


class Ladder:
    """The rungs, and how they are found."""

    def __init__(
        self, speeds: StageSpeeds, flows: Sequence[Flow], budgets: dict[int, StageBudget]
    ) -> None:
        self.speeds = speeds
        self.flows = flows
        self.budgets = budgets
        self.choices: Choices = {}
        self.rungs: list[Rung] = []
        self.turn = 0
        """The rung whose batches are fitted next, beside the one that serves."""

    def cost(self, application: int, place: int) -> VariantCost:
        """Costs of a choice."""
        return self.speeds.cost(application, self.choices[application][place][0])

    def plan_ns(self, application: int, place: int) -> Sequence[int]:
        """Planned run times of a choice."""
        return self.cost(application, place).plan_ns

    def accuracy(self, flow: Flow, places: Mapping[int, int]) -> float:
        """Accuracy of a whole pipeline with such variants. Stages without a choice count as right,
        and so does a stage that a query has nothing for."""
        found = 1.0
        for stage, reached in zip(flow.pipeline.stages, flow.reached, strict=True):
            if stage.application in places:
                _, accuracy = self.choices[stage.application][places[stage.application]]
                found *= 1.0 - reached.mean * (1.0 - accuracy)
        return found

    def right(self, places: Mapping[int, int]) -> float:
        """Accuracy of a second's queries, all together."""
        return sum((each.offered.rps or 1.0) * self.accuracy(each, places) for each in self.flows)

    def offered(self) -> dict[int, float]:
        """By application: requests a second of all queries, refused ones included. Pipelines whose
        rate is not known yet count with one query."""
        found = dict.fromkeys(self.budgets, 0.0)
        for flow in self.flows:
            counts = flow.visits()
            for stage, count in zip(flow.pipeline.stages, counts, strict=True):
                found[stage.application] += count * (flow.offered.rps or 1.0)
        return found

    # Batches

    def set(self, rung: Rung) -> None:
        """Have the budgets be those of a rung, with its batches."""
        self.use(rung)
        for application, size in rung.sizes.items():
            budget = self.budgets[application]
            budget.size = min(size, len(budget.plan_ns) - 1)
        self.pace(rung)

    def use(self, rung: Rung) -> None:
        """Have the budgets plan with the variants of a rung."""
        for application, place in rung.places.items():
            self.budgets[application].use(self.cost(application, place))

    def pace(self, rung: Rung) -> None:
        """Tell budgets how long the target batches of a rung take on average."""
        for application, place in rung.places.items():
            budget, (variant, _) = self.budgets[application], self.choices[application][place]
            budget.pace = self.speeds.pace(application, variant, budget.size)

    def fit(self, rung: Rung, timed: Timed) -> None:
        """Choose the batches of a rung."""
        budgets = self.budgets
        for budget in budgets.values():
            # Those of another rung may be larger than any that these variants take.
            budget.size = 1
        self.use(rung)
        rung.fits = all(
            pipeline.longest_ns(lambda each: budgets[each].run_ns)[0] <= time_ns
            for pipeline, time_ns in timed
        )
        fit(timed, budgets)
        rung.sizes = {application: each.size for application, each in budgets.items()}
        self.pace(rung)
        rung.each_ns = {
            application: each.pace * each.each_ns for application, each in budgets.items()
        }
        rung.path_ns = [
            flow.planned.longest_ns(lambda each: budgets[each].run_ns)[0] for flow in self.flows
        ]

    def refit(self, serving: int, timed: Timed) -> None:
        """Choose the batches of the rung that serves, and of one other: all in turn."""
        others = [place for place in range(len(self.rungs)) if place != serving]
        if others:
            self.turn = (self.turn + 1) % len(others)
            self.fit(self.rungs[others[self.turn]], timed)
        self.fit(self.rungs[serving], timed)

    # Rungs

    def build(self, choices: Choices, timed: Timed) -> None:
        """Find the rungs anew; those that were there before keep their batches."""
        known = {tuple(each.places.items()): each for each in self.rungs}
        if choices != self.choices:
            known = {}
        self.choices, self.rungs, self.turn = choices, [], 0
        places = dict.fromkeys(choices, 0)
        offered = self.offered()
        while True:
            rung = known.get(tuple(places.items())) or Rung(places)
            if not rung.sizes:
                self.fit(rung, timed)
            self.rungs.append(rung)
            best = self._exchange(rung, offered)
            if best is None:
                return
            places[best[0]] = best[1]

    def _exchange(self, rung: Rung, offered: Mapping[int, float]) -> tuple[int, int] | None:
        """The application, and its cheaper variant, that lose the least for what they save."""
        best: tuple[float, int, int] | None = None
        right = self.right(rung.places)
        for application, place in rung.places.items():
            for cheaper in range(place + 1, len(self.choices[application])):
                saved = offered[application] * self._saved_ns(rung, application, cheaper)
                if saved > 0.0:
                    lost = right - self.right({**rung.places, application: cheaper})
                    if best is None or lost / saved < best[0]:
                        best = lost / saved, application, cheaper
        return None if best is None else best[1:]

    def _saved_ns(self, rung: Rung, application: int, place: int) -> float:
        """Backend time of a request that a cheaper variant saves, in batches that take as long."""
        now_ns, plan_ns = rung.each_ns[application], self.plan_ns(application, place)
        before_ns = self.plan_ns(application, rung.places[application])
        # The fastest kind that is up may be another since, with fewer sizes.
        size = as_long(plan_ns, before_ns[min(rung.sizes[application], len(before_ns) - 1)])
        variant, _ = self.choices[application][place]
        return now_ns - self.speeds.pace(application, variant, size) * plan_ns[size] / size

    def lowest(self, offered: Mapping[int, float]) -> int:
        """The rung with the most accuracy for backend time. Those below are worth nothing: it is
        better to refuse a few queries."""

        def worth(place: int) -> float:
            rung = self.rungs[place]
            return rung.fits * self.right(rung.places) / max(1e-9, rung.backends(offered))

        return max(range(len(self.rungs)), key=worth)
