"""Applications of one variant beside such of several, near saturation and beyond it.

Each is served by the default policy, so the first are `deferred` and the others look ahead. Those
of one cost ought to lose alike, whichever of the two serves them.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import mean

import numpy as np

from benchmarks.figures import Figure, parts_parser, run
from fermata.simulator.arrivals import generate
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import Scenario, read_scenario

FIRST = 1_000_000
"""Policies are tuned on seeds below."""
DRAWS, QUICK_DRAWS = 60, 10
REQUESTS = 6_000
APPLICATIONS = (2, 6)
LOADS = (0.9, 2.0)
"""Over what the backends carry in the largest batches of the cheapest variants."""
BATCH_SIZE_MAX = 32
APART_MAX = 10.0
KINDS = ("equal", "unequal", "several")
PARTS = {
    "equal": "applications of one cost",
    "unequal": "applications of unequal cost",
    "several": "several variants each, of unequal cost",
    "equal-fair": "applications of one cost, fair shares at the door",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the applications of one draw fared."""

    load: float
    utility: float
    bad: tuple[float, ...]
    """By application."""
    single: tuple[bool, ...]
    """Whether it has one variant."""

    @property
    def apart(self) -> float:
        """Between the application that lost most and the one that lost least."""
        return max(self.bad) - min(self.bad)


def draw(seed: int, kind: str) -> tuple[float, Scenario]:
    """A mix: `equal` in cost, or not; or all of them with several variants, of unequal cost."""
    rng = Random(f"{seed} {kind}")
    count = rng.randint(*APPLICATIONS)
    singles = 0 if kind == "several" else rng.randint(1, count - 1)
    alone_ms, growth = math.exp(rng.uniform(0.0, 2.5)), math.exp(rng.uniform(-3.5, -0.7))
    slack = math.exp(rng.uniform(math.log(3.0), math.log(20.0)))
    backends = rng.choice((1, 2, 4, 8))
    applications: list[dict[str, object]] = []
    each_ms = []
    for number in range(count):
        if kind != "equal" and number:
            alone_ms, growth = math.exp(rng.uniform(0.0, 2.5)), math.exp(rng.uniform(-3.5, -0.7))
        table = [alone_ms * (1.0 + growth * size) for size in range(BATCH_SIZE_MAX)]
        low, slo_ms = rng.uniform(0.5, 0.8), slack * alone_ms
        variants: list[dict[str, object]] = [
            {"name": f"{number}-0", "latency_ms": table, "accuracy": low}
        ]
        for place in range(0 if number < singles else rng.randint(1, 3)):
            slower, better = 1.7 ** (place + 1), 0.06 * (place + 1)
            rows = [slower * each for each in table]
            variants.append(
                {"name": f"{number}-{place + 1}", "latency_ms": rows, "accuracy": low + better}
            )
        applications.append({"name": f"a{number}", "slo_ms": slo_ms, "variants": variants})
        # With so many backends in turn a batch waits for a part of its own time.
        room_ms = slo_ms * backends / (backends + 1)
        each_ms.append(
            min(run_ms / size for size, run_ms in enumerate(table, 1) if run_ms <= room_ms)
        )
    load = rng.uniform(*LOADS)
    rate_rps = load * 1e3 * backends / mean(each_ms)
    warmup_s = 1_000 / rate_rps + 1.0
    document = {
        "seed": seed,
        "backends": backends,
        "rate_rps": rate_rps,
        "warmup_s": warmup_s,
        "duration_s": REQUESTS / rate_rps,
        "applications": applications,
    }
    return load, read_scenario(document)


def play(seed: int, kind: str, fair: bool) -> Outcome:
    """One draw under the default policy; `fair` turns fair shares at the door on."""
    load, scenario = draw(seed, kind)
    scenario = replace(scenario, fair_shares=fair)
    log = Driver(scenario, arrivals=generate(scenario)).run()
    arrivals, accuracy = log.arrivals, np.array([each or 0.0 for each in log.accuracy])
    measured = arrivals.at_ns >= scenario.warmup_ns
    good = measured & (log.end_ns > 0) & (log.end_ns - arrivals.at_ns <= arrivals.slo_ns)
    bad = []
    for number in range(len(scenario.applications)):
        mine = measured & (arrivals.application == number)
        bad.append(1.0 - float((mine & good).sum()) / max(1, int(mine.sum())))
    utility = float(accuracy[log.variant[good]].sum()) / int(measured.sum())
    single = tuple(len(each.variants) == 1 for each in scenario.applications)
    return Outcome(load, utility, tuple(bad), single)


def measure(parts: Sequence[str], draws: int, first: int, quick: bool) -> Iterator[Figure]:
    count = draws or (QUICK_DRAWS if quick else DRAWS)
    for part in parts:
        kind, fair = part.removesuffix("-fair"), part.endswith("-fair")
        found = [play(seed, kind, fair) for seed in range(first, first + count)]
        name = f"{count} draws, {PARTS[part]}"
        if kind == "equal":
            apart = [100.0 * each.apart for each in found]
            yield Figure(f"{name}: losses apart, mean", mean(apart), "points", 5.0, at_most=True)
            yield Figure(f"{name}: worst", max(apart), "points", APART_MAX, at_most=True)
        utility = 100.0 * mean(each.utility for each in found)
        yield Figure(f"{name}: utility", utility, "points", 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, parents=[parts_parser(PARTS)])
    parser.add_argument("--draws", type=int, default=0, help=f"{DRAWS} unless given")
    parser.add_argument("--first", type=int, default=FIRST, help="seed of the first draw")
    given = parser.parse_known_args()[0]
    parts = given.only or list(PARTS)
    run("Mixed policies", partial(measure, parts, given.draws, given.first), parser)


if __name__ == "__main__":
    main()
