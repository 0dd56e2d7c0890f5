"""A pipeline of real models on one device: frames a second in time, over the runners' own rates."""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.figures import Figure
from benchmarks.live_server import Running, fermata
from benchmarks.search import highest
from fermata.clients.load.arrivals import SendTimes, poisson
from fermata.clients.load.report import LoadReport, report
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import SenderOptions, Target
from fermata.foundation.units import ms, seconds

WARMUP_S = 3.0
"""The door learns fan-out and its share meanwhile."""
PROBE_S, CONFIRM_S = 4.0, 20.0
CONFIRMS = 8
CLIMB, MISSES_MAX = 1.06, 2
"""Step above a rate that is good, and how often it may fail: a short probe may be unlucky too."""
BAD_RATE_MAX = 0.01
GUESS = 0.55
"""Share of what the runners do offline that is tried first, at most."""
LESS = 0.95
"""Share of a rate that is tried where the rate is not confirmed."""
GOAL_RPS, GOAL_SHARE = 1500.0, 0.6
BACKEND_US, ROUTER_US = 80.0, 40.0
"""CPU time of a crop."""
SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """Senders of one device, and the rates that they begin with."""

    senders: int
    streams: int
    guess_rps: float
    probes: int


LOADS = {"cuda": Load(6, 16, 1200.0, 6), "cpu": Load(1, 8, 2.0, 2)}


@dataclass(frozen=True, slots=True)
class Probed:
    """One load as it went."""

    rate_rps: float
    load: LoadReport
    cpu_s: dict[str, float]
    """Spent meanwhile, warm-up included, by role."""
    queries: int
    """Sent meanwhile, warm-up included."""

    @property
    def good(self) -> bool:
        return self.load.bad_rate <= BAD_RATE_MAX

    def us(self, role: str, parts: float = 1.0) -> float:
        """CPU time of a query, or of one of so many parts of it."""
        return 1e6 * self.cpu_s[role] / max(1.0, self.queries * parts)


class Prober:
    """Loads of one server."""

    def __init__(self, running: Running, targets: list[Target], load: Load) -> None:
        self.running = running
        self.targets = targets
        self.load = load
        self.tried = 0

    def probe(self, rate_rps: float, duration_s: float) -> Probed:
        """Poisson arrivals at that rate; frames are drawn."""
        self.tried += 1
        rng = np.random.default_rng(SEED + self.tried)
        total_ns = seconds(WARMUP_S + duration_s)
        at_ns = poisson(rate_rps, total_ns, rng)
        which = rng.integers(0, len(self.targets), len(at_ns))
        due = SendTimes(at_ns, which, np.zeros(len(at_ns), np.int64))
        options = SenderOptions(self.running.address, self.load.streams)
        before = self.running.cpu_s()
        ledger = run_load(options, self.targets, due, self.load.senders)
        after = self.running.cpu_s()
        slos_ns = np.array([each.slo_ns for each in self.targets])
        found = report(ledger, slos_ns, seconds(WARMUP_S), total_ns)
        spent = {role: after[role] - before[role] for role in after}
        probed = Probed(rate_rps, found, spent, len(at_ns))
        _say(probed)
        return probed


def _say(probed: Probed) -> None:
    load = probed.load
    spent = ", ".join(f"{role} {probed.us(role):.0f}" for role in probed.cpu_s)
    print(f"  {probed.rate_rps:,.1f}/s: {1 - load.bad_rate:.2%} good, latency {load.latency_ms}, "
          f"late {load.late}, refused {load.refused}, unsent {load.unsent}, lost {load.lost}; "
          f"CPU us a query: {spent}", file=sys.stderr)  # fmt: skip


def climbed(prober: Prober, best: Probed) -> Probed:
    """The best of rates above one that is good, each a step above the last."""
    misses = 0
    while misses < MISSES_MAX:
        found = prober.probe(best.rate_rps * CLIMB, PROBE_S)
        misses += not found.good
        best = found if found.good else best
    return best


def confirmed(prober: Prober, rate_rps: float) -> Probed | None:
    """A rate that is good for long, at most the given one; a short probe may be lucky."""
    for _ in range(CONFIRMS):
        found = prober.probe(rate_rps, CONFIRM_S)
        if found.good:
            return found
        rate_rps *= LESS
    return None


def gpu_figures(device: str, decode: str, quick: bool) -> Iterator[Figure]:
    """Every figure of one device; `decode` says where JPEGs are decoded."""
    # Not above: processes of a load import this module anew, and models take seconds.
    from benchmarks.pipelines_gpu_scene import NAME, Setting, frames_s, jpegs, offline, sections

    setting, load = Setting.on(device, decode), LOADS[device]
    # Without its web pages, as packed for a box, Ray's dashboard is waited for in vain.
    os.environ["RAY_DASHBOARD_STARTUP_TIMEOUT_S"] = "1"
    # A process of its own: what it holds of the device goes when it ends.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        rates = pool.apply(offline, (setting, quick))
    for rate in rates:
        name = f"{rate.variant} offline, batches of {rate.batch}"
        yield Figure(name, rate.rows_s, "rows/s", 0)
    bound_rps = frames_s(rates)
    yield Figure("both runners offline, taking turns", bound_rps, "frames/s", 0)
    targets = [Target(NAME, each, ms(setting.slo_ms)) for each in jpegs()]
    with fermata(**sections(setting)) as running:
        prober = Prober(running, targets, load)
        # The first requests meet cold caches.
        guess_rps = min(load.guess_rps, GUESS * bound_rps)
        prober.probe(0.5 * guess_rps, PROBE_S)
        found: list[Probed] = []

        def good(rate_rps: float) -> bool:
            found.append(prober.probe(rate_rps, PROBE_S))
            return found[-1].good

        best_rps = highest(good, guess_rps, 0.15 if quick else 0.05, load.probes)
        best: Any = next((each for each in found if each.rate_rps == best_rps), None)
        if best is not None and not quick:
            best = confirmed(prober, climbed(prober, best).rate_rps)
    yield from _figures(setting.slo_ms, best, bound_rps)


def _figures(slo_ms: float, best: Probed | None, bound_rps: float) -> Iterator[Figure]:
    from benchmarks.pipelines_gpu_scene import CROPS_MEAN

    served = 0.0 if best is None else best.load.goodput_rps
    name = f"YOLOv4-tiny, then EfficientNet-lite0 on {CROPS_MEAN:g} crops, SLO {slo_ms:g} ms"
    yield Figure(name, served, "frames/s", GOAL_RPS)
    yield Figure("  crops", CROPS_MEAN * served, "crops/s", CROPS_MEAN * GOAL_RPS)
    yield Figure("  over the runners offline", served / bound_rps, "share", GOAL_SHARE)
    if best is None:
        return
    yield Figure("  in time", 1 - best.load.bad_rate, "share", 1 - BAD_RATE_MAX)
    for quantile in ("p50", "p99"):
        late_ms = best.load.latency_ms[quantile] or 0.0
        yield Figure(f"  {quantile}", late_ms, "ms", slo_ms, at_most=True)
    # Detection is in it too.
    backend, router = best.us("backend", CROPS_MEAN), best.us("router", CROPS_MEAN)
    yield Figure("  CPU of the backend", backend, "us/crop", BACKEND_US, at_most=True)
    yield Figure("  CPU of the router", router, "us/crop", ROUTER_US, at_most=True)
    yield Figure("  CPU of frontends", best.us("frontend", CROPS_MEAN), "us/crop", 0)
