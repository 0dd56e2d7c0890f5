"""The variants that stages serve now: a place on the ladder, by load and by who waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from fermata.router.core.engine import Engine
from fermata.router.core.queries.budgets import StageBudget, Timed, as_long
from fermata.router.core.queries.flow import Flow
from fermata.router.core.queries.ladder import Ladder, Rung
from fermata.router.core.queries.speeds import StageSpeeds


@dataclass(frozen=True, slots=True)
class VariantRules:
    """How far down the ladder stages go, and when."""

    usable_min: float = 0.1
    usable_max: float = 1.2
    """Part of the backends' time that is planned with: between these, as learnt. It may be above 1,
    since batches beyond the target take less time for each request."""
    more: float = 0.005
    less: float = 0.01
    less_max: float = 0.1
    """It grows and shrinks by so much; where many were lost, by their share, up to the last."""
    pressed_min: float = 0.02
    pressed_max: float = 0.15
    """Share of queries that find too much waiting: below the first more time is planned with, and
    above the second less."""
    build_ns: int = 1_000_000_000
    """How often the rungs are found anew, at most."""
    begin_min: float = 0.7
    begin_max: float = 1.0
    """Estimated ends, over what the door allows, from which on cheaper variants serve: between
    these, as learnt."""
    shrink: float = 0.03
    """It falls by so much where queries were lost that cheaper variants might have saved."""
    grow: float = 0.003
    """It rises by so much where none was."""
    loss_tolerated: float = 0.004
    """Share of the queries."""
    pull: float = 1.0
    """Times what ends are estimated above that, less backend time is planned with."""
    limit: float = 1.0
    width: float = 0.15
    """From this one on the way to the cheapest is shorter, and so much later they serve."""
    near: float = 0.12
    """A rung that is planned to be as near is served alone."""
    steps: int = 32
    """Between two rungs."""
    stay_ns: int = 10_000_000
    """Nothing better is served for so long after the last change."""


RULES: Final = VariantRules()


class StageVariants:
    """Chooses a variant for each stage that has several, or a mix of two."""

    def __init__(
        self,
        engine: Engine,
        flows: list[Flow],
        budgets: dict[int, StageBudget],
        speeds: StageSpeeds,
        rules: VariantRules = RULES,
    ) -> None:
        self.engine = engine
        self.flows = flows
        self.budgets = budgets
        self.speeds = speeds
        self.rules = rules
        self.ladder = Ladder(speeds, flows, budgets)
        self.build_at_ns = -1
        self.place = 0.0
        """Where it is on the ladder; between two rungs, a mix of both is served."""
        self.planned = 0.0
        """Where it is while nobody waits for long."""
        self.usable = 1.0
        """Part of the backends' time that is planned with."""
        self.presses = self.pressed = 0
        """Queries since the last plan, and those among them that found it too full."""
        self.begin = rules.begin_max
        """Estimated ends, over what the door allows, from which on cheaper variants serve."""
        self.ends = self.losses = 0
        """Queries since the last plan, that have ended while something cheaper was left."""
        self.lowest = 0
        """The rung below which refusing queries loses less."""
        self.changed_at_ns = 0
        self.offered: dict[int, float] = {}
        self.first = 0
        """The most accurate rung that leaves time for its runs."""
        self.needs: list[float] = [0.0]
        """By rung, down to the lowest: backends that all queries would need."""
        self.there = 0.0
        """Backends that are there."""

    def choices(self) -> dict[int, tuple[tuple[int, float], ...]]:
        """Variants of applications that leave a choice, as their policies tell. Where some have to
        be swapped in, changing them batch by batch would cost more than it saves."""
        sources, swapped = self.engine.sources, self.engine.costs.swap_in_ns.keys()
        found = {each: sources[each].choices for each in self.budgets if sources[each].choices}
        return {
            application: choices
            for application, choices in found.items()
            if swapped.isdisjoint(variant for variant, _ in choices)
        }

    def plan(self, now_ns: int, timed: Timed) -> bool:
        """Choose anew what to serve, and the batches; false where there is nothing to choose."""
        choices = self.choices()
        if not choices:
            return False
        ladder = self.ladder
        if now_ns >= self.build_at_ns or choices != ladder.choices:
            self.build_at_ns = now_ns + self.rules.build_ns
            ladder.build(choices, timed)
        ladder.refit(min(int(self.place + 0.5), len(ladder.rungs) - 1), timed)
        self.offered = ladder.offered()
        self.lowest = ladder.lowest(self.offered)
        self.place = min(self.place, self.lowest)
        self._learn()
        rungs = ladder.rungs[: self.lowest + 1]
        self.first = next((at for at, rung in enumerate(rungs) if rung.fits), self.lowest)
        self.needs = [rung.backends(self.offered) for rung in rungs]
        self.there = float(self._backends())
        self.planned = self._near(self._place_for(self.usable * self.there))
        self._move(now_ns, self.planned)
        self.serve()
        return True

    def _place_for(self, there: float) -> float:
        """The highest place whose work so many backends can do."""
        needs, first = self.needs, self.first
        if needs[first] <= there:
            return first
        for place in range(first, self.lowest):
            if needs[place + 1] <= there:
                return place + (needs[place] - there) / max(1e-9, needs[place] - needs[place + 1])
        return self.lowest

    def _near(self, place: float) -> float:
        """The place, or a rung that is near: a mix has some batches that are less efficient."""
        rung = int(place + 0.5)
        return float(rung) if abs(place - rung) < self.rules.near else place

    def on_end(self, good: bool) -> None:
        """A query has ended, or was refused."""
        if self.place < self.lowest:
            self.ends += 1
            self.losses += not good

    def _learn(self) -> None:
        """Change when to fall, by what has become of queries."""
        rules = self.rules
        lossy = self.losses > rules.loss_tolerated * self.ends
        if lossy:
            self.begin = max(rules.begin_min, self.begin - rules.shrink)
        elif self.ends:
            self.begin = min(rules.begin_max, self.begin + rules.grow)
        if self.presses and self.planned > self.first:
            if lossy or self.pressed > rules.pressed_max * self.presses:
                # With the cheapest there is nothing left to plan with less for.
                if self.planned < self.lowest:
                    lost = self.losses / max(1, self.ends)
                    less = min(rules.less_max, max(rules.less, lost))
                    self.usable = max(rules.usable_min, self.usable * (1.0 - less))
            elif self.pressed < rules.pressed_min * self.presses:
                # To plan with less than the cheapest take changes nothing, but for how long the
                # way back is.
                usable = max(self.usable, self.needs[-1] / max(1.0, self.there))
                self.usable = min(rules.usable_max, usable * (1.0 + rules.more))
        self.ends = self.losses = 0
        self.presses = self.pressed = 0

    def _backends(self) -> int:
        pools = {self.engine.sources[each].pool for each in self.budgets}
        return sum(pool.backends for pool in pools)

    def press(self, now_ns: int, flow: Flow, wait_ns: float, left_ns: int) -> bool:
        """A query comes, and has to wait: serve what is cheaper before any is refused. Returns
        whether something changed."""
        rules, pipeline = self.rules, self.flows.index(flow)
        # Waits are those of what is served now. Told by what is planned, they do not become
        # shorter by falling, which would make it rise again at once.
        scale = self._between(self.needs, self.planned)
        scale /= max(1e-9, self._between(self.needs, self.place))
        path_ns = self._between(
            [rung.path_ns[pipeline] for rung in self.ladder.rungs], self.planned
        )
        level = (wait_ns * scale + 0.5 * path_ns) / max(1.0, flow.share * left_ns)
        place, above = self.planned, level - self.begin
        self.presses += 1
        if above > 0.0:
            self.pressed += 1
            there = self.usable * self.there * (1.0 - rules.pull * above)
            place = max(place, self._place_for(there))
        if level > rules.limit:
            part = min(1.0, (level - rules.limit) / rules.width)
            place += part * (self.lowest - place)
        return self._move(now_ns, place)

    def _between(self, by_rung: Sequence[float], place: float) -> float:
        """A figure of a place, where each rung has one."""
        above = int(place)
        if above == place:
            return by_rung[above]
        return by_rung[above] + (place - above) * (by_rung[above + 1] - by_rung[above])

    def _move(self, now_ns: int, place: float) -> bool:
        steps = self.rules.steps
        place = min(float(self.lowest), ceil(place * steps) / steps)
        if place == self.place:
            return False
        if place < self.place and now_ns < self.changed_at_ns + self.rules.stay_ns:
            return False
        self.place, self.changed_at_ns = place, now_ns
        return True

    @property
    def rung(self) -> Rung:
        """The rung that is nearest: batches are its own."""
        return self.ladder.rungs[int(self.place + 0.5)]

    def serve(self) -> None:
        """Have the budgets be those of what is served."""
        self.ladder.set(self.rung)
        for application, budget in self.budgets.items():
            budget.share = 0.0
            budget.quick_ns = self._quick_ns(application, budget)
            mixed = self._mixed(application)
            if mixed is not None:
                plan_ns = self.speeds.cost(application, mixed).plan_ns
                budget.share = abs(self.place - int(self.place + 0.5))
                budget.other_size = as_long(plan_ns, budget.plan_ns[budget.size])
                size = budget.other_size
                pace = self.speeds.pace(application, mixed, size)
                budget.other_ns = pace * plan_ns[size] / size

    def _quick_ns(self, application: int, budget: StageBudget) -> int:
        place = self.ladder.rungs[self.lowest].places.get(application)
        if place is None:
            return 0
        plan_ns = self.ladder.plan_ns(application, place)
        return min(budget.plan_ns[budget.size], plan_ns[min(budget.size, len(plan_ns) - 1)])

    def _mixed(self, application: int) -> int | None:
        """The variant that serves a part of an application's requests beside that of the rung."""
        rungs, place = self.ladder.rungs, int(self.place)
        if place == self.place or application not in self.rung.places:
            return None
        above, below = (rungs[each].places[application] for each in (place, place + 1))
        if above == below:
            return None
        other = below if self.rung is rungs[place] else above
        return self.ladder.choices[application][other][0]

    def variants(self, application: int) -> list[int]:
        """The variant of an application that serves, and the one that shares with it; empty where
        there is no choice."""
        places, mixed = self.rung.places, self._mixed(application)
        if application not in places:
            return []
        serving = self.ladder.choices[application][places[application]][0]
        return [serving] if mixed is None else [serving, mixed]
