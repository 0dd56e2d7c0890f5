"""The live system on two emulated backends, l(b) = 5 + b ms, SLO 50 ms, inputs of 20 KB.

Clients stream gRPC from a process of their own, on this machine. A rate counts as served when at
most 1 % of its requests are refused, lost or later than the SLO, counted from when they were due.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.calm import undisturbed
from benchmarks.figures import Figure, run
from benchmarks.live_server import Running, fermata
from benchmarks.plain_serve import Knobs, plain_serve
from benchmarks.search import Good, highest
from clients.load.arrivals import poisson, single
from clients.load.ledger import OK, Ledger
from clients.load.report import LoadReport, report
from clients.load.run import START_NS, run_load
from clients.load.sender import SenderOptions, Target
from clients.wire.tensors import RawTensor
from router.core.units import ms, seconds
from simulator.goodput import find_goodput
from simulator.report import report as simulated_report
from simulator.run import simulate
from simulator.scenario import Scenario, read_scenario

SLO_NS = ms(50)
BAD_RATE_MAX = 0.01
WARMUP_S = 1.5
STREAMS = 8
STEADY_RPS = 1_370
"""What two such backends serve with 64 requests in flight."""
LOW_RATES_RPS = (20, 60, 200)
TARGET = Target("emulated", RawTensor("input", "UINT8", (20_000,), bytes(20_000)), SLO_NS)
PEERS = (
    Knobs(optimized=True),
    Knobs(batch_size=24, wait_ms=8, optimized=True),
    Knobs(replicas=4, optimized=True),
    Knobs(replicas=4, batch_size=8, wait_ms=8, optimized=True),
    Knobs(),
)
"""Plain Ray Serve's configurations, by stream; the best of them also by unary calls."""
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


@dataclass(frozen=True, slots=True)
class Load:
    """What became of a load."""

    report: LoadReport
    ledger: Ledger


@dataclass(slots=True)
class Watch:
    """CPU time and the router's counters over the steady part of a load."""

    server: Running
    wait_s: float
    length_s: float
    cpu_s: float = 0.0
    """Of frontend, router and backends together, a second."""
    idle: float = 0.0
    """Share of the backends' time without a batch."""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        time.sleep(self.wait_s)
        before, cpu_s, from_s = _rank(self.server), self.server.cpu_s(), time.monotonic()
        time.sleep(self.length_s)
        spent_s = sum(self.server.cpu_s().values()) - sum(cpu_s.values())
        self.cpu_s = spent_s / (time.monotonic() - from_s)
        after = _rank(self.server)
        busy_ns, up_ns = (after[name] - before[name] for name in before)
        self.idle = 1 - busy_ns / up_ns


def _rank(server: Running) -> dict[str, int]:
    rank = server.status()["ranks"][0]
    return {name: int(rank[name]) for name in ("backend_busy_ns", "backend_up_ns")}


def load(server: Running, rate_rps: float, seconds_s: float, unary: bool = False) -> Load:
    """Poisson arrivals at that rate, on a machine that is left alone."""
    return undisturbed(lambda: _load(server, rate_rps, seconds_s, unary))


def _load(server: Running, rate_rps: float, seconds_s: float, unary: bool) -> Load:
    total_ns = seconds(WARMUP_S + seconds_s)
    due = single(poisson(rate_rps, total_ns, np.random.default_rng(int(rate_rps))))
    found = run_load(SenderOptions(server.address, STREAMS, unary), [TARGET], due)
    result = report(found, np.array([SLO_NS]), seconds(WARMUP_S), total_ns)
    return Load(result, found)


def watched(server: Running, rate_rps: float, seconds_s: float) -> Watch:
    def probe() -> Watch:
        # The sender's process has to start first.
        watch = Watch(server, WARMUP_S + 1 + START_NS / 1e9, seconds_s - 1)
        _load(server, rate_rps, seconds_s + 0.5, unary=False)
        watch.thread.join()
        return watch

    return undisturbed(probe)


def serves(server: Running, seconds_s: float, tries: int, unary: bool = False) -> Good:
    """Whether a rate is served; a hiccup of the machine gets another try."""

    def good(rate_rps: float) -> bool:
        return any(
            load(server, rate_rps, seconds_s, unary).report.bad_rate <= BAD_RATE_MAX
            for _ in range(tries)
        )

    return good


def peer_goodput(seconds_s: float, precision: float, tries: int) -> float:
    """Of plain Ray Serve at its best."""
    best_rps, best = 0.0, PEERS[0]
    for knobs in PEERS:
        with plain_serve(knobs) as server:
            better_rps = _beyond(server, best_rps, seconds_s, precision, tries)
        if better_rps > best_rps:
            best_rps, best = better_rps, knobs
    with plain_serve(best) as server:
        return max(best_rps, _beyond(server, best_rps, seconds_s, precision, tries, unary=True))


def _beyond(
    server: Running,
    known_rps: float,
    seconds_s: float,
    precision: float,
    tries: int,
    unary: bool = False,
) -> float:
    """Its goodput; 0 where it does not reach what is known already."""
    good = serves(server, seconds_s, tries, unary)
    if known_rps and not good(known_rps * (1 + precision)):
        return 0.0
    return highest(good, known_rps * (1 + precision) or PEER_GUESS_RPS, precision)


def scenario(rate_rps: float) -> Scenario:
    one: Scenario = read_scenario(SCENARIO)
    return one.at_rate(rate_rps)


def served_figures(quick: bool) -> Iterator[Figure]:
    """On one server that holds as long as it may, so that idleness tells of the load."""
    seconds_s, tries, precision, probes = (2.0, 1, 0.15, 3) if quick else (5.0, 2, 0.05, 16)
    simulated_rps = find_goodput(scenario(STEADY_RPS)).goodput_rps
    half_rps = simulated_rps / 2
    half = scenario(half_rps)
    expected_idle = simulated_report(half, simulate(half)).idle_fraction
    with fermata(router={"policy_options": SCENARIO["policy_options"]}) as server:
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
    if not quick:
        peer_rps = peer_goodput(seconds_s - 1, precision, tries)
        yield Figure("plain Ray Serve's goodput, for reference", peer_rps, "req/s", 0)
        yield Figure("live goodput, for reference", live_rps, "req/s", 0)
        ratio = live_rps / peer_rps if peer_rps else np.inf
        yield Figure("goodput over plain Ray Serve", ratio, "x", 5)


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


def measure(quick: bool) -> Iterator[Figure]:
    if not quick:
        yield from eager_figures()
    yield from served_figures(quick)


if __name__ == "__main__":
    run("Live: two emulated backends, 5 + b ms, SLO 50 ms", measure)
