"""Placement, epoch by epoch: a problem to solve, then the stages of the way to its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fermata.autoscaler.options import SPAN_SHARE_MIN, EpochOptions
from fermata.autoscaler.readings import ClusterReading, rates_between
from fermata.partitioner.plan import PlacedModel, Plan, Problem, Stage, SubCluster, stages

UNLIMITED_BYTES = 1 << 50
"""Memory of a backend where no limit is configured."""


@dataclass(frozen=True, slots=True)
class SolvePlacement:
    """Find a plan for this problem within so many seconds."""

    problem: Problem
    limit_s: float


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Serve every application from its home in this plan: load there first, unload last."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class KeepPlan:
    """Applications are served by this plan now: keep it over restarts."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class LeaveInPlace:
    """These applications stay, since they could only move with a gap in their service."""

    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GiveUpMove:
    """These applications stay, since they were not loaded elsewhere within the time for a move."""

    models: tuple[str, ...]


PlacementEffect = SolvePlacement | ApplyPlan | KeepPlan | LeaveInPlace | GiveUpMove


class Placer:
    """Decides where applications are served, one problem and one stage at a time."""

    def __init__(self, options: EpochOptions, models: Sequence[PlacedModel]) -> None:
        """`models` has the applications with the rates to assume before any are measured."""
        self.options = options
        self.models = tuple(models)
        self.plan = Plan()
        """The homes of applications, as far as they have been read."""
        self.problem: Problem | None = None
        """The problem that is being solved."""
        self.going: Plan | None = None
        """The plan that is being applied."""
        self.begun_ns: int | None = None
        """The first reading since then."""
        self.stage: Stage | None = None
        """The stage that leads to it; None where the plan is the first one, or repeated."""
        self.stages_left: list[Stage] = []
        self.moved = 0
        """Applications that plans have moved so far."""
        self.opened: ClusterReading | None = None
        """The reading with which the epoch began."""

    @property
    def is_busy(self) -> bool:
        return self.problem is not None or self.going is not None

    def start(self, reading: ClusterReading, kept: Plan | None) -> list[PlacementEffect]:
        """Go on with the plan of the router, else with the one that was kept, else with a new one.

        A router without a plan has every application on its first sub-cluster.
        """
        self.opened = reading
        running = reading.plan if any(reading.plan.home.values()) else None
        known = running or kept
        if known is not None and self._is_ours(known):
            return self._apply(known, None)
        return self._ask(self.models)

    def _is_ours(self, plan: Plan) -> bool:
        """Whether a plan names just what is served, on sub-clusters that there are."""
        served = {model.name for model in self.models}
        homes = set(plan.home.values())
        return set(plan.home) == served and homes <= set(range(self.options.sub_clusters))

    # Epochs

    def on_epoch(self, reading: ClusterReading) -> list[PlacementEffect]:
        """Ask for a new plan where the rates of the epoch that ends are out of balance."""
        assert self.opened is not None
        opened, self.opened = self.opened, reading
        whole = reading.at_ns - opened.at_ns >= SPAN_SHARE_MIN * self.options.every_ns
        if not whole or opened.term != reading.term:
            return []
        rates = rates_between(opened, reading)
        # Every move costs loads and the windows that it cuts: it must be worth that.
        if not self._is_unbalanced(rates):
            return []
        return self._ask([replace(each, rate_rps=rates[each.name]) for each in self.models])

    def _is_unbalanced(self, rates: Mapping[str, float]) -> bool:
        load = [0.0] * self.options.sub_clusters
        for name, home in self.plan.home.items():
            load[home] += rates[name]
        mean = sum(load) / len(load)
        return max(load) - min(load) > self.options.imbalance * mean

    def _ask(self, models: Sequence[PlacedModel]) -> list[PlacementEffect]:
        self.problem = placement_problem(self.options, models, self.plan)
        return [SolvePlacement(self.problem, self.options.solve_s)]

    def on_solved(self, plan: Plan) -> list[PlacementEffect]:
        """Begin the way to the plan that was asked for."""
        problem, self.problem = self.problem, None
        assert problem is not None, "a plan that nobody has asked for"
        if not self.plan.home:
            return self._apply(plan, None)
        self.stages_left = list(stages(replace(problem, current=self.plan), plan))
        return [] if self.going is not None else self._next_stage()

    def on_unsolved(self) -> None:
        """The last placement stays."""
        self.problem = None

    # Stages

    def on_reading(self, now_ns: int, reading: ClusterReading) -> list[PlacementEffect]:
        """Go on once the router serves by the plan that it was given, or has had its time."""
        if self.going is None:
            # The router keeps the plan: another control plane may have set another.
            if self.plan.home:
                self.plan = reading.plan
            return []
        away = self.going.away(reading.plan)
        if not away:
            return self._arrive()
        if self.begun_ns is None:
            self.begun_ns = now_ns
        if now_ns - self.begun_ns > self.options.move_ns:
            return self._give_up(reading.plan, away)
        # A router that has come to lead meanwhile does not know of it.
        return [] if reading.on_their_way.issuperset(away) else [ApplyPlan(self.going)]

    def on_new_leader(self, now_ns: int, reading: ClusterReading) -> list[PlacementEffect]:
        """Give the plan to a router that has none, or knows only what backends hold."""
        self.begun_ns = None
        if self.opened is not None and self.opened.term != reading.term:
            self.opened = reading
        if self.going is None and self.plan.away(reading.plan):
            return self._apply(self.plan, None)
        return [] if self.going is None else self.on_reading(now_ns, reading)

    def _apply(self, plan: Plan, stage: Stage | None) -> list[PlacementEffect]:
        self.going, self.stage, self.begun_ns = plan, stage, None
        return [ApplyPlan(plan)]

    def _give_up(self, running: Plan, away: tuple[str, ...]) -> list[PlacementEffect]:
        """Have applications served where they are, and models that came for nothing unloaded."""
        # A router may not know yet where some are.
        self.plan = Plan({**self.plan.home, **running.home})
        self.going, self.stage, self.stages_left = None, None, []
        return [ApplyPlan(self.plan), GiveUpMove(away)]

    def _arrive(self) -> list[PlacementEffect]:
        assert self.going is not None
        self.plan, self.going = self.going, None
        if self.stage is not None:
            self.moved += len(self.stage.moves)
            self.stage = None
        return [KeepPlan(self.plan), *self._next_stage()]

    def _next_stage(self) -> list[PlacementEffect]:
        if not self.stages_left:
            return []
        stage, *self.stages_left = self.stages_left
        if not stage.gap:
            return self._apply(self.plan.after(stage.moves), stage)
        # The stages that follow count on the room that this one would make.
        left = [move.model for each in (stage, *self.stages_left) for move in each.moves]
        self.stages_left = []
        return [LeaveInPlace(tuple(sorted(set(left))))]


def placement_problem(
    options: EpochOptions, models: Sequence[PlacedModel], current: Plan | None = None
) -> Problem:
    """The problem of placing these models; sub-clusters are named by their indices."""
    limit = options.memory_bytes
    room = UNLIMITED_BYTES if limit is None else limit
    return Problem(
        models=tuple(models),
        sub_clusters=tuple(
            SubCluster(str(index), options.rate_rps_max, room)
            for index in range(options.sub_clusters)
        ),
        memory_weight=options.memory_weight,
        current=Plan() if current is None else current,
        load_cost_max=options.load_cost_max,
    )
