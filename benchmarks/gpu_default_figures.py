"""Utility of the default policy on one GPU, live and simulated."""

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.gpu_figures import BATCH, FRONTENDS, Probe, probe, raw, say
from benchmarks.gpu_models import CACHE, SHAPE, seed_files
from benchmarks.gpu_server import GpuServer
from benchmarks.natives import with_natives
from fermata.clients.load.sender import Target
from fermata.deployments.models.cache import cache_folder
from fermata.foundation.units import ms
from fermata.profiles.profile import Profile
from fermata.profiles.store import load_file
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario
from fermata.simulator.tournament.h200 import FAMILIES
from fermata.simulator.tournament.play import earned

ACCURACIES = FAMILIES["resnet"]
SLO_MS = 25.0
LOADS_RPS = (500, 4_000, 9_000)
SECONDS, QUICK_SECONDS = 8.0, 3.0
DEFAULT, JELLYFISH = "auto", "jellyfish-plus"


@dataclass(frozen=True, slots=True)
class Served:
    """Outcome of one application at one load."""

    utility: float
    p99_ms: float
    lead_ms: float


def resnets(quick: bool) -> Iterator[Figure]:
    """Each load on the default, on each network alone, and on Jellyfish."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(seed_files, (folder, tuple(ACCURACIES)))
        alone = list(ACCURACIES)
        found = serve(folder, [DEFAULT, *alone], seconds)
        found |= serve(folder, [JELLYFISH], seconds)
        profiles = measured(folder)
    for rate_rps in LOADS_RPS:
        mine = found[DEFAULT, rate_rps]
        others = {each: found[each, rate_rps].utility for each in (*alone, JELLYFISH)}
        best = max(others, key=lambda each: others[each])
        name = f"default at {rate_rps:,} req/s, SLO {SLO_MS:g} ms"
        over = 100.0 * (mine.utility - others[best])
        yield Figure(f"{name}: utility", 100.0 * mine.utility, "points", 100.0 * others[best])
        yield Figure(f"{name}: utility over {best}", over, "points", 0.0)
        expected = simulated(profiles, rate_rps, mine.lead_ms)
        off = 100.0 * abs(mine.utility - expected)
        yield Figure(f"{name}: off simulated", off, "points", 1.0, at_most=True)
        yield Figure(f"{name}: p99", mine.p99_ms, "ms", SLO_MS, at_most=True)


def deployment(applications: Sequence[str]) -> dict[str, Any]:
    """Applications named after their policy, or after the only network that they serve."""
    return with_natives(
        {
            "applications": [_application(each) for each in applications],
            "frontend": {"processes": FRONTENDS},
            # Nine networks would be tuned meanwhile, beside the load.
            "backend": {"count": 1, "device": "cuda", "cpus": 1, "kernels": "plain"},
        }
    )


def _application(name: str) -> dict[str, Any]:
    networks = [name] if name in ACCURACIES else list(ACCURACIES)
    return {
        "name": name,
        "slo_ms": SLO_MS,
        "policy": DEFAULT if name in ACCURACIES else name,
        "input": {"dtype": "UINT8", "shape": list(SHAPE), "image": True},
        "variants": [
            {
                "name": f"{name}-{network}",
                "model": f"torchvision:{network}",
                "batch_size_max": BATCH,
                "accuracy": ACCURACIES[network],
            }
            for network in networks
        ],
    }


def serve(
    folder: Path, applications: Sequence[str], seconds: float
) -> dict[tuple[str, int], Served]:
    """Outcomes of each of them at each load, one after the other on one server."""
    found: dict[tuple[str, int], Served] = {}
    with GpuServer(folder, deployment(applications)) as server:
        server.wait(FRONTENDS)
        # The first requests meet cold caches.
        probe(server, [_target(applications[0])], QUICK_SECONDS, LOADS_RPS[0])
        for name in applications:
            for rate_rps in LOADS_RPS:
                before = _rated(server, name)
                told = probe(server, [_target(name)], seconds, rate_rps)
                found[name, rate_rps] = _served(told, before, _rated(server, name))
                say(f"{name} at {rate_rps:,}/s: utility {100 * found[name, rate_rps].utility:.2f}")
    return found


def _target(name: str) -> Target:
    return Target(name, raw(0), ms(SLO_MS))


def _rated(server: GpuServer, name: str) -> tuple[float, int]:
    """Answers expected to be right, and all whose accuracy is known."""
    told = server.status()["applications"][name]
    return told["expected_right"], told["rated"]


def _served(told: Probe, before: tuple[float, int], after: tuple[float, int]) -> Served:
    right, rated = after[0] - before[0], after[1] - before[1]
    utility = told.worst * right / max(1, rated)
    return Served(utility, told.load.latency_ms["p99"] or 0.0, told.spent.lead_ms)


def measured(folder: Path) -> dict[str, Profile]:
    """Run times as the server's backend measured them, by variant."""
    cache = cache_folder({"XDG_CACHE_HOME": os.fspath(folder / CACHE)})
    tables = [load_file(path) for path in sorted(cache.glob("profile-*.json"))]
    return {each.name: each for table in tables for each in table.profiles}


def simulated(profiles: Mapping[str, Profile], rate_rps: int, lead_ms: float) -> float:
    """Utility of the default on these run times."""
    variants = []
    for network, accuracy in ACCURACIES.items():
        run_ns = profiles[f"{DEFAULT}-{network}"].table_ns(BATCH)
        latency_ms = [each / ms(1) for each in run_ns]
        variants.append({"name": network, "latency_ms": latency_ms, "accuracy": accuracy})
    scenario = read_scenario(
        {
            "backends": 1,
            "policy": DEFAULT,
            "rate_rps": rate_rps,
            "duration_s": 20,
            "dispatch_ms": lead_ms,
            "execution": {"jitter": 0.02},
            "applications": [{"name": "resnets", "slo_ms": SLO_MS, "variants": variants}],
        }
    )
    utility, _ = earned(scenario, simulate(scenario), True)
    return utility
