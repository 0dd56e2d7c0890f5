"""Size or JPEG quality: which of the two a camera should give up when its uplink is slow.

`python -m benchmarks.camera_quality [--only CLIP] [--data FOLDER]` sends frames of bundled clips
through JPEGs of several sizes and qualities to detectors of these sizes. For each number of bits
that a frame may have, it compares the best size at a fixed quality with the best size and quality,
and with those that a client chooses. Then a client sends them over the LTE trace of FOLDER (see
`benchmarks/jellyfish_data.py`), for which nobody but it decides.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.face_wall import frame as face_wall
from benchmarks.figures import Figure, run_on_data
from benchmarks.jellyfish_data import DEFAULT
from fermata.clients.network.adaptation import shrunk_jpeg
from fermata.clients.network.emulated_link import BandwidthTrace, EmulatedLink
from fermata.clients.network.frame_size import SECOND_NS, FrameSizer
from fermata.clients.network.jpeg_quality import LADDER
from fermata.clients.network.uplink import Uplink
from fermata.clients.stream import StreamOptions
from fermata.commands.streaming.uplinks import read_uplink
from fermata.deployments.backend.models.measured_model import open_measured
from fermata.deployments.models.detectors.judging import (
    PIXELS_MAX,
    DetectorForm,
    detect,
    frames_of,
)
from fermata.deployments.models.pictures.decoding import decode
from fermata.foundation.units import ms
from fermata.profiles.detection import Detections, judge

Pixels = npt.NDArray[np.uint8]
USUAL = StreamOptions().quality
QUALITIES = (30, *LADDER)
FRAMES, EVERY = 24, 10
TRACE = "lte_upload_trace.csv"
SHARES = (0.05, 0.1, 0.2, 0.4)
"""Parts of the trace's bandwidth that one camera has: others share it."""
FPS, SLO_NS, NETWORK_NS = 15.0, ms(150), ms(60)
"""Time that a frame may be on its way, within its SLO."""
METRIC = "map"
BUDGETS = 9
"""Bits a frame may have: so many from the smallest size's to the largest's, evenly in logarithm."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A film, and the detector that looks at it."""

    name: str
    model: str
    reference: int
    sides: tuple[int, ...]
    frames: Callable[[range], list[Pixels]]


def _film(name: str, places: range) -> list[Pixels]:
    return [frame for _, frame in frames_of(name, places)]


CLIPS = {
    "bikes": Clip(
        "bikes", "objects:yolov4-tiny", 640, (160, 224, 320, 448, 608), partial(_film, "bikes")
    ),
    "faces": Clip(
        "a wall of faces",
        "faces:centerface",
        960,
        (160, 224, 288, 352, 480),
        lambda places: [face_wall(place) for place in places],
    ),
}
PARTS = {name: f"{clip.model} on {clip.name}" for name, clip in CLIPS.items()}


@dataclass(frozen=True, slots=True)
class Cell:
    """Frames of one size and quality."""

    side: int
    quality: int
    kbit: float
    """Mean of a frame."""
    score: float


def cells(clip: Clip, qualities: Sequence[int], frames: int) -> list[Cell]:
    """Score and size of frames, of each side and quality."""
    form = DetectorForm()
    pixels = clip.frames(range(0, frames * EVERY, EVERY))
    wanted = list(detect(open_measured(f"{clip.model}@{clip.reference}", "cpu"), form, pixels))
    found: list[Cell] = []
    for side in clip.sides:
        model = open_measured(f"{clip.model}@{side}", "cpu")
        for quality in qualities:
            made = [shrunk_jpeg(frame, side, quality) for frame in pixels]
            seen = detect(model, form, (decode(data, PIXELS_MAX) for data, _ in made))
            boxes = [
                Detections(each.boxes * scale, each.classes, each.scores)
                for each, (_, scale) in zip(seen, made, strict=True)
            ]
            kbit = float(np.mean([len(data) for data, _ in made])) * 8 / 1000
            found.append(Cell(side, quality, kbit, judge(METRIC, boxes, wanted)))
    return found


def best(cells: Sequence[Cell], kbit: float) -> float:
    """The best score of frames with no more bits, give or take a rounding."""
    return max((each.score for each in cells if each.kbit <= kbit * 1.001), default=0.0)


def chosen(cells: Sequence[Cell], kbit: float) -> float:
    """The score of what a client sends that is asked for the largest size."""
    sizer = FrameSizer([each.side for each in cells if each.quality == USUAL], qualities=LADDER)
    by_choice = {(each.side, each.quality): each for each in cells}
    for (side, quality), each in by_choice.items():
        if quality == LADDER[0]:
            sizer.on_encoded(side, quality, each.kbit)
    sizer.on_advice(sizer.sides[-1], SECOND_NS)
    side = sizer.choose(kbit, 0.0, 0)
    found = by_choice[side, sizer.quality_of(side)]
    # Where not even the smallest fits, that is sent, and comes late.
    return found.score if found.kbit <= kbit * 1.1 else 0.0


def table_of(title: str, cells: Sequence[Cell]) -> Table:
    """Score and kbit by side and quality."""
    table = Table(title=title)
    qualities = sorted({each.quality for each in cells})
    for heading in ("side", *(f"quality {each}" for each in qualities)):
        table.add_column(heading, justify="right")
    for side in sorted({each.side for each in cells}):
        row = [each for each in cells if each.side == side]
        shown = (f"{each.score:.3f}, {each.kbit:.0f}" for each in row)
        table.add_row(str(side), *shown)
    return table


def worth(name: str, cells: Sequence[Cell]) -> Iterator[Figure]:
    """Gains of a choice of quality over the usual one, and over any other that is fixed."""
    usual = [each for each in cells if each.quality == USUAL]
    budgets = np.geomspace(usual[0].kbit, usual[-1].kbit, BUDGETS)
    free = np.array([best(cells, each) for each in budgets])
    usual_score = np.mean([best(usual, each) for each in budgets])
    ours = float(np.mean([chosen(cells, each) for each in budgets]) / usual_score)
    yield Figure(f"{name}: as a client chooses over best size at {USUAL}", ours, "x", 1.0)
    for quality in sorted({each.quality for each in cells}):
        fixed = [each for each in cells if each.quality == quality]
        held = np.array([best(fixed, each) for each in budgets])
        told = f"{name}: best size and quality over best size at quality {quality}"
        # A quality of which not even the smallest size fits has no gain to tell.
        gains = free[held > 0] / held[held > 0]
        least, most = gains.min(), gains.max()
        unit = f"x ({len(gains)} budgets: {least:.3f} to {most:.3f})"
        yield Figure(told, float(free.mean() / held.mean()), unit, 1.0)


@dataclass(frozen=True, slots=True)
class Followed:
    """A camera on a network that changes."""

    misses: float
    score: float
    """Mean over all frames; one that came late counts as 0."""


def follow(cells: Sequence[Cell], trace: BandwidthTrace, qualities: Sequence[int]) -> Followed:
    """A camera that is asked for the largest size, as its client sends it; nobody else is there."""
    by_choice = {(each.side, each.quality): each for each in cells}
    uplink = Uplink(FPS, SLO_NS, sorted({each.side for each in cells}), qualities=qualities)
    uplink.on_advice(max(uplink.sizer.sides), NETWORK_NS, served=True)
    link = EmulatedLink(trace)
    coming: deque[tuple[int, int]] = deque()
    scores: list[float | None] = []
    for frame in range(round(len(trace.bps) * trace.step_ns / SECOND_NS * FPS)):
        now_ns = round(frame / FPS * SECOND_NS)
        while coming and coming[0][0] <= now_ns:
            uplink.on_received(*coming.popleft())
        side = uplink.choose_side(now_ns)
        sent = by_choice[side, uplink.choose_quality(side)]
        bits = round(1000 * sent.kbit)
        uplink.on_encoded(side, bits, sent.quality)
        scores.append(None)
        if uplink.send(now_ns, frame, bits, NETWORK_NS) > 0:
            there_ns = link.carry(now_ns, bits)
            coming.append((there_ns, frame))
            scores[-1] = sent.score if there_ns <= now_ns + NETWORK_NS else None
    counted = scores[int(FPS) :]
    misses = counted.count(None) / len(counted)
    return Followed(misses, float(np.mean([each or 0.0 for each in counted])))


def on_network(
    name: str, cells: Sequence[Cell], whole: BandwidthTrace, share: float
) -> Iterator[Figure]:
    """Misses and score on a trace with so much of its bandwidth, against one quality."""
    trace = BandwidthTrace(tuple(share * each for each in whole.bps), whole.step_ns)
    ours, usual = follow(cells, trace, LADDER), follow(cells, trace, (USUAL,))
    told = f"{name}, LTE x {share:g}: misses, at quality {USUAL} alone {usual.misses:.2%}"
    yield Figure(told, 100 * ours.misses, "%", 100 * usual.misses, at_most=True)
    told = f"{name}, LTE x {share:g}: mAP {ours.score:.3f} over that at {USUAL} alone"
    yield Figure(told, ours.score / usual.score, "x", 1.0)


def measure(folder: Path, only: Sequence[str], quick: bool) -> Iterator[Figure]:
    trace = read_uplink(TRACE, folder)
    assert trace is not None, "a file was named"
    console = Console(stderr=True, width=120)
    for name in only:
        clip = CLIPS[name]
        qualities = LADDER if quick else QUALITIES
        found = cells(clip, qualities, 4 if quick else FRAMES)
        console.print(table_of(f"{PARTS[name]}: mAP, kbit a frame", found))
        yield from worth(name, found)
        for share in SHARES:
            yield from on_network(name, found, trace, share)


if __name__ == "__main__":
    run_on_data("Size or JPEG quality", measure, PARTS, DEFAULT)
