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
    PipelineReading,
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
from fermata.simulator.scaled_backends import ScaledBackends
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
        self,
        scenario: Scenario,
        engine: Engine,
        ownership: Ownership,
        enter: Enter,
        queries: Callable[[], dict[str, PipelineReading]] = dict,
    ) -> None:
        """`queries` counts those that have ended, by pipeline."""
        self.engine = engine
        self.queries = queries
        self.ownership = ownership
        self.enter = enter
        startup_ns = 0 if scenario.autoscaler is None else scenario.autoscaler.startup_ns
        self.backends = ScaledBackends(
            engine, ownership, lambda at_ns, backend: enter(at_ns, READY, backend), startup_ns
        )
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
        self.plan_file = "" if scenario.epochs is None else scenario.epochs.plan_file
        self.end_ns = scenario.warmup_ns + scenario.duration_ns
        self.plan = Plan(dict.fromkeys(self.numbers, 0))
        """The sub-cluster that serves each application."""
        self.going: Plan | None = None
        """The plan whose models are being loaded."""
        self.targets: tuple[int, ...] = ()
        self.windows: list[WindowLog] = []
        self.plans: list[EpochLog] = []

    # Accounts

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
                    self.engine.ranks, self.backends.members, self._pools(now_ns), strict=True
                )
            ),
            plan=self.plan,
            pipelines=self.queries(),
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
                counts[number].direct_good,
                counts[number].direct_bad,
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
            kept = load_plan(self.plan_file, [str(rank) for rank in range(len(self.engine.ranks))])
        self.loop.on_start(0, self._reading(0), backends, kept)
        self._carry_out(0)
        for backend in range(backends):
            self.backends.bring_up(0, backend, backend % len(self.engine.ranks))
        self._await_reading()

    def finish(self, now_ns: int) -> None:
        self.backends.count_time(min(now_ns, self.end_ns))

    def on_agenda(self, now_ns: int, kind: int, subject: int) -> None:
        if kind == READING:
            self._read(now_ns)
            self._await_reading()
        elif kind == READY:
            self.backends.on_ready(now_ns, subject)
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
        self.backends.on_idle(now_ns, backend)

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
        allocated = self.backends.allocated()
        for rank, (window, advice) in enumerate(zip(ended.windows, ended.advice, strict=True)):
            self.windows.append(WindowLog(now_ns, rank, window, advice, allocated))

    def _set_targets(self, now_ns: int, targets: tuple[int, ...]) -> None:
        self.targets = targets
        for rank, target in enumerate(targets):
            # A new backend loads every model of its sub-cluster.
            own = [self.applications[self.numbers[name]] for name in self.plan.models_of(rank)]
            self.backends.set_target(now_ns, rank, target, sum(map(load_ns, own)))

    def _solve(self, now_ns: int, asked: SolvePlacement) -> None:
        # The solver's libraries are needed for placement alone.
        from fermata.partitioner.solver.two_level import solve_two_level

        try:
            found = solve_two_level(asked.problem, asked.limit_s)
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
        by_target = [0] * len(self.engine.ranks)
        for name in plan.away(self.plan):
            by_target[plan.home[name]] += load_ns(self.applications[self.numbers[name]])
        if any(self.backends.members):
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
