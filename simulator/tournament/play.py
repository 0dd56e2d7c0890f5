"""Plays policies on one draw, all on the same arrivals, and compares what each earns."""

from dataclasses import dataclass, replace
from time import process_time

import numpy as np

from fermata.foundation.errors import ConfigError
from fermata.router.policies.auto import AUTO
from fermata.router.policies.catalog import POLICIES
from fermata.router.policies.sequences import SEQUENCES
from fermata.simulator.arrivals import Arrivals, generate
from fermata.simulator.run import Driver, RunLog
from fermata.simulator.scenario.scenario import Scenario, read_scenario
from fermata.simulator.tournament.bound import fluid_bound
from fermata.simulator.tournament.draw import Draw

NEED_MORE = frozenset(
    (
        *("rl", "model-switching", "sneakpeek", "grouped", "lo-edf", "lo-priority", "maxacc-edf"),
        SEQUENCES,
    )
)
"""Policies that need training, measured limits, evidence of what requests hold, or sequences."""
SOLVES = "ramsis"
"""The policy that solves tables for each application first, which takes long where many are."""
PLAYERS = tuple(name for name in POLICIES if name not in NEED_MORE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one policy on one draw."""

    policy: str
    utility: float
    """Sum of accuracy over answers in time, over all requests; without accuracies, goodput."""
    violations: float
    """Share of requests that were not answered in time."""
    cpu_us: float
    """Processor time of a request, the emulated cluster's included."""
    refused: str = ""
    """The reason, where the policy does not take this workload."""


@dataclass(frozen=True, slots=True)
class Match:
    """All policies on one draw."""

    seed: int
    traits: tuple[str, ...]
    load: float
    backends: int
    several: bool
    """Whether an application has several variants."""
    bound: float
    outcomes: tuple[Outcome, ...]

    @property
    def best(self) -> Outcome:
        return max(self.outcomes, key=lambda each: each.utility)

    def of(self, policy: str) -> Outcome:
        return next(each for each in self.outcomes if each.policy == policy)

    def regret(self, policy: str) -> float:
        """Utility that the best policy earned and this one did not."""
        return self.best.utility - self.of(policy).utility

    def excess_violations(self, policy: str) -> float:
        """Violations above those of the policy that earned most."""
        return self.of(policy).violations - self.best.violations


def play(
    draw: Draw, policies: tuple[str, ...] = PLAYERS, tables_for_max: int | None = None
) -> Match:
    """Every policy on the arrivals of one draw.

    With more applications than `tables_for_max`, RAMSIS sits out.
    """
    scenario = read_scenario(draw.document)
    arrivals = generate(scenario)
    several = any(len(each.variants) > 1 for each in scenario.applications)
    many = tables_for_max is not None and len(scenario.applications) > tables_for_max
    outcomes = tuple(
        Outcome(policy, 0.0, 1.0, 0.0, f"not played beyond {tables_for_max} applications")
        if many and policy == SOLVES
        else _play_one(scenario, arrivals, policy, several)
        for policy in policies
    )
    bound = fluid_bound(scenario, arrivals, with_accuracy=several)
    return Match(draw.seed, draw.traits, draw.load, scenario.backends, several, bound, outcomes)


def played_by(scenario: Scenario, policy: str) -> Scenario:
    """The scenario with this policy, and with the options that it has live where none is set."""
    return replace(scenario, policy=policy, policy_options=live_options(policy))


def live_options(policy: str) -> dict[str, object]:
    """The default policy holds on a fixed fleet, as that of a draw is, only while it pays."""
    return {"hold": "auto"} if policy == AUTO else {}


def _play_one(scenario: Scenario, arrivals: Arrivals, policy: str, several: bool) -> Outcome:
    begun_s = process_time()
    try:
        log = Driver(played_by(scenario, policy), arrivals=arrivals).run()
    except ConfigError as error:
        return Outcome(policy, 0.0, 1.0, 0.0, str(error))
    cpu_us = 1e6 * (process_time() - begun_s) / max(1, len(arrivals.at_ns))
    utility, violations = earned(scenario, log, several)
    return Outcome(policy, utility, violations, cpu_us)


def earned(scenario: Scenario, log: RunLog, with_accuracy: bool) -> tuple[float, float]:
    """Utility of a run, and the share of requests that were not answered in time."""
    arrivals = log.arrivals
    measured = arrivals.at_ns >= scenario.warmup_ns
    in_time = measured & (log.end_ns > 0) & (log.end_ns - arrivals.at_ns <= arrivals.slo_ns)
    total = int(measured.sum())
    if total == 0:
        return 0.0, 0.0
    worth = np.array([each or 0.0 for each in log.accuracy]) if with_accuracy else None
    good = float(in_time.sum() if worth is None else worth[log.variant[in_time]].sum())
    return good / total, 1.0 - float(in_time.sum()) / total
