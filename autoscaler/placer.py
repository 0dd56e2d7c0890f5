"""Placement, epoch by epoch: a problem to solve, then the stages of the way to its plan."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fermata.autoscaler.capacity import RouterCapacity
from fermata.autoscaler.options import SPAN_SHARE_MIN, EpochOptions
from fermata.autoscaler.readings import ClusterReading, rates_between
from fermata.autoscaler.router_count import RouterCount
from fermata.foundation.units import SECOND
from fermata.partitioner.backends import work_of
from fermata.partitioner.plan import (
    ANY_KIND,
    MoveStage,
    PlacedModel,
    Plan,
    Problem,
    SubCluster,
    in_clusters,
    restricted,
    stages,
)

RATE_RPS_MIN = 1.0
"""Rate that is left on a router for applications that may move, however much the others take."""
SLACK = 0.25
"""Part of the imbalance that asks for a plan, which that may leave to move less. What it leaves is
far from asking for the next one."""
CHANCE = 3.0
"""Standard deviations between two sub-clusters that are chance: requests come at random."""
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

    def __init__(
        self,
        options: EpochOptions,
        models: Sequence[PlacedModel],
        counting: RouterCount | None = None,
    ) -> None:
        """`models` has the applications with the rates to assume before any are measured.
        `counting` opens and closes sub-clusters; without it all are open."""
        self.options = options
        self.counting = counting
        self.models = tuple(models)
        self.plan = Plan()
        """The homes of applications, as far as they have been read."""
        self.problem: Problem | None = None
        """The problem that is being solved."""
        self.among: tuple[int, ...] = ()
        """The sub-clusters that it is about."""
        self.limit_rps = options.rate_rps_max
        """R_max in it."""
        self.settled_rps = (0.0,) * options.sub_clusters
        """By sub-cluster: the rate of applications there that do not move."""
        self.going: Plan | None = None
        """The plan that is being applied."""
        self.begun_ns: int | None = None
        """The first reading since then."""
        self.stage: MoveStage | None = None
        """The stage that leads to it; None where the plan is the first one, or repeated."""
        self.stages_left: list[MoveStage] = []
        self.moved = 0
        """Applications that plans have moved so far."""
        self.capacity = RouterCapacity()
        """R_max, where sub-clusters have routers of their own."""
        self.rated: list[PlacedModel] = []
        """Applications with the rates of the last epoch."""
        self.span_s = 1.0
        """Its length."""
        self.opened: ClusterReading | None = None
        """The reading with which the epoch began."""
        self.rooms = (0,) * options.sub_clusters
        """By sub-cluster: room for models on a device, as last told; 0: not known."""

    @property
    def is_busy(self) -> bool:
        return self.problem is not None or self.going is not None

    def start(self, reading: ClusterReading, kept: Plan | None) -> list[PlacementEffect]:
        """Go on with the plan of the router, else with the one that was kept, else with a new one.

        A router without a plan has every application on its first sub-cluster.
        """
        self._note_rooms(reading)
        self.opened = reading
        running = reading.plan if any(reading.plan.home.values()) else None
        known = running or kept
        if known is not None and self._is_ours(known):
            return self._apply(known, None)
        shut = self._shut()
        return self._ask(self.models, [each for each in self._all() if each not in shut])

    def _note_rooms(self, reading: ClusterReading) -> None:
        """Keep the memory of devices, also while no backend is there to tell it."""
        told = [each.memory_bytes for each in reading.sub_clusters]
        if any(told) and len(told) == len(self.rooms):
            pairs = zip(told, self.rooms, strict=True)
            self.rooms = tuple(now or before for now, before in pairs)

    def _all(self) -> range:
        return range(self.options.sub_clusters)

    def _shut(self) -> frozenset[int]:
        return frozenset() if self.counting is None else self.counting.closed

    def _is_ours(self, plan: Plan) -> bool:
        """Whether a plan names just what is served, on sub-clusters that there are."""
        served = {model.name for model in self.models}
        homes = set(plan.home.values())
        return set(plan.home) == served and homes <= set(range(self.options.sub_clusters))

    # Epochs

    def on_epoch(self, reading: ClusterReading) -> list[PlacementEffect]:
        """Ask for a new plan where the rates of the epoch that ends are out of balance."""
        assert self.opened is not None
        self._note_rooms(reading)
        opened, self.opened = self.opened, reading
        whole = reading.at_ns - opened.at_ns >= SPAN_SHARE_MIN * self.options.every_ns
        if not whole or opened.term != reading.term:
            return []
        rates = rates_between(opened, reading)
        # Counts of one that was closed are of another span of time, and nothing can move there.
        closed = opened.closed | reading.closed
        pairs = list(zip(opened.sub_clusters, reading.sub_clusters, strict=True))
        span_s = self.span_s = (reading.at_ns - opened.at_ns) / SECOND
        self.settled_rps = tuple(
            (after.settled_requests - before.settled_requests) / span_s for before, after in pairs
        )
        for number in set(self._all()) - closed - reading.bare:
            before, after = pairs[number]
            self.capacity.on_span(
                after.router_requests - before.router_requests,
                after.router_cpu_ns - before.router_cpu_ns,
                reading.at_ns - opened.at_ns,
            )
        self.rated = [replace(each, rate_rps=rates[each.name]) for each in self.models]
        self._count(reading)
        return self._place(reading, closed)

    def _count(self, reading: ClusterReading) -> None:
        if self.counting is not None:
            place = placement_problem(self.options, (), rooms=self.rooms).sub_clusters[0]
            limit_rps = min(place.rate_rps_max, self.capacity.rate_rps or place.rate_rps_max)
            place = replace(place, rate_rps_max=limit_rps)
            cost = self.options.load_cost_max
            self.counting.on_epoch(reading, self.rated, place, sum(self.settled_rps), cost)

    def _place(self, reading: ClusterReading, closed: frozenset[int]) -> list[PlacementEffect]:
        """Ask for a plan where one is worth its moves."""
        shut = self._shut()
        away = closed | reading.bare | shut
        among = [each for each in self._all() if each not in away]
        rates = {each.name: each.rate_rps for each in self.rated}
        # Every move costs loads and the windows that it cuts: it must be worth that.
        home = self.plan.home
        leaves = any(
            rates[name] > 0.0 or at in shut for name, at in home.items() if at in away - closed
        )
        if not among or not (leaves or self._is_unbalanced(rates, among)):
            return []
        return self._ask([each for each in self.rated if home.get(each.name) not in closed], among)

    def _is_unbalanced(self, rates: Mapping[str, float], among: Sequence[int]) -> bool:
        """Whether sub-clusters differ by too much in what a plan would balance. Where few requests
        came, chance alone makes them differ, and the next epoch would move back."""
        load, share = dict.fromkeys(among, 0.0), dict.fromkeys(among, 1.0)
        loads = rates
        if kinds := self.options.kinds:
            models = [replace(each, rate_rps=rates[each.name]) for each in self.models]
            work, slowness = work_of(models, kinds)
            loads = dict(zip((each.name for each in models), work, strict=True))
            shares = self.options.shares or (1.0,) * len(kinds)
            share = {each: shares[each] / slowness[kinds[each]] for each in among}
        chance = dict.fromkeys(among, 0.0)
        for name, home in self.plan.home.items():
            if home in load and rates[name] > 0.0:
                load[home] += loads[name]
                chance[home] += loads[name] ** 2 / (rates[name] * self.span_s)
        mean = sum(load.values()) / sum(share.values())
        ratio = {each: load[each] / share[each] for each in among}
        most, least = max(among, key=ratio.__getitem__), min(among, key=ratio.__getitem__)
        differ = ratio[most] - ratio[least]
        spread = math.sqrt(sum(chance[each] / share[each] ** 2 for each in (most, least)))
        # An imbalance of 0 asks for a plan at any difference.
        by_chance = CHANCE * spread if self.options.imbalance > 0.0 else 0.0
        return differ > max(self.options.imbalance * mean, by_chance)

    def _ask(
        self, models: Sequence[PlacedModel], among: Sequence[int] | None = None
    ) -> list[PlacementEffect]:
        """Ask for the homes of these models, among all sub-clusters unless some are given."""
        self.among = tuple(self._all() if among is None else among)
        return self._ask_within(models, self._rate_rps_max(models))

    def _ask_within(self, models: Sequence[PlacedModel], limit_rps: float) -> list[PlacementEffect]:
        self.limit_rps = limit_rps
        whole = placement_problem(self.options, models, self.plan, self.rooms)
        places = tuple(
            replace(place, rate_rps_max=max(RATE_RPS_MIN, limit_rps - settled_rps))
            for place, settled_rps in zip(whole.sub_clusters, self.settled_rps, strict=True)
        )
        self.problem = replace(whole, sub_clusters=places)
        part = restricted(self.problem, self.among)
        return [SolvePlacement(part, self.options.solve_s)]

    def _rate_rps_max(self, models: Sequence[PlacedModel]) -> float:
        """R_max as learnt, below the configured one. It is never so low that rates alone rule
        every plan out: where all together carry less than what comes, an even plan is the best."""
        configured, learnt = self.options.rate_rps_max, self.capacity.rate_rps
        if learnt is None:
            return configured
        rates = [each.rate_rps for each in models]
        whole = sum(rates) + sum(self.settled_rps[each] for each in self.among)
        # Graham's bound of list scheduling: with each model to the sub-cluster of the least rate,
        # none that a model comes to has more.
        count = len(self.among)
        needed = (whole + (count - 1) * max(rates, default=0.0)) / count
        return min(configured, max(learnt, needed))

    def on_solved(self, plan: Plan) -> list[PlacementEffect]:
        """Begin the way to the plan that was asked for."""
        problem, self.problem = self.problem, None
        assert problem is not None, "a plan that nobody has asked for"
        found = {name: self.among[at] for name, at in plan.home.items()}
        plan = Plan({**self.plan.home, **found})
        if not self.plan.home:
            return self._apply(plan, None)
        self.stages_left = list(stages(replace(problem, current=self.plan), plan))
        return [] if self.going is not None else self._next_stage()

    def on_unsolved(self) -> list[PlacementEffect]:
        """Ask again without what was learnt of routers: with memory and load cost it may rule every
        plan out. Else the last placement stays."""
        problem, self.problem = self.problem, None
        if problem is None or self.limit_rps >= self.options.rate_rps_max:
            return []
        return self._ask_within(problem.models, self.options.rate_rps_max)

    # Stages

    def on_reading(self, now_ns: int, reading: ClusterReading) -> list[PlacementEffect]:
        """Go on once the router serves by the plan that it was given, or has had its time."""
        if self.going is None and self.plan.home and not reading.planned:
            return self._apply(self.plan, None)
        if self.going is None:
            # The router keeps the plan: another control plane may have set another.
            if self.plan.home:
                self.plan = reading.plan
            counting = self.counting
            if counting is not None and not self.is_busy and counting.is_open(reading):
                counting.opening = frozenset()
                return self._place(reading, reading.closed)
            return []
        away = self.going.away(reading.plan)
        if not away and reading.planned:
            # Old homes may still hold what has left them; that ends by itself.
            return self._arrive() if reading.on_their_way.isdisjoint(self.going.home) else []
        if self.begun_ns is None:
            self.begun_ns = now_ns
        if now_ns - self.begun_ns > self.options.move_ns:
            return self._give_up(reading.plan, away)
        # A router that has come to lead meanwhile does not know of it.
        told = reading.planned and reading.on_their_way.issuperset(away)
        return [] if told else [ApplyPlan(self.going)]

    def on_new_leader(self, now_ns: int, reading: ClusterReading) -> list[PlacementEffect]:
        """Give the plan to a router that has none, or knows only what backends hold."""
        self.begun_ns = None
        if self.opened is not None and self.opened.term != reading.term:
            self.opened = reading
        if self.going is None and (self.plan.away(reading.plan) or not reading.planned):
            return self._apply(self.plan, None)
        return [] if self.going is None else self.on_reading(now_ns, reading)

    def _apply(self, plan: Plan, stage: MoveStage | None) -> list[PlacementEffect]:
        self.going, self.stage, self.begun_ns = plan, stage, None
        return [ApplyPlan(plan)]

    def _give_up(self, running: Plan, away: tuple[str, ...]) -> list[PlacementEffect]:
        """Have applications served where they are, and models that came for nothing unloaded."""
        # A router may not know yet where some are.
        self.plan = Plan({**self.plan.home, **running.home})
        if self.stage is not None:
            self.moved += sum(move.model not in away for move in self.stage.moves)
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
    options: EpochOptions,
    models: Sequence[PlacedModel],
    current: Plan | None = None,
    rooms: Sequence[int] = (),
) -> Problem:
    """The problem of placing these models; sub-clusters are named by their indices. `rooms` are
    those of devices, as told: they count where the options give no smaller limit."""
    kinds = options.kinds or (ANY_KIND,) * options.sub_clusters
    shares = options.shares or (1.0,) * options.sub_clusters
    places = [
        SubCluster(str(index), options.rate_rps_max, _room(options, rooms, index), share, kind)
        for index, (share, kind) in enumerate(zip(shares, kinds, strict=True))
    ]
    return Problem(
        models=tuple(models),
        sub_clusters=in_clusters(places),
        memory_weight=options.memory_weight,
        current=Plan() if current is None else current,
        load_cost_max=options.load_cost_max,
        slack=SLACK * options.imbalance,
        by_backends=bool(options.kinds),
    )


def _room(options: EpochOptions, rooms: Sequence[int], number: int) -> int:
    """Memory of a backend in a sub-cluster for models that may move."""
    limit = options.memory_bytes_by[number] if options.memory_bytes_by else options.memory_bytes
    told = rooms[number] if rooms else 0
    settled = options.settled_bytes[number] if options.settled_bytes else 0
    return max(1, room_within(limit, told) - settled)


def room_within(limit: int | None, told: int) -> int:
    """The limit of a file, or the room on a device where that is known and less."""
    found = UNLIMITED_BYTES if limit is None else limit
    return min(found, told) if told > 0 else found
