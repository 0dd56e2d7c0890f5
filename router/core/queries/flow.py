"""A pipeline at work: what is learnt of it, and what follows for its queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from fermata.router.core.queries.budgets import StageBudget
from fermata.router.core.queries.pipeline import FanOut, Pipeline, Stage, visits
from fermata.router.core.rate import RateMeter


@dataclass(frozen=True, slots=True)
class QueryRules:
    """How queries are admitted, and how time is shared among stages."""

    plan_ns: int = 100_000_000
    """How often target batches are chosen anew, at most."""
    planned: int = 8
    """Groups of pipelines whose batches are chosen each time; with more they take turns."""
    room: float = 0.85
    """Part of the SLO that target batches may take, before it is learnt (`rooms.py`)."""
    share_first: float = 0.9
    """The share of the SLO by which a query must be estimated to end, before any has ended."""
    share_min: float = 0.4
    share_max: float = 1.0
    reviewed: int = 32
    """Queries that must have ended before the share is changed."""
    loss_tolerated: float = 0.005
    """Share of the queries on which backend time was spent."""
    shrink: float = 1.0
    """Times the loss, the share shrinks; by no more than the next."""
    shrink_max: float = 0.02
    grow: float = 0.005
    grow_unharmed: float = 0.02
    """It grows by so much where none was lost."""
    waited_tolerated: float = 0.1
    """Of queries that were let in, those that waited and never ran. They cost no backend time, but
    could have been told at once."""
    waited_shared: float = 0.003
    """The same while some yield to others, who would wait in vain with them."""
    cap: float = 1.2
    """The largest batch of a first stage, over the target: more would take the time of others."""
    window: float = 0.9
    """A query in a first stage's queue must leave room for this part of the target batch. It is
    dropped otherwise, before any backend time is spent on it."""


RULES: Final = QueryRules()
MISSED_MEMORY: Final = 0.002
"""Weight of the newest query in the share of those that ended bad."""
TIMES_RARE: Final = 0.1
"""Time is planned for no further round that fewer queries than this part make."""
TIMES_ROOM: Final = 0.7
"""Part of the SLO that rounds which are planned for may take, with batches of one."""


class Flow:
    """One pipeline's queries: their fan-out, rate, stages and fate."""

    __slots__ = (
        "after_ns",
        "called",
        "calls",
        "due_at_ns",
        "fan_outs",
        "good",
        "head_ns",
        "hold",
        "lost",
        "missed",
        "offered",
        "open",
        "path_ns",
        "pipeline",
        "planned",
        "quickest_ns",
        "rate",
        "reached",
        "refused",
        "room",
        "rounds",
        "running",
        "share",
        "tail_ns",
        "times",
        "waited",
        "yielded",
    )

    def __init__(self, pipeline: Pipeline, share: float, room: float = RULES.room) -> None:
        self.pipeline = pipeline
        self.planned = pipeline
        """The graph that time is planned by: a stage that functions call again and again comes as
        often there."""
        stages = pipeline.stages
        self.fan_outs = [[FanOut() for _ in stage.children] for stage in stages]
        """By stage and edge."""
        self.calls = [FanOut() for _ in stages]
        """By stage: calls of a query's function."""
        self.rounds = [FanOut() for _ in stages]
        """By stage: how often a query's function calls it anew, with nothing of it open."""
        self.times = [1] * len(stages)
        """The same in whole numbers, by which time is planned."""
        self.called = [0] * len(stages)
        """By stage: calls that functions have made which have not ended."""
        self.running = 0
        """Functions that have not ended."""
        self.rate = RateMeter()
        """Queries that are let in."""
        self.offered = RateMeter()
        """All queries; counted where variants are chosen."""
        self.reached = [FanOut() for _ in stages]
        """By stage: queries that have had a request there, over all good ones. It is learnt where
        variants are chosen: a stage that nothing came to has made no mistake."""
        self.open = [0] * len(stages)
        """By stage: requests that have not ended."""
        self.after_ns = [0.0] * len(stages)
        """By stage: backend time of all that one request there is expected to make behind it; of
        one call where a function makes them."""
        self.tail_ns = [0] * len(stages)
        """By stage: run times of target batches behind it, on the longest way."""
        self.quickest_ns = [0] * len(stages)
        """The same, with the quickest variants of the stages behind, where its own is the quickest
        there is: whatever has to be quicker, the first stage that can is to be."""
        self.head_ns = [0] * len(stages)
        """By stage: run times of target batches before it, where those behind leave as much."""
        self.hold = [1.0] * len(stages)
        """By stage: the part of the time to spare for which a request may be held there."""
        self.path_ns = 0
        """Run times of target batches on the longest way."""
        self.share = share
        """The share of the SLO by which a query must be estimated to end, as learnt."""
        self.room = room
        """Part of the SLO that target batches may take."""
        self.good = 0
        self.lost = 0
        """Ended bad after backend time was spent on them."""
        self.missed = 0.0
        """Share of the latest queries that ended bad, or were refused."""
        self.waited = 0
        """Were let in and never ran."""
        self.refused = 0
        """Like the three above, since the last review of the share."""
        self.yielded = 0
        """Those that were refused for the sake of other parties, since then."""
        self.due_at_ns = 0

    def visits(self) -> list[float]:
        """By stage: requests of one query there, on average."""
        if self.pipeline.called:
            return [each.mean for each in self.calls]
        return visits(self.pipeline, self.fan_outs)

    def work(self, work_ns: Mapping[int, float]) -> tuple[float, float]:
        """Mean backend time of a query, and its mean square; `work_ns` has that of one request by
        application."""
        stages = self.pipeline.stages
        if self.pipeline.called:
            each_ns = [work_ns[stage.application] for stage in stages]
            calls = list(zip(self.calls, each_ns, strict=True))
            mean = sum((one.mean * each for one, each in calls), 0.0)
            spread = sum((one.variance * each * each for one, each in calls), 0.0)
            return mean, mean * mean + spread
        means, variances = [0.0] * len(stages), [0.0] * len(stages)
        for place in range(len(stages) - 1, -1, -1):
            means[place] = work_ns[stages[place].application]
            for edge, child in enumerate(stages[place].children):
                if not stages[child].join:
                    fan_out = self.fan_outs[place][edge]
                    means[place] += fan_out.mean * means[child]
                    variances[place] += fan_out.mean * variances[child]
                    variances[place] += fan_out.variance * means[child] ** 2
        # A join runs once, however many results come before it.
        once = (0, *self.pipeline.joins)
        mean = sum((means[each] for each in once), 0.0)
        return mean, mean * mean + sum((variances[each] for each in once), 0.0)

    def awaited(self) -> Sequence[float]:
        """By stage: how many times the work behind it (`after_ns`) is expected to come."""
        if not self.pipeline.called:
            return self.open
        expected = [self.running * each.mean for each in self.calls]
        return [max(0.0, a - b) for a, b in zip(expected, self.called, strict=True)]

    def on_calls_end(self, called: Sequence[int], rounds: Sequence[int], learns: bool) -> None:
        """A function has ended that had made so many calls of each stage, in so many rounds. One
        that was lost would have made more of both."""
        self.running -= 1
        for place, count in enumerate(called):
            self.called[place] -= count
            if learns:
                self.calls[place].learn(count)
            # As many rounds as that are known of any. Or none would end well where too few are
            # planned for, and none be learnt from.
            if learns or rounds[place] > self.rounds[place].mean:
                self.rounds[place].learn(rounds[place])

    def unroll(self, budgets: Mapping[int, StageBudget]) -> None:
        """Plan for as many rounds of each stage as functions make. It is there once at least, for
        queries that call it; and no more rounds than could end in time, or none would be let in
        that showed how many there are."""
        stages = self.pipeline.stages
        self.times = [max(1, ceil(each.mean - TIMES_RARE)) for each in self.rounds]
        single_ns = [budgets[each.application].least_ns for each in stages]
        room_ns = TIMES_ROOM * self.pipeline.slo_ns
        left_ns = max(0.0, room_ns - sum(single_ns))
        for place, times in enumerate(self.times):
            more = min(times - 1, int(left_ns / single_ns[place]))
            left_ns -= more * single_ns[place]
            self.times[place] = 1 + more
        places = [place for place, times in enumerate(self.times) for _ in range(times)]
        last = len(places) - 1
        self.planned = Pipeline(
            tuple(
                Stage(stages[place].application, (number + 1,) if number < last else ())
                for number, place in enumerate(places)
            ),
            self.pipeline.slo_ns,
            called=True,
        )

    def demand(self, budgets: Mapping[int, StageBudget]) -> None:
        """Add this pipeline's requests to those of the applications that run its stages."""
        stages = self.pipeline.stages
        counts = self.visits()
        for place, stage in enumerate(stages):
            budget = budgets[stage.application]
            budget.rps += counts[place] * self.rate.rps
            for edge, child in enumerate(stage.children):
                made = self._made(place, edge, counts)
                budgets[stages[child].application].makers.append((budget, made))

    def _made(self, place: int, edge: int, counts: Sequence[float]) -> float:
        """Requests that a result makes on an edge; a join is made by all before it together."""
        if self.pipeline.called:
            return counts[place + 1] / max(1.0, counts[place])
        if self.pipeline.stages[self.pipeline.stages[place].children[edge]].join:
            return 1.0 / max(1.0, counts[place])
        return self.fan_outs[place][edge].mean

    def plan(self, budgets: Mapping[int, StageBudget]) -> None:
        """Take over the target batches."""
        stages = self.pipeline.stages
        counts = self.visits()
        runs_ns = self.planned.longest_ns(lambda each: budgets[each].run_ns)
        fills_ns = self.planned.longest_ns(lambda each: budgets[each].fill_ns)
        quickest_ns = self.planned.longest_ns(lambda each: budgets[each].quickest_ns)
        self.path_ns = runs_ns[0]
        for place in range(len(stages) - 1, -1, -1):
            stage = stages[place]
            budget = budgets[stage.application]
            # Where it comes first.
            at = sum(self.times[:place])
            self.tail_ns[place] = runs_ns[at] - budget.run_ns
            self.head_ns[place] = self.path_ns - runs_ns[at]
            self.hold[place] = budget.fill_ns / fills_ns[at] if fills_ns[at] else 1.0
            self.quickest_ns[place] = self.tail_ns[place]
            if not budget.falls:
                self.quickest_ns[place] = quickest_ns[at] - budget.quickest_ns
            if self.pipeline.called:
                self.after_ns[place] = budget.work_ns
                continue
            self.after_ns[place] = sum(
                self._made(place, edge, counts)
                * (budgets[stages[child].application].work_ns + self.after_ns[child])
                for edge, child in enumerate(stage.children)
            )

    def note_end(self, good: bool) -> None:
        """A query has ended, or was refused."""
        self.missed += MISSED_MEMORY * ((not good) - self.missed)

    def note_reached(self, ended: Sequence[int]) -> None:
        """A query has ended with so many results of each stage."""
        for place, count in enumerate(ended):
            self.reached[place].learn(min(1, count))

    def learn(self, now_ns: int, rules: QueryRules) -> None:
        """Change the share by what has become of queries on which backend time was spent. Estimates
        are never right: it falls while some are lost, and rises while some are refused."""
        ended = self.good + self.lost
        if now_ns < self.due_at_ns or ended < rules.reviewed:
            return
        loss, waited = self.lost / ended, self.waited / (ended + self.waited)
        if loss > rules.loss_tolerated:
            smaller = 1.0 - min(rules.shrink_max, rules.shrink * loss)
            self.share = max(rules.share_min, self.share * smaller)
        elif waited > (rules.waited_shared if self.yielded else rules.waited_tolerated):
            self.share = max(rules.share_min, self.share * (1.0 - rules.grow_unharmed))
        elif self.refused:
            grow = rules.grow if self.lost or self.yielded else rules.grow_unharmed
            self.share = min(rules.share_max, self.share * (1.0 + grow))
        self.good = self.lost = self.waited = self.refused = self.yielded = 0
        # What the share does shows only when queries have ended.
        self.due_at_ns = now_ns + self.pipeline.slo_ns
