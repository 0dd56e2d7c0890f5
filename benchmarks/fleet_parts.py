"""Sub-clusters of a simulated fleet: requests one by one, or fluid rates; both read alike."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from benchmarks.fleet_load import Fleet
from fermata.applications.application import Application
from fermata.applications.variant import Variant
from fermata.autoscaler.options import AutoscalerOptions
from fermata.autoscaler.readings import ApplicationReading, SubClusterReading
from fermata.foundation.units import NEVER, SECOND
from fermata.router.core.events import Dispatch, Request
from fermata.simulator.assembly import assemble
from fermata.simulator.cluster import COMPLETION, EmulatedCluster
from fermata.simulator.scaled_backends import ScaledBackends
from fermata.simulator.scenario.scenario import Scenario

READY = 0
"""The kind of entries on the agenda beside completions: a backend is up."""


@dataclass(frozen=True, slots=True)
class Order:
    """Orders for a sub-cluster, from now until a time."""

    until_ns: int
    rates: Mapping[str, float] | None = None
    """Requests a second of the models that live there; None: as before."""
    need: float = 0.0
    """Backends that Eqns 2 and 3 give these rates."""
    target: int | None = None
    """Backends to have; None: as before."""
    load_ns: int = 0
    """Time to load all models on a new backend."""


@dataclass(frozen=True, slots=True)
class PartReport:
    """How a sub-cluster has fared since the start."""

    reading: SubClusterReading
    applications: Mapping[str, ApplicationReading]
    """Models that have lived there."""
    allocated_ns: int
    """Backend time."""

    @property
    def requests(self) -> int:
        return sum(each.received for each in self.applications.values())

    @property
    def ended(self) -> tuple[int, int]:
        """Requests that ended, and the bad among them."""
        bad = sum(each.bad for each in self.applications.values())
        return bad + sum(each.good for each in self.applications.values()), bad


class FleetPart(Protocol):
    """One sub-cluster."""

    def step(self, order: Order) -> PartReport: ...


class PlayedSubCluster:
    """A router's own engine with emulated backends of one kind, under Poisson requests."""

    def __init__(
        self, fleet: Fleet, number: int, scaling: AutoscalerOptions, backends: int
    ) -> None:
        kind = fleet.kinds[number]
        models = [each for each in fleet.models if each.runs_on(kind)]
        self.slo_ns = [each.slo_ns for each in models]
        self.numbers = {each.name: place for place, each in enumerate(models)}
        applications = tuple(
            Application(
                each.name, each.slo_ns, (Variant(each.name, profile=each.profile_on(kind)),)
            )
            for each in models
        )
        seed = f"{fleet.seed} {number}"
        built = assemble(Scenario(applications, 0, None, policy="deferred", autoscaler=scaling), {})
        self.engine = built.engine
        rng = random.Random(f"{seed} execution")
        self.cluster = EmulatedCluster(0, built.engine.costs, 0, ((0, 0.0),), (), 0, rng)
        self.backends = ScaledBackends(
            built.engine,
            built.ownership,
            lambda at_ns, backend: self.cluster.enter_control(at_ns, READY, backend),
            scaling.startup_ns,
        )
        for backend in range(backends):
            self.backends.bring_up(0, backend, 0)
        self.rng = np.random.default_rng(random.Random(f"{seed} arrivals").getrandbits(64))
        self.now_ns = 0
        self.rid = 0
        self.living: list[int] = []
        """Models that requests come for, by number; below, the rate of each."""
        self.rates_rps: list[float] = []
        self.received: dict[int, int] = {}

    def step(self, order: Order) -> PartReport:
        if order.rates is not None:
            self.living = [self.numbers[name] for name in order.rates]
            self.rates_rps = list(order.rates.values())
        if order.target is not None:
            self.backends.set_target(self.now_ns, 0, order.target, order.load_ns)
        self._play(*self._arrivals(order.until_ns), order.until_ns)
        self.now_ns = order.until_ns
        return self._report()

    def _arrivals(self, until_ns: int) -> tuple[list[int], list[int]]:
        """Times and models of the requests until then, in order."""
        span_ns = until_ns - self.now_ns
        counts = self.rng.poisson(np.array(self.rates_rps) * (span_ns / SECOND))
        for number, count in zip(self.living, counts.tolist(), strict=True):
            self.received[number] = self.received.get(number, 0) + count
        at_ns = self.now_ns + (span_ns * self.rng.random(int(counts.sum()))).astype(np.int64)
        order = np.argsort(at_ns)
        models = np.repeat(np.array(self.living, np.int64), counts)
        return [*at_ns[order].tolist(), NEVER], models[order].tolist()

    def _play(self, at_ns: Sequence[int], models: Sequence[int], until_ns: int) -> None:
        engine, cluster, slo_ns = self.engine, self.cluster, self.slo_ns
        effects = engine.outbox.effects
        index, now_ns, first = 0, self.now_ns, self.rid
        while True:
            # At one instant: first what has ended, then what arrives, then the timers.
            arrival_ns, agenda_ns, wake_ns = at_ns[index], cluster.next_ns(), engine.wake_at_ns()
            if min(arrival_ns, agenda_ns, wake_ns) >= until_ns:
                break
            if agenda_ns <= arrival_ns and agenda_ns <= wake_ns:
                now_ns = agenda_ns
                self._on_agenda(now_ns)
            elif arrival_ns <= wake_ns:
                now_ns, model = arrival_ns, models[index]
                engine.on_request(
                    now_ns, Request(first + index, model, now_ns, now_ns + slo_ns[model])
                )
                index += 1
            else:
                now_ns = max(now_ns, wake_ns)
                engine.on_time(now_ns)
            while effects:
                for effect in engine.take_effects():
                    if isinstance(effect, Dispatch):
                        cluster.accept(now_ns, effect.backend, effect.batch)
        self.rid += index

    def _on_agenda(self, now_ns: int) -> None:
        kind, subject, backend = self.cluster.pop()
        if kind == COMPLETION:
            _, _, run_ns = self.cluster.complete(now_ns, subject)
            self.engine.on_done(now_ns, subject, run_ns)
            self.backends.on_idle(now_ns, subject)
        else:
            self.backends.on_ready(now_ns, backend)

    def _report(self) -> PartReport:
        (rank,) = self.engine.ranks
        rank.settle(self.now_ns)
        self.backends.count_time(self.now_ns)
        counts = self.engine.ledger.applications
        return PartReport(
            SubClusterReading(
                len(self.backends.members[0]),
                rank.signals.uptime_ns,
                rank.signals.busy_ns,
                rank.signals.backends_min + rank.pool.missing(self.now_ns),
            ),
            {
                name: ApplicationReading(
                    self.received[number],
                    counts[number].good,
                    counts[number].bad,
                    counts[number].busy_ns,
                )
                for name, number in self.numbers.items()
                if number in self.received
            },
            self.backends.allocated_ns,
        )


@dataclass(slots=True)
class FluidCounts:
    """Requests of one model, in fractions."""

    received: float = 0.0
    good: float = 0.0


@dataclass(slots=True)
class FluidSubCluster:
    """Rates in place of requests: as many are good as backends are up for."""

    startup_ns: int
    up: int
    now_ns: int = 0
    ready_at_ns: list[int] = field(default_factory=list)
    """Times at which backends on their way are up, in order."""
    rates: Mapping[str, float] = field(default_factory=dict)
    need: float = 0.0
    counts: dict[str, FluidCounts] = field(default_factory=dict)
    up_ns: float = 0.0
    busy_ns: float = 0.0
    allocated_ns: int = 0

    def step(self, order: Order) -> PartReport:
        if order.rates is not None:
            self.rates, self.need = order.rates, order.need
        if order.target is not None:
            self._set_target(order.target, order.load_ns)
        while self.ready_at_ns and self.ready_at_ns[0] <= order.until_ns:
            self._flow(self.ready_at_ns[0])
            self.ready_at_ns.pop(0)
            self.up += 1
        self._flow(order.until_ns)
        return self._report()

    def _set_target(self, target: int, load_ns: int) -> None:
        change = target - self.up - len(self.ready_at_ns)
        if change > 0:
            self.ready_at_ns += [self.now_ns + self.startup_ns + load_ns] * change
            self.ready_at_ns.sort()
        while change < 0:
            change += 1
            if self.ready_at_ns:
                self.ready_at_ns.pop()
            else:
                self.up -= 1

    def _flow(self, until_ns: int) -> None:
        span_ns = until_ns - self.now_ns
        self.now_ns = until_ns
        good = min(1.0, self.up / self.need) if self.need > 0.0 else 1.0
        for name, rate_rps in self.rates.items():
            counts = self.counts.setdefault(name, FluidCounts())
            came = rate_rps * span_ns / SECOND
            counts.received += came
            counts.good += good * came
        self.up_ns += self.up * span_ns
        self.busy_ns += min(self.up, self.need) * span_ns
        self.allocated_ns += (self.up + len(self.ready_at_ns)) * span_ns

    def _report(self) -> PartReport:
        return PartReport(
            SubClusterReading(self.up, round(self.up_ns), round(self.busy_ns), self.need),
            {
                name: ApplicationReading(
                    int(each.received), int(each.good), int(each.received) - int(each.good)
                )
                for name, each in self.counts.items()
            },
            self.allocated_ns,
        )
