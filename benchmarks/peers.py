"""Fermata beside Triton, mosec and LitServe on the same emulated GPUs.

Two scenes. `one`: one GPU that runs 5 + b ms, SLO 50 ms. `eight`: eight models of Symphony's
Table 5 on two GPUs, times and SLOs taken three times, Zipf 0.9. Inputs of 20 KB, Poisson arrivals
from a process of its own on this machine. A rate counts as served when at most 1 % of its requests
are refused, lost or later than their SLO, counted from when they were due.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

from benchmarks.figures import Figure, present
from benchmarks.live_server import ServerError
from benchmarks.peer_servers.knobs import BEST, GRIDS, Knobs
from benchmarks.peer_servers.launch import PEERS, ours
from benchmarks.peer_servers.limits import (
    FULL,
    QUICK,
    SWEEP,
    Effort,
    Limit,
    UnfitError,
    better,
    find_limit,
    timed,
)
from benchmarks.peer_servers.measurements import Measurements
from benchmarks.peer_servers.scenes import Scene, eight_models, one_gpu
from benchmarks.peer_servers.venv import Venv, make_venv
from fermata.simulator.goodput import find_goodput, fluid_bound_rps

SCENES = {"one": one_gpu, "eight": eight_models}
OURS = "fermata"
OVERLOAD = 1.3
FIRST = 0.6
"""A sweep starts from this share of our own simulated goodput."""
GOALS = {"one": 1.10, "eight": 2.0}
"""Over the best peer."""


@cache
def simulated(scene: Scene) -> float:
    """What `fermata goodput` says of the scene."""
    return find_goodput(scene.scenario(fluid_bound_rps(scene.scenario(1)))).goodput_rps


def sweep(peer: str, venv: Venv, scene: Scene, part: tuple[int, ...], found: Measurements) -> None:
    """Try the configurations of the grid that were not; each gets as close a look as it earns."""
    known = found.of(scene).get(peer, {}).get("sweep", {})
    first_rps = FIRST * simulated(scene)
    for number, knobs in enumerate(GRIDS[scene.name][peer]):
        if str(number) in known or (part and number not in part):
            continue
        best_rps = max((each["limit_rps"] for each in known.values()), default=0.0)
        start = partial(PEERS[peer], venv, scene, knobs)
        with timed(f"{peer} {number}: {knobs}", start) as served:
            limit_rps = better(served, scene, SWEEP, best_rps, first_rps)
        known[str(number)] = {"knobs": str(knobs), "limit_rps": limit_rps}
        found.enter(scene, peer, sweep=known)


def best_known(peer: str, scene: Scene, found: Measurements) -> tuple[Knobs, float]:
    """The configuration that served most in a sweep, and how much; the committed one without."""
    known = found.of(scene).get(peer, {}).get("sweep", {})
    if not known:
        return BEST[scene.name][peer], 0.0
    best = max(known, key=lambda number: float(known[number]["limit_rps"]))
    return GRIDS[scene.name][peer][int(best)], float(known[best]["limit_rps"])


def measure_peer(
    peer: str,
    venv: Venv,
    scene: Scene,
    effort: Effort,
    part: tuple[int, ...] | None,
    found: Measurements,
) -> Limit:
    if part is not None:
        sweep(peer, venv, scene, part, found)
    knobs, swept_rps = best_known(peer, scene, found)
    capacity_rps = fluid_bound_rps(scene.scenario(1))
    guess_rps = swept_rps or FIRST * simulated(scene)
    with timed(f"{peer}: {knobs}", partial(PEERS[peer], venv, scene, knobs)) as served:
        limit = find_limit(served, scene, effort, guess_rps, OVERLOAD * capacity_rps)
    found.enter(scene, peer, knobs=str(knobs), **asdict(limit))
    return limit


def peer_figures(
    peer: str,
    venv: Venv,
    scene: Scene,
    effort: Effort,
    part: tuple[int, ...] | None,
    found: Measurements,
) -> Iterator[Figure]:
    where = f"{scene.name}: {peer}"
    if reason := venv.missing.get(peer):
        yield Figure(f"{where} skipped, cannot be installed ({reason})", 0, "req/s", 0)
        return
    try:
        limit = measure_peer(peer, venv, scene, effort, part, found)
    except ServerError as error:
        said = str(error).strip().splitlines()[-1]
        yield Figure(f"{where} skipped, does not run ({said})", 0, "req/s", 0)
        return
    yield Figure(f"{where}, goodput, for reference", limit.limit_rps, "req/s", 0)
    kept = limit.overload_rps / limit.limit_rps if limit.limit_rps else 0.0
    yield Figure(f"{where}, kept at 1.3x capacity, for reference", kept, "x", 0)


def our_figures(scene: Scene, effort: Effort, found: Measurements) -> Iterator[Figure]:
    capacity_rps = fluid_bound_rps(scene.scenario(1))
    simulated_rps = simulated(scene)
    found.enter(scene, OURS, simulated_rps=simulated_rps)
    yield Figure(f"{scene.name}: simulated goodput, for reference", simulated_rps, "req/s", 0)
    with timed(OURS, partial(ours, scene)) as served:
        over_rps = OVERLOAD * capacity_rps
        limit = find_limit(served, scene, effort, 0.9 * simulated_rps, over_rps)
    found.enter(scene, OURS, **asdict(limit))
    yield Figure(f"{scene.name}: {OURS}, goodput, for reference", limit.limit_rps, "req/s", 0)
    share = limit.limit_rps / simulated_rps
    # Of several models the simulator asks 1 % of each, we here of all of them together.
    yield Figure(f"{scene.name}: {OURS} over simulated", share, "x", 0.9 if scene.gpus == 1 else 0)
    kept = limit.overload_rps / limit.limit_rps if limit.limit_rps else 0.0
    yield Figure(f"{scene.name}: {OURS}, kept at 1.3x capacity", kept, "x", 0.95)


def ratio(scene: Scene, found: Measurements) -> Iterator[Figure]:
    """Once both sides are known."""
    known = found.of(scene)
    limits = {name: each["limit_rps"] for name, each in known.items() if "limit_rps" in each}
    peers = {name: limit for name, limit in limits.items() if name != OURS and limit}
    if OURS in limits and peers:
        best = max(peers, key=lambda name: peers[name])
        value = limits[OURS] / peers[best]
        yield Figure(f"{scene.name}: {OURS} over the best, {best}", value, "x", GOALS[scene.name])


def measure(given: argparse.Namespace, venv: Venv, found: Measurements) -> Iterator[Figure]:
    effort = QUICK if given.quick else FULL
    part = given.configs if given.sweep else None
    for name in given.scene:
        scene = SCENES[name]()
        for server in given.only:
            if server == OURS:
                yield from our_figures(scene, effort, found)
            else:
                yield from peer_figures(server, venv, scene, effort, part, found)
        yield from ratio(scene, found)


def _part(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers, as in 0,3,7") from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    add = parser.add_argument
    servers = (*PEERS, OURS)
    add("--only", action="append", choices=servers, help="just this server; may be repeated")
    add("--scene", action="append", choices=tuple(SCENES), help="just this scene")
    add("--sweep", action="store_true", help="try every configuration, not just the best known")
    add("--configs", type=_part, default=(), help="just these of the grid, by number: 0,3,7")
    add("--results", type=Path, help="JSON file of what is known; read, and added to")
    add("--venv", type=Path, help="the peers' environment, kept; else made and thrown away")
    add("--json", action="store_true", help="print a JSON list and nothing else")
    add("--quick", action="store_true", help="a reduced run, for CI")
    given = parser.parse_args()
    given.only = given.only or list(servers)
    given.scene = given.scene or list(SCENES)
    return given


def main() -> None:
    given = _arguments()
    wanted = [server for server in given.only if server != OURS]
    with ExitStack() as stack:
        folder = given.venv or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if wanted:
            print(f"  the peers' environment in {folder}", file=sys.stderr)
        venv = make_venv(folder.resolve(), wanted) if wanted else Venv(folder)
        figures = measure(given, venv, Measurements(given.results))
        try:
            present("Fermata and its peers on emulated GPUs", figures, given.json)
        except UnfitError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
