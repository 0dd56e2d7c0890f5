"""Tournament: the default policy on workloads drawn at random, held out from every tuning."""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from time import process_time

from benchmarks.figures import Figure, parts_parser, run
from benchmarks.tournament_results import DEFAULT, FIELDS, TABLES_FOR_MAX, Results
from fermata.router.policies.lookahead.source import LookaheadQueue
from fermata.simulator.arrivals import generate
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import read_scenario
from fermata.simulator.tournament.h200 import grid
from fermata.simulator.tournament.pairs import CHANGES
from fermata.simulator.tournament.standings import MANY, standings

FIRST = 1_000_000
"""Policies are tuned on seeds below."""
DRAWS, QUICK_DRAWS = 500, 60
GRID = len(list(grid()))
GOALS = {"several": (0.1, 0.5, 0.1, 1.0), "single": (0.05, 0.5, 0.1, 1.0)}
"""Regret, mean and worst, and violations above the best policy's, mean and worst; points."""
PARTS = {
    "several": "draws with several variants",
    "single": "draws with one variant",
    "pairs": "less load, one variant more, one backend more",
    "family": "families of models as measured on an H200",
    "cpu": "processor time against deferred",
}
PART_OF_DRAWS = {"pairs": 5, "family": 5}
"""These parts play one in so many; 500 draws are 100 pairs of each sort, and the whole grid."""
CHANGE_OF = {"load": "load falls", "variant": "a variant is added", "backend": "a backend is added"}
CPU_LOADS_RPS = (500, 4_000, 15_000, 30_000)
CPU_REQUESTS = 20_000


def measure(
    parts: Sequence[str], draws: int | None, first: int, results: Results, quick: bool
) -> Iterator[Figure]:
    count = draws or (QUICK_DRAWS if quick else DRAWS)
    for part in parts:
        few = max(1, count // PART_OF_DRAWS.get(part, 1))
        if part == "family":
            results.ask(part, range(GRID)[:: max(1, GRID // few)])
        elif part != "cpu":
            for each in CHANGES if part == "pairs" else (part,):
                results.ask(each, range(first, first + few))
    for part in parts:
        if part in FIELDS:
            yield from _field(results, part, GOALS[part])
        elif part == "pairs":
            yield from _pairs(results)
        elif part == "family":
            yield from _family(results)
        else:
            yield from _cpu()


def _field(
    results: Results, field: str, goals: tuple[float, float, float, float]
) -> Iterator[Figure]:
    matches = [each.match for each in results.of(field) if each.match is not None]
    if not matches:
        return
    standing = next(each for each in standings(matches) if each.policy == DEFAULT)
    name = f"{DEFAULT}, {len(matches)} draws, {field} variants"
    found = (
        ("mean regret", standing.regret_mean),
        ("worst regret", standing.regret_worst),
        ("violations above the best policy's, mean", standing.violations_mean),
        ("violations above the best policy's, worst", standing.violations_worst),
    )
    for (figure, value), goal in zip(found, goals, strict=True):
        yield Figure(f"{name}: {figure}", value, "points", goal, at_most=True)
    if standing.bound_mean is not None and field == "several":
        figure = f"{name}: mean regret to the fluid bound, {MANY} backends and more"
        yield Figure(figure, standing.bound_mean, "points", 0.5, at_most=True)


def _pairs(results: Results) -> Iterator[Figure]:
    for change in CHANGES:
        found = [each.lost for each in results.of(change)]
        if found:
            name = f"{DEFAULT}, {len(found)} pairs: utility lost when {CHANGE_OF[change]}"
            yield Figure(f"{name}, worst", max(found), "points", 0.1, at_most=True)
            lost = sum(each > 0.1 for each in found)
            yield Figure(f"{name}, pairs above 0.1", float(lost), "", 0.0, at_most=True)


def _family(results: Results) -> Iterator[Figure]:
    """The grid, or as many points as asked for, spread over it."""
    matches = [each.match for each in results.of("family") if each.match is not None]
    if matches:
        name = f"{DEFAULT}, {len(matches)} points of the H200's families"
        regrets = [100.0 * match.regret(DEFAULT) for match in matches]
        yield Figure(f"{name}: mean regret", mean(regrets), "points", 0.1, at_most=True)
        yield Figure(f"{name}: worst regret", max(regrets), "points", 0.1, at_most=True)


def _cpu() -> Iterator[Figure]:
    """Router and emulated cluster together, on the same arrivals. Tables are solved in a process
    of their own live, so their time is taken off. `deferred` serves one variant as it does live,
    with `hold: auto`.
    """
    point = next(each for each in grid() if "SLO 50 ms" in each.traits)
    for rate_rps in CPU_LOADS_RPS:
        duration_s = CPU_REQUESTS / rate_rps
        document = {**point.document, "rate_rps": rate_rps, "duration_s": duration_s}
        scenario = replace(read_scenario(document), policy_options={"hold": "auto"})
        arrivals = generate(scenario)
        spent_s: dict[str, float] = {}
        for policy in ("deferred", DEFAULT):
            driver = Driver(replace(scenario, policy=policy), arrivals=arrivals)
            begun_s = process_time()
            driver.run()
            spent_s[policy] = process_time() - begun_s - _solving_s(driver)
        ratio = spent_s[DEFAULT] / spent_s["deferred"]
        name = f"{DEFAULT}, three ResNets at {rate_rps:,} req/s: CPU time over deferred's"
        yield Figure(name, ratio, "x", 2.0, at_most=True)


def _solving_s(driver: Driver) -> float:
    """CPU seconds to solve the tables of the run."""
    begun_s = process_time()
    for source in driver.engine.sources:
        if isinstance(source, LookaheadQueue):
            for table in source.market.tables.values():
                table.problem()
    return process_time() - begun_s


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, parents=[parts_parser(PARTS)])
    parser.add_argument("--draws", type=int, help=f"workloads to draw, {DRAWS} unless given")
    parser.add_argument("--first", type=int, default=FIRST, help="seed of the first workload")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="add results there; those it has are not played"
    )
    parser.add_argument(
        "--from",
        type=Path,
        dest="files",
        action="append",
        metavar="FILE",
        help="count results of this file, and play nothing; may be repeated",
    )
    given = parser.parse_known_args()[0]
    parts = given.only or [part for part in PARTS if part != "cpu" or not given.files]
    run(
        f"Tournament, ramsis on draws of at most {TABLES_FOR_MAX} applications",
        lambda quick: measure(
            parts,
            given.draws,
            given.first,
            Results(given.files or (), given.save, os.cpu_count() or 1),
            quick,
        ),
        parser,
    )
