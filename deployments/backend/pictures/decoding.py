"""Encoded pictures to tensors: a batch at a time by nvJPEG, what that refuses by the CPU."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.backend.execution.out_of_memory import is_out_of_memory
from fermata.deployments.backend.execution.tensors import KeptPicture
from fermata.deployments.backend.pictures.cutting import cut_all
from fermata.deployments.backend.pictures.device_fitting import fit_all, fits_on_device
from fermata.deployments.backend.pictures.kept_frames import KeptFrames
from fermata.deployments.models.pictures.cuts import cut_out
from fermata.deployments.models.pictures.decoding import Pixels, decode, decode_fitted, fit
from fermata.deployments.specs.served_model import ImageSpec

Tensor = Any
Encoded = bytes | KeptPicture
PIXELS_MAX = sys.maxsize
"""Frontends have checked the size of every picture."""


class DeviceDecoder:
    """Decodes and fits pictures on a GPU, by torchvision."""

    def __init__(
        self, torch: Any, spec: ImageSpec, device: str, kept: KeptFrames | None = None
    ) -> None:
        """`kept`: frames of this device, which other models may cut."""
        from torchvision.io import ImageReadMode, decode_jpeg

        self.torch = torch
        self.spec = spec
        self.device = device
        self.kept = KeptFrames() if kept is None else kept
        self.decode_jpeg: Any = decode_jpeg
        self.mode: Any = ImageReadMode.RGB
        # The decoder only reads the bytes.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")

    def warm_up(self) -> None:
        """Cut one part: its kernels may have to be compiled first."""
        frame = self.torch.zeros((3, 32, 32), dtype=self.torch.uint8, device=self.device)
        if self.spec.fit not in ("page", "line"):
            cut_all(self.torch, [frame], [(4, 4, 20, 28)], self.spec)

    def __call__(self, encoded: Sequence[Encoded]) -> tuple[Tensor, dict[int, str]]:
        """Bytes [count, 3, height, width] on the device, and why some pictures are none.

        Rows of those are black.
        """
        try:
            return self._make(encoded)
        except RuntimeError as error:
            if is_out_of_memory(error):
                self.kept.clear()
            raise

    def _make(self, encoded: Sequence[Encoded]) -> tuple[Tensor, dict[int, str]]:
        refused: dict[int, str] = {}
        found = self._frames(encoded)
        cuts = {place: each for place, each in found.items() if cut_of(encoded[place])}
        whole = {
            place: each for place, each in found.items() if place not in cuts and self._fits(each)
        }
        if len(whole) == len(encoded):
            # Places would be copied to the device, and this thread would wait for that.
            return fit_all(self.torch, list(whole.values()), self.spec), refused
        if len(cuts) == len(encoded):
            return self._cut(encoded, cuts), refused
        rows = self.torch.zeros(
            (len(encoded), 3, self.spec.height, self.spec.width),
            dtype=self.torch.uint8,
            device=self.device,
        )
        if whole:
            rows[self._places(whole)] = fit_all(self.torch, list(whole.values()), self.spec)
        if cuts:
            rows[self._places(cuts)] = self._cut(encoded, cuts)
        for place, each in enumerate(encoded):
            if place not in whole and place not in cuts:
                pixels, reason = fit_or_refuse(each, self.spec)
                rows[place] = self.torch.from_numpy(pixels).to(self.device).permute(2, 0, 1)
                if reason:
                    refused[place] = reason
        return rows, refused

    def _places(self, found: dict[int, Tensor]) -> Tensor:
        return self.torch.tensor(list(found), device=self.device)

    def _cut(self, encoded: Sequence[Encoded], frames: dict[int, Tensor]) -> Tensor:
        bounds: list[Any] = [cut_of(encoded[place]) for place in frames]
        return cut_all(self.torch, list(frames.values()), bounds, self.spec)

    # Frames

    def _frames(self, encoded: Sequence[Encoded]) -> dict[int, Tensor]:
        """The whole pictures on the device, by place; those that are not decoded there are left
        out. Each that may be cut is decoded once, and kept."""
        keys = [each.frame if isinstance(each, KeptPicture) else -1 - place
                for place, each in enumerate(encoded)]  # fmt: skip
        known = {key: self._take(key) for key in dict.fromkeys(keys) if key >= 0}
        data = {
            key: data_of(each)
            for key, each in zip(keys, encoded, strict=True)
            if known.get(key) is None
        }
        decoded = dict(zip(data, self._decode_all(list(data.values())), strict=True))
        self._keep({key: each for key, each in decoded.items() if key >= 0 and each is not None})
        frames = {**known, **decoded}
        return {place: frames[key] for place, key in enumerate(keys) if frames[key] is not None}

    def _take(self, key: int) -> Tensor | None:
        """A frame that is kept; what is launched from now on waits until it is there."""
        found = self.kept.get(key)
        if found is None:
            return None
        frame, there = found
        if there is not None:
            stream = self.torch.cuda.current_stream()
            stream.wait_event(there)
            # It may be dropped before this stream has read it.
            frame.record_stream(stream)
        return frame

    def _keep(self, frames: dict[int, Tensor]) -> None:
        if not frames:
            return
        there = None
        if next(iter(frames.values())).is_cuda:
            there = self.torch.cuda.Event()
            there.record()
        for key, frame in frames.items():
            self.kept.put(key, frame, there)

    def _decode_all(self, encoded: Sequence[bytes]) -> list[Tensor | None]:
        """All pictures on the device; None for those that are not decoded there."""
        if not encoded:
            return []
        try:
            return list(self._decode(encoded))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
        if len(encoded) == 1:
            return [None]
        # The error names none of them. Halves find one of 64 in 12 more lists, and leave the others
        # in company: by itself a picture takes several times as long.
        half = len(encoded) // 2
        return [*self._decode_all(encoded[:half]), *self._decode_all(encoded[half:])]

    def _decode(self, encoded: Sequence[bytes]) -> list[Tensor]:
        given = [self.torch.from_numpy(np.frombuffer(each, np.uint8)) for each in encoded]
        found: list[Tensor] = self.decode_jpeg(given, mode=self.mode, device=self.device)
        return found

    def _fits(self, picture: Tensor) -> bool:
        return fits_on_device(picture.shape[1], picture.shape[2], self.spec)


def data_of(encoded: Encoded) -> bytes:
    return bytes(encoded.data) if isinstance(encoded, KeptPicture) else encoded


def cut_of(encoded: Encoded) -> tuple[int, ...]:
    """Left, top, right and bottom of a part; empty for the whole picture."""
    return encoded.cut if isinstance(encoded, KeptPicture) else ()


def fit_or_refuse(
    encoded: Encoded, spec: ImageSpec, kept: KeptFrames | None = None
) -> tuple[Pixels, str]:
    """The fitted picture [height, width, 3], or a black one with the reason; `kept` are frames on
    the host."""
    try:
        return np.array(_fitted(encoded, spec, kept)), ""
    except BadRequestError as error:
        return np.zeros((spec.height, spec.width, 3), np.uint8), str(error)


def _fitted(encoded: Encoded, spec: ImageSpec, kept: KeptFrames | None) -> Pixels:
    if isinstance(encoded, KeptPicture):
        return fit(_pixels(encoded, kept), spec)
    return decode_fitted(encoded, PIXELS_MAX, spec)


def _pixels(encoded: KeptPicture, kept: KeptFrames | None) -> Pixels:
    known = None if kept is None else kept.get(encoded.frame)
    whole: Pixels = decode(data_of(encoded), PIXELS_MAX) if known is None else known[0]
    if kept is not None and known is None:
        kept.put(encoded.frame, whole)
    if not encoded.cut:
        return whole
    left, top, right, bottom = encoded.cut
    return cut_out(whole, (left, top, right, bottom))
