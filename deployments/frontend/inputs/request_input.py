"""The input of a request: from the client's tensor to the payload that a backend fetches."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import (
    DTYPES,
    Array,
    RawTensor,
    check_finite,
    join_bytes,
    split_bytes,
    to_array,
)
from fermata.deployments.models.pictures.cuts import cut_out
from fermata.deployments.models.pictures.decoding import (
    Pixels,
    check_pixels,
    decode,
    decode_fitted,
    fit,
    write,
)
from fermata.deployments.models.pictures.jpeg_header import baseline_size
from fermata.deployments.specs.served_model import ImageSpec, ServedModel, TensorSpec
from fermata.router.links.messages import CUT, PackedTensors, Payload

DEVICE_PIXELS_MAX = 4_200_000
"""Larger pictures are decoded here: a batch of them would take gigabytes of a device."""


def device_size(tensor: RawTensor) -> tuple[int, int] | None:
    """(height, width) of a picture that a backend decodes on its device; None of others."""
    if tensor.datatype != "BYTES":
        return None
    size = baseline_size(split_bytes(tensor.data)[0])
    return size if size is not None and size[0] * size[1] <= DEVICE_PIXELS_MAX else None


@dataclass(frozen=True, slots=True)
class PictureCut:
    """A part of a picture, which a backend cuts out where it has that decoded."""

    frame: int
    """The request whose picture it is."""
    box: tuple[int, int, int, int]
    """Left, top, right and bottom, in whole pixels."""


@dataclass(slots=True)
class RequestInput:
    """A well-formed input; its pixels and numbers are not checked yet. Hot."""

    model: ServedModel
    tensor: RawTensor
    """The client's tensor; of several, their data one after the other."""
    encoded: bool
    """The input is still to be decoded or scaled."""
    batched: bool
    """The client counts a batch dimension, and gets one back."""
    frame: tuple[int, int] = (0, 0)
    """Height and width of the client's picture, if answers are given in its pixels."""
    tensors: tuple[RawTensor, ...] = ()
    """The client's tensors, where the model has several inputs."""
    rows: int = 1
    """Items in the batch dimension."""
    hidden: tuple[RawTensor, ...] = ()
    """Tensors of one row for the model that its client does not send; they come last."""
    cut: PictureCut | None = None
    """The part of the picture that is the input, where a backend is to cut it out."""
    is_cut_later: bool = False
    """Parts of its picture may be inputs to come, so a backend keeps it for a while."""

    @property
    def is_picture(self) -> bool:
        """Whether it has pixels of a client's, where its model takes pictures: a client may send
        the numbers that the model reads in place of one."""
        return self.encoded or self.cut is not None or self.frame != (0, 0) or self.is_left_encoded

    @property
    def is_left_encoded(self) -> bool:
        """Whether a backend gets the picture as it came, whole."""
        left = self.model.decoded_later and not self.encoded and self.tensor.datatype == "BYTES"
        return left and self.cut is None

    def cut_out(
        self, model: ServedModel, frame: int, box: tuple[int, int, int, int]
    ) -> "RequestInput":
        """A part of this picture, left encoded, as an input of a model."""
        left, top, right, bottom = box
        tensor = RawTensor(model.input.name, "BYTES", (1,), self.tensor.data)
        size, cut = (bottom - top, right - left), PictureCut(frame, box)
        return RequestInput(model, tensor, False, False, size, cut=cut)

    def mark(self, payload: Payload) -> Payload:
        """The payload, with what a backend has to know of its picture beside the data."""
        if self.cut is not None:
            return msgspec.structs.replace(
                payload, dtype=CUT, frame=self.cut.frame, cut=self.cut.box
            )
        if self.is_cut_later and self.is_left_encoded:
            return msgspec.structs.replace(payload, frame=payload.rid)
        return payload

    def left_encoded(self) -> "RequestInput":
        """The same, and not to be decoded here where a backend does that on its device."""
        if not (self.encoded and self.model.decoded_later and self.rows == 1):
            return self
        size = device_size(self.tensor)
        if size is None:
            return self
        return RequestInput(self.model, self.tensor, False, self.batched, size)

    @property
    def packed(self) -> PackedTensors:
        """The several tensors as the payload lists them, without a batch dimension."""
        if not self.tensors and not self.hidden:
            return ()
        skip = int(self.batched and self.rows == 1)
        told = tuple(
            (each.name, each.datatype, each.shape[skip:], len(each.data)) for each in self.tensors
        )
        return told + self._packed_hidden(told) if self.hidden else told

    def _packed_hidden(self, told: PackedTensors) -> PackedTensors:
        """The hidden tensors, after the only other one where that has no entry yet."""
        spec, size = self.payload_spec(), self.payload_bytes() - self._hidden_bytes
        first = () if told else ((self.model.input.name, spec.datatype, spec.shape, size),)
        return first + tuple(
            (each.name, each.datatype, each.shape, len(each.data)) for each in self.hidden
        )

    @property
    def _hidden_bytes(self) -> int:
        return sum([len(each.data) for each in self.hidden])

    @property
    def data(self) -> bytes | memoryview:
        """The payload of an input that need not be decoded."""
        if not self.hidden:
            return self.tensor.data
        return b"".join((self.tensor.data, *(each.data for each in self.hidden)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the client's tensor, without a batch dimension of one row."""
        return self.tensor.shape[1:] if self.batched and self.rows == 1 else self.tensor.shape

    @property
    def first(self) -> tuple[str, tuple[int, ...], bytes | memoryview]:
        """Data type, shape and data of the model's first input, as its client sent it."""
        if not self.tensors:
            return self.tensor.datatype, self.shape, self.tensor.data
        name, skip = self.model.input.name, int(self.batched and self.rows == 1)
        found = next((each for each in self.tensors if each.name == name), self.tensor)
        return found.datatype, found.shape[skip:], found.data

    @property
    def rows_max(self) -> int:
        """Rows that one batch of such requests takes."""
        model = self.model
        return model.bucket_rows[self.bucket] if model.buckets else model.rows_max

    @property
    def bucket(self) -> int:
        """Place of its shape bucket. Raises BadRequestError where it fits none."""
        model = self.model
        size = max(self._varying(), default=1)
        place = bisect_left(model.buckets, size)
        if place == len(model.buckets):
            raise BadRequestError(
                f"input of model {model.name!r} has a size of {size}: send at most "
                f"{model.buckets[-1]}, its largest bucket"
            )
        return place

    def _varying(self) -> Iterator[int]:
        """Sizes of the dimensions that vary from request to request."""
        shapes = {spec.name: spec.shape for spec in self.model.inputs}
        for tensor in self.tensors or (self.tensor,):
            own = tensor.shape[1:] if self.batched else tensor.shape
            for side, size in zip(shapes[tensor.name], own, strict=True):
                if side < 0:
                    yield size

    @property
    def payload_rows(self) -> int:
        """Rows as the payload tells them: 0 for one."""
        return self.rows if self.rows > 1 else 0

    def split(self, rows_max: int) -> "list[RequestInput]":
        """Inputs of at most so many rows each; encoded ones have one."""
        step = 1 if self.encoded else rows_max
        found: list[RequestInput] = []
        for first in range(0, self.rows, step):
            count = min(step, self.rows - first)
            tensors = tuple(_rows(each, self.rows, first, count) for each in self.tensors)
            tensor = pack(tensors) if tensors else _rows(self.tensor, self.rows, first, count)
            part = replace(self, tensor=tensor, tensors=tensors, rows=count)
            found.append(part.left_encoded())
        return found

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
            return len(self.tensor.data) + self._hidden_bytes
        spec = self.payload_spec()
        size = DTYPES[spec.datatype].itemsize
        for dimension in spec.shape:
            size *= dimension
        return size + self._hidden_bytes

    def memory_bytes(self) -> int:
        """Size of the payload, and of the encoded picture beside it until that is decoded."""
        return len(self.tensor.data) + (self.payload_bytes() if self.encoded else 0)

    def check_finite(self) -> None:
        """Raise BadRequestError for a number that is not finite, where the model takes none."""
        if self.model.allow_nan:
            return
        for tensor in self.tensors or (self.tensor,):
            check_finite(tensor)

    def forget_data(self) -> None:
        """Keep the data no longer, which have been copied: they are a part of the message."""
        for tensor in (self.tensor, *self.tensors):
            tensor.data = b""

    def write_payload(self, view: memoryview, pixels_max: int) -> None:
        """Fill `view` with the payload, in a thread; BadRequestError for a broken input."""
        model, tensor = self.model, self.tensor
        if not self.encoded:
            self.check_finite()
            view[:] = self.data
            return
        if self.hidden:
            size = len(view) - self._hidden_bytes
            view[size:] = b"".join(each.data for each in self.hidden)
            view = view[:size]
        spec = self.payload_spec()
        out: Array = np.frombuffer(view, DTYPES[spec.datatype]).reshape(spec.shape)
        if model.sides:
            out[...] = self.pixels(pixels_max)
        elif model.image is not None:
            write(self._fitted(pixels_max, model.image), model.image, out)
        else:
            assert model.read is not None
            try:
                made = model.read(split_bytes(tensor.data)[0])
            except ValueError as error:
                raise BadRequestError(f"input {tensor.name!r} cannot be read: {error}") from None
            assert made.shape == out.shape, f"{model.name} read {made.shape}, not {out.shape}"
            out[...] = made

    def _fitted(self, pixels_max: int, spec: ImageSpec) -> Pixels:
        """The client's picture at the size of the model's input; raises as `pixels` does."""
        if self.tensor.datatype == "BYTES" and self.cut is None:
            return decode_fitted(split_bytes(self.tensor.data)[0], pixels_max, spec)
        return fit(self.pixels(pixels_max), spec)

    def pixels(self, pixels_max: int) -> Pixels:
        """The client's picture, decoded; BadRequestError where it is broken or too large."""
        tensor = self.tensor
        if tensor.datatype == "BYTES":
            whole = decode(split_bytes(tensor.data)[0], pixels_max)
            return whole if self.cut is None else cut_out(whole, self.cut.box)
        pixels = to_array(tensor)[0] if self.batched else to_array(tensor)
        height, width, _ = pixels.shape
        check_pixels(height, width, pixels_max)
        return pixels


def pack(tensors: tuple[RawTensor, ...]) -> RawTensor:
    """Several tensors as one: their data one after the other."""
    return RawTensor("", "", (), b"".join(tensor.data for tensor in tensors))


def _rows(tensor: RawTensor, rows: int, first: int, count: int) -> RawTensor:
    """A part of a tensor of so many rows."""
    shape = (count, *tensor.shape[1:])
    if tensor.datatype == "BYTES":
        elements = split_bytes(tensor.data)
        each = len(elements) // rows
        data: bytes | memoryview = join_bytes(elements[first * each : (first + count) * each])
    else:
        size = len(tensor.data) // rows
        data = tensor.data[first * size : (first + count) * size]
    return RawTensor(tensor.name, tensor.datatype, shape, data)
