"""SneakPeek models on a backend's device: pictures are decoded and fitted there as for batches."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from fermata.clients.frames import encode_jpeg
from fermata.deployments.backend.execution.cuda.device_queue import device_queue
from fermata.deployments.backend.execution.out_of_memory import (
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.tensors import Array, Item, is_encoded
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.backend.pictures.decoding import DeviceDecoder, fit_or_refuse
from fermata.deployments.backend.pictures.device_fitting import fit_all, fits_on_device, normalise
from fermata.deployments.models.pictures.decoding import write
from fermata.deployments.sneakpeek.embedding import takes_tensors
from fermata.deployments.sneakpeek.index import open_faiss
from fermata.deployments.sneakpeek.look_queue import Votes
from fermata.deployments.sneakpeek.placed_look import PlacedLook
from fermata.deployments.specs.served_model import ImageSpec
from fermata.foundation.logs import LOG, fields

BATCH_MAX = 32
"""Looks taken together: more take memory of the device, and keep batches waiting for longer."""
WARM_UP_FRAME = (360, 640, 3)


class Looker:
    """Takes looks of several applications; all methods on one thread."""

    def __init__(
        self, looks: Mapping[str, PlacedLook], device: str, budget: MemoryBudget | None = None
    ) -> None:
        """`device`: `cuda` or `cpu`; `budget` has the memory of the device."""
        self.looks = looks
        self.device = device
        self.budget = budget or MemoryBudget()
        self.torch: Any = import_module("torch") if device == "cuda" else None
        self.stream: Any = None
        self.decoders: dict[str, DeviceDecoder] = {}

    # Loading

    def load(self) -> None:
        """Read all weights and look once; ConfigError where memory does not suffice."""
        # On this thread, for which it sets the number of cores.
        open_faiss()
        if self.torch is not None:
            # Its priority, that of batches, is the lowest that there is.
            self.stream = device_queue(self.torch).beside()
        for application, look in self.looks.items():
            before = self._device_bytes()
            if self.torch is not None and look.picture is not None:
                self._open_decoder(application, look.picture)
            for size in (1, BATCH_MAX) if self.torch is not None else (1,):
                self(application, [_blank(look)] * size)
            if application in self.decoders:
                frame = encode_jpeg(np.zeros(WARM_UP_FRAME, np.uint8))
                self(application, [_item(frame)] * BATCH_MAX)
            if self.torch is not None:
                self.budget.take(f"look at {application}", self._device_bytes() - before)

    def _open_decoder(self, application: str, picture: ImageSpec) -> None:
        try:
            decoder = DeviceDecoder(self.torch, picture, self.device, self.budget.frames)
        except ImportError:
            about = fields(application=application, reason="torchvision is not installed")
            LOG.warning("pictures are decoded on the CPU for looks", extra=about)
        else:
            self.decoders[application] = decoder

    def _device_bytes(self) -> int:
        return 0 if self.torch is None else int(self.torch.cuda.memory_reserved())

    # Looks

    def sees(self, application: str, item: Item) -> bool:
        """Whether it can look at such an input."""
        look = self.looks.get(application)
        if look is None or not isinstance(item, np.ndarray):
            return False
        if is_encoded(item):
            return look.picture is not None and item.size == 1
        return look.model.sees(item.shape)

    def __call__(self, application: str, items: Sequence[Item]) -> list[Votes]:
        """Votes on inputs as they were sent; none on pictures that are broken."""
        look = self.looks[application]
        found: list[Votes] = [()] * len(items)
        places = {flag: [at for at, item in enumerate(items) if is_encoded(item) is flag]
                  for flag in (True, False)}  # fmt: skip
        with self._beside_batches():
            for encoded, mine in places.items():
                if mine:
                    take = self._look_at_encoded if encoded else self._look_at_arrays
                    votes = take(application, look, [items[place] for place in mine])
                    for place, row in zip(mine, votes, strict=True):
                        found[place] = row
        return found

    @contextmanager
    def _beside_batches(self) -> Iterator[None]:
        """On a stream of its own, so that nothing waits for a batch, nor a batch for a copy."""
        if self.torch is None:
            yield
            return
        try:
            with self.torch.inference_mode(), self.torch.cuda.stream(self.stream):
                yield
        except RuntimeError as error:
            if is_out_of_memory(error):
                drop_references(error)
                release_memory()
            raise

    def _look_at_arrays(
        self, application: str, look: PlacedLook, arrays: Sequence[Array]
    ) -> list[Votes]:
        model = look.model
        if model.fit and self.torch is not None and takes_tensors(model.embedding):
            side = model.input_shape[1]
            spec = ImageSpec(side, side, fit=model.fit)  # type: ignore[arg-type]
            if all(fits_on_device(each.shape[0], each.shape[1], spec) for each in arrays):
                frames = [self._to_device(each).permute(2, 0, 1) for each in arrays]
                return _rows(model.vote(fit_all(self.torch, frames, spec), self.device))
        return _rows(model.look(arrays, self.device))

    def _to_device(self, array: Array) -> Any:
        return self.torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _look_at_encoded(
        self, application: str, look: PlacedLook, items: Sequence[Array]
    ) -> list[Votes]:
        assert look.picture is not None
        pictures = [item.item() for item in items]
        decoder = self.decoders.get(application)
        refused: dict[int, str] = {}
        if decoder is not None and takes_tensors(look.model.embedding):
            rows, refused = decoder(pictures)
            if not look.takes_pixels:
                rows = normalise(self.torch, rows, look.picture, look.dtype)
            votes = _rows(look.model.vote(rows, self.device))
        else:
            made: list[Array] = []
            for place, each in enumerate(pictures):
                pixels, reason = fit_or_refuse(each, look.picture)
                made.append(np.empty(look.shape, look.dtype))
                write(pixels, look.picture, made[-1])
                if reason:
                    refused[place] = reason
            votes = _rows(look.model.look(made, self.device))
        return [() if place in refused else row for place, row in enumerate(votes)]


def _rows(votes: Array) -> list[Votes]:
    return [tuple(row) for row in votes.tolist()]


def _item(encoded: bytes) -> Array:
    """An encoded picture as it comes in a request."""
    found = np.empty((1,), dtype=object)
    found[0] = encoded
    return found


def _blank(look: PlacedLook) -> Array:
    """An input to warm up with."""
    model = look.model
    if model.fit:
        return np.zeros(WARM_UP_FRAME, np.uint8)
    shape = tuple(64 if side < 0 else side for side in model.input_shape)
    return np.zeros(shape, model.dtype or np.float32)
