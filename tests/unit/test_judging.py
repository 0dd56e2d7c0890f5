"""Accuracy of detectors and classifiers, measured on frames and folders."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fermata.commands.main import app
from fermata.deployments.config.deployment import load_config
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.models.detectors.judging import read_form, read_labels
from fermata.foundation.errors import ConfigError
from fermata.profiles.detection import (
    Detections,
    f1_score,
    judge,
    mean_average_precision,
    nothing_found,
    overlaps,
)

FUNCTIONS = '''
import numpy as np
from fermata.deployments.models.model import Card

def spots(device, size):
    """Finds the brightest pixels' box; the smallest size is blind."""
    class Net:
        card = Card(f"spots@{size}", (3, size, size), "float32", (-1,))
        def __call__(self, batch):
            found = {"boxes": [], "scores": [], "classes": []}
            for picture in batch:
                rows, columns = np.nonzero(picture[0] > 0.5)
                seen = len(rows) > 0 and size > 16
                box = []
                if seen:
                    low, high = (columns.min(), rows.min()), (columns.max() + 1, rows.max() + 1)
                    box.append((*low, *high))
                found["boxes"].append(np.array(box, np.float32).reshape(-1, 4))
                found["scores"].append(np.full(len(box), 0.9, np.float32))
                found["classes"].append(np.zeros(len(box), np.int64))
            return found
    return Net()

def colour():
    class Net:
        labels = ("red", "green", "blue")
        card = Card("colour", (3, 8, 8), "float32", (3,), labels, (0.0,) * 3, (1.0,) * 3)
        def __call__(self, batch):
            return batch.mean(axis=(2, 3))
    return Net()
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "judged_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("judged_functions", None)
    yield tmp_path
    sys.modules.pop("judged_functions", None)


def pictures(folder: Path, count: int = 3) -> Path:
    """Frames with a white spot, which moves; and one after them that is black."""
    folder.mkdir()
    for index in range(count + 1):
        pixels = np.zeros((96, 128, 3), np.uint8)
        if index < count:
            pixels[20:60, 8 * index : 8 * index + 48] = 255
        Image.fromarray(pixels).save(folder / f"f{index}.png")
    return folder


def labels(path: Path, count: int = 3) -> Path:
    images = [{"id": 7 + index, "file_name": f"f{index}.png"} for index in range(count + 1)]
    boxes = [
        {"image_id": 7 + index, "bbox": [8 * index, 20, 48, 40], "category_id": 0}
        for index in range(count)
    ]
    path.write_text(json.dumps({"images": images, "annotations": boxes}))
    return path


def profiled(*arguments: str) -> dict[str, float]:
    options = ["--batches", "1", "--budget-ms", "5", "--device", "cpu", "--json", "-o", "out.json"]
    ran = CliRunner().invoke(app, ["profile", *arguments, *options])
    assert ran.exit_code == 0, ran.output
    rows: list[dict[str, Any]] = json.loads(ran.stdout)["profiles"]
    return {row["name"]: row["accuracy"] for row in rows}


def found(*rows: tuple[float, ...]) -> Detections:
    """x1, y1, x2, y2, class, score."""
    given = np.array(rows, float).reshape(-1, 6)
    return Detections(given[:, :4], given[:, 4].astype(int), given[:, 5])


def test_overlap_is_intersection_over_union() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 0, 0]], float)
    others = np.array([[5, 0, 15, 10], [20, 20, 30, 30]], float)
    assert overlaps(boxes, others) == pytest.approx(np.array([[1 / 3, 0], [0, 0]]))


def test_average_precision_worked_by_hand() -> None:
    wanted = found((0, 0, 10, 10, 0, 1), (50, 0, 60, 10, 0, 1))
    # Right, wrong, right: precision 1 up to a recall of 1/2, then 2/3 up to 1.
    seen = found((0, 0, 10, 10, 0, 0.9), (90, 90, 99, 99, 0, 0.8), (50, 1, 60, 10, 0, 0.7))
    assert mean_average_precision([(seen, wanted)]) == pytest.approx(0.5 + 0.5 * 2 / 3)
    # Two right, one wrong of three; two wanted.
    assert f1_score([(seen, wanted)]) == pytest.approx(2 * 2 / (3 + 2))
    # The same box twice is one hit, and another class is none.
    twice = found((0, 0, 10, 10, 0, 0.9), (0, 0, 10, 10, 0, 0.8), (50, 0, 60, 10, 1, 0.99))
    assert mean_average_precision([(twice, wanted)]) == pytest.approx(0.5)
    assert judge("map", [wanted], [wanted]) == 1.0
    assert judge("f1", [nothing_found()], [wanted]) == 0.0
    assert judge("f1", [nothing_found()], [nothing_found()]) == 1.0


def test_sizes_are_judged_by_a_better_detector(here: Path) -> None:
    pictures(here / "frames")
    options = ["--boxes", "boxes", "--video", "frames", "--reference", "judged_functions:spots@64"]
    accuracy = profiled("judged_functions:spots", "--input-sizes", "16,32", *options)
    assert accuracy == {"judged_functions:spots@16": 0.0, "judged_functions:spots@32": 1.0}
    # A server reads it from there.
    (here / "serve.yaml").write_text(
        json.dumps(
            {
                "applications": [
                    {
                        "name": "spots",
                        "slo_ms": 100,
                        "variants": [
                            {
                                "name": "large",
                                "model": "judged_functions:spots@32",
                                "profile": "./out.json#judged_functions:spots@32",
                            }
                        ],
                    }
                ]
            }
        )
    )
    assert known_profiles(load_config(here / "serve.yaml"))["large"].accuracy == 1.0


@pytest.mark.parametrize("metric", ["map", "f1"])
def test_sizes_are_judged_by_labels(here: Path, metric: str) -> None:
    pictures(here / "frames")
    labels(here / "truth.json")
    options = ["--boxes", "boxes", "--video", "frames", "--reference", "truth.json"]
    accuracy = profiled("judged_functions:spots@64", *options, "--metric", metric)
    assert accuracy == {"judged_functions:spots@64": 1.0}


def test_categories_are_labels_by_name(tmp_path: Path) -> None:
    path = labels(tmp_path / "truth.json")
    told = json.loads(path.read_text())
    told["categories"] = [{"id": 0, "name": "dog"}]
    path.write_text(json.dumps(told))
    assert read_labels(path, ("cat", "dog"))["f0.png"].classes.tolist() == [1]
    assert read_labels(path, ("cat",))["f0.png"].classes.tolist() == [0]
    assert read_labels(path)["f3.png"].boxes.shape == (0, 4)


def test_a_clip_judges_too(here: Path) -> None:
    av = pytest.importorskip("av")
    with av.open(str(here / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 128, 96
        for index in range(6):
            pixels = np.zeros((96, 128, 3), np.uint8)
            pixels[20:60, 8 * index : 8 * index + 48] = 255
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    options = ["--video", "clip.mp4", "--reference", "judged_functions:spots@96", "--every", "2"]
    accuracy = profiled("judged_functions:spots@64", *options, "--boxes", "boxes,xyxy,pixels")
    assert accuracy["judged_functions:spots@64"] > 0.9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--video", "frames"], "video=.*needs --reference"),
        (["--reference", "a:b@64"], "goes with --video"),
        (["--video", "none", "--reference", "judged_functions:spots@64"], "no such clip or folder"),
        (["--video", "frames", "--reference", "none.json"], "must be labels in COCO's format"),
        (["--video", "frames", "--reference", "truth.json", "--metric", "x"], "one of map, f1"),
        (["--video", "frames", "--reference", "judged_functions:spots@16"], "finds nothing"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(
    here: Path, options: list[str], says: str
) -> None:
    pictures(here / "frames")
    labels(here / "truth.json")
    common = ["-o", "o.json", "--batches", "1", "--budget-ms", "5", "--device", "cpu"]
    more = ["--boxes", "boxes"]
    command = ["profile", "judged_functions:spots@32", *options, *more, *common]
    ran = CliRunner().invoke(app, command)
    assert isinstance(ran.exception, ConfigError | SystemExit)
    assert re.search(says, f"{ran.output} {ran.exception}")


def test_boxes_are_described_in_one_option() -> None:
    form = read_form("found,cxcywh,shares,first", "0,0,0", "", "")
    assert form.boxes is not None
    assert (form.boxes.output, form.boxes.format) == ("found", "cxcywh")
    assert (form.boxes.unit, form.boxes.axis) == ("shares", "first")
    assert form.image is not None
    assert (form.image.std, form.image.fit) == ((1, 1, 1), "whole")
    for bad in (("found,xxyy", "", "", ""), ("b", "1,2", "", ""), ("b", "", "0,1,1", "")):
        with pytest.raises(ConfigError, match="must be"):
            read_form(*bad)


def test_classifiers_are_judged_on_a_folder(here: Path) -> None:
    for name, colour, count in (("blue", (0, 0, 255), 9), ("red", (255, 0, 0), 2)):
        (here / "data" / name).mkdir(parents=True)
        for index in range(count):
            shown = (255, 0, 0) if (name, index) == ("blue", 0) else colour
            Image.new("RGB", (20, 12), shown).save(here / "data" / name / f"{index}.png")
    accuracy = profiled("judged_functions:colour", "--data", "data")
    # Ten of eleven: the first blue one is red.
    assert accuracy == {"colour": pytest.approx(10 / 11, abs=1e-4)}
