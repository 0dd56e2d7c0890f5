"""Drawings of `fermata stream --draw`, and where they are."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fermata.clients.describe import ModelDescription
from fermata.clients.pending import FrameResult
from fermata.clients.pipeline_answers import BoxForm
from fermata.commands.streaming.drawing import FrameDrawer, Outline, drawn, outlines
from fermata.foundation.errors import ConfigError

HEIGHT, WIDTH = 240, 320
GREY = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
SQUARE = ((100.0, 80.0), (160.0, 80.0), (160.0, 140.0), (100.0, 140.0))


def detector(**more: Any) -> ModelDescription:
    return ModelDescription("m", "input", "BYTES", (1,), "boxes", 0, 0, boxes="boxes", **more)


def pipeline(**forms: BoxForm) -> ModelDescription:
    given = "m", "input", "BYTES", (1,), "answer", 0, 0
    return ModelDescription(*given, answer="answer", stage_boxes=forms)


def outlines_of(model: ModelDescription, stages: dict[str, Any], **more: Any) -> list[Outline]:
    document = {"pipeline": "m", "partial": False, "stages": stages, **more}
    return outlines({"answer": np.array([json.dumps(document).encode()], object)}, model)


def test_boxes_of_a_detector_have_their_class_and_score() -> None:
    outputs = {
        "boxes": np.array([[100, 80, 60, 60]], np.float32),
        "scores": np.array([0.9], np.float32),
        "classes": np.array([1]),
    }
    form = detector(boxes_format="xywh", box_labels=("dog", "cat"))
    assert outlines(outputs, form) == [Outline(SQUARE, "cat 0.90")]
    # A score and a class may stand behind the numbers of a box; nobody need have named classes.
    row = {"boxes": np.array([[100, 80, 160, 140, 0.5, 3]], np.float32)}
    assert outlines(row, detector()) == [Outline(SQUARE, "3 0.50")]
    alone = {"boxes": np.array([[100], [80], [160], [140]], np.float32)}
    assert outlines(alone, detector(boxes_axis="first")) == [Outline(SQUARE, "")]
    assert outlines({"boxes": np.zeros((0, 6), np.float32)}, detector()) == []


def test_boxes_of_four_corners_keep_them() -> None:
    quad = np.array([[100, 80, 160, 80, 160, 140, 100, 140]], np.float32)
    outputs = {"boxes": quad, "scores": np.array([0.25], np.float32)}
    assert outlines(outputs, detector(boxes_format="quad")) == [Outline(SQUARE, "0.25")]


def test_classes_of_a_whole_frame_have_no_place() -> None:
    model = ModelDescription("m", "input", "BYTES", (1,), "output", 0, 1000)
    outputs = {"output": np.array([b"0.912345:3:cat"], object), "other": np.zeros(4)}
    assert outlines(outputs, model) == [Outline((), "cat 0.912")]


def test_parts_of_a_pipeline_are_drawn_where_they_were_cut_out() -> None:
    detected = {"variant": "d", "outputs": {"boxes": [[100, 80, 160, 140], [0, 0, 9, 9]]}}
    part = {"of": ["detect", 0], "box": [100, 80, 160, 140], "class": "dog", "score": 0.9}
    named = {**part, "classes": [{"class": "malamute", "score": 0.6}], "outputs": {"more": [1, 2]}}
    lost = {**part, "missing": "window"}
    model = pipeline(detect=BoxForm("boxes", cropped=True))
    # The box that no stage chose is not drawn.
    found = outlines_of(model, {"detect": [detected], "classify": [named]})
    assert found == [Outline(SQUARE, "dog 0.90, malamute 0.60")]
    found = outlines_of(model, {"detect": [detected], "classify": [lost]})
    assert found == [Outline(SQUARE, "dog 0.90, missing (window)")]
    assert outlines_of(model, {"detect": [detected], "classify": []}) == []


def test_what_the_last_stages_found_is_drawn_once_at_its_angle() -> None:
    place = {"box": [90, 80, 160, 150], "quad": SQUARE}
    turned = {"of": ["detect", 0], **place, "classes": [{"class": "180", "score": 1.0}]}
    read = {"of": ["orient", 0], **place, "outputs": {"text": ["exit"], "score": [0.98]}}
    stages = {"detect": [{"outputs": {}}], "orient": [turned], "read": [read]}
    assert outlines_of(pipeline(), stages) == [Outline(SQUARE, '"exit" 0.98')]


def test_boxes_that_no_stage_cuts_out_are_drawn_as_a_detectors() -> None:
    part = {"variant": "d", "outputs": {"found": [[100, 80, 160, 140]], "scores": [0.9]}}
    found = outlines_of(pipeline(last=BoxForm("found")), {"last": [part]})
    assert found == [Outline(SQUARE, "0.90")]


def test_a_functions_answer_stands_in_the_corner() -> None:
    stages = {"small": [{"variant": "lite0"}]}
    assert outlines_of(pipeline(), stages, answer={"by": "x" * 99}) == [
        Outline((), '{"by": "' + "x" * 72 + "...")
    ]


def test_lines_are_drawn_along_the_corners_and_texts_beside_them() -> None:
    plain = np.asarray(drawn(GREY, [Outline(SQUARE, "")])).astype(int)
    assert plain.shape == GREY.shape
    changed = (plain != GREY).any(axis=2)
    for x, y in ((100, 110), (160, 110), (130, 80), (130, 140)):
        assert changed[y, x]
    # Neither what is inside nor what is far away.
    assert not changed[90:130, 110:150].any()
    assert not changed[:70].any()
    slanted = ((130.0, 60.0), (170.0, 100.0), (130.0, 140.0), (90.0, 100.0))
    changed = (np.asarray(drawn(GREY, [Outline(slanted, "")])) != GREY).any(axis=2)
    assert changed[80, 150]
    assert not changed[60, 90]
    named = (np.asarray(drawn(GREY, [Outline(SQUARE, "dog 0.90")])) != GREY).any(axis=2)
    assert named[60:80, 100:160].any()
    # One at the edge has its text inside the frame, and so has one of the whole.
    edge = tuple((x - 100, y - 80) for x, y in SQUARE)
    for each in (Outline(edge, "dog"), Outline((), "dog")):
        assert (np.asarray(drawn(GREY, [each])) != GREY).any(axis=2)[2:12, 2:12].any()


def test_frames_are_saved_in_the_cameras_pixels(tmp_path: Path) -> None:
    drawer = FrameDrawer(tmp_path / "a" / "b", detector())
    boxes = {"boxes": np.array([[100, 80, 160, 140]], np.float32)}
    encoded = BytesIO()
    Image.fromarray(GREY).save(encoded, "PNG")
    for index, frame in enumerate((GREY, encoded.getvalue())):
        # It was sent smaller.
        drawer.save(FrameResult(index, 0, "OK", outputs=boxes, side=64, frame=frame))
    drawer.save(FrameResult(2, 0, "UNAVAILABLE", frame=GREY))
    saved = sorted((tmp_path / "a" / "b").iterdir())
    assert [each.name for each in saved] == ["000000.jpg", "000001.jpg"]
    for each in saved:
        with Image.open(each) as opened:
            pixels = np.asarray(opened).astype(int)
        assert pixels.shape == GREY.shape
        assert np.abs(pixels[110, 100] - 128).max() > 40
        assert np.abs(pixels[110, 130] - 128).max() < 10


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"draw='.*file': .*; give a folder"):
        FrameDrawer(tmp_path / "file", detector())


@pytest.mark.parametrize("name", ["../up", "..", ".", "a/b", "gate 7"])
def test_each_camera_has_a_folder_of_its_own(name: str, tmp_path: Path) -> None:
    drawer = FrameDrawer.of_camera(tmp_path, name, detector())
    assert drawer.folder.parent == tmp_path
    assert drawer.folder.name not in (".", "..")
    assert drawer.folder.is_dir()


def test_frames_of_a_camera_that_came_back_follow_those_before(tmp_path: Path) -> None:
    drawer = FrameDrawer(tmp_path, detector())
    for frames in (2, 3):
        drawer.begin()
        for index in range(frames):
            drawer.save(FrameResult(index, 0, "OK", frame=GREY))
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        f"{number:06d}.jpg" for number in range(5)
    ]
