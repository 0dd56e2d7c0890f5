"""From what a client sent to what a backend fetches; run in a thread."""

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import DTYPES, Array, check_finite, split_bytes, to_array
from fermata.deployments.frontend.protocol.images import Pixels, check_pixels, decode, fit, write
from fermata.deployments.frontend.protocol.parsing import ParsedRequest, input_bytes
from fermata.deployments.specs import TensorSpec


def payload_spec(intake: ParsedRequest) -> TensorSpec:
    """What its payload is: the model's input, or the picture in the size that it came with."""
    if not intake.model.sides:
        return intake.model.input
    return TensorSpec(intake.model.input.name, "UINT8", (*intake.frame, 3))


def payload_bytes(intake: ParsedRequest) -> int:
    """How many bytes it takes."""
    return input_bytes(payload_spec(intake)) if intake.encoded else len(intake.tensor.data)


def write_payload(intake: ParsedRequest, view: memoryview, pixels_max: int) -> None:
    """Fill `view` with the input; BadRequestError where it turns out to be none."""
    model, tensor = intake.model, intake.tensor
    if not intake.encoded:
        if not model.allow_nan:
            check_finite(tensor)
        view[:] = tensor.data
        return
    spec = payload_spec(intake)
    out: Array = np.frombuffer(view, DTYPES[spec.datatype]).reshape(spec.shape)
    if model.sides:
        out[...] = _pixels(intake, pixels_max)
    elif model.image is not None:
        write(fit(_pixels(intake, pixels_max), model.image), model.image, out)
    else:
        assert model.read is not None
        try:
            made = model.read(split_bytes(tensor.data)[0])
        except ValueError as error:
            raise BadRequestError(f"input {tensor.name!r} cannot be read: {error}") from None
        assert made.shape == out.shape, f"{model.name} read {made.shape}, not {out.shape}"
        out[...] = made


def _pixels(intake: ParsedRequest, pixels_max: int) -> Pixels:
    tensor = intake.tensor
    if tensor.datatype == "BYTES":
        return decode(split_bytes(tensor.data)[0], pixels_max)
    pixels = to_array(tensor)[0] if intake.batched else to_array(tensor)
    height, width, _ = pixels.shape
    check_pixels(height, width, pixels_max)
    return pixels
