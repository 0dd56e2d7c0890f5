"""How much a server takes: its limit, the best of a sweep, and what is left under overload."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.calm import STOLEN_MAX, Stolen, wait_for_calm
from benchmarks.peer_servers.launch import Served
from benchmarks.peer_servers.scenes import Scene
from benchmarks.search import Good, highest
from fermata.clients.load.report import LoadReport, report
from fermata.clients.load.run import run_load
from fermata.foundation.units import seconds

BAD_RATE_MAX = 0.01
WARMUP_S = 1.5
LOOK_S = 0.05
STALL_S = 0.5
"""A server that takes all of the CPU delays us for less."""
BAD_BY_STOLEN = 10.0
"""Near its limit a server answers so many requests late for each that stolen time would serve."""
UNFIT_MAX = 8
CALM_S = 10.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How closely is looked."""

    seconds_s: float
    requests: int
    """A load lasts until so many are due, however long that takes: 1 % of a few says little."""
    tries: int
    """A hiccup of the machine gets another try."""
    precision: float
    probes: int
    step: float
    """By which the search goes on until it has a rate that is served and one that is not."""


FULL = Effort(seconds_s=8, requests=2000, tries=2, precision=0.03, probes=16, step=1.1)
SWEEP = Effort(seconds_s=4, requests=500, tries=1, precision=0.03, probes=12, step=1.1)
QUICK = Effort(seconds_s=2, requests=0, tries=1, precision=0.15, probes=3, step=1.3)


@dataclass(frozen=True, slots=True)
class Limit:
    """What one server was found to take."""

    limit_rps: float
    """The highest rate with at most 1 % bad."""
    overload_rps: float
    """Good answers a second at the rate of overload."""


class UnfitError(RuntimeError):
    """No measurement is possible on this machine now."""


class Stalls:
    """Sees whether the machine itself stood still, as a virtual one may: nobody's fault here."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.stolen_share = 0.0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        last_s = time.monotonic()
        while not self.ended.wait(LOOK_S):
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - last_s - LOOK_S)
            last_s = now_s

    def explain(self, bad_rate: float) -> bool:
        """Whether so much may have gone badly without the server's doing."""
        share = self.stolen_share
        stolen = share > STOLEN_MAX and bad_rate < BAD_BY_STOLEN * share
        return self.longest_s > STALL_S or stolen

    def __enter__(self) -> "Stalls":
        self.stolen = Stolen()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        self.stolen_share = self.stolen.share()


def load(served: Served, scene: Scene, rate_rps: float, effort: Effort) -> LoadReport:
    """What became of a load; of another where it went badly and the machine is to blame."""
    seconds_s = max(effort.seconds_s, effort.requests / rate_rps)
    for _ in range(UNFIT_MAX):
        with Stalls() as stalls:
            result = _load(served, scene, rate_rps, seconds_s)
        _tell(
            f"    {rate_rps:6.0f} req/s: {100 * result.bad_rate:5.2f} % bad (late {result.late}, "
            f"refused {sum(result.refused.values())}, unsent {result.unsent}, "
            f"lost {result.lost}), p99 {result.latency_ms['p99']} ms; "
            f"stalled {1e3 * stalls.longest_s:.0f} ms, {100 * stalls.stolen_share:.1f} % stolen"
        )
        if result.bad_rate <= BAD_RATE_MAX or not stalls.explain(result.bad_rate):
            return result
        wait_for_calm(CALM_S)
    raise UnfitError(
        f"the machine stood still or lost CPU time in {UNFIT_MAX} loads in a row: try again later"
    )


def _load(served: Served, scene: Scene, rate_rps: float, seconds_s: float) -> LoadReport:
    """Poisson arrivals at that rate; the same rate always means the same arrivals."""
    total_ns = seconds(WARMUP_S + seconds_s)
    due = scene.arrivals(rate_rps, total_ns, seed=int(rate_rps))
    ledger = run_load(served.options, served.targets, due, kind=served.kind)
    slo_ns = np.array([target.slo_ns for target in served.targets])
    return report(ledger, slo_ns, seconds(WARMUP_S), total_ns)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def serves(served: Served, scene: Scene, effort: Effort) -> Good:
    """Whether a rate is served."""

    def good(rate_rps: float) -> bool:
        return any(
            load(served, scene, rate_rps, effort).bad_rate <= BAD_RATE_MAX
            for _ in range(effort.tries)
        )

    return good


def find_limit(
    served: Served, scene: Scene, effort: Effort, guess_rps: float, overload_rps: float
) -> Limit:
    """Search, then overload."""
    limit_rps = _highest(serves(served, scene, effort), guess_rps, effort)
    over = load(served, scene, overload_rps, effort)
    return Limit(limit_rps, over.goodput_rps)


def better(
    served: Served, scene: Scene, effort: Effort, best_rps: float, first_rps: float
) -> float:
    """The limit where it is above the best so far, else 0: who does no better there need not be
    looked at more closely."""
    good = cache(serves(served, scene, effort))
    bar_rps = best_rps * (1 + effort.precision) or first_rps
    if best_rps and not good(bar_rps):
        return 0.0
    return _highest(good, bar_rps, effort)


def _highest(good: Good, guess_rps: float, effort: Effort) -> float:
    return highest(good, guess_rps, effort.precision, effort.probes, effort.step)


Starts = Callable[[], AbstractContextManager[Served]]


def timed(name: str, start: Starts) -> AbstractContextManager[Served]:
    """Start a server, and say so."""
    _tell(f"  {name} ({time.strftime('%H:%M:%S')})")
    return start()
