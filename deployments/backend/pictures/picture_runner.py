"""A runner whose inputs may be encoded pictures, beside tensors in the same batch."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fermata.clients.frames import encode_jpeg
from fermata.deployments.backend.execution.cuda.captured import Staged
from fermata.deployments.backend.execution.flights import Flight
from fermata.deployments.backend.execution.out_of_memory import drop_references, is_out_of_memory
from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.execution.tensors import Array, InputError, Item, Outputs
from fermata.deployments.backend.pictures.decoding import DeviceDecoder, fit_or_refuse
from fermata.deployments.backend.pictures.device_fitting import normalise
from fermata.deployments.backend.pictures.kept_frames import KeptFrames
from fermata.deployments.models.pictures.decoding import write
from fermata.deployments.specs.served_model import ImageSpec

WARM_UP_FRAME = (360, 640, 3)


@dataclass(frozen=True, slots=True)
class StagedPictures:
    """Staged inputs of a runner without graphs, and why some pictures are none."""

    staged: Any
    refused: Mapping[int, str]


class PictureRunner:
    """Decodes and fits pictures while they are staged: on the GPU where its runner has one."""

    stages_long = True

    def __init__(
        self,
        inner: Runner,
        spec: ImageSpec,
        shape: tuple[int, ...],
        dtype: str,
        decoder: DeviceDecoder | None = None,
        kept: KeptFrames | None = None,
    ) -> None:
        """`shape` and `dtype` are those of the model's input; with a `decoder`, `inner` has
        buffers on its device. Without one, `kept` are frames that other models may cut too."""
        self.inner = inner
        self.spec = spec
        self.shape = shape
        self.dtype = dtype
        self.batch_size_max = inner.batch_size_max
        self.decoder = decoder
        self.kept = KeptFrames() if kept is None else kept
        if hasattr(inner, "launch"):
            self.launch = partial(self._launch, inner.launch)

    def warm_up(self) -> None:
        """Decode pictures once, a single one and a full batch: the first ones take a second."""
        if self.decoder is not None:
            self.decoder.warm_up()
        item = np.empty((1,), dtype=object)
        item[0] = encode_jpeg(np.zeros(WARM_UP_FRAME, np.uint8))
        for size in sorted({1, self.batch_size_max}):
            try:
                self.run(self.stage([item] * size))
            except Exception as error:
                if size == 1 or not is_out_of_memory(error):
                    raise
                # Such batches will be halved.
                drop_references(error)

    def check(self, item: Item) -> None:
        if isinstance(item, Mapping):
            raise InputError(f"inputs {', '.join(item)} came, the model takes a picture")
        if item.dtype != object:
            self.inner.check(item)
        elif item.size != 1:
            raise InputError(f"input holds {item.size} pictures, not one")

    def alike(self, item: Array) -> Hashable:
        return ()

    def stage(self, items: Sequence[Array]) -> Any:
        """Decode the pictures among these; a broken one is named in the result's `refused`."""
        places = [place for place, item in enumerate(items) if item.dtype == object]
        if not places:
            return self.inner.stage(items)
        if self.decoder is None:
            return self._stage_on_cpu(items, places)
        return self._stage_on_device(self.decoder, items, places)

    def _stage_on_device(
        self, decoder: DeviceDecoder, items: Sequence[Array], places: list[int]
    ) -> Staged:
        inner: Any = self.inner
        torch, size = inner.torch, len(items)
        refused: dict[int, str] = {}

        def fill(spare: Staged) -> None:
            (there,) = spare.device
            for place, item in enumerate(items):
                if item.dtype != object:
                    spare.rows[0][place] = item
            if len(places) < size:
                there[:size].copy_(spare.host[0][:size], non_blocking=True)
            fitted, broken = decoder([items[place].item() for place in places])
            refused.update({places[index]: reason for index, reason in broken.items()})
            rows = normalise(torch, fitted, self.spec, self.dtype)
            if len(places) == size:
                there[:size].copy_(rows)
            else:
                there[torch.tensor(places, device=rows.device)] = rows

        staged: Staged = inner.stage_by(size, fill)
        return replace(staged, refused=refused)

    def _stage_on_cpu(self, items: Sequence[Array], places: list[int]) -> StagedPictures:
        made = list(items)
        refused: dict[int, str] = {}
        for place in places:
            pixels, reason = fit_or_refuse(items[place].item(), self.spec, self.kept)
            made[place] = np.empty(self.shape, self.dtype)
            write(pixels, self.spec, made[place])
            if reason:
                refused[place] = reason
        return StagedPictures(self.inner.stage(made), refused)

    def run(self, staged: Any) -> Outputs:
        return self.inner.run(inner_staged(staged))

    def _launch(self, launch: Callable[[Any], Flight], staged: Any) -> Flight:
        return launch(inner_staged(staged))

    def check_device(self) -> None:
        self.inner.check_device()

    def close(self) -> None:
        self.inner.close()


def inner_staged(staged: Any) -> Any:
    """Staged inputs as the inner runner takes them."""
    return staged.staged if isinstance(staged, StagedPictures) else staged
