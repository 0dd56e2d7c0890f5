"""Boxes of answers, in the pixels of the pictures that clients sent."""

from dataclasses import replace

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import RawTensor, from_array, to_array
from fermata.deployments.models.pictures.boxes import Placement, in_frame
from fermata.deployments.specs.served_model import ServedModel
from fermata.router.links.messages import Result

OutputTensor = tuple[str, str, tuple[int, ...], bytes]
"""Name, datatype, shape and data."""


def in_own_pixels(
    model: ServedModel, result: Result, frame: tuple[int, int]
) -> tuple[OutputTensor, ...]:
    """The outputs of a detector, its boxes in pixels of the frame that its client sent.

    Raises BadRequestError where they hold no boxes.
    """
    boxes, image = model.boxes, model.image
    if boxes is None or image is None:
        return result.tensors
    names = [name for name, *_ in result.tensors]
    if boxes.output not in names:
        raise BadRequestError(
            f"model {model.name!r} gave no output {boxes.output!r}: set boxes.output of its entry "
            f"to one of {', '.join(names)}"
        )
    side = model.sides.get(result.variant)
    shown_as = image if side is None else replace(image, height=side, width=side)
    placement = Placement.of(shown_as, frame)
    found: list[OutputTensor] = []
    for name, datatype, shape, data in result.tensors:
        if name == boxes.output:
            raw = to_array(RawTensor(name, datatype, shape, data))
            try:
                data = bytes(from_array(name, in_frame(raw, boxes, placement), datatype).data)
            except ValueError as error:
                raise BadRequestError(
                    f"output {name!r} of model {model.name!r} holds no boxes: {error}; correct "
                    "boxes of its entry"
                ) from None
        found.append((name, datatype, shape, data))
    return tuple(found)
