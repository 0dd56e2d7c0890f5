"""A day of changing load in the manner of Symphony's Fig. 14, compressed; run it to draw it.

Spans are scaled alike: `COMPRESSION` seconds of the day are one of the run, so that a window of
150 s takes 0.625 s and a backend that takes two minutes to come up 0.5 s. Deadlines are not.
"""

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fermata.simulator.reports.report import report
from fermata.simulator.run import RunLog, simulate
from fermata.simulator.scaling import fluid_backends
from fermata.simulator.scenario.scenario import Scenario, read_scenario

MODELS = 24
BACKENDS_MAX = 512
COMPRESSION = 240
DAY_S = 86_400 / COMPRESSION
STEP_S = 600 / COMPRESSION
WINDOW_S = 150 / COMPRESSION
STARTUP_S = 120 / COMPRESSION
PEAK_BACKENDS = 430.0
"""What the whole load needs at its highest, by Eqns 2 and 3."""
SURGES = ((0.30, 0.06), (0.55, 0.04), (0.78, 0.05))
"""Sudden rises: (when, for how long), as parts of the day."""
SURGE = 1.3


def relative_rates(rng: random.Random, weight: float) -> list[float]:
    """Rates of one model, step by step: a tide of its own, a walk, and the surges of all."""
    phase, depth, walk = rng.gauss(0.0, 0.07), rng.uniform(0.35, 0.7), 0.0
    steps = int(DAY_S / STEP_S)
    trace: list[float] = []
    for step in range(steps):
        walk = 0.95 * walk + rng.gauss(0.0, 0.015)
        tide = 1.0 - depth * math.cos(2 * math.pi * (step / steps - phase))
        surge = any(start <= step / steps < start + span for start, span in SURGES)
        trace.append(weight * max(0.05, tide * (1.0 + walk)) * (SURGE if surge else 1.0))
    return trace


def rates(seed: int, share: float = 1.0) -> tuple[list[str], list[list[float]]]:
    """Names and rates of the models, step by step: tides of their own, a walk, and surges."""
    rng = random.Random(seed)
    base = _scenario({"process": "poisson"}, 1000.0, 8)
    names = [each.name for each in base.applications]
    steps = int(DAY_S / STEP_S)
    traces = [relative_rates(rng, rng.uniform(0.3, 1.7)) for _ in names]
    need = [needed(base, [trace[step] for trace in traces], 100.0) for step in range(steps)]
    # What it needs is not quite proportional to the rates: a few rounds are close enough.
    scale = 100.0
    for _ in range(6):
        peak = int(np.argmax(need))
        now = needed(base, [trace[peak] for trace in traces], scale)
        scale *= share * PEAK_BACKENDS / now
    return names, [[scale * rate for rate in trace] for trace in traces]


def needed(base: Scenario, relative: Sequence[float], scale: float) -> float:
    pairs = zip(base.applications, relative, strict=True)
    return sum(fluid_backends(application, scale * rate) for application, rate in pairs)


def _scenario(
    arrivals: dict[str, object], rate_rps: float | None, backends: int, **values: object
) -> Scenario:
    zoo = read_scenario(
        {"backends": 1, "rate_rps": 1, "zoo": {"table": "symphony-1080ti", "setting": "all"}}
    ).applications
    data: dict[str, object] = {
        "seed": 14,
        "backends": backends,
        "warmup_s": 0,
        "duration_s": DAY_S,
        "arrivals": arrivals,
        "applications": [
            {
                "name": each.name,
                "slo_ms": each.slo_ns / 1e6,
                "variants": [{"profile": f"symphony-1080ti/{each.name}"}],
            }
            for each in (zoo[round(i * (len(zoo) - 1) / (MODELS - 1))] for i in range(MODELS))
        ],
        **values,
    }
    if rate_rps is not None:
        data["rate_rps"] = rate_rps
    return read_scenario(data)


def day(seed: int = 1, share: float = 1.0) -> Scenario:
    """The day with its autoscaler; a smaller share is a smaller cluster under the same tides."""
    names, traces = rates(seed, share)
    arrivals: dict[str, object] = {
        "process": "trace",
        "step_s": STEP_S,
        "applications": dict(zip(names, traces, strict=True)),
    }
    autoscaler = {
        "window_s": WINDOW_S,
        "startup_s": STARTUP_S,
        "maximum": int(share * BACKENDS_MAX),
        "price_per_hour": 1.0,
    }
    first = needed(_scenario({"process": "poisson"}, 1.0, 1), [t[0] for t in traces], 1.0)
    return _scenario(arrivals, None, math.ceil(first / 0.95), autoscaler=autoscaler)


def steady(seed: int, step: int, backends: int, seconds: float, share: float = 1.0) -> Scenario:
    """One step of the day that lasts."""
    names, traces = rates(seed, share)
    arrivals: dict[str, object] = {
        "process": "trace",
        "step_s": seconds,
        "applications": {name: [trace[step]] for name, trace in zip(names, traces, strict=True)},
    }
    return _scenario(arrivals, None, backends, duration_s=seconds, warmup_s=1)


def clairvoyant_hours(seed: int, share: float = 1.0, samples: int = 6) -> tuple[float, float]:
    """Backend-hours, and the mean, of an autoscaler that knows every step beforehand.

    At each step it has the least backends with at most 1 % bad. A few steps are searched for
    that; the others are taken from Eqns 2 and 3 with the smallest ratio found, in its favour.
    """
    base = _scenario({"process": "poisson"}, 1000.0, 8)
    _, traces = rates(seed, share)
    need = [needed(base, [t[step] for t in traces], 1.0) for step in range(len(traces[0]))]
    chosen = [round(place * (len(need) - 1) / (samples - 1)) for place in range(samples)]
    ratio = min(_least(seed, step, need[step], share) / need[step] for step in chosen)
    total = sum(ratio * each for each in need)
    return total * STEP_S / 3600, total / len(need)


def _least(seed: int, step: int, need: float, share: float) -> int:
    """The least backends that serve a step with at most 1 % bad, by bisection."""
    low, high = math.floor(0.85 * need), math.ceil(1.15 * need) + 1
    while high - low > 1:
        middle = (low + high) // 2
        one = steady(seed, step, middle, 4.0, share)
        if report(one, simulate(one)).bad_rate <= 0.01:
            high = middle
        else:
            low = middle
    return high


def bad_outside_steps(scenario: Scenario, log: RunLog) -> tuple[float, float]:
    """Bad rate without the start-up delay of surges, and with it."""
    at_s = log.arrivals.at_ns / 1e9
    bad = (log.end_ns < 0) | (log.end_ns > log.arrivals.at_ns + log.arrivals.slo_ns)
    counted = np.ones(len(at_s), bool)
    for start, _ in SURGES:
        # A step of the trace, then the window that sees it, then the backends' start.
        begins_s = math.ceil(start * DAY_S / STEP_S) * STEP_S
        counted &= ~((at_s >= begins_s) & (at_s < begins_s + WINDOW_S + STARTUP_S))
    return float(bad[counted].mean()), float(bad.mean())


def main() -> None:
    """Run the day and draw it: `python -m benchmarks.day FILE.png [SHARE]`."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m benchmarks.day FILE.png [SHARE OF 512 BACKENDS]")
    from fermata.simulator.reports.scaling_plot import draw_scaling

    one = day(1, float(sys.argv[2]) if len(sys.argv) == 3 else 1.0)
    draw_scaling(one, simulate(one), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
