"""The system that a scenario asks a policy to be trained for."""

from dataclasses import dataclass

import numpy as np

from fermata.foundation.refusals import refuse
from fermata.router.policies.catalog import read_options
from fermata.router.policies.family import Family
from fermata.router.policies.rl.batching import SIZES
from fermata.router.policies.rl.observation import Scales
from fermata.router.policies.routing.deadline import RoutingOptions
from fermata.router.policies.routing.mix import allot, read_mix
from fermata.simulator.arrivals import map_stationary
from fermata.simulator.assembly import batch_size_max
from fermata.simulator.learning.lanes import Ints
from fermata.simulator.reports.phase_report import phase_rates
from fermata.simulator.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class TrainingSystem:
    """Instances and the states of their workload."""

    tiers: tuple[int, ...]
    """The variant of each instance."""
    batch_ns: tuple[tuple[int, ...], ...]
    """Run time by variant and batch size, from 0 up."""
    accuracy: tuple[float, ...]
    """By variant."""
    buffer: int
    slo_ns: int
    rates_rps: tuple[float, ...]
    """Arrivals a second in each state of the workload."""
    time_shares: tuple[float, ...]
    """Share of each state, in the long run."""
    leave_rps: tuple[float, ...]
    """How often a second each state is left."""
    variants: tuple[str, ...] = ()
    """Names of the variants."""

    def scales(self, with_arrivals: bool, memory: int = 1) -> Scales:
        arrivals = max(self.rates_rps) if with_arrivals else 0.0
        return Scales(self.buffer, self.slo_ns, arrivals, memory)

    def lane_tables(self) -> Ints:
        """Run time by instance and batch size; 0 beyond an instance's largest batch."""
        width = max(map(len, self.batch_ns))
        rows = [(*row, *[0] * (width - len(row))) for row in self.batch_ns]
        return np.array([rows[tier] for tier in self.tiers], np.int64)


def read_tiers(scenario: Scenario) -> tuple[int, ...]:
    """The variant of each of the instances that serve the one application."""
    application = scenario.applications[0]
    speed = [profile.latency_ns(1) for profile in application.profiles]
    variants = tuple(range(len(speed)))
    _accuracy(scenario)
    family = Family(0, application, variants)
    counts = allot(read_mix(_options(scenario).mix, family, speed), scenario.backends, speed)
    return tuple(tier for tier, count in enumerate(counts) for _ in range(count))


def _accuracy(scenario: Scenario) -> tuple[float, ...]:
    if len(scenario.applications) != 1:
        refuse("applications", len(scenario.applications), "a policy is trained for one alone")
    accuracy = [variant.accuracy for variant in scenario.applications[0].variants]
    known = [each for each in accuracy if each is not None]
    if len(known) < len(accuracy):
        refuse("applications[0].variants", None, "a policy chooses by accuracy; give all of them")
    return tuple(known)


def read_system(scenario: Scenario) -> TrainingSystem:
    """One application on instances of its own, under a workload of two states."""
    accuracy = _accuracy(scenario)
    application = scenario.applications[0]
    options = _options(scenario)
    rates, shares, leave = _states(scenario)
    return TrainingSystem(
        tiers=read_tiers(scenario),
        batch_ns=tuple(
            (0, *profile.table_ns(min(max(SIZES), batch_size_max(variant, application.slo_ns_max))))
            for variant, profile in zip(application.variants, application.profiles, strict=True)
        ),
        accuracy=accuracy,
        buffer=options.buffer,
        slo_ns=application.slo_ns,
        rates_rps=rates,
        time_shares=shares,
        leave_rps=leave,
        variants=tuple(variant.name for variant in application.variants),
    )


def _options(scenario: Scenario) -> RoutingOptions:
    application = scenario.applications[0]
    policy = application.policy or scenario.policy
    given = application.policy_options if application.policy else scenario.policy_options
    if policy != "routing":
        refuse("policy", policy, "is trained from a scenario with policy routing and its options")
    options = read_options("routing", given)
    assert isinstance(options, RoutingOptions)
    return options


def _states(
    scenario: Scenario,
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    spec = scenario.arrivals
    if spec.process == "map" and len(spec.d0) == 2:
        d0, d1 = np.array(spec.d0), np.array(spec.d1)
        leave = (float(d0[0, 1] + d1[0, 1]), float(d0[1, 0] + d1[1, 0]))
        return tuple(phase_rates(spec).tolist()), tuple(map_stationary(d0, d1).tolist()), leave
    refuse("arrivals.process", spec.process, "a policy is trained on a map of two phases")
