"""A day of 10,000 backends of three kinds and 1,000 models, with the control loops that serve.

Plans, scaling and moves are of the whole fleet. Requests of a drawn tenth of the sub-clusters are
played one by one; the others have fluid rates (`benchmarks/fleet_parts.py`).
"""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.day import STEP_S
from benchmarks.figures import Figure, run_parts
from benchmarks.fleet_control import FleetLog, FleetRun, scaling_options
from benchmarks.fleet_load import BACKENDS, Fleet, draw_fleet
from benchmarks.fleet_parts import Order, PlayedSubCluster
from benchmarks.fleet_workers import FleetParts
from fermata.foundation.units import seconds

PARTS = {"whole": "10,000 backends", "seeds": "a fiftieth, on five seeds, worst and mean"}
SEED = 1_000_000
SEEDS, SMALL = 5, 0.02
QUICK_SPAN = (0.27, 0.33)
"""Part of the day that a quick run has: a surge is in it."""
PROCESSES = 2
SOLVE_S, SMALL_SOLVE_S = 15.0, 1.0
"""Time for the plan of an epoch; the first one has twice as much."""
BAD_MAX = 0.01
SAMPLES, WARM_S, STEADY_S = 3, 1.0, 3.0
"""Steps that a clairvoyant's backends are searched for, and for how long each is played."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one day."""

    sub_clusters: int
    requests: int
    """Played ones."""
    wall_s: float
    solve_s: float
    """The longest."""
    bad: float
    """Share of the played requests, but for those that ended in the start-up of surges."""
    bad_in_all: float
    fluid_bad: float
    hours_over: float
    """Backend time over a clairvoyant's; below, that of the played sub-clusters alone."""
    played_over: float
    moved_over: float
    """Load cost of what moved over the bound, in the worst epoch."""
    moved: int
    plans: int
    kinds_over: float
    """The most backends of a kind over those that there are."""


def play(
    seed: int,
    share: float = 1.0,
    span: tuple[float, float] = (0.0, 1.0),
    solve_s: float = SMALL_SOLVE_S,
    processes: int = 0,
    samples: int = SAMPLES,
) -> Outcome:
    """One day, or a part of it, of a fleet of this share of the whole."""
    fleet = draw_fleet(seed, share, span)
    began_s = time.monotonic()
    with FleetParts(processes) as parts:
        one = FleetRun(fleet, parts, solve_s)
        log = one.run(_Progress(f"seed {seed}").tell)
    wall_s = time.monotonic() - began_s
    ratio = _least_over_need(fleet, one, samples)
    played, fluid = list(fleet.played), sorted(set(one.numbers) - set(fleet.played))
    limit = one.options.load_cost_max
    assert limit is not None
    return Outcome(
        len(fleet.kinds),
        sum(log.reports[number].requests for number in played),
        wall_s,
        max(log.solves_s),
        _bad(log, played, True),
        _bad(log, played, False),
        _bad(log, fluid, True),
        _over(log, [*played, *fluid], ratio),
        _over(log, played, ratio),
        max(log.moved_cost, default=0.0) / limit,
        log.moved,
        log.plans,
        max(log.most[kind] / count for kind, count in fleet.backends.items()),
    )


class _Progress:
    """Tells on stderr how far a day is."""

    def __init__(self, title: str) -> None:
        self.title, self.told = title, -1
        self.began_s = time.monotonic()

    def tell(self, done: float) -> None:
        if int(20 * done) > self.told:
            self.told = int(20 * done)
            spent_s = time.monotonic() - self.began_s
            print(f"  {self.title}: {done:.0%}, {spent_s:.0f} s", file=sys.stderr, flush=True)


def _bad(log: FleetLog, numbers: Sequence[int], without_startups: bool) -> float:
    """Share of the requests of some sub-clusters that ended bad."""
    ended = bad = 0
    for number in numbers:
        all_ended, all_bad = log.reports[number].ended
        less = log.excused[number] if without_startups else (0, 0)
        ended, bad = ended + all_ended - less[0], bad + all_bad - less[1]
    return bad / max(1, ended)


def _over(log: FleetLog, numbers: Sequence[int], ratio: float) -> float:
    """Backend time over that of a clairvoyant in the same homes."""
    spent = sum(log.reports[number].allocated_ns for number in numbers)
    return spent / (ratio * sum(log.need_ns[number] for number in numbers))


def _least_over_need(fleet: Fleet, one: FleetRun, samples: int) -> float:
    """Backends that a clairvoyant needs over Eqns 2 and 3: the smallest of some samples, in its
    favour. At each step it has the least backends with at most 1 % bad."""
    steps = fleet.traces.shape[1]
    ratios = [1.0]
    for sample in range(samples):
        number = fleet.played[sample % len(fleet.played)]
        rates = fleet.rates_at(seconds(STEP_S * round(steps * (sample + 0.5) / samples)))
        need = fleet.need(one.homes, rates)[number]
        own = {name: rates[name] for name in one.homes.models_of(number)}
        low, high = math.floor(0.85 * need), math.ceil(1.15 * need) + 1
        while high - low > 1:
            middle = (low + high) // 2
            if _steady_bad(fleet, number, middle, Order(0, own, need)) <= BAD_MAX:
                high = middle
            else:
                low = middle
        ratios.append(high / need)
    return min(ratios)


def _steady_bad(fleet: Fleet, number: int, backends: int, order: Order) -> float:
    """Bad share with so many backends at these rates, once it has settled."""
    part = PlayedSubCluster(fleet, number, scaling_options(fleet), backends)
    before = part.step(Order(seconds(WARM_S), order.rates, order.need)).ended
    after = part.step(Order(seconds(WARM_S + STEADY_S))).ended
    return (after[1] - before[1]) / max(1, after[0] - before[0])


def figures(name: str, found: Outcome, requests: float) -> Iterator[Figure]:
    title = f"{name}, {found.sub_clusters} sub-clusters:"
    yield Figure(f"{title} requests played", found.requests, "", requests)
    yield Figure(f"{title} run takes", found.wall_s / 60, "min", 30, True)
    yield Figure(f"{title} longest search of {found.plans} plans", found.solve_s, "s", 60, True)
    yield Figure(f"{title} bad outside start-ups", 100 * found.bad, "%", 1, True)
    yield Figure(f"{title} bad in all", 100 * found.bad_in_all, "%", float("inf"), True)
    yield Figure(f"{title} fluid rates: bad outside start-ups", 100 * found.fluid_bad, "%", 1, True)
    yield Figure(f"{title} backend-hours over clairvoyant", found.hours_over, "x", 1.15, True)
    yield Figure(f"{title} those of the played ones", found.played_over, "x", 1.15, True)
    moved = f"{title} {found.moved} models moved; worst epoch over the bound"
    yield Figure(moved, found.moved_over, "x", 1, True)
    yield Figure(f"{title} most of a kind over those there are", found.kinds_over, "x", 1, True)


def several(seeds: int, span: tuple[float, float]) -> Iterator[Figure]:
    found = [play(SEED + 1 + number, SMALL, span) for number in range(seeds)]
    requests = sum(each.requests for each in found)
    title = f"{SMALL * BACKENDS:.0f} backends, {seeds} seeds, {requests:,} requests played:"
    for what, values, unit, goal in (
        ("bad outside start-ups", [100 * each.bad for each in found], "%", 1.0),
        ("fluid rates: bad", [100 * each.fluid_bad for each in found], "%", 1.0),
        ("backend-hours over clairvoyant", [each.hours_over for each in found], "x", 1.15),
        ("worst epoch's moves over the bound", [each.moved_over for each in found], "x", 1.0),
        ("most of a kind over those there are", [each.kinds_over for each in found], "x", 1.0),
    ):
        yield Figure(f"{title} {what}, worst", max(values), unit, goal, True)
        yield Figure(f"{title} {what}, mean", sum(values) / len(values), unit, goal, True)


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    if "whole" in parts and not quick:
        found = play(SEED, 1.0, solve_s=SOLVE_S, processes=PROCESSES)
        yield from figures("10,000 backends", found, 20e6)
    if "seeds" in parts:
        yield from several(1 if quick else SEEDS, QUICK_SPAN if quick else (0.0, 1.0))


if __name__ == "__main__":
    run_parts("A large fleet", measure, PARTS)
