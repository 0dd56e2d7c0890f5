"""Parts of a query: their inputs and results, as transforms and answers see them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fermata.clients.wire.tensors import Array, RawTensor, to_array
from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.own_pixels import OutputTensor, in_own_pixels
from fermata.deployments.models.highest import highest
from fermata.deployments.models.pictures.decoding import Pixels
from fermata.deployments.models.pictures.pixel_map import WHOLE, PixelMap
from fermata.deployments.specs.pipelines import ServedStage
from fermata.deployments.specs.served_model import ServedModel
from fermata.foundation.json_types import Json
from fermata.router.links.messages import Result


@dataclass(frozen=True, slots=True)
class Origin:
    """Place of a part's picture in the client's, and what was found there."""

    box: tuple[float, float, float, float]
    """Two corners in the client's pixels, x first."""
    label: str = ""
    """Class of the box, as its detector names it."""
    score: float | None = None
    quad: tuple[float, ...] = ()
    """Four corners in the client's pixels, clockwise, of what was cut out at an angle."""


@dataclass(frozen=True, slots=True)
class MadeInput:
    """An input that a transform has made of a result."""

    given: RequestInput
    origin: Origin | None = None
    lies: PixelMap = WHOLE
    """From pixels of its picture to the client's."""


@dataclass(slots=True)
class QueryPartRecord:
    """One request of a query, from its input to its end."""

    stage: int
    """Place among the pipeline's stages."""
    given: RequestInput
    number: int = 0
    """Place among the parts of its stage."""
    parent: "QueryPartRecord | None" = None
    origin: Origin | None = None
    lies: PixelMap = WHOLE
    """From pixels of its picture to the client's."""
    result: Result | None = None
    missing: str = ""
    """Reason why there is no result."""
    tensors: tuple[OutputTensor, ...] | None = None
    """Outputs of the result with boxes in its picture's pixels, once somebody has needed them."""


@dataclass
class StageResult:
    """A result as a function of the user's sees it.

    `outputs` are arrays by name; boxes are in pixels of `picture`. `inputs` are what the stage was
    given, and `picture` is that as pixels, rows x columns x 3.
    """

    stage: str
    model: ServedModel = field(repr=False)
    given: RequestInput = field(repr=False)
    result: Result = field(repr=False)
    pixels_max: int = field(repr=False)
    backends_cut: bool = field(default=False, repr=False)
    """Pictures may be cut by the backends that get them, where they are decoded there."""
    record: QueryPartRecord | None = field(default=None, repr=False)
    """The part whose result it is."""

    @cached_property
    def tensors(self) -> tuple[OutputTensor, ...]:
        """The outputs as they came, boxes in pixels of the picture."""
        if self.model.boxes is None or not self.given.is_picture:
            return self.result.tensors
        record = self.record
        if record is None:
            return in_own_pixels(self.model, self.result, self.frame)
        # An answer needs what a transform has needed before it.
        if record.tensors is None:
            record.tensors = in_own_pixels(self.model, self.result, self.frame)
        return record.tensors

    @property
    def frame(self) -> tuple[int, int]:
        """Height and width of the picture."""
        height, width = self.given.frame
        if not height:
            height, width = self.picture.shape[:2]
        return height, width

    @cached_property
    def outputs(self) -> dict[str, Array]:
        return {each[0]: to_array(RawTensor(*each)) for each in self.tensors}

    @cached_property
    def inputs(self) -> dict[str, Array]:
        if self.given.cut is not None:
            return {self.given.tensor.name: self.picture}
        return arrays_of(self.given)

    @cached_property
    def picture(self) -> Pixels:
        return self.given.pixels(self.pixels_max)

    def classes(self, count: int = 1) -> list[dict[str, str | float]]:
        """The best classes of the first output, each with its score, best first."""
        return best_classes(next(iter(self.outputs.values())), self.model.labels, count)


def best_classes(scores: Array, labels: Sequence[str], count: int) -> list[dict[str, str | float]]:
    """So many classes of the highest scores, best first."""
    flat = scores.reshape(-1)
    return [
        {"class": labels[each] if each < len(labels) else str(each), "score": float(flat[each])}
        for each in highest(flat, count)
    ]


def arrays_of(given: RequestInput) -> dict[str, Array]:
    """The tensors of an input, by name."""
    return {each.name: to_array(each) for each in given.tensors or (given.tensor,)}


def plain_array(array: Array) -> Json:
    """Lists of numbers, or of texts."""
    if array.dtype == object:
        texts = [bytes(each).decode("utf-8", "replace") for each in array.flat]
        return np.array(texts, object).reshape(array.shape).tolist()  # type: ignore[no-any-return]
    return array.tolist()  # type: ignore[no-any-return]


def result_of(
    record: QueryPartRecord, stage: ServedStage, pixels_max: int, backends_cut: bool = False
) -> StageResult:
    """The result of a part that has one."""
    assert record.result is not None
    about = record.given, record.result, pixels_max, backends_cut
    return StageResult(stage.name, stage.model, *about, record)


def bytes_read(parts: Iterable[QueryPartRecord], with_pictures: bool) -> int | None:
    """Bytes of the inputs and results of these parts, which work on them takes its time by. None
    where it decodes pictures: what they hold is not known before."""
    total = 0
    for each in parts:
        given = each.given
        is_picture = given.model.image is not None or bool(given.model.sides)
        if with_pictures and is_picture and given.tensor.datatype == "BYTES":
            return None
        total += len(given.tensor.data)
        if each.result is not None:
            total += sum([len(data) for *_, data in each.result.tensors])
    return total
