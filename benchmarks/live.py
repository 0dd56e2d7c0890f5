"""The live system on two emulated backends, l(b) = 5 + b ms, SLO 50 ms, inputs of 20 KB.

Clients stream gRPC from a process of their own, on this machine. A rate counts as served when at
most 1 % of its requests are refused, lost or later than the SLO, counted from when they were due.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.figures import Figure, run_parts
from benchmarks.live_load import (
    WARMUP_S,
    Load,
    Way,
    by_http,
    by_stream,
    by_unary,
    load,
    serves,
    watched,
)
from benchmarks.live_server import Running, fermata
from benchmarks.natives import with_natives
from benchmarks.plain_serve import Knobs, plain_serve
from benchmarks.search import highest
from fermata.clients.load.ledger import OK
from fermata.foundation.units import ms, seconds
from fermata.simulator.goodput import find_goodput
from fermata.simulator.reports.report import report as simulated_report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario, read_scenario

PARTS = {
    "eager": "added latency",
    "served": "a server at load",
    "plain": "plain Ray Serve",
}
STEADY_RPS = 1_370
"""What two such backends serve with 64 requests in flight."""
LOW_RATES_RPS = (20, 60, 200)
PEERS = (
    Knobs(batch_size=24, wait_ms=8, optimized=True),
    Knobs(optimized=True),
    Knobs(replicas=4, optimized=True),
    Knobs(replicas=4, batch_size=8, wait_ms=8, optimized=True),
    Knobs(),
)
"""Plain Ray Serve's configurations, by stream; the best of them also by unary calls and by HTTP."""
PEER_GUESS_RPS = 250
SCENARIO = {
    "seed": 1,
    "duration_s": 30,
    "warmup_s": 2,
    "backends": 2,
    "policy": "deferred",
    "policy_options": {"hold": "deferred"},
    "rate_rps": 1_000,
    "applications": [
        {
            "name": "emulated",
            "slo_ms": 50,
            "variants": [{"name": "emulated-1", "alpha_ms": 1, "beta_ms": 5}],
        }
    ],
}


def peer_goodput(seconds_s: float, precision: float, tries: int) -> Iterator[Figure]:
    """Of plain Ray Serve; the last figure is its best."""
    best_rps, best = 0.0, PEERS[0]
    for knobs in PEERS:
        with plain_serve(knobs) as server:
            found_rps = _beyond(server, best_rps, seconds_s, precision, tries, by_stream)
        yield Figure(f"plain Ray Serve, {knobs}, by stream", found_rps, "req/s", 0)
        if found_rps > best_rps:
            best_rps, best = found_rps, knobs
    with plain_serve(best) as server:
        for name, way in (("unary", by_unary), ("HTTP", by_http)):
            found_rps = _beyond(server, best_rps, seconds_s, precision, tries, way)
            yield Figure(f"plain Ray Serve, {best}, by {name}", found_rps, "req/s", 0)
            best_rps = max(best_rps, found_rps)
    yield Figure("plain Ray Serve's goodput, for reference", best_rps, "req/s", 0)


def _beyond(
    server: Running, known_rps: float, seconds_s: float, precision: float, tries: int, way: Way
) -> float:
    """Its goodput; 0 where it does not reach what is known already."""
    good = serves(server, seconds_s, tries, way)
    if known_rps and not good(known_rps * (1 + precision)):
        return 0.0
    return highest(good, known_rps * (1 + precision) or PEER_GUESS_RPS, precision)


def scenario(rate_rps: float) -> Scenario:
    one: Scenario = read_scenario(SCENARIO)
    return one.at_rate(rate_rps)


def served_figures(seconds_s: float, tries: int, precision: float, probes: int) -> Iterator[Figure]:
    """On one server that holds as long as it may, so that idleness tells of the load.

    The last figure is its goodput.
    """
    simulated_rps = find_goodput(scenario(STEADY_RPS)).goodput_rps
    half_rps = simulated_rps / 2
    half = scenario(half_rps)
    expected_idle = simulated_report(half, simulate(half)).idle_fraction
    given = {"router": {"policy_options": SCENARIO["policy_options"]}}
    with fermata(**with_natives(given)) as server:
        steady = watched(server, STEADY_RPS, seconds_s + 1)
        name = f"server CPU a request at {STEADY_RPS:,} req/s"
        cpu_us = steady.cpu_s / STEADY_RPS * 1e6
        yield Figure(name, cpu_us, "us", 400, at_most=True)
        idle = watched(server, half_rps, seconds_s + 1).idle
        gap = abs(idle - expected_idle)
        yield Figure("idle fraction at half load, off simulated", gap, "", 0.1, at_most=True)
        good = serves(server, seconds_s, tries)
        live_rps = highest(good, 0.75 * simulated_rps, precision, probes)
    yield Figure("live goodput over simulated", live_rps / simulated_rps, "x", 0.9)
    yield Figure("live goodput, for reference", live_rps, "req/s", 0)


def added_ms(found: Load) -> Any:
    """Latency less the run time of the batch, of each request that has a result."""
    ledger = found.ledger
    served = ledger.mask(OK) & (ledger.scheduled_ns >= seconds(WARMUP_S))
    latency_ns = (ledger.answered_ns - ledger.scheduled_ns)[served]
    return (latency_ns - ms(5) - ledger.batch[served] * ms(1)) / 1e6


def eager_figures() -> Iterator[Figure]:
    with fermata(router={"policy": "eager"}) as server:
        load(server, 100, 1)
        for rate_rps in LOW_RATES_RPS:
            found = added_ms(load(server, rate_rps, 8))
            for quantile, goal in ((50, 3), (99, 15)):
                name = f"added latency at {rate_rps} req/s, p{quantile}"
                value = float(np.percentile(found, quantile)) if len(found) else float(np.inf)
                yield Figure(name, value, "ms", goal, at_most=True)


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    effort = (2.0, 1, 0.15, 3) if quick else (5.0, 2, 0.05, 16)
    if "eager" in parts and not quick:
        yield from eager_figures()
    ours = plain = None
    if "served" in parts:
        for ours in served_figures(*effort):
            yield ours
    if "plain" in parts and not quick:
        for plain in peer_goodput(seconds_s=4.0, precision=0.05, tries=2):
            yield plain
    if ours and plain:
        ratio = ours.value / plain.value if plain.value else np.inf
        yield Figure("goodput over plain Ray Serve", ratio, "x", 5)


if __name__ == "__main__":
    run_parts("Live: two emulated backends, 5 + b ms, SLO 50 ms", measure, PARTS)
