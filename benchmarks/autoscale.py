"""Autoscaling: settles, stays, follows steps and a day of changing load (Symphony 4.4, Fig. 14).

The last part starts a server and lets Serve scale it; see `benchmarks/autoscale_live.py`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.autoscale_policies import accuracy, pairs
from benchmarks.figures import Figure, run_parts
from benchmarks.workloads import scenario
from fermata.foundation import native
from fermata.router.compiled import build
from fermata.simulator.reports.report import report
from fermata.simulator.run import RunLog, simulate
from fermata.simulator.scenario.scenario import Scenario

PARTS = {
    "steady": "constant loads",
    "step": "twice the load at once",
    "pairs": "every policy beside every other",
    "accuracy": "an accuracy to hold",
    "day": "a day of changing load",
    "live": "a running server",
}
ROOT = Path(__file__).parent.parent
BACKENDS = 64
PEAK_RPS = 7_674
"""Goodput of the 1080Ti zoo on 64 backends, `benchmarks/goodput.py`."""
WINDOW_S, STARTUP_S = 5, 3
SETTLING, STAYING = 8, 20
"""Windows to settle in, and windows that must then be calm."""
BAD_RATE_MAX = 0.01


def zoo(**values: object) -> Scenario:
    return scenario(zoo={"table": "symphony-1080ti", "setting": "all"}, **values)


def least_backends(rate_rps: float, guess: int, seconds: float) -> int:
    """The least number that keeps the bad rate at 1 %, by bisection."""
    low, high = int(0.7 * guess), guess + 2
    while high - low > 1:
        middle = (low + high) // 2
        one = zoo(backends=middle, rate_rps=rate_rps, duration_s=seconds)
        if report(one, simulate(one)).bad_rate <= BAD_RATE_MAX:
            high = middle
        else:
            low = middle
    return high


def steady(share: float, quick: bool) -> Iterator[Figure]:
    windows = SETTLING + STAYING
    one = zoo(
        backends=BACKENDS,
        rate_rps=share * PEAK_RPS,
        warmup_s=0,
        duration_s=windows * WINDOW_S,
        autoscaler={"window_s": WINDOW_S, "startup_s": STARTUP_S, "maximum": BACKENDS},
    )
    log = simulate(one)
    targets = [each.advice.target for each in log.windows]
    changes = [each for each in log.windows if each.advice.change]
    settled = targets[-1]
    least = least_backends(share * PEAK_RPS, settled, 6 if quick else 20)
    name = f"steady at {share} of 64:"
    yield Figure(f"{name} settles on {settled}, least {least}", settled / least, "x", 1.1, True)
    yield Figure(f"{name} adjustments until then", len(changes), "", 3, True)
    calm = len({*targets[-STAYING:]}) - 1
    yield Figure(f"{name} changes over the last {STAYING} windows", calm, "", 0, True)
    late = log.arrivals.at_ns >= SETTLING * WINDOW_S * 10**9
    yield Figure(f"{name} bad after settling", 100 * _bad(log, late), "%", 1, True)


def _bad(log: RunLog, mask: "np.typing.NDArray[np.bool_]") -> float:
    bad = (log.end_ns < 0) | (log.end_ns > log.arrivals.at_ns + log.arrivals.slo_ns)
    return float(bad[mask].mean())


def step(quick: bool) -> Iterator[Figure]:
    before, at_s, until_s = 0.35 * PEAK_RPS, 40, 100
    one = zoo(
        backends=28,
        warmup_s=0,
        duration_s=until_s,
        rate_rps=None,
        arrivals={"process": "trace", "step_s": at_s, "rps": [before, 2 * before, 2 * before]},
        autoscaler={"window_s": WINDOW_S, "startup_s": STARTUP_S, "maximum": 2 * BACKENDS},
    )
    log = simulate(one)
    seen = next(each for each in log.windows if each.ends_at_ns > at_s * 10**9)
    up_s = seen.ends_at_ns / 1e9 + STARTUP_S
    at = log.arrivals.at_ns / 1e9
    spans = [
        _bad(log, (at >= begin) & (at < begin + WINDOW_S))
        for begin in np.arange(up_s, until_s - WINDOW_S, WINDOW_S)
    ]
    over = [index + 1 for index, bad in enumerate(spans) if bad > BAD_RATE_MAX]
    yield Figure(
        "step to 2x: windows above 1 % once they are up", max(over, default=0), "", 2, True
    )
    most = max(each.window.up for each in log.windows)
    least = least_backends(2 * before, most, 6 if quick else 20)
    name = f"step to 2x: most backends, {most}, over the least, {least}"
    yield Figure(name, most / least, "x", 1.15, True)


def a_day(quick: bool) -> Iterator[Figure]:
    """In a process of its own, on the compiled core: it decides the same, three times as fast."""
    share = 0.05 if quick else 1.0
    code = (
        "import json; from benchmarks.day import *; "
        f"one = day(1, {share}); log = simulate(one); "
        "result = report(one, log); outside, whole = bad_outside_steps(one, log); "
        f"hours, mean = clairvoyant_hours(1, {share}); "
        "print(json.dumps([result.requests, log.wall_s, outside, whole, result.backend_hours, "
        "hours, max(each.window.up for each in log.windows), result.worst_bad_rate]))"
    )
    build()
    output = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **native.USE},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    requests, wall_s, outside, whole, hours, clairvoyant, most, worst = json.loads(output)
    name = f"a day, {requests / 1e6:.1f} million requests, up to {most} backends:"
    yield Figure(f"{name} run takes", wall_s, "s", 600, True)
    yield Figure(f"{name} requests", requests, "", 30e6, True)
    yield Figure(f"{name} bad outside start-up of steps", 100 * outside, "%", 1, True)
    yield Figure(f"{name} bad in all (worst model {100 * worst:.2f} %)", 100 * whole, "%", 1, True)
    yield Figure(f"{name} backend-hours over clairvoyant", hours / clairvoyant, "x", 1.15, True)


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    if "steady" in parts:
        for share in (0.5,) if quick else (0.3, 0.5, 0.8):
            yield from steady(share, quick)
    if "step" in parts:
        yield from step(quick)
    if "pairs" in parts:
        yield from pairs(quick)
    if "accuracy" in parts:
        yield from accuracy(quick)
    if "day" in parts:
        yield from a_day(quick)
    if "live" in parts:
        # Not above: what needs no server must not need what a server does.
        from benchmarks.autoscale_live import measure as measure_live

        yield from measure_live(quick)


if __name__ == "__main__":
    run_parts("Autoscaling", measure, PARTS)
