"""The control loop on the virtual clock: it decides, emulated backends start, load and drain."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fermata.applications.accuracy_goal import rated_variants
from fermata.applications.application import Application
from fermata.applications.reader import owners_of
from fermata.autoscaler.control_loop import ControlLoop, SetTargets, WindowEnded
from fermata.autoscaler.placer import ApplyPlan, SolvePlacement
from fermata.autoscaler.readings import (
    ApplicationReading,
    ClusterReading,
    PoolReading,
    SubClusterReading,
)
from fermata.autoscaler.rule import ScalingAdvice
from fermata.autoscaler.window import Window
from fermata.foundation.errors import ConfigError
from fermata.partitioner.accuracy_mix import RatedProfile
from fermata.partitioner.applications import placed_application
from fermata.partitioner.backends import backends_for
from fermata.partitioner.plan import PlacedModel, Plan
from fermata.partitioner.plan_file import load_plan
from fermata.router.core.engine import Engine
from fermata.router.core.events import Batch
from fermata.router.policies.ownership import Ownership
from fermata.router.policies.pool_signals import read_pools
from fermata.simulator.scenario.scenario import Scenario

READING, READY, LOADED = range(3)
"""Kinds of entries on the agenda: a reading is due, a backend is up, models are loaded."""
Enter = Callable[[int, int, int], None]
"""Put (when, kind, subject) on the agenda."""
TERM = 1
"""One router leads from the start to the end."""


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
    """One plan that was asked for."""

    at_ns: int
    plan: Plan
    moved: int
    rate_imbalance: float
    memory_imbalance: float


class ScalingControl:
    """Drives a `ControlLoop`: takes its readings, and carries out its effects."""

    def __init__(
        self, scenario: Scenario, engine: Engine, ownership: Ownership, enter: Enter
    ) -> None:
        self.engine = engine
        self.ownership = ownership
        self.enter = enter
        self.applications = scenario.applications
        self.numbers = {each.name: number for number, each in enumerate(scenario.applications)}
        spec = scenario.autoscaler
        models = placed_models(scenario, None if spec is None else spec.accuracy)
        self.loop = ControlLoop(spec, scenario.epochs, models)
        self.accuracy = [
            variant.accuracy for each in scenario.applications for variant in each.variants
        ]
        self.rated = [0] * len(scenario.applications)
        """Answers of known accuracy, by application."""
        self.right = [0.0] * len(scenario.applications)
        """Right ones among them, as accuracies lead one to expect."""
        self.startup_ns = 0 if spec is None else spec.startup_ns
        self.plan_file = "" if scenario.epochs is None else scenario.epochs.plan_file
        self.end_ns = scenario.warmup_ns + scenario.duration_ns
        ranks = len(engine.ranks)
        self.plan = Plan(dict.fromkeys(self.numbers, 0))
        """The sub-cluster that serves each application."""
        self.going: Plan | None = None
        """The plan whose models are being loaded."""
        self.targets: tuple[int, ...] = ()
        self.members: list[set[int]] = [set() for _ in range(ranks)]
        """Backends that are up, by sub-cluster."""
        self.starting: dict[int, int] = {}
        """The sub-cluster of each backend on its way."""
        self.draining: dict[int, int] = {}
        """The sub-cluster of each backend that ends its last batch."""
        self.windows: list[WindowLog] = []
        self.plans: list[EpochLog] = []
        self.allocated_ns = 0
        self.counted_at_ns = 0

    # Accounts

    def allocated(self) -> int:
        return sum(map(len, self.members)) + len(self.starting) + len(self.draining)

    def _count_time(self, now_ns: int) -> None:
        self.allocated_ns += self.allocated() * (now_ns - self.counted_at_ns)
        self.counted_at_ns = now_ns

    def _reading(self, now_ns: int) -> ClusterReading:
        for rank in self.engine.ranks:
            rank.settle(now_ns)
        return ClusterReading(
            at_ns=now_ns,
            term=TERM,
            applications=self._counts(),
            sub_clusters=tuple(
                SubClusterReading(
                    backends=len(members),
                    uptime_ns=rank.signals.uptime_ns,
                    busy_ns=rank.signals.busy_ns,
                    backends_min=rank.signals.backends_min + rank.pool.missing(now_ns),
                    pools=pools,
                )
                for rank, members, pools in zip(
                    self.engine.ranks, self.members, self._pools(now_ns), strict=True
                )
            ),
            plan=self.plan,
            on_their_way=frozenset(() if self.going is None else self.going.away(self.plan)),
            targets=self.targets,
        )

    def _pools(self, now_ns: int) -> list[tuple[PoolReading, ...]]:
        return [
            tuple(
                PoolReading(
                    tuple(self.applications[number].name for number in each.applications),
                    tuple(self.applications[number].name for number in each.untold),
                    each.share,
                    each.backends,
                    each.uptime_ns,
                    each.busy_ns,
                    each.backends_min,
                )
                for each in pools
            )
            for pools in read_pools(self.engine, self.ownership, now_ns)
        ]

    def _counts(self) -> dict[str, ApplicationReading]:
        """Requests by application. Those received have ended, are queued, or are on a backend."""
        counts = self.engine.ledger.applications
        received = [each.good + each.late + sum(each.drops.values()) for each in counts]
        for request in self.engine.outbox.queued.values():
            received[request.application] += 1
        for rank in self.engine.ranks:
            for state in rank.backends.values():
                for batch in state.batches():
                    for request in batch.requests:
                        received[request.application] += 1
        return {
            name: ApplicationReading(
                received[number],
                counts[number].good,
                counts[number].bad,
                counts[number].busy_ns,
                self.rated[number],
                self.right[number],
            )
            for name, number in self.numbers.items()
        }

    # Events

    def begin(self, backends: int) -> None:
        """Place the models, and bring up the backends that there are at the start."""
        kept = None
        if self.plan_file and Path(self.plan_file).exists():
            kept = load_plan(self.plan_file, [str(rank) for rank in range(len(self.members))])
        self.loop.on_start(0, self._reading(0), backends, kept)
        self._carry_out(0)
        for backend in range(backends):
            self._up(0, backend, backend % len(self.members))
        self._await_reading()

    def finish(self, now_ns: int) -> None:
        self._count_time(min(now_ns, self.end_ns))

    def on_agenda(self, now_ns: int, kind: int, subject: int) -> None:
        if kind == READING:
            self._read(now_ns)
            self._await_reading()
        elif kind == READY:
            rank = self.starting.pop(subject, None)
            if rank is not None:
                self._up(now_ns, subject, rank)
        else:
            self._settle(now_ns)
            self._read(now_ns)

    def on_done(self, now_ns: int, backend: int, batch: Batch) -> None:
        """A backend has ended a batch: its answers are rated, and if it was its last, it goes."""
        accuracy = self.accuracy[batch.variant]
        if accuracy is not None:
            application = batch.requests[0].application
            self.rated[application] += len(batch.requests)
            self.right[application] += accuracy * len(batch.requests)
        self.on_idle(now_ns, backend)

    def on_idle(self, now_ns: int, backend: int) -> None:
        """A backend may go once it has ended its last batch."""
        if backend in self.draining:
            state = self.engine.backend(backend)
            if not state.batches():
                self._count_time(now_ns)
                del self.draining[backend]
                self.engine.on_backend_down(now_ns, backend)

    def _read(self, now_ns: int) -> None:
        self.loop.on_reading(now_ns, self._reading(now_ns))
        self._carry_out(now_ns)

    def _await_reading(self) -> None:
        at_ns = self.loop.wake_at_ns()
        if at_ns <= self.end_ns:
            self.enter(at_ns, READING, 0)

    # Effects

    def _carry_out(self, now_ns: int) -> None:
        while effects := self.loop.take_effects():
            for effect in effects:
                if isinstance(effect, SetTargets):
                    self._set_targets(now_ns, effect.targets)
                elif isinstance(effect, WindowEnded):
                    self._log_window(now_ns, effect)
                elif isinstance(effect, SolvePlacement):
                    self._solve(now_ns, effect)
                elif isinstance(effect, ApplyPlan):
                    self._apply(now_ns, effect.plan)

    def _log_window(self, now_ns: int, ended: WindowEnded) -> None:
        allocated = self.allocated()
        for rank, (window, advice) in enumerate(zip(ended.windows, ended.advice, strict=True)):
            self.windows.append(WindowLog(now_ns, rank, window, advice, allocated))

    def _set_targets(self, now_ns: int, targets: tuple[int, ...]) -> None:
        self.targets = targets
        on_their_way = list(self.starting.values())
        for rank, target in enumerate(targets):
            change = target - len(self.members[rank]) - on_their_way.count(rank)
            if change > 0:
                self._start(now_ns, rank, change)
            elif change < 0:
                self._release(now_ns, rank, -change)

    def _solve(self, now_ns: int, asked: SolvePlacement) -> None:
        # The solver's libraries are needed for placement alone.
        from fermata.partitioner.solve import solve

        try:
            found = solve(asked.problem, asked.limit_s)
        except ConfigError:
            if not asked.problem.current.home:
                raise
            self.loop.on_unsolved()
            return
        imbalance = found.rate_imbalance, found.memory_imbalance
        self.plans.append(EpochLog(now_ns, found.plan, len(found.moves), *imbalance))
        self.loop.on_solved(found.plan)

    def _apply(self, now_ns: int, plan: Plan) -> None:
        """Load what comes on every backend of its new home; the old one serves it meanwhile."""
        self.going = plan
        by_target = [0] * len(self.members)
        for name in plan.away(self.plan):
            by_target[plan.home[name]] += load_ns(self.applications[self.numbers[name]])
        if any(self.members):
            self.enter(now_ns + max(by_target), LOADED, 0)
        else:
            # Nothing runs yet: what comes up brings its models.
            self._settle(now_ns)
            self.loop.on_reading(now_ns, self._reading(now_ns))

    def _settle(self, now_ns: int) -> None:
        """Serve every application from its new home."""
        assert self.going is not None
        for name in self.going.away(self.plan):
            self.engine.move_application(now_ns, self.numbers[name], self.going.home[name])
        self.plan, self.going = self.going, None

    # Backends

    def _up(self, now_ns: int, backend: int, rank: int) -> None:
        self._count_time(now_ns)
        self.members[rank].add(backend)
        owner = self.ownership.take(backend)
        self.engine.on_backend_up(now_ns, backend, rank=rank, owner=owner)

    def _start(self, now_ns: int, rank: int, count: int) -> None:
        self._count_time(now_ns)
        taken = {*self.starting, *self.draining}.union(*self.members)
        # A new backend loads every model of its sub-cluster.
        own = [self.applications[self.numbers[name]] for name in self.plan.models_of(rank)]
        ready_at_ns = now_ns + self.startup_ns + sum(map(load_ns, own))
        backend = 0
        for _ in range(count):
            # The lowest numbers: the rank gathers work there, and the others are idle for long.
            while backend in taken:
                backend += 1
            taken.add(backend)
            self.starting[backend] = rank
            self.enter(ready_at_ns, READY, backend)

    def _release(self, now_ns: int, rank: int, count: int) -> None:
        """First those that are not up yet, then the highest numbers, which are idle longest, of
        the owners that can spare them."""
        self._count_time(now_ns)
        for backend in sorted(self.starting, reverse=True):
            if count and self.starting[backend] == rank:
                del self.starting[backend]
                count -= 1
        for _ in range(count):
            owner = self.ownership.richest()
            backend = max(
                each for each in self.members[rank] if self.ownership.owner[each] == owner
            )
            self.members[rank].discard(backend)
            self.draining[backend] = rank
            self.ownership.release(backend)
            self.engine.on_drain(now_ns, backend)
            self.on_idle(now_ns, backend)


def placed_models(scenario: Scenario, accuracy: float | None = None) -> list[PlacedModel]:
    """The applications as placement sees them; those whose policy chooses hold this accuracy."""
    owners = owners_of(scenario.applications, scenario.policy, scenario.policy_options)
    return [
        placed_model(each, rated_variants(each, each.profiles, policy, options, accuracy), accuracy)
        for each, (_, policy, options) in zip(scenario.applications, owners, strict=True)
    ]


def placed_model(
    application: Application,
    choices: tuple[RatedProfile, ...] = (),
    accuracy: float | None = None,
) -> PlacedModel:
    """The application as placement sees it; without choices it holds no accuracy."""
    profiles = application.profiles
    sizes = [
        variant.batch_size_max or profile.batch_size_max or 1
        for variant, profile in zip(application.variants, profiles, strict=True)
    ]
    return placed_application(
        application.name,
        profiles,
        sizes,
        application.slo_ns,
        choices=choices,
        accuracy=accuracy if choices else None,
    )


def load_ns(application: Application) -> int:
    """Time to load all variants of an application on a backend."""
    return sum(each.load_ns for each in application.profiles)


def fluid_backends(application: Application, rate_rps: float) -> float:
    """Backends that Eqns 2 and 3 give an application at a rate."""
    return backends_for(replace(placed_model(application), rate_rps=rate_rps)) or 0.0
