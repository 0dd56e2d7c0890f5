"""Pipelines beside Triton's ensemble and BLS and Ray Serve's composition, on emulated GPUs.

Scenes, fan-out, clients and the search for the highest rate are those of `pipelines_live`.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure
from benchmarks.live_server import ServerError
from benchmarks.peer_servers.launch import Served
from benchmarks.peer_servers.measurements import Measurements
from benchmarks.peer_servers.pipeline_knobs import (
    BEST,
    BLS,
    ENSEMBLE,
    FIRST,
    SERVE,
    PipelineKnobs,
    steps_of,
)
from benchmarks.peer_servers.pipeline_scene import PipelineScene, pipeline_scene
from benchmarks.peer_servers.pipeline_serve import serve_pipeline
from benchmarks.peer_servers.pipeline_triton import triton_pipeline
from benchmarks.peer_servers.venv import Venv, make_venv
from benchmarks.pipelines_live import (
    BAD_RATE_MAX,
    SCALES,
    STREAMS,
    WARMUP_S,
    goodput_rps,
    load,
    server,
    target,
)
from benchmarks.search import highest
from fermata.clients.load.report import LoadReport
from fermata.clients.load.sender import Sender, SenderOptions

OURS = "fermata"
GOALS = {ENSEMBLE: 1.5, BLS: 2.0, SERVE: 2.0}
"""Our goodput over each peer's."""
FIRST_SHARE = 0.4
"""A sweep starts from this share of our own simulated goodput."""
OVERLOAD = 1.3
OVERLOAD_S = 10.0
DRAIN_S = 5.0
"""After a load that went badly: what a server has left of it would delay the next."""
SWEEP_S, SWEEP_WARMUP_S = 6.0, 1.5
SWEEP_PRECISION, SWEEP_PROBES = 0.05, 8


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bound and simulated goodput of a scene, in queries a second."""

    bound_rps: float
    simulated_rps: float


Capacities = Callable[[str], Capacity]
Probe = Callable[[float, float], LoadReport]


def add_options(parser: ArgumentParser) -> None:
    """Options of the part `peers`."""
    add = parser.add_argument
    peers = (*GOALS, OURS)
    add("--peer", action="append", choices=peers, help="of the part peers: just this server")
    add("--scene", action="append", choices=tuple(SCALES), help="of the part peers: just this")
    add("--sweep", action="store_true", help="of the part peers: try every knob, not just the best")
    add("--results", type=Path, help="of the part peers: JSON file of what is known; added to")
    add("--venv", type=Path, help="of the part peers: Triton's environment, kept; else thrown away")


def peer_figures(given: Namespace, capacity: Capacities, quick: bool) -> Iterator[Figure]:
    """Every server that is wanted, on every scene."""
    found = Measurements(given.results)
    peers = given.peer or [*GOALS, OURS]
    with ExitStack() as stack:
        folder = given.venv or Path(stack.enter_context(TemporaryDirectory()))
        triton = any(peer in (ENSEMBLE, BLS) for peer in peers)
        venv = make_venv(folder.resolve(), ["triton"]) if triton else Venv(folder)
        for name in given.scene or SCALES:
            scene = pipeline_scene(name)
            told = capacity(name)
            for peer in peers:
                yield from _of_server(scene, peer, venv, given.sweep, told, found, quick)
            yield from _ratios(scene, found)


def _of_server(
    scene: PipelineScene,
    peer: str,
    venv: Venv,
    sweeps: bool,
    told: Capacity,
    found: Measurements,
    quick: bool,
) -> Iterator[Figure]:
    where = f"scene {scene.name}: {peer}"
    if peer != OURS and peer not in FIRST[scene.name]:
        # An ensemble has no fan-out that varies.
        return
    if peer in (ENSEMBLE, BLS) and (reason := venv.missing.get("triton")):
        yield Figure(f"{where} skipped, cannot be installed ({reason})", 0, "queries/s", 0)
        return
    try:
        if sweeps and peer != OURS:
            sweep(scene, peer, venv, told, found)
        limit_rps, over_rps = measure(scene, peer, venv, told, found, quick)
    except ServerError as error:
        said = str(error).strip().splitlines()[-1]
        yield Figure(f"{where} skipped, does not run ({said})", 0, "queries/s", 0)
        return
    yield Figure(f"{where}, goodput, for reference", limit_rps, "queries/s", 0)
    kept = over_rps / told.simulated_rps
    yield Figure(f"{where}, good at 1.3x the bound over our peak, for reference", kept, "x", 0)


def started(
    scene: PipelineScene, peer: str, venv: Venv, knobs: PipelineKnobs | None
) -> AbstractContextManager[Served]:
    """A server of the scene; ours has no knobs."""
    _tell(f"  scene {scene.name}, {peer}: {knobs or 'as it comes'} ({time.strftime('%H:%M:%S')})")
    if knobs is None:
        return _ours(scene)
    if peer == SERVE:
        return serve_pipeline(scene, knobs)
    return triton_pipeline(venv, scene, peer, knobs)


@contextmanager
def _ours(scene: PipelineScene) -> Iterator[Served]:
    with server(scene.name) as running:
        yield Served(SenderOptions(running.address, STREAMS), Sender, [target(scene.name)])


def probe_of(served: Served, warmup_s: float = WARMUP_S) -> Probe:
    """Loads that server at a rate, for so many seconds."""

    def probe(rate_rps: float, seconds_s: float) -> LoadReport:
        (query,) = served.targets
        result = load(served.options, query, rate_rps, seconds_s, served.kind, warmup_s)
        _tell(
            f"    {rate_rps:6.1f} queries/s: {100 * result.bad_rate:5.2f} % bad "
            f"(late {result.late}, refused {sum(result.refused.values())}, lost {result.lost}), "
            f"p99 {result.latency_ms['p99']} ms"
        )
        if result.bad_rate > BAD_RATE_MAX:
            time.sleep(DRAIN_S)
        return result

    return probe


def sweep(scene: PipelineScene, peer: str, venv: Venv, told: Capacity, found: Measurements) -> None:
    """Turn one knob after the other, and keep what serves more; the known is not tried again."""
    tried: dict[str, float] = found.of(scene).get(peer, {}).get("sweep", {})
    best = FIRST[scene.name][peer]
    for name, values in (("", (None,)), *steps_of(scene.name, peer)):
        before = best
        for value in values:
            knobs = replace(before, **{name: value}) if name else before
            if str(knobs) not in tried:
                best_rps = max(tried.values(), default=0.0)
                with started(scene, peer, venv, knobs) as served:
                    tried[str(knobs)] = _better(served, best_rps, FIRST_SHARE * told.simulated_rps)
                found.enter(scene, peer, sweep=tried)
            if tried[str(knobs)] > tried.get(str(best), 0.0):
                best = knobs


def _better(served: Served, best_rps: float, first_rps: float) -> float:
    """The limit where it is above the best so far, else 0."""
    probe = probe_of(served, SWEEP_WARMUP_S)
    known: dict[float, bool] = {}

    def good(rate_rps: float) -> bool:
        if rate_rps not in known:
            known[rate_rps] = probe(rate_rps, SWEEP_S).bad_rate <= BAD_RATE_MAX
        return known[rate_rps]

    bar_rps = best_rps * (1 + SWEEP_PRECISION) or first_rps
    if best_rps and not good(bar_rps):
        return 0.0
    return highest(good, bar_rps, SWEEP_PRECISION, SWEEP_PROBES, step=1.1)


def best_known(scene: PipelineScene, peer: str, found: Measurements) -> PipelineKnobs:
    """The best of a sweep that is known; the committed ones without."""
    tried: dict[str, float] = found.of(scene).get(peer, {}).get("sweep", {})
    if not any(tried.values()):
        return BEST[scene.name][peer]
    best = FIRST[scene.name][peer]
    for name, values in steps_of(scene.name, peer):
        before = best
        for value in values:
            knobs = replace(before, **{name: value})
            if tried.get(str(knobs), 0.0) > tried.get(str(best), 0.0):
                best = knobs
    return best


def measure(
    scene: PipelineScene,
    peer: str,
    venv: Venv,
    told: Capacity,
    found: Measurements,
    quick: bool,
) -> tuple[float, float]:
    """Goodput, and good queries a second in overload."""
    knobs = None if peer == OURS else best_known(scene, peer, found)
    swept: dict[str, float] = found.of(scene).get(peer, {}).get("sweep", {})
    guess_rps = 0.9 * told.simulated_rps if knobs is None else swept.get(str(knobs), 0.0)
    with started(scene, peer, venv, knobs) as served:
        probe = probe_of(served)
        limit_rps = goodput_rps(probe, guess_rps or FIRST_SHARE * told.simulated_rps, quick)
        over_rps = probe(OVERLOAD * told.bound_rps, OVERLOAD_S).goodput_rps
    values = {"knobs": str(knobs or ""), "limit_rps": limit_rps, "overload_rps": over_rps}
    found.enter(scene, peer, **values)
    return limit_rps, over_rps


def _ratios(scene: PipelineScene, found: Measurements) -> Iterator[Figure]:
    """Once both sides are known."""
    known = found.of(scene)
    limits = {name: each["limit_rps"] for name, each in known.items() if "limit_rps" in each}
    for peer, goal in GOALS.items():
        if OURS in limits and limits.get(peer):
            value = limits[OURS] / limits[peer]
            yield Figure(f"scene {scene.name}: {OURS} over {peer}", value, "x", goal)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
