"""The input of a request: from the client's tensor to the payload that a backend fetches."""

from dataclasses import dataclass

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import (
    DTYPES,
    Array,
    RawTensor,
    check_finite,
    split_bytes,
    to_array,
)
from fermata.deployments.models.jpeg_header import baseline_size
from fermata.deployments.models.picture_decoding import Pixels, check_pixels, decode, fit, write
from fermata.deployments.specs.served_model import ServedModel, TensorSpec

DEVICE_PIXELS_MAX = 4_200_000
"""Larger pictures are decoded here: a batch of them would take gigabytes of a device."""


def device_size(tensor: RawTensor) -> tuple[int, int] | None:
    """(height, width) of a picture that a backend decodes on its device; None of others."""
    if tensor.datatype != "BYTES":
        return None
    size = baseline_size(split_bytes(tensor.data)[0])
    return size if size is not None and size[0] * size[1] <= DEVICE_PIXELS_MAX else None


@dataclass(frozen=True, slots=True)
class RequestInput:
    """A well-formed input; its pixels and numbers are not checked yet."""

    model: ServedModel
    tensor: RawTensor
    encoded: bool
    """The input is still to be decoded or scaled."""
    batched: bool
    """The client counts a batch dimension of 1, and gets one back."""
    frame: tuple[int, int] = (0, 0)
    """Height and width of the client's picture, if answers are given in its pixels."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the client's tensor, without a batch dimension."""
        return self.tensor.shape[1:] if self.batched else self.tensor.shape

    def payload_spec(self) -> TensorSpec:
        """The model's input, or the picture in the size that it came with."""
        if not self.encoded:
            return TensorSpec(self.tensor.name, self.tensor.datatype, self.shape)
        if self.model.sides:
            return TensorSpec(self.model.input.name, "UINT8", (*self.frame, 3))
        return self.model.input

    def payload_bytes(self) -> int:
        """Size of the payload."""
        if not self.encoded:
            return len(self.tensor.data)
        spec = self.payload_spec()
        size = DTYPES[spec.datatype].itemsize
        for dimension in spec.shape:
            size *= dimension
        return size

    def memory_bytes(self) -> int:
        """Size of the payload, and of the encoded picture beside it until that is decoded."""
        return len(self.tensor.data) + (self.payload_bytes() if self.encoded else 0)

    def write_payload(self, view: memoryview, pixels_max: int) -> None:
        """Fill `view` with the payload, in a thread; BadRequestError for a broken input."""
        model, tensor = self.model, self.tensor
        if not self.encoded:
            if not model.allow_nan:
                check_finite(tensor)
            view[:] = tensor.data
            return
        spec = self.payload_spec()
        out: Array = np.frombuffer(view, DTYPES[spec.datatype]).reshape(spec.shape)
        if model.sides:
            out[...] = self._pixels(pixels_max)
        elif model.image is not None:
            write(fit(self._pixels(pixels_max), model.image), model.image, out)
        else:
            assert model.read is not None
            try:
                made = model.read(split_bytes(tensor.data)[0])
            except ValueError as error:
                raise BadRequestError(f"input {tensor.name!r} cannot be read: {error}") from None
            assert made.shape == out.shape, f"{model.name} read {made.shape}, not {out.shape}"
            out[...] = made

    def _pixels(self, pixels_max: int) -> Pixels:
        tensor = self.tensor
        if tensor.datatype == "BYTES":
            return decode(split_bytes(tensor.data)[0], pixels_max)
        pixels = to_array(tensor)[0] if self.batched else to_array(tensor)
        height, width, _ = pixels.shape
        check_pixels(height, width, pixels_max)
        return pixels
