"""Lines of `fermata stream` about the answers of pipelines."""

import json
from typing import Any

import numpy as np
import pytest

from fermata.clients.describe import ModelDescription
from fermata.clients.pending import FrameResult
from fermata.clients.pipeline_answers import BoxForm
from fermata.commands.stream import line_of
from fermata.commands.streaming.answers import labels_said

OBJECTS: dict[str, Any] = {
    "pipeline": "objects",
    "partial": True,
    "stages": {
        "detect": [
            {
                "variant": "tiny",
                "outputs": {
                    "boxes": [[12, 8, 60, 40], [70, 8, 90, 40], [0, 0, 4, 4]],
                    "scores": [0.9, 0.5, 0.3],
                },
            }
        ],
        "classify": [
            {"of": ["detect", 0], "box": [12, 8, 60, 40], "class": "dog", "score": 0.9}
            | {"variant": "lite0", "classes": [{"class": "malamute", "score": 0.6}], "outputs": {}},
            {"of": ["detect", 0], "box": [70, 8, 90, 40], "class": "cat", "score": 0.5}
            | {"missing": "window"},
        ],
    },
}
FORMS = {"detect": BoxForm("boxes", labels=("dog", "cat"), cropped=True)}


def model(**forms: BoxForm) -> ModelDescription:
    return ModelDescription(
        "p", "input", "BYTES", (1,), "answer", 0, 0, answer="answer", stage_boxes=forms
    )


def line(document: dict[str, Any], **forms: BoxForm) -> list[str]:
    answer = np.array([json.dumps(document).encode()], object)
    result = FrameResult(3, 0, "OK", latency_ns=412_100_000, outputs={"answer": answer})
    result.variant, result.batch_size = "p", 1
    return line_of(result, model(**forms)).splitlines()


def test_each_stage_of_a_pipeline_has_a_line() -> None:
    assert line(OBJECTS, **FORMS) == [
        "     3   412.1 ms  p (batch 1)",
        "        detect (tiny)     3 boxes",
        "        classify (lite0)  dog 0.90: malamute 0.60; cat 0.50: missing (window)",
    ]


def test_results_that_a_condition_kept_from_a_stage_are_told() -> None:
    asked = {"stage": "small", "found": 0, "class": "malamute", "score": 0.8}
    counted = {"stage": "detect", "found": 2}
    stages: dict[str, Any] = {"large": [], "crowd": []}
    left_out = {
        "large": [{"of": ["small", 0], "when": asked}],
        "crowd": [{"of": ["detect", 0], "when": counted}],
    }
    document = {"pipeline": "p", "partial": False, "stages": stages, "left_out": left_out}
    assert line(document)[1:] == [
        "        large  left out (small: malamute 0.80)",
        "        crowd  left out (detect: 2)",
    ]


def test_texts_and_tensors_are_told() -> None:
    read = {"variant": "reader", "outputs": {"text": ["exit [b]\x1b"], "score": [0.987]}}
    counted = {"variant": "sum", "outputs": {"count": [3], "points": [[1.5, 2.0]]}}
    document = {"pipeline": "p", "partial": False, "stages": {"read": [read], "count": [counted]}}
    # Brackets of a text are no markup.
    assert line(document)[1:] == [
        '        read (reader)  "exit \\[b]\\u001b" 0.99',
        "        count (sum)    count 3 points[1, 2]",
    ]


def test_stages_that_found_nothing_and_those_that_found_much_say_so() -> None:
    part = {"variant": "v", "classes": [{"class": "cat", "score": 0.5}], "outputs": {}}
    stages = {"detect": [{"variant": "d", "outputs": {"boxes": []}}], "classify": []}
    document = {"pipeline": "p", "partial": False, "stages": stages | {"many": [part] * 11}}
    assert line(document, **FORMS)[1:] == [
        "        detect (d)  0 boxes",
        "        classify    nothing",
        "        many (v)    " + "cat 0.50; " * 8 + "and 3 more",
    ]


def test_a_functions_answer_is_told_as_it_is() -> None:
    called = {"small": [{"variant": "lite0"}], "large": [{"missing": "cancelled"}]}
    answer = {"by": "small", "found": "é" * 300}
    document = {"pipeline": "p", "partial": True, "answer": answer, "stages": called}
    assert line(document)[1:] == [
        "        small (lite0)  done",
        "        large          missing (cancelled)",
        '        answer         {"by": "small", "found": "' + "é" * 174 + "...",
    ]


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        (b"0.851562:457:bow tie", "bow tie 0.851"),
        (b"-3.25:7", "7 -3.25"),
        (b"1e-05:7:cat", "cat 1e-05"),
        (b"10:30", '"10:30"'),
        (b"12:45:30", '"12:45:30"'),
        ("a\x9b2Jb".encode(), '"a\\u009b2Jb"'),
        (b"\x1b[2J", '"\\u001b[2J"'),
    ],
)
def test_texts_are_no_classes_and_steer_no_terminal(answered: bytes, said: str) -> None:
    assert labels_said(np.array([answered], object)) == said
