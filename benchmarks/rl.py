"""Routing under bursts, per request and learnt: RL-edge's system on the simulator's engine."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, run
from benchmarks.workloads import HEAVY_BATCHES, LIGHT_BATCHES, edge, eq12, periodic_bursts
from router.core.units import SECOND
from simulator.learning.served import served_by
from simulator.phase_report import PhaseReport, report_phases
from simulator.report import report
from simulator.run import DROPPED, simulate
from simulator.scenario import Scenario

SEEDS = (1, 2, 3, 4, 5)
BATCHING_SEEDS = SEEDS[:2]
"""Batches make training several times as slow."""
UNSEEN = 1000
"""Added to a seed of training for one of evaluation."""
MIX = {"mix": "2/2"}
BUSY_RPS = 180
TARGET = 0.003
"""Violations that a system has come back to its target with."""


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
    return edge(arrivals=eq12(reading), policy_options=MIX, applications=[application], **values)


@dataclass(frozen=True, slots=True)
class Learnt:
    """A policy's training and its evaluation on arrivals that it has not seen."""

    goodput: float
    violations: float
    cpu_s: float


def learn(seconds: float, updates: int, arrivals: bool, batching: bool, seed: int) -> Learnt:
    """Train with one seed on one core, evaluate with another through the engine."""
    import torch

    from simulator.learning.ppo import Settings
    from simulator.learning.training import Lesson, train

    torch.set_num_threads(1)
    settings = Settings(updates=updates)
    lesson = Lesson(seed, with_arrivals=arrivals, batching=batching, settings=settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.json"
        trained = train(slots(), lesson, path=path)
        result = phases(served_by(slots(duration_s=seconds, seed=UNSEEN + seed), path))
    return Learnt(result.goodput, result.violations, trained.cpu_s)


def per_request(pool: ProcessPoolExecutor, seconds: float) -> Iterator[Figure]:
    runs = [(reading, spread) for reading in ("text", "table") for spread in (0.0, 0.3)]
    scenarios = [
        edge(
            arrivals=eq12(reading),
            duration_s=seconds,
            execution={"variation": spread},
            policy_options=MIX,
        )
        for reading, spread in runs
    ]
    for (reading, spread), result in zip(runs, pool.map(phases, scenarios), strict=True):
        name = f"per request, Eq. 12 as in the {reading}, variation {spread:.0%}"
        yield Figure(f"{name}: goodput", 100 * result.goodput, "%", 80.85)
        yield Figure(f"{name}: violations", 100 * result.violations, "%", 0.05, at_most=True)


def stress(pool: ProcessPoolExecutor, seconds: float) -> Iterator[Figure]:
    rates, goals = (240.0, 300.0), (5.2, 24.5)
    for rate, goal, bad in zip(
        rates, goals, pool.map(partial(overload, seconds / 20), rates), strict=True
    ):
        yield Figure(f"violations at {rate:g} req/s", 100 * bad, "%", goal, at_most=True)
    periodic = edge(arrivals=periodic_bursts(), duration_s=seconds, policy_options=MIX)
    bad = phases(periodic).violations
    yield Figure("periodic bursts: violations", 100 * bad, "%", 0.3, at_most=True)
    for name, backend, lost_s in zip(
        ("light", "heavy"), (0, 1), pool.map(recovery_s, (0, 1)), strict=True
    ):
        text = f"a {name} instance lost in a burst (backend {backend}): back to target"
        yield Figure(text, lost_s, "s", 2.0, at_most=True)


def learnt(pool: ProcessPoolExecutor, seconds: float, updates: int) -> Iterator[Figure]:
    """Slot routing that sees queues only, the count of arrivals too, and with batches."""
    alone = partial(learn, seconds, updates, False, False)
    goodput, violations, cpu_s = of_seeds(pool, alone, SEEDS)
    name = f"1 s slots, queues only, mean of {len(SEEDS)} seeds"
    yield Figure(f"{name}: goodput", goodput, "%", 79.9)
    yield Figure(f"{name}: violations", violations, "%", 0.7, at_most=True)
    yield Figure(f"{name}: longest training, one core", cpu_s, "s", 120, at_most=True)
    good, bad, cpu_s = of_seeds(pool, partial(learn, seconds, updates, True, False), SEEDS)
    name = f"1 s slots, with arrival counts, mean of {len(SEEDS)} seeds"
    yield Figure(f"{name}: goodput", good, "%", 80.4)
    yield Figure(f"{name}: violations", bad, "%", 0.3, at_most=True)
    yield Figure(f"{name}: longest training, one core", cpu_s, "s", 120, at_most=True)
    batched = partial(learn, seconds, updates, False, True)
    good, bad, cpu_s = of_seeds(pool, batched, BATCHING_SEEDS)
    name = f"queues only, adaptive batching, mean of {len(BATCHING_SEEDS)} seeds"
    yield Figure(f"{name}: goodput, goal without batching", good, "%", goodput)
    text = f"{name}: violations, goal without batching"
    yield Figure(text, bad, "%", violations, at_most=True)


def of_seeds(
    pool: ProcessPoolExecutor, learn_one: Callable[[int], Learnt], seeds: Sequence[int]
) -> tuple[float, float, float]:
    """Mean goodput and violations in percent, and the longest training in seconds."""
    results = list(pool.map(learn_one, seeds))
    return (
        100 * sum(each.goodput for each in results) / len(results),
        100 * sum(each.violations for each in results) / len(results),
        max(each.cpu_s for each in results),
    )


def measure(quick: bool) -> Iterator[Figure]:
    seconds = 4_000 if quick else 40_000
    with ProcessPoolExecutor(2) as pool:
        yield from per_request(pool, seconds)
        yield from stress(pool, seconds)
        yield from learnt(pool, seconds / 2, 4 if quick else 40)


if __name__ == "__main__":
    run("Routing under bursts", measure)
