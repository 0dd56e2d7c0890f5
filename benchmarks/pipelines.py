"""Pipelines: several models under one deadline, against other rules in the same simulator."""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks.figures import Figure, parts_parser, run
from benchmarks.pipelines_cuts import cut_figures
from benchmarks.pipelines_gpu import LOADS, gpu_figures
from benchmarks.pipelines_kills import kill_figures
from benchmarks.pipelines_live import SCALES, live_figures, scaled
from benchmarks.pipelines_peers import Capacity, add_options, peer_figures
from benchmarks.pipelines_rules import DRAWS, FIRST, compared, find_peak, scenario_of
from benchmarks.pipelines_variants import variant_figures
from fermata.simulator.pipelines.bound import bound_rps

PARTS = {
    "rules": "against other rules, simulated",
    "variants": "two variants a stage, over the best fixed choice, simulated",
    "live": "scenes A and C on emulated GPUs, over their simulation",
    "kills": "backends killed in a batch of each stage",
    "peers": "scenes A and C beside Triton and Ray Serve on emulated GPUs",
    "cuts": "CPU time of a crop in each role, without a device",
    "gpu": "detect, crop and classify with real models on one device",
}
ASKED = ("variants", "live", "kills", "peers", "cuts", "gpu")
"""Parts that are left out unless they are named."""
KILLS, KILLS_QUICK = 20, 1
SECONDS_LIVE = 20.0


def capacity(name: str) -> Capacity:
    """Bound and simulated goodput of a scene that is served live."""
    scenario = scenario_of(scaled(name), SECONDS_LIVE)
    bound = bound_rps(scenario)
    return Capacity(bound, find_peak(scenario, bound) * bound)


def live(quick: bool) -> Iterator[Figure]:
    for name in SCALES:
        yield from live_figures(name, capacity(name).simulated_rps, quick)


def measure(given: argparse.Namespace, quick: bool) -> Iterator[Figure]:
    parts: Sequence[str] = given.only or [part for part in PARTS if part not in ASKED]
    with ProcessPoolExecutor(given.processes) as pool:
        if "rules" in parts:
            yield from compared(pool, quick, given.first, given.draws)
        if "variants" in parts:
            yield from variant_figures(pool, quick)
    if "live" in parts:
        yield from live(quick)
    if "kills" in parts:
        yield from kill_figures(KILLS_QUICK if quick else KILLS)
    if "peers" in parts:
        yield from peer_figures(given, capacity, quick)
    if "cuts" in parts:
        yield from cut_figures(quick)
    if "gpu" in parts:
        yield from gpu_figures(given.device, given.decode, quick)


def options() -> argparse.ArgumentParser:
    parser = parts_parser(PARTS)
    parser.add_argument(
        "--first", type=int, default=FIRST, help="seed of the first scene that is drawn"
    )
    parser.add_argument("--draws", type=int, help=f"scenes that are drawn, {DRAWS} unless given")
    parser.add_argument(
        "--processes", type=int, default=1, help="simulations that run at a time, 1 unless given"
    )
    parser.add_argument("--device", choices=LOADS, default="cuda", help="of the part gpu")
    parser.add_argument(
        "--decode",
        choices=("auto", "gpu", "cpu"),
        default="auto",
        help="where the part gpu decodes JPEGs: gpu, in the backend; cpu, in frontends",
    )
    add_options(parser)
    return parser


if __name__ == "__main__":
    parser = options()
    given = parser.parse_known_args()[0]
    run("Pipelines", lambda quick: measure(given, quick), parser)
