"""Live: cameras whose uplinks follow WiFi and LTE traces, and a real detector at several sizes.

Uplinks are emulated in the clients, so neither root nor namespaces are needed. A camera's score is
the mAP of its answers in time against what a better detector finds in the original frames; a frame
that was missed counts as one in which nothing was found.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

from benchmarks.cameras_scene import METRIC, Scene, keep_film, profile, sections
from benchmarks.cameras_streams import CameraFrame, CameraSpec, stream_all
from benchmarks.figures import Figure, run
from benchmarks.jellyfish_data import DEFAULT
from benchmarks.live_server import fermata
from fermata.clients.load.adaptive import from_step
from fermata.commands.streaming.uplinks import read_uplink
from fermata.profiles.detection import Detections, judge

TRACES = {"WiFi": "wifi_trace.csv", "LTE": "lte_upload_trace.csv"}
SLO_MS = (75.0, 100.0)
SECONDS, QUICK_SECONDS = 18.0, 8.0
SETTLE_S = 2.0
"""A camera finds its bandwidth and the server its size; frames of later on count, in every run."""
GPU_SIZES, CPU_SIZES = (160, 224, 320, 448, 640), (96, 128, 160, 192, 224)
TROUBLE = ("INTERNAL", "UNAVAILABLE")
"""Refusals that neither a network nor a load explains."""
ADAPTIVE = 0
"""In place of a size."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Cameras of one trace and SLO."""

    trace: str
    slo_ms: float

    def __str__(self) -> str:
        return f"{self.trace}, SLO {self.slo_ms:g} ms"


@dataclass(frozen=True, slots=True)
class CameraScore:
    """One camera in one run."""

    quality: float
    misses: float
    troubled: float
    """Share of frames that the server itself lost: then neither it nor its rival tells much."""


Runs = Mapping[int, Mapping[int, CameraScore]]
"""Scores by size, or `ADAPTIVE`, and camera."""


def cameras_of(count: int, slos_ms: Sequence[float], fps: float, data: Path) -> list[CameraSpec]:
    """As many of each trace and SLO, each on another step of its trace."""
    settings = list(product(TRACES, slos_ms))
    found: list[CameraSpec] = []
    for number in range(count):
        trace, slo_ms = settings[number % len(settings)]
        uplink = from_step(read_uplink(TRACES[trace], data), number)
        assert uplink is not None, "a file was named"
        found.append(CameraSpec(number, trace, uplink, slo_ms, fps))
    return found


def scores(frames: Sequence[CameraFrame], wanted: Sequence[Detections]) -> dict[int, CameraScore]:
    """By camera, over the frames that count."""
    by_camera: dict[int, list[CameraFrame]] = {}
    for frame in frames:
        if frame.at_s >= SETTLE_S:
            by_camera.setdefault(frame.camera, []).append(frame)
    return {
        camera: CameraScore(
            judge(METRIC, (each.found for each in mine), (wanted[each.place] for each in mine)),
            1 - mean(each.in_time for each in mine),
            mean(each.why.startswith(TROUBLE) for each in mine),
        )
        for camera, mine in by_camera.items()
    }


def figures(cameras: Sequence[CameraSpec], runs: Runs) -> Iterator[Figure]:
    """For each trace and SLO: misses, and the score over that of the best size and of the
    largest."""
    settings = sorted({(each.trace, each.slo_ms) for each in cameras})
    for setting in (Setting(*each) for each in settings):
        mine = [each.number for each in cameras if (each.trace, each.slo_ms)
                == (setting.trace, setting.slo_ms)]  # fmt: skip
        yield from _of_setting(setting, mine, runs)
    every = [each.misses for each in runs[ADAPTIVE].values()]
    yield Figure("misses of all cameras", mean(every), f"(worst {max(every):.4f})", 0.01, True)
    worst = max(runs, key=lambda size: mean(each.troubled for each in runs[size].values()))
    lost = mean(each.troubled for each in runs[worst].values())
    unit = f"(worst run: {worst or 'adaptive'})"
    yield Figure("frames that the server itself lost", lost, unit, 0.0, True)


def _of_setting(setting: Setting, cameras: Sequence[int], runs: Runs) -> Iterator[Figure]:
    mean_of = {size: mean(of[each].quality for each in cameras) for size, of in runs.items()}
    fixed = [size for size in runs if size != ADAPTIVE]
    best = max(fixed, key=lambda size: mean_of[size])
    largest = max(fixed)
    own = runs[ADAPTIVE]
    misses = [own[each].misses for each in cameras]
    unit = f"(worst camera {max(misses):.4f})"
    yield Figure(f"misses, {setting}", mean(misses), unit, 0.01, True)
    over = mean_of[ADAPTIVE] / max(mean_of[best], 1e-9)
    least = min(own[each].quality / max(runs[best][each].quality, 1e-9) for each in cameras)
    unit = f"({mean_of[ADAPTIVE]:.4f}, at {best} px {mean_of[best]:.4f}; worst camera {least:.4f})"
    yield Figure(f"mAP over the best fixed size, {setting}", over, unit, 1.0)
    over = mean_of[ADAPTIVE] / max(mean_of[largest], 1e-9)
    unit = f"({largest} px: {mean_of[largest]:.4f})"
    yield Figure(f"mAP over no adaptation, {setting}", over, unit, 0.0)


def measure(given: argparse.Namespace, quick: bool) -> Iterator[Figure]:
    cuda = given.device == "cuda"
    usual = GPU_SIZES if cuda else CPU_SIZES
    sizes = tuple(sorted(map(int, given.sizes.split(",")))) if given.sizes else usual
    scene = Scene(
        sizes,
        given.reference or (832 if cuda else 320),
        given.frames,
        given.device,
        batch_size_max=16 if cuda else 2,
        frontends=4 if cuda else 1,
    )
    slos_ms = given.slo_ms or SLO_MS
    duration_s = given.seconds or (QUICK_SECONDS if quick else SECONDS)
    cameras = cameras_of(given.cameras, slos_ms, given.fps, given.data)
    # Without its web pages, as packed for a box, Ray's dashboard is waited for in vain.
    os.environ["RAY_DASHBOARD_STARTUP_TIMEOUT_S"] = "1"
    with tempfile.TemporaryDirectory() as name:
        film, profiles = Path(name) / "film.npy", Path(name) / "profiles.json"
        # A process of its own: what it holds of the GPU goes when it ends.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            wanted = pool.apply(keep_film, (scene, film))
        accuracies = profile(scene, profiles)
        runs: dict[int, dict[int, CameraScore]] = {}
        with fermata(**sections(scene, profiles, max(slos_ms))) as server:
            # The first requests meet cold caches.
            stream_all(server.address, film, cameras, ADAPTIVE, 2 * SETTLE_S)
            for size in (ADAPTIVE, *sizes):
                frames = stream_all(server.address, film, cameras, size, duration_s)
                runs[size] = scores(frames, wanted)
                _say(size, frames, runs[size])
    for size, accuracy in accuracies.items():
        yield Figure(f"mAP of {size} px in the profile", accuracy, "", 0.0)
    yield from figures(cameras, runs)


def _say(size: int, frames: Sequence[CameraFrame], found: Mapping[int, CameraScore]) -> None:
    """One line on each run, while the next is under way."""
    sides = Counter(each.side for each in frames if each.in_time)
    why = Counter(each.why for each in frames if not each.in_time)
    quality, misses = (mean(getattr(each, name) for each in found.values())
                       for name in ("quality", "misses"))  # fmt: skip
    print(f"  {size or 'adaptive'}: mAP {quality:.4f}, misses {misses:.4f}, "
          f"sides {dict(sorted(sides.items()))}, missed {dict(why)}", file=sys.stderr)  # fmt: skip


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--cameras", type=int, default=16)
    parser.add_argument("--seconds", type=float, help="of each run")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--data", type=Path, default=DEFAULT, help="folder of the traces")
    parser.add_argument("--slo-ms", type=float, action="append", help="may be repeated")
    parser.add_argument("--fps", type=float, default=15.0)
    parser.add_argument("--frames", type=int, default=60, help="of the film")
    parser.add_argument("--sizes", default="", help="sides of the detector, with commas")
    parser.add_argument("--reference", type=int, help="side of the reference detector")
    return parser


if __name__ == "__main__":
    parser = options()
    given = parser.parse_known_args()[0]
    run("Cameras on WiFi and LTE", lambda quick: measure(given, quick), parser)
