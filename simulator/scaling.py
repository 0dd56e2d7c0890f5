"""Autoscaler and epochs in the loop: the decisions that serve, on emulated backends."""

from collections.abc import Callable
from dataclasses import dataclass

from fermata.autoscaler.rule import (
    RuleState,
    ScalingAdvice,
    Window,
    advise,
    share_out,
    without_memory,
)
from fermata.foundation.units import SECOND
from fermata.partitioner.backends import backends_for
from fermata.partitioner.plan import PlacedModel, Plan, Problem, Stage, SubCluster, stages
from fermata.router.core.engine import Engine
from fermata.router.policies.ownership import Ownership
from fermata.simulator.scenario.scaling_spec import AutoscalerSpec, EpochSpec
from fermata.simulator.scenario.scenario import Application, Scenario

WINDOW, EPOCH, READY, LOADED = range(4)
"""What the control has on its agenda."""
Enter = Callable[[int, int, int], None]
"""Put (when, what, subject) on the agenda."""


@dataclass(frozen=True, slots=True)
class WindowLog:
    """One window of one sub-cluster, as plots and benchmarks read it."""

    ends_at_ns: int
    sub_cluster: int
    window: Window
    advice: ScalingAdvice
    allocated: int
    """Backends paid for at its end: up, on their way, or ending their last batch."""


@dataclass(frozen=True, slots=True)
class EpochLog:
    """One new plan."""

    at_ns: int
    home: dict[str, str]
    moved: int
    rate_imbalance: float
    memory_imbalance: float


@dataclass(slots=True)
class _Counts:
    """Counters at the start of a window."""

    ended: int = 0
    bad: int = 0
    busy_ns: int = 0
    uptime_ns: int = 0


class ScalingControl:
    """Decides at windows and epochs, and starts, drains and moves what follows from it."""

    def __init__(
        self, scenario: Scenario, engine: Engine, ownership: Ownership, enter: Enter
    ) -> None:
        self.engine = engine
        self.ownership = ownership
        self.enter = enter
        self.autoscaler: AutoscalerSpec | None = scenario.autoscaler
        self.epochs: EpochSpec | None = scenario.epochs
        self.applications = scenario.applications
        self.end_ns = scenario.warmup_ns + scenario.duration_ns
        ranks = len(engine.ranks)
        self.rank_of = [0] * len(self.applications)
        """By application."""
        self.members: list[set[int]] = [set() for _ in range(ranks)]
        """Backends that are up, by sub-cluster."""
        self.starting: dict[int, int] = {}
        """The sub-cluster of each backend on its way."""
        self.draining: dict[int, int] = {}
        self.states = [RuleState() for _ in range(ranks)]
        self.counts = [_Counts() for _ in range(ranks)]
        self.opened_at_ns = 0
        self.arrived = [0] * len(self.applications)
        self.stages_left: list[Stage] = []
        self.loading: Stage | None = None
        self.windows: list[WindowLog] = []
        self.plans: list[EpochLog] = []
        self.allocated_ns = 0
        self.counted_at_ns = 0

    # What is there

    def allocated(self) -> int:
        return sum(map(len, self.members)) + len(self.starting) + len(self.draining)

    def _count_time(self, now_ns: int) -> None:
        self.allocated_ns += self.allocated() * (now_ns - self.counted_at_ns)
        self.counted_at_ns = now_ns

    def begin(self, backends: int) -> None:
        """Place the models, and bring up the backends there are at the start."""
        rates = [1.0] * len(self.applications)
        if self.epochs is not None:
            self._place(0, rates, first=True)
            self.enter(self.epochs.every_ns, EPOCH, 0)
        for backend in range(backends):
            self._up(0, backend, backend % len(self.members))
        if self.autoscaler is not None:
            self.enter(self.autoscaler.window_ns, WINDOW, 0)

    def finish(self, now_ns: int) -> None:
        self._count_time(min(now_ns, self.end_ns))

    def on_agenda(self, now_ns: int, what: int, subject: int) -> None:
        if what == WINDOW:
            self._end_window(now_ns)
        elif what == EPOCH:
            self._end_epoch(now_ns)
        elif what == READY:
            rank = self.starting.pop(subject, None)
            if rank is not None:
                self._up(now_ns, subject, rank)
        else:
            self._end_stage(now_ns)

    def on_idle(self, now_ns: int, backend: int) -> None:
        """A backend has ended a batch: if it was its last, it goes."""
        if backend in self.draining:
            state = self.engine.backend_rank[backend].backends[backend]
            if state.running is None and state.queued is None:
                self._count_time(now_ns)
                del self.draining[backend]
                self.engine.on_backend_down(now_ns, backend)
                self.ownership.release(backend)

    # Backends

    def _up(self, now_ns: int, backend: int, rank: int) -> None:
        self._count_time(now_ns)
        self.members[rank].add(backend)
        owner = self.ownership.take(backend)
        self.engine.on_backend_up(now_ns, backend, rank=rank, owner=owner)

    def _start(self, now_ns: int, rank: int, count: int) -> None:
        assert self.autoscaler is not None
        self._count_time(now_ns)
        taken = {*self.starting, *self.draining}.union(*self.members)
        ready_at_ns = now_ns + self.autoscaler.startup_ns + self._load_ns(rank)
        backend = 0
        for _ in range(count):
            # The lowest numbers: the rank gathers work there, and the others are idle for long.
            while backend in taken:
                backend += 1
            taken.add(backend)
            self.starting[backend] = rank
            self.enter(ready_at_ns, READY, backend)

    def _load_ns(self, rank: int) -> int:
        """A new backend loads every model of its sub-cluster."""
        return sum(
            each.variants[0].load_ns
            for each, home in zip(self.applications, self.rank_of, strict=True)
            if home == rank
        )

    def _release(self, now_ns: int, rank: int, count: int) -> None:
        """First those that are not up yet, then the highest numbers, which are idle longest."""
        self._count_time(now_ns)
        for backend in sorted(self.starting, reverse=True):
            if count and self.starting[backend] == rank:
                del self.starting[backend]
                count -= 1
        for backend in sorted(self.members[rank], reverse=True)[:count]:
            self.members[rank].discard(backend)
            self.draining[backend] = rank
            self.engine.on_drain(now_ns, backend)
            self.on_idle(now_ns, backend)

    # Windows

    def _end_window(self, now_ns: int) -> None:
        spec = self.autoscaler
        assert spec is not None
        seen = [self._window(now_ns, rank) for rank in range(len(self.members))]
        given = [
            advise(spec.options, state, window)
            for state, window in zip(self.states, seen, strict=True)
        ]
        names = [str(rank) for rank in range(len(given))]
        targets = share_out(
            {name: each.target for name, each in zip(names, given, strict=True)},
            {name: each.demand for name, each in zip(names, given, strict=True)},
            dict.fromkeys(names, spec.options.minimum),
            spec.options.maximum,
        )
        for rank, advice in enumerate(given):
            self.states[rank] = advice.state
            change = targets[str(rank)] - seen[rank].up - seen[rank].starting
            if not spec.dry_run and change > 0:
                self._start(now_ns, rank, change)
            elif not spec.dry_run and change < 0:
                self._release(now_ns, rank, -change)
            self.windows.append(WindowLog(now_ns, rank, seen[rank], advice, self.allocated()))
        self.opened_at_ns = now_ns
        if now_ns + spec.window_ns <= self.end_ns:
            self.enter(now_ns + spec.window_ns, WINDOW, 0)

    def _window(self, now_ns: int, rank: int) -> Window:
        ledger = self.engine.ledger.applications
        mine = [ledger[number] for number, home in enumerate(self.rank_of) if home == rank]
        bad = sum(each.bad for each in mine)
        ended = bad + sum(each.good for each in mine)
        thread = self.engine.ranks[rank]
        thread.settle(now_ns)
        signals, before = thread.signals, self.counts[rank]
        span_ns = max(1, now_ns - self.opened_at_ns)
        self.counts[rank] = _Counts(ended, bad, signals.busy_ns, signals.uptime_ns)
        return Window(
            backends=(signals.uptime_ns - before.uptime_ns) / span_ns,
            busy=(signals.busy_ns - before.busy_ns) / span_ns,
            requests=ended - before.ended,
            bad=bad - before.bad,
            wanted=signals.least + thread.pool.missing(now_ns),
            up=len(self.members[rank]),
            starting=sum(1 for home in self.starting.values() if home == rank),
        )

    # Epochs

    def _end_epoch(self, now_ns: int) -> None:
        assert self.epochs is not None
        if self.loading is None:
            counts = [each.good + each.bad for each in self.engine.ledger.applications]
            span_s = self.epochs.every_ns / SECOND
            rates = [
                (count - before) / span_s
                for count, before in zip(counts, self.arrived, strict=True)
            ]
            self.arrived = counts
            self._place(now_ns, rates, first=False)
        if now_ns + self.epochs.every_ns <= self.end_ns:
            self.enter(now_ns + self.epochs.every_ns, EPOCH, 0)

    def _place(self, now_ns: int, rates: list[float], first: bool) -> None:
        # Only who places models needs a solver.
        from fermata.partitioner.solve import solve

        spec = self.epochs
        assert spec is not None
        problem = Problem(
            models=tuple(
                model_of(each, rate) for each, rate in zip(self.applications, rates, strict=True)
            ),
            sub_clusters=tuple(
                SubCluster(str(rank), spec.rate_rps_max, spec.memory_bytes)
                for rank in range(spec.sub_clusters)
            ),
            memory_weight=spec.memory_weight,
            current={} if first else self._home(),
            load_cost_max=None if first else spec.load_cost_max,
        )
        found = solve(problem, spec.solve_s)
        log = EpochLog(
            now_ns,
            dict(found.plan.home),
            len(found.moves),
            found.rate_imbalance,
            found.memory_imbalance,
        )
        self.plans.append(log)
        if first:
            self._settle(now_ns, found.plan)
        elif found.moves:
            self.stages_left = list(stages(problem, found.plan.home))
            self._begin_stage(now_ns)

    def _home(self) -> dict[str, str]:
        return {
            each.name: str(rank) for each, rank in zip(self.applications, self.rank_of, strict=True)
        }

    def _settle(self, now_ns: int, plan: Plan) -> None:
        for number, each in enumerate(self.applications):
            self.rank_of[number] = int(plan.home[each.name])
            self.engine.move_application(now_ns, number, self.rank_of[number])

    def _begin_stage(self, now_ns: int) -> None:
        """Load what comes on every backend of its new home; it is served at the old one
        meanwhile."""
        self.loading = self.stages_left.pop(0)
        load_ns = {each.name: each.variants[0].load_ns for each in self.applications}
        by_target: dict[str, int] = {}
        for move in self.loading.moves:
            if move.target is not None:
                by_target[move.target] = by_target.get(move.target, 0) + load_ns[move.model]
        self.enter(now_ns + max(by_target.values(), default=0), LOADED, 0)

    def _end_stage(self, now_ns: int) -> None:
        assert self.loading is not None
        numbers = {each.name: number for number, each in enumerate(self.applications)}
        for move in self.loading.moves:
            if move.target is not None:
                number = numbers[move.model]
                self.rank_of[number] = int(move.target)
                self.engine.move_application(now_ns, number, int(move.target))
        self.loading = None
        self._forget_windows(now_ns)
        if self.stages_left:
            self._begin_stage(now_ns)

    def _forget_windows(self, now_ns: int) -> None:
        """The ledger is by application: what an application did before counts nowhere now."""
        self.states = [without_memory(state) for state in self.states]
        for rank in range(len(self.members)):
            self._window(now_ns, rank)
        self.opened_at_ns = now_ns


def model_of(application: Application, rate_rps: float) -> PlacedModel:
    """What placement has to know of an application's serving variant."""
    profile = application.variants[0]
    size = profile.batch_size_max or 1
    return PlacedModel(
        application.name,
        rate_rps,
        profile.static_bytes,
        profile.dynamic_bytes_at(size),
        profile.load_ns / 1e6,
        {"": profile},
        application.slo_ns,
    )


def fluid_backends(application: Application, rate_rps: float) -> float:
    """Backends that Eqns 2 and 3 give an application at a rate."""
    return backends_for(model_of(application, rate_rps)) or 0.0
