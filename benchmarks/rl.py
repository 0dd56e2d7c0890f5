"""Routing under bursts, per request and learnt: RL-edge's system on the simulator's engine."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.figures import Figure, run_parts
from benchmarks.workloads import (
    BURST_S,
    HEAVY_BATCHES,
    LIGHT_BATCHES,
    NORMAL_OVER_BURST,
    edge,
    eq12,
    periodic_bursts,
)
from fermata.foundation.units import SECOND
from fermata.simulator.learning.trained_scenario import served_by
from fermata.simulator.reports.phase_report import PhaseReport, report_phases
from fermata.simulator.reports.report import report
from fermata.simulator.run import DROPPED, simulate
from fermata.simulator.scenario.scenario import Scenario

SEEDS = (1, 2, 3, 4, 5)
BATCHING_SEEDS = SEEDS[:2]
"""Batches make training several times as slow."""
UNSEEN = 1000
"""Added to a seed of training for one of evaluation."""
MEMORY = 3
"""Slots that policies look back on, unless only the queues of this one are to be seen."""
MIX = {"mix": "2/2"}
BUSY_RPS = 180
PAPER_PO, PAPER_FO = (79.23, 1.553), (80.27, 0.329)
"""RL-edge's Table 2, periodic workload: goodput and violations of policies trained on it."""
PERIOD_S = (1 + NORMAL_OVER_BURST) * BURST_S["table"]
TARGET = 0.003
"""Violations that a system has come back to its target with."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long runs are, and training."""

    seconds: float
    updates: int


Part = Callable[[ProcessPoolExecutor, Size], Iterator[Figure]]


def phases(scenario: Scenario) -> PhaseReport:
    return report_phases(scenario, simulate(scenario))


def overload(seconds: float, rate_rps: float) -> float:
    """Share of the requests that are dropped or late at a steady rate."""
    one = edge(rate_rps=rate_rps, duration_s=seconds, policy_options=MIX)
    return report(one, simulate(one)).bad_rate


def recovery_s(backend: int, seed: int = 11) -> float:
    """From the loss of an instance within a burst until violations stay within the target."""
    one = edge(
        rate_rps=BUSY_RPS,
        duration_s=60,
        seed=seed,
        policy_options=MIX,
        faults=[{"at_s": 20, "backend": backend, "kind": "crash"}],
    )
    log = simulate(one)
    bad = (log.end_ns == DROPPED) | (log.end_ns > log.arrivals.at_ns + log.arrivals.slo_ns)
    after_s = (log.arrivals.at_ns - one.warmup_ns) / SECOND - 20
    steps = np.arange(0.0, 35.0, 0.25)
    for step in reversed(steps.tolist()):
        # Looking back from the end: the last window of five seconds that misses the target.
        window = (after_s >= step) & (after_s < step + 5)
        if bad[window].mean() > TARGET:
            late = after_s[window & bad]
            return float(late.max())
    return 0.0


def slots(reading: str = "table", **values: object) -> Scenario:
    """The paper's rules for slot routing: what is late is served all the same."""
    application = {
        "name": "vision",
        "slo_ms": 300,
        "hard_limit_ms": 60_000,
        "variants": [HEAVY_BATCHES, LIGHT_BATCHES],
    }
    paper = {"arrivals": eq12(reading), "policy_options": MIX, "applications": [application]}
    return edge(**{**paper, **values})


@dataclass(frozen=True, slots=True)
class Learnt:
    """Policies of several seeds, evaluated on arrivals that they have not seen."""

    goodput: float
    """In percent, as violations are."""
    violations: float
    periodic_goodput: float
    """Of the periodic workload, which was not trained on."""
    periodic_violations: float
    cpu_s: float
    """Of the longest training."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What policies of a kind see and set."""

    memory: int = MEMORY
    arrivals: bool = False
    batching: bool = False


def learn_one(kind: Kind, seconds: float, updates: int, seed: int) -> Learnt:
    """Train with one seed on one core, evaluate with another through the engine."""
    from fermata.simulator.learning.ppo import Settings
    from fermata.simulator.learning.training import Lesson, train

    lesson = Lesson(
        seed,
        with_arrivals=kind.arrivals,
        memory=kind.memory,
        batching=kind.batching,
        settings=Settings(updates=updates),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.json"
        trained = train(slots(), lesson, path=path)
        result = phases(served_by(slots(duration_s=seconds, seed=UNSEEN + seed), path))
        unseen = periodic_bursts("table")
        one_period = slots(arrivals=unseen, duration_s=PERIOD_S, seed=UNSEEN + seed)
        periodic = phases(served_by(one_period, path))
    return Learnt(
        100 * result.goodput,
        100 * result.violations,
        100 * periodic.goodput,
        100 * periodic.violations,
        trained.cpu_s,
    )


def learn(
    pool: ProcessPoolExecutor,
    seconds: float,
    updates: int,
    kind: Kind,
    seeds: Sequence[int] = SEEDS,
) -> Learnt:
    """The mean over seeds."""
    results = list(pool.map(partial(learn_one, kind, seconds, updates), seeds))
    return Learnt(
        fmean(each.goodput for each in results),
        fmean(each.violations for each in results),
        fmean(each.periodic_goodput for each in results),
        fmean(each.periodic_violations for each in results),
        max(each.cpu_s for each in results),
    )


def per_request(pool: ProcessPoolExecutor, size: Size) -> Iterator[Figure]:
    runs = [(reading, spread) for reading in ("text", "table") for spread in (0.0, 0.3)]
    scenarios = [
        edge(
            arrivals=eq12(reading),
            duration_s=size.seconds,
            execution={"variation": spread},
            policy_options=MIX,
        )
        for reading, spread in runs
    ]
    for (reading, spread), result in zip(runs, pool.map(phases, scenarios), strict=True):
        name = f"per request, Eq. 12 as in the {reading}, variation {spread:.0%}"
        yield Figure(f"{name}: goodput", 100 * result.goodput, "%", 80.85)
        yield Figure(f"{name}: violations", 100 * result.violations, "%", 0.05, at_most=True)


def stress(pool: ProcessPoolExecutor, size: Size) -> Iterator[Figure]:
    rates, goals = (240.0, 300.0), (5.2, 24.5)
    for rate, goal, bad in zip(
        rates, goals, pool.map(partial(overload, size.seconds / 20), rates), strict=True
    ):
        yield Figure(f"violations at {rate:g} req/s", 100 * bad, "%", goal, at_most=True)
    periodic = edge(arrivals=periodic_bursts(), duration_s=size.seconds, policy_options=MIX)
    bad = phases(periodic).violations
    yield Figure("periodic bursts: violations", 100 * bad, "%", 0.3, at_most=True)
    for name, backend, lost_s in zip(
        ("light", "heavy"), (0, 1), pool.map(recovery_s, (0, 1)), strict=True
    ):
        text = f"a {name} instance lost in a burst (backend {backend}): back to target"
        yield Figure(text, lost_s, "s", 2.0, at_most=True)


def shown(name: str, one: Learnt, goodput: float, violations: float) -> Iterator[Figure]:
    yield Figure(f"{name}: goodput", one.goodput, "%", goodput)
    yield Figure(f"{name}: violations", one.violations, "%", violations, at_most=True)
    yield Figure(f"{name}: longest training, one core", one.cpu_s, "s", 120, at_most=True)


def learnt(
    name: str, kind: Kind, goodput: float, violations: float, paper: tuple[float, float]
) -> Part:
    """The figures of one kind of policies, with their goals."""

    def measured(pool: ProcessPoolExecutor, size: Size) -> Iterator[Figure]:
        one = learn(pool, size.seconds / 4, size.updates, kind)
        yield from shown(f"{name}, mean of {len(SEEDS)} seeds", one, goodput, violations)
        text = "  on periodic bursts, not trained on, goal the paper's"
        yield Figure(f"{text}: goodput", one.periodic_goodput, "%", paper[0])
        yield Figure(f"{text}: violations", one.periodic_violations, "%", paper[1], at_most=True)

    return measured


def batching(pool: ProcessPoolExecutor, size: Size) -> Iterator[Figure]:
    """Adaptive batches against the same policy without, on the same arrivals."""
    single, batched = (
        learn(pool, size.seconds / 2, size.updates, Kind(batching=batches), BATCHING_SEEDS)
        for batches in (False, True)
    )
    name = f"adaptive batching, mean of {len(BATCHING_SEEDS)} seeds, goals without batching"
    yield from shown(name, batched, single.goodput, single.violations)


PARTS: dict[str, Part] = {
    "routing": per_request,
    "stress": stress,
    "queues": learnt("1 s slots, queues only", Kind(memory=1), 79.9, 0.7, PAPER_PO),
    "memory": learnt(f"1 s slots, queues of {MEMORY} slots", Kind(), 79.9, 0.7, PAPER_PO),
    "arrivals": learnt("1 s slots, with arrival counts", Kind(arrivals=True), 80.4, 0.3, PAPER_FO),
    "batching": batching,
}


TOLD = {
    "routing": "per request",
    "stress": "overload, periodic bursts, a lost instance",
    "queues": "slots, memoryless",
    "memory": "slots, with memory",
    "arrivals": "slots, with arrival counts",
    "batching": "slots, with adaptive batches",
}


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    size = Size(4_000, 4) if quick else Size(40_000, 30)
    with ProcessPoolExecutor(2) as pool:
        for name in parts:
            yield from PARTS[name](pool, size)


if __name__ == "__main__":
    run_parts("Routing under bursts", measure, TOLD)
