"""Jellyfish beside clients that adapt by themselves, and its latencies (section VI-D, Fig. 9).

`python -m benchmarks.jellyfish_adaptation --data FOLDER` plays the 18 settings of Fig. 12 on the
synthetic trace. A part of the SLO is set aside for waiting and running, once and for all: that
decides the DNN. Clients send the DNN's input size (off), what their networks carry as fast as
frames come (bandwidth), or what comes within the rest of the SLO (SLO).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks import jellyfish_data
from benchmarks.figures import Figure, run_on_data
from benchmarks.jellyfish_data import Data
from benchmarks.jellyfish_network import BACKENDS, HELD_OUT, scenario
from fermata.foundation.units import SECOND, ms
from fermata.router.policies.jellyfish.problem import QUEUE_FACTOR, Zoo
from fermata.simulator.reports.report import report
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import Scenario

SETTINGS = tuple(product((2, 4, 8), (75, 100, 150), (15, 25)))
QUICK = ((2, 100, 15), (4, 150, 25))
SHARES = (0.5, 0.75)
"""Shares of the SLO that are set aside for waiting and running."""
LONG_NS = 1000 * SECOND
DURATION_S = 140.0
QUANTILES = (0.1, 0.5, 0.9, 0.99)

PARTS = {
    "adaptation": "misses and accuracy of the ways to adapt (Fig. 12)",
    "latencies": "quantiles of the latency from the shutter to the answer (Fig. 9)",
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to adapt what clients send."""

    name: str
    throughput: bool = False
    """By bandwidth alone."""
    within_slo: bool = False
    """The size that comes within the rest of the SLO; else the DNN's own, whatever it takes."""


WAYS = (Way("off"), Way("bandwidth", throughput=True), Way("SLO", within_slo=True))


def best_dnn(zoo: Zoo, budget_ns: float, rate_rps: float) -> int | None:
    """The most accurate one that carries so much of a worker's load within the budget."""
    for dnn in reversed(range(len(zoo.accuracy))):
        for size, run_ns in enumerate(zoo.latency_ns[dnn], start=1):
            if QUEUE_FACTOR * run_ns <= budget_ns and size * SECOND > rate_rps * run_ns:
                return dnn
    return None


def play_alone(
    data: Data, setting: tuple[int, int, int], way: Way, share: float
) -> tuple[float, float]:
    """Misses and accuracy of clients that adapt by themselves, with one DNN for all."""
    count, slo_ms, fps = setting
    dnn = best_dnn(data.zoo, share * ms(slo_ms), count * fps / BACKENDS)
    if dnn is None:
        return 1.0, 0.0
    case = scenario(data, [(slo_ms, fps)] * count, "synthetic", HELD_OUT, DURATION_S, dnn)
    if not way.throughput:
        assert case.network is not None
        case = replace(case, network=replace(case.network, adaptation="advised"))
    driver = Driver(case)
    assert driver.uplinks is not None
    if not way.throughput:
        network_ns = int((1.0 - share) * ms(slo_ms)) if way.within_slo else LONG_NS
        for camera in driver.uplinks.cameras.values():
            # As if advised once: nobody on the server's side will.
            camera.uplink.on_advice(data.input_sizes[dnn], network_ns, served=True)
            if not way.within_slo:
                # Nor does its frame rate bound what it sends.
                camera.uplink.fps = 0.0
    found = report(case, driver.run())
    return found.bad_rate, found.accuracy or 0.0


def adaptation(data: Data, quick: bool) -> Iterator[Figure]:
    settings = QUICK if quick else SETTINGS
    own = [_advised(data, setting) for setting in settings]
    ours = [report(case, driver.run()) for case, driver in own]
    missed = mean(each.bad_rate for each in ours)
    unit = f"of all frames (accuracy {mean(each.accuracy or 0.0 for each in ours):.3f})"
    yield Figure(f"Fig. 12, Jellyfish, {len(settings)} settings: misses", missed, unit, 1.0, True)
    for way, share in product(WAYS, SHARES):
        found = [play_alone(data, setting, way, share) for setting in settings]
        accuracy = mean(each for _, each in found)
        name = f"Fig. 12, data adaptation {way.name}, {share:.0%} of the SLO to compute: misses"
        unit = f"of all frames (accuracy {accuracy:.3f})"
        yield Figure(name, mean(each for each, _ in found), unit, 1.0, True)


def _advised(data: Data, setting: tuple[int, int, int]) -> tuple[Scenario, Driver]:
    count, slo_ms, fps = setting
    case = scenario(data, [(slo_ms, fps)] * count, "synthetic", HELD_OUT, DURATION_S)
    return case, Driver(case)


def latencies(data: Data, quick: bool) -> Iterator[Figure]:
    for count, slo_ms, fps in QUICK if quick else SETTINGS:
        case, driver = _advised(data, (count, slo_ms, fps))
        log = driver.run()
        measured = (log.arrivals.at_ns >= case.warmup_ns) & (log.end_ns >= 0)
        took_ms = (log.end_ns - log.arrivals.at_ns)[measured] / 1e6
        told = ", ".join(
            f"{quantile:.0%}: {np.quantile(took_ms, quantile):.0f}" for quantile in QUANTILES
        )
        name = f"Fig. 9, {count} clients, {slo_ms} ms, {fps} fps: p99"
        p99_ms = float(np.quantile(took_ms, 0.99))
        yield Figure(name, p99_ms, f"ms ({told})", slo_ms, True)


def measure(folder: Path, parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    data = jellyfish_data.load(folder)
    if "adaptation" in parts:
        yield from adaptation(data, quick)
    if "latencies" in parts:
        yield from latencies(data, quick)


if __name__ == "__main__":
    run_on_data("Jellyfish: ways to adapt", measure, PARTS, jellyfish_data.DEFAULT)
