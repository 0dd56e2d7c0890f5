"""Flat top: idle backends below the peak, a steady goodput above it (Symphony Figs. 5 and 10)."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from benchmarks.figures import Figure, run
from benchmarks.workloads import fig10
from fermata.simulator.goodput import find_goodput
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate

BELOW = (0.2, 0.4, 0.6, 0.8)
ABOVE = (1.5, 2.0)
TOLERANCE = 0.03


def at_load(seconds: float, peak_rps: float, share: float) -> RunReport:
    one = fig10(rate_rps=share * peak_rps, duration_s=seconds)
    return report(one, simulate(one))


def measure(quick: bool) -> Iterator[Figure]:
    seconds = 5 if quick else 20
    peak_rps = find_goodput(fig10(duration_s=seconds)).goodput_rps
    yield Figure("Fig. 10 peak goodput, 24 GPUs", peak_rps, "req/s", 10_419)
    with ProcessPoolExecutor(2) as pool:
        reports = pool.map(partial(at_load, seconds, peak_rps), (*BELOW, *ABOVE))
        for share, each in zip((*BELOW, *ABOVE), reports, strict=True):
            if share < 1.0:
                error = abs(each.idle_fraction - (1.0 - share))
                name = f"idle {each.idle_fraction:.3f} at {share} of the peak: off by"
                yield Figure(name, error, "", TOLERANCE, at_most=True)
            else:
                kept = each.good_rps / peak_rps
                yield Figure(f"good over peak at {share}x the load", kept, "x", 0.98)


if __name__ == "__main__":
    run("Flat top", measure)
