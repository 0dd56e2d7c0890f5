"""The control plane of a simulated fleet: the loops that decide live, on the virtual clock.

As in a deployment with several routers, one loop decides at windows how many backends each
sub-cluster has, another one at epochs where models live, and moves go through the directory.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.day import STARTUP_S, STEP_S, WINDOW_S
from benchmarks.fleet_load import MEMORY_BYTES, ROUTER_RPS_MAX, Fleet, load_ns
from benchmarks.fleet_parts import Order, PartReport
from benchmarks.fleet_workers import FleetParts
from fermata.autoscaler.control_loop import ControlLoop, SetTargets
from fermata.autoscaler.options import AutoscalerOptions, EpochOptions, KindLimit, lead_windows
from fermata.autoscaler.placer import ApplyPlan, SolvePlacement, placement_problem
from fermata.autoscaler.readings import ApplicationReading, ClusterReading
from fermata.autoscaler.rule import RuleOptions
from fermata.autoscaler.sub_cluster_limits import share_out
from fermata.deployments.control.scaling import ARRIVE_S
from fermata.deployments.control.sub_clusters.homes import DirectoryKeeper
from fermata.deployments.control.sub_clusters.moves import HomeMoves
from fermata.deployments.control.sub_clusters.scaled_routers import part_at
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER, seconds
from fermata.partitioner.plan import Plan
from fermata.partitioner.solver.two_level import solve_two_level
from fermata.router.links.directory import Directory, Home

EPOCH_S = 15.0
"""An hour of the day."""
MOVE_S = 10.0
MOVED_SHARE = 0.05
"""C_max: what may move in an epoch, as a share of what loading every model once takes."""
TERM = 1
NONE = ApplicationReading(0, 0, 0)
Tell = Callable[[float], None]
"""Is told how much of the day has passed."""


def scaling_options(fleet: Fleet) -> AutoscalerOptions:
    """The default rule, on compressed spans, with as many backends of each kind as there are."""
    numbers = range(len(fleet.kinds))
    limits = tuple(
        KindLimit(tuple(each for each in numbers if fleet.kinds[each] == kind), count)
        for kind, count in fleet.backends.items()
    )
    window_ns, startup_ns = seconds(WINDOW_S), seconds(STARTUP_S)
    rule = RuleOptions(
        maximum=sum(fleet.backends.values()), lead=lead_windows(window_ns, startup_ns)
    )
    return AutoscalerOptions(rule, window_ns, startup_ns, kinds=limits)


def epoch_options(fleet: Fleet, solve_s: float) -> EpochOptions:
    return EpochOptions(
        sub_clusters=len(fleet.kinds),
        every_ns=seconds(EPOCH_S),
        rate_rps_max=ROUTER_RPS_MAX,
        memory_bytes=MEMORY_BYTES,
        load_cost_max=2 * MOVED_SHARE * sum(each.load_cost for each in fleet.models),
        solve_s=solve_s,
        move_ns=seconds(MOVE_S),
        kinds=fleet.kinds,
        shares=tuple(fleet.backends[each] / fleet.kinds.count(each) for each in fleet.kinds),
    )


@dataclass(slots=True)
class FleetLog:
    """Counts of a day."""

    solves_s: list[float] = field(default_factory=list)
    """Time that each plan took."""
    moved_cost: list[float] = field(default_factory=list)
    """By epoch: load cost of the models that changed their home."""
    moved: int = 0
    plans: int = 0
    unsolved: int = 0
    need_ns: list[float] = field(default_factory=list)
    """By sub-cluster: backend time that Eqns 2 and 3 give its rates, step by step."""
    excused: list[tuple[int, int]] = field(default_factory=list)
    """By sub-cluster: requests that ended while backends came up for a surge, and the bad ones."""
    most: dict[str, int] = field(default_factory=dict)
    """By kind: the most backends that there were, or were on their way."""
    reports: list[PartReport] = field(default_factory=list)
    """By sub-cluster, at the end."""
    homes: list[tuple[int, Plan]] = field(default_factory=list)
    """Every plan that was lived by, with the time from which on."""


class FleetRun:
    """One day of a fleet. All that is decided is decided by the loops."""

    def __init__(self, fleet: Fleet, parts: FleetParts, solve_s: float) -> None:
        self.fleet, self.parts = fleet, parts
        self.log = FleetLog(need_ns=[0.0] * len(fleet.kinds))
        self.models = {each.name: each for each in fleet.models}
        self.numbers = range(len(fleet.kinds))
        self.options = epoch_options(fleet, solve_s)
        scaling = scaling_options(fleet)
        plan = self._first_plan()
        directory = Directory(
            1,
            tuple(map(Home, self.numbers)),
            {name: ((home, 1.0),) for name, home in plan.home.items()},
        )
        self.moves = HomeMoves(DirectoryKeeper(directory), {name: (name,) for name in plan.home})
        self.homes = plan
        self.loading: dict[tuple[str, int], int] = {}
        """When a model that comes is loaded, by its name and new home."""
        self.now_ns = 0
        self.rates = fleet.rates_at(0)
        self.need = fleet.need(plan, self.rates)
        self.targets = self._first_targets(scaling)
        parts.start(fleet, scaling, self.targets)
        self.orders: dict[int, Order] = {}
        """By sub-cluster: what it has not been told yet."""
        self._tell_rates(self.numbers)
        self.reports = parts.step(self._told(0))
        self.excused_from: list[tuple[int, int]] | None = None
        self.log.excused = [(0, 0) for _ in self.numbers]
        self.windows = ControlLoop(scaling, None, (), len(fleet.kinds))
        self.epochs = ControlLoop(None, self.options, fleet.models)
        self.windows.on_start(0, self._window_reading(), sum(self.targets))
        self.epochs.on_start(0, self._epoch_reading(), 0)
        self._carry_out()

    def _first_targets(self, scaling: AutoscalerOptions) -> tuple[int, ...]:
        """Backends that the first rates need, with the idleness that the rule keeps."""
        found = [math.ceil(each / (1.0 - scaling.rule.idle)) for each in self.need]
        for kind in scaling.kinds:
            own = kind.sub_clusters
            wished, need = [max(1, found[each]) for each in own], [self.need[each] for each in own]
            for number, given in zip(
                own, share_out(wished, need, len(own), kind.maximum), strict=True
            ):
                found[number] = given
        return tuple(found)

    def _first_plan(self) -> Plan:
        problem = placement_problem(self.options, self.fleet.models)
        return self._solved(SolvePlacement(problem, 2 * self.options.solve_s))

    def _solved(self, asked: SolvePlacement) -> Plan:
        began_s = time.monotonic()
        found = solve_two_level(asked.problem, asked.limit_s)
        self.log.solves_s.append(time.monotonic() - began_s)
        return found.plan

    def run(self, tell: Tell) -> FleetLog:
        """Play the day."""
        spans = _startups(self.fleet)
        edges = sorted(edge for span in spans for edge in span)
        step_ns, end_ns = seconds(STEP_S), self.fleet.end_ns
        while self.now_ns < end_ns:
            look_ns = self.now_ns + seconds(ARRIVE_S) if self.epochs.is_applying else NEVER
            turn_ns = (self.now_ns // step_ns + 1) * step_ns
            edge_ns = next((each for each in edges if each > self.now_ns), NEVER)
            wake_ns = min(self.windows.wake_at_ns(), self.epochs.wake_at_ns())
            self._advance(min(look_ns, turn_ns, edge_ns, max(wake_ns, self.now_ns + 1), end_ns))
            self._excuse(any(begin <= self.now_ns < end for begin, end in spans))
            self._decide()
            if self.now_ns % step_ns == 0:
                self._change_rates()
            tell(self.now_ns / end_ns)
        self.log.reports = list(self.reports)
        return self.log

    def _advance(self, until_ns: int) -> None:
        for number, need in enumerate(self.need):
            self.log.need_ns[number] += need * (until_ns - self.now_ns)
        self.reports = self.parts.step(self._told(until_ns))
        self.now_ns = until_ns
        there: dict[str, int] = {}
        for kind, target in zip(self.fleet.kinds, self.targets, strict=True):
            there[kind] = there.get(kind, 0) + target
        for kind, count in there.items():
            self.log.most[kind] = max(count, self.log.most.get(kind, 0))

    def _told(self, until_ns: int) -> list[Order]:
        told = [
            replace(self.orders.pop(number, Order(0)), until_ns=until_ns) for number in self.numbers
        ]
        assert not self.orders
        return told

    def _excuse(self, starting: bool) -> None:
        """Count what ends while backends come up for a surge."""
        if starting and self.excused_from is None:
            self.excused_from = [each.ended for each in self.reports]
        elif not starting and self.excused_from is not None:
            self.log.excused = [
                (whole + now[0] - then[0], bad + now[1] - then[1])
                for (whole, bad), then, now in zip(
                    self.log.excused,
                    self.excused_from,
                    (each.ended for each in self.reports),
                    strict=True,
                )
            ]
            self.excused_from = None

    # Rates and homes

    def _tell_rates(self, numbers: Iterable[int]) -> None:
        """Tell sub-clusters which models live there, with their rates."""
        for number in numbers:
            rates = {name: self.rates[name] for name in self.homes.models_of(number)}
            self._order(number, rates=rates, need=self.need[number])

    def _change_rates(self) -> None:
        self.rates = self.fleet.rates_at(self.now_ns)
        self.need = self.fleet.need(self.homes, self.rates)
        self._tell_rates(self.numbers)

    def _order(self, number: int, **changes: Any) -> None:
        self.orders[number] = replace(self.orders.get(number, Order(0)), **changes)

    def _look(self) -> None:
        """Have moves go on: models that are loaded at their new home live there."""
        loaded: dict[int, list[str]] = {number: [] for number in self.numbers}
        for (name, target), at_ns in self.loading.items():
            if at_ns <= self.now_ns:
                loaded[target].append(name)
        self.moves.on_loaded(self.now_ns, self.now_ns, loaded)
        self.moves.on_time(self.now_ns)
        after = self.moves.plan()
        away = self.homes.away(after)
        if not away:
            return
        cost = sum(2 * self.models[name].load_cost for name in away)
        self.log.moved_cost[-1] += cost
        self.log.moved += len(away)
        touched = {plan.home[name] for plan in (self.homes, after) for name in away}
        self.homes = after
        self.log.homes.append((self.now_ns, after))
        self.need = self.fleet.need(after, self.rates)
        self._tell_rates(touched)

    # Decisions

    def _decide(self) -> None:
        if self.now_ns >= self.windows.wake_at_ns():
            self.windows.on_reading(self.now_ns, self._window_reading())
        if self.epochs.is_applying:
            self._look()
        if self.epochs.is_applying or self.now_ns >= self.epochs.wake_at_ns():
            self.epochs.on_reading(self.now_ns, self._epoch_reading())
        self._carry_out()

    def _window_reading(self) -> ClusterReading:
        """As the live control plane reads routers: each part of a model, wherever it has lived."""
        return ClusterReading(
            self.now_ns,
            TERM,
            {
                part_at(number, name): counts
                for number, each in enumerate(self.reports)
                for name, counts in each.applications.items()
            },
            tuple(each.reading for each in self.reports),
            Plan({part_at(home, name): home for name, home in self.homes.home.items()}),
            targets=self.targets,
        )

    def _epoch_reading(self) -> ClusterReading:
        whole = dict.fromkeys(self.models, NONE)
        for report in self.reports:
            for name, each in report.applications.items():
                whole[name] = _both(whole[name], each)
        return ClusterReading(
            self.now_ns,
            TERM,
            whole,
            tuple(each.reading for each in self.reports),
            self.homes,
            frozenset(self.moves.on_their_way()),
        )

    def _carry_out(self) -> None:
        for effect in self.windows.take_effects():
            if isinstance(effect, SetTargets):
                self._set_targets(effect.targets)
        while effects := self.epochs.take_effects():
            for each in effects:
                if isinstance(each, SolvePlacement):
                    self._solve(each)
                elif isinstance(each, ApplyPlan):
                    self._apply(each.plan)

    def _set_targets(self, targets: tuple[int, ...]) -> None:
        self.targets = targets
        for number, target in enumerate(targets):
            own = self.homes.models_of(number)
            load = sum(load_ns(self.models[name]) for name in own)
            self._order(number, target=target, load_ns=load)

    def _solve(self, asked: SolvePlacement) -> None:
        self.log.plans += 1
        self.log.moved_cost.append(0.0)
        try:
            plan = self._solved(asked)
        except ConfigError:
            self.log.unsolved += 1
            self.epochs.on_unsolved()
            return
        self.epochs.on_solved(plan)

    def _apply(self, plan: Plan) -> None:
        """Load what comes, one model after the other on every backend of its new home."""
        self.moves.order(plan)
        busy_ns = dict.fromkeys(self.numbers, self.now_ns)
        self.loading = {}
        for name in plan.away(self.homes):
            target = plan.home[name]
            busy_ns[target] += load_ns(self.models[name])
            self.loading[name, target] = busy_ns[target]


def _both(first: ApplicationReading, second: ApplicationReading) -> ApplicationReading:
    return ApplicationReading(
        first.received + second.received,
        first.good + second.good,
        first.bad + second.bad,
        first.busy_ns + second.busy_ns,
    )


def _startups(fleet: Fleet) -> list[tuple[int, int]]:
    """Spans in which backends come up for a surge: the window that sees it, and their start."""
    span_ns = seconds(WINDOW_S + STARTUP_S)
    begins = [seconds(step * STEP_S) for step in fleet.surges]
    return [(begin_ns, begin_ns + span_ns) for begin_ns in begins]
