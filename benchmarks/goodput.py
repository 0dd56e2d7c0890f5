"""Goodput: deferred scheduling on Symphony's workloads, under jitter, bursts and overload."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from benchmarks.figures import Figure, run
from benchmarks.workloads import (
    INCEPTION_RESNET_V2,
    RESNET50,
    bursty,
    cameras,
    fleet,
    table4,
    zoo,
)
from fermata.foundation.units import SECOND
from fermata.simulator.goodput import find_goodput
from fermata.simulator.reports.report import good_by_stream, report
from fermata.simulator.run import DROPPED, simulate
from fermata.simulator.scenario.scenario import Scenario

ZOO_GOALS = {
    ("symphony-1080ti", "all"): 7_550,
    ("symphony-1080ti", "gt2"): 20_000,
    ("symphony-1080ti", "lt2"): 3_980,
    ("symphony-a100", "all"): 18_000,
    ("symphony-a100", "gt2"): 57_500,
    ("symphony-a100", "lt2"): 6_480,
}
QUICK_ZOOS = (("symphony-1080ti", "lt2"), ("symphony-a100", "lt2"))
UNEQUAL = (
    (4, 4, 3.0, 100, 1),
    (4, 4, 3.0, 25, 1),
    (4, 4, 1.5, 50, 1),
    (4, 4, 6.0, 100, 1),
    (1, 8, 3.0, 100, 1),
    (8, 1, 3.0, 50, 1),
    (4, 4, 3.0, 100, 10),
)
"""Fast backends, slow ones, how much slower, SLO in ms, models."""
UNEQUAL_QUICK = UNEQUAL[:1]
Search = Callable[[], float]


def goodput(make: Callable[[], Scenario]) -> float:
    return find_goodput(make()).goodput_rps


def table4_figures(quick: bool) -> Iterator[tuple[Figure, Search]]:
    seconds = 10 if quick else 60
    for name, variant, slo_ms, goal in (
        ("Table 4 ResNet-50, 8 GPUs", RESNET50, 25.0, 5_450),
        ("Table 4 Inception-ResNet-V2, 8 GPUs", INCEPTION_RESNET_V2, 70.0, 970),
    ):
        make = partial(table4, variant, slo_ms, duration_s=seconds)
        yield Figure(name, 0, "req/s", goal), partial(goodput, make)


def zoo_figures(quick: bool) -> Iterator[tuple[Figure, Search]]:
    for table, setting in QUICK_ZOOS if quick else ZOO_GOALS:
        make = partial(zoo, table, setting, duration_s=6 if quick else 20)
        name = f"{table} {setting}, 64 GPUs"
        yield Figure(name, 0, "req/s", ZOO_GOALS[table, setting]), partial(goodput, make)


def jitter_figures(quick: bool) -> Iterator[tuple[Figure, Search]]:
    seconds = 10 if quick else 40
    for jitter, goal in ((0.0, 5_350), (0.03, 4_900)):
        make = partial(table4, RESNET50, 25.0, duration_s=seconds, execution={"jitter": jitter})
        name = f"ResNet-50 SLO 25, {jitter:.0%} execution jitter"
        yield Figure(name, 0, "req/s", goal), partial(goodput, make)
    name = "jitter 1 -> 5 % at 0.88 of the peak: back under 1 % bad within"
    yield Figure(name, 0, "s", 10, at_most=True), recovery_s


def recovery_s() -> float:
    """Seconds from the change until the bad rate of a second stays below 1 %."""
    change_s = 20
    steps = [{"from_s": 0, "jitter": 0.01}, {"from_s": change_s, "jitter": 0.05}]
    run_of = table4(
        RESNET50, 25.0, rate_rps=4_800, duration_s=2 * change_s, execution={"jitter": steps}
    )
    log = simulate(run_of)
    at_s = (log.arrivals.at_ns - run_of.warmup_ns) / SECOND
    deadline_ns = log.arrivals.at_ns + log.arrivals.slo_ns
    bad = (log.end_ns == DROPPED) | (log.end_ns > deadline_ns)
    seconds = range(change_s, 2 * change_s)
    rates = [float(bad[(at_s >= second) & (at_s < second + 1)].mean()) for second in seconds]
    over = [index + 1 for index, rate in enumerate(rates) if rate > 0.01]
    return float(max(over, default=0))


def burst_ratio(slo_ms: float, seconds: float) -> float:
    policies = ("deferred", "batch-queues")
    mine, theirs = (
        goodput(partial(bursty, slo_ms, duration_s=seconds, policy=policy)) for policy in policies
    )
    return mine / theirs


def burst_figures(quick: bool) -> Iterator[tuple[Figure, Search]]:
    for slo_ms in (50,) if quick else (20, 30, 50, 100):
        name = f"Gamma(0.05), SLO {slo_ms}: deferred over batch-queues"
        yield Figure(name, 0, "x", 0.97), partial(burst_ratio, slo_ms, 5 if quick else 20)


def hold_figures(quick: bool) -> Iterator[tuple[Figure, Search]]:
    seconds = 5 if quick else 20
    for share in (0.1, 0.5):
        name = f"hold auto at {share} of the peak: p50 latency over eager"
        yield Figure(name, 0, "x", 1.2, at_most=True), partial(hold_latency, share, seconds)
    yield Figure("hold auto: goodput over deferred", 0, "x", 0.99), partial(hold_goodput, seconds)


def hold_latency(share: float, seconds: float) -> float:
    p50_ms: list[float] = []
    for policy, options in (("deferred", {"hold": "auto"}), ("eager", {})):
        one = table4(
            RESNET50,
            25.0,
            rate_rps=share * 5_488,
            duration_s=seconds,
            policy=policy,
            policy_options=options,
        )
        p50_ms.append(report(one, simulate(one)).p50_ms or 0.0)
    return p50_ms[0] / p50_ms[1]


def hold_goodput(seconds: float) -> float:
    auto, deferred = (
        goodput(partial(table4, RESNET50, 25.0, duration_s=seconds, policy_options={"hold": hold}))
        for hold in ("auto", "deferred")
    )
    return auto / deferred


def camera_figures(quick: bool) -> Iterator[tuple[Figure, Search]]:
    for phase in ("locked", "staggered", "random"):
        name = f"120 cameras ({phase}), 5 % over capacity: worst over mean frame rate"
        yield Figure(name, 0, "x", 0.8), partial(worst_camera, phase, 10 if quick else 60)


def worst_camera(phase: str, seconds: float) -> float:
    """Frames answered in time of the worst camera over those of the mean one."""
    one = cameras(phase, duration_s=seconds)
    log = simulate(one)
    measured = log.arrivals.at_ns >= one.warmup_ns
    deadline_ns = log.arrivals.at_ns + log.arrivals.slo_ns
    good = measured & (log.end_ns != DROPPED) & (log.end_ns <= deadline_ns)
    _, answered = good_by_stream(log, measured, good)
    return float(min(answered) / np.mean(answered))


def fleet_figures(quick: bool) -> Iterator[tuple[Figure, Search]]:
    """Fast and slower backends together, against each kind alone."""
    seconds = 5 if quick else 20
    for fast, slow, slower, slo_ms, models in UNEQUAL_QUICK if quick else UNEQUAL:
        name = f"unequal fleet, {fast} + {slow} ({slower:g} times slower), SLO {slo_ms}, "
        name += f"{models} models: goodput over the sum of the parts"
        search = partial(over_parts, fast, slow, slower, slo_ms, models, seconds)
        yield Figure(name, 0, "x", 0.95), search


def over_parts(
    fast: int, slow: int, slower: float, slo_ms: float, models: int, seconds: float
) -> float:
    """Goodput of the worse order of the two groups, over that of both groups alone."""
    quick = {"count": fast, "kind": "fast"}
    late = {"count": slow, "kind": "slow", "slower": slower}
    alone_fast, alone_slow, *both = (
        goodput(partial(fleet, groups, slo_ms, models, duration_s=seconds))
        for groups in ([quick], [late], [quick, late], [late, quick])
    )
    return min(both) / (alone_fast + alone_slow)


def measure(quick: bool) -> Iterator[Figure]:
    groups = (
        table4_figures,
        zoo_figures,
        jitter_figures,
        burst_figures,
        hold_figures,
        camera_figures,
        fleet_figures,
    )
    planned = [entry for group in groups for entry in group(quick)]
    with ProcessPoolExecutor(2) as pool:
        values = pool.map(_call, [search for _, search in planned])
        for (figure, _), value in zip(planned, values, strict=True):
            yield Figure(figure.figure, value, figure.unit, figure.goal, figure.at_most)


def _call(search: Search) -> float:
    return search()


if __name__ == "__main__":
    run("Goodput", measure)
