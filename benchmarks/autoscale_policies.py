"""Autoscaling with policies that tell different things of their needs, or nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np

from benchmarks.figures import Figure
from benchmarks.workloads import scenario
from fermata.foundation.units import SECOND
from fermata.partitioner.backends import backends_needed
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.simulator.reports.report import report
from fermata.simulator.run import RunLog, simulate
from fermata.simulator.scaling import placed_models
from fermata.simulator.scenario.scenario import Scenario
from fermata.simulator.worker_plan import (
    WorkerGoal,
    fewest_workers,
    only_application,
    promised_fleet,
    simulated_fleet,
)

STARTUP_S = 3
BAD_RATE_MAX = 0.01
BESIDE = (
    "deferred",
    "published",
    "eager",
    "timeout",
    "batch-queues",
    "partitioned",
    "jellyfish",
    "routing",
    "single-queue",
    "central-queue",
    "lookahead",
    "ramsis",
    "jellyfish-plus",
    "model-switching",
)
"""Policies of pairs. SneakPeek and its baselines are left out: at this SLO they lose requests to
their own windows, whatever the number of backends. `rl` needs a checkpoint."""
MODEL_SWITCHING = "model-switching"
SIZES = {"small": (4, 12, 0.7), "middle": (7, 20, 0.76), "large": (12, 30, 0.8)}
"""Variants: time of a request and of a batch in milliseconds, and accuracy."""
PAIR_S, PAIR_RPS = 120, 60

CLASSIFIER = {
    "small": (9, 12, 0.60),
    "medium": (16, 15, 0.73),
    "large": (35, 20, 0.80),
    "huge": (70, 45, 0.84),
}
"""Variants of `simulator/samples/variants.yaml`."""
ACCURACY_S, SETTLED_S = 300, 100
ACCURACY_RPS = 100.0
STARTS = (2, 8, 32)
HOLDING = ("central-queue", "auto")
"""Policies that are to hold an accuracy."""
OWN = "central queue"
"""The planner that tries each number in a simulation, with the central queue."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Applications of like variants at constant loads, each with its own policy."""

    policies: tuple[str, ...]
    rates_rps: tuple[float, ...] = (PAIR_RPS, PAIR_RPS)
    shares: tuple[float, ...] = (1.0, 1.0)
    slos_ms: tuple[float, ...] = (150.0, 150.0)
    window_s: float = 5.0
    backends: int = 8
    steps: tuple[float, ...] = (1.0,)
    """Factors of the rates, each for an equal part of the time."""

    def scenario(self, seed: int) -> Scenario:
        rows = zip(self.policies, self.shares, self.slos_ms, strict=True)
        step_s = PAIR_S / len(self.steps)
        return scenario(
            seed=seed,
            backends=self.backends,
            warmup_s=0,
            duration_s=PAIR_S,
            rate_rps=None,
            arrivals={
                "process": "trace",
                "step_s": step_s,
                "applications": {
                    f"app-{place}": [factor * rate_rps for factor in self.steps]
                    for place, rate_rps in enumerate(self.rates_rps)
                },
            },
            applications=[_application(f"app-{place}", *row) for place, row in enumerate(rows)],
            autoscaler={"window_s": self.window_s, "startup_s": STARTUP_S, "maximum": 32},
        )


def _application(name: str, policy: str, share: float, slo_ms: float) -> dict[str, object]:
    options = {"sustained_rps": [100, 60, 30]} if policy == MODEL_SWITCHING else {}
    return {
        "name": name,
        "slo_ms": slo_ms,
        "policy": policy,
        "policy_options": options,
        "backend_share": share,
        "serving": f"{name}-small",
        "variants": variants(SIZES, f"{name}-"),
    }


def variants(
    sizes: Mapping[str, tuple[float, float, float]], prefix: str = ""
) -> list[dict[str, object]]:
    return [
        {"name": f"{prefix}{size}", "alpha_ms": alpha, "beta_ms": beta, "accuracy": right}
        for size, (alpha, beta, right) in sizes.items()
    ]


def judge(one: Scenario) -> tuple[float, int]:
    """The bad rate of the worst application, and the changes of the number of backends."""
    log = simulate(one)
    return report(one, log).worst_bad_rate, sum(each.advice.change != 0 for each in log.windows)


def pairs(quick: bool) -> Iterator[Figure]:
    """Every policy beside every other, at one constant load."""
    seeds = (1,) if quick else (1, 2, 3)
    found = [
        (*judge(Mix(pair).scenario(seed)), " and ".join(pair))
        for pair in combinations_with_replacement(BESIDE, 2)
        for seed in seeds
    ]
    bad, _, name = max(found)
    yield Figure(
        f"{len(found)} pairs: bad of the worst application ({name})", 100 * bad, "%", 1, True
    )
    _, changes, name = max(found, key=lambda each: each[1])
    yield Figure(f"{len(found)} pairs: most changes in {PAIR_S} s ({name})", changes, "", 3, True)


def held(
    accuracy: float, backends: int, rate_rps: float, policy: str = "central-queue"
) -> Scenario:
    """One application that is to hold an accuracy, from so many backends on."""
    return scenario(
        seed=7,
        backends=backends,
        warmup_s=0,
        duration_s=ACCURACY_S,
        rate_rps=rate_rps,
        policy=policy,
        applications=[{"name": "classifier", "slo_ms": 150, "variants": variants(CLASSIFIER)}],
        autoscaler={"accuracy": accuracy, "window_s": 5, "startup_s": STARTUP_S, "maximum": 128},
    )


def settled(log: RunLog) -> tuple[float, float]:
    """The accuracy of answers, and the bad rate, once the number of backends has settled."""
    late = log.arrivals.at_ns >= SETTLED_S * SECOND
    rated = np.array([each or 0.0 for each in log.accuracy])
    bad = (log.end_ns < 0) | (log.end_ns > log.arrivals.at_ns + log.arrivals.slo_ns)
    return float(rated[log.variant[late & (log.end_ns >= 0)]].mean()), float(bad[late].mean())


def planners(accuracy: float, rate_rps: float) -> dict[str, int]:
    """Backends that each planner gives: `fermata plan`, and both of `policy ramsis plan`."""
    one, wish = held(accuracy, 8, rate_rps), WorkerGoal(rate_rps, accuracy, BAD_RATE_MAX)
    alone = only_application(one)
    models = [replace(each, rate_rps=rate_rps) for each in placed_models(one, accuracy)]
    tries = {
        "RAMSIS": promised_fleet(alone, wish, RamsisOptions()),
        OWN: simulated_fleet(alone, wish),
    }
    found = {"plan": backends_needed(models) or 0}
    for name, attempt in tries.items():
        fleet = fewest_workers(attempt, wish, 128)
        assert fleet is not None
        found[name] = fleet.workers
    return found


def accuracy(quick: bool) -> Iterator[Figure]:
    """One application that is to hold an accuracy, from few and from many backends."""
    goals = [(ACCURACY_RPS, 0.75), (ACCURACY_RPS, 0.77)]
    if not quick:
        goals += [(300.0, 0.75), (300.0, 0.82)]
    for rate_rps, goal in goals:
        planned = planners(goal, rate_rps)
        for policy in HOLDING:
            yield from _held_from(STARTS, goal, rate_rps, policy, planned)


def _held_from(
    starts: Sequence[int], goal: float, rate_rps: float, policy: str, planned: Mapping[str, int]
) -> Iterator[Figure]:
    logs = [simulate(held(goal, start, rate_rps, policy)) for start in starts]
    ends = [log.windows[-1].advice.target for log in logs]
    name = f"{policy}, accuracy {goal} at {rate_rps:g} req/s:"
    told = f"{name} backends from {', '.join(map(str, starts))} on: {', '.join(map(str, ends))}"
    yield Figure(f"{told}; they differ by", max(ends) - min(ends), "", 1, True)
    told = ", ".join(f"{planner} {count}" for planner, count in planned.items())
    farthest = max(abs(end - planned[OWN]) for end in ends)
    yield Figure(f"{name} farthest from the {OWN} planned ({told})", farthest, "", 1, True)
    figures = [settled(log) for log in logs]
    yield Figure(f"{name} mean of the least accurate", min(each for each, _ in figures), "", goal)
    worst = 100 * max(each for _, each in figures)
    yield Figure(f"{name} bad once settled", worst, "%", 1, True)
