"""Encoded pictures to tensors: a batch at a time by nvJPEG, what that refuses one by one."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.backend.execution.out_of_memory import is_out_of_memory
from fermata.deployments.backend.pictures.device_fitting import fit_all, fits_on_device
from fermata.deployments.models.pictures.decoding import Pixels, decode, fit
from fermata.deployments.specs.served_model import ImageSpec

Tensor = Any
PIXELS_MAX = sys.maxsize
"""Frontends have checked the size of every picture."""


class DeviceDecoder:
    """Decodes and fits pictures on a GPU, by torchvision."""

    def __init__(self, torch: Any, spec: ImageSpec, device: str) -> None:
        from torchvision.io import ImageReadMode, decode_jpeg

        self.torch = torch
        self.spec = spec
        self.device = device
        self.decode_jpeg: Any = decode_jpeg
        self.mode: Any = ImageReadMode.RGB
        # The decoder only reads the bytes.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")

    def __call__(self, encoded: Sequence[bytes]) -> tuple[Tensor, dict[int, str]]:
        """Bytes [count, 3, height, width] on the device, and why some pictures are none.

        Rows of those are black.
        """
        refused: dict[int, str] = {}
        found = self._decode_all(encoded)
        on_device = {place: each for place, each in enumerate(found) if self._fits_here(each)}
        if len(on_device) == len(encoded):
            # Places would be copied to the device, and this thread would wait for that.
            return fit_all(self.torch, list(on_device.values()), self.spec), refused
        rows = self.torch.zeros(
            (len(encoded), 3, self.spec.height, self.spec.width),
            dtype=self.torch.uint8,
            device=self.device,
        )
        if on_device:
            places = self.torch.tensor(list(on_device), device=self.device)
            rows[places] = fit_all(self.torch, list(on_device.values()), self.spec)
        for place in range(len(encoded)):
            if place not in on_device:
                pixels, reason = fit_or_refuse(encoded[place], self.spec)
                rows[place] = self.torch.from_numpy(pixels).to(self.device).permute(2, 0, 1)
                if reason:
                    refused[place] = reason
        return rows, refused

    def _decode_all(self, encoded: Sequence[bytes]) -> list[Tensor | None]:
        """All pictures on the device; None for those that are not decoded there."""
        try:
            return list(self._decode(encoded))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
        # The error names none of them.
        return [self._decode_one(each) for each in encoded]

    def _decode(self, encoded: Sequence[bytes]) -> list[Tensor]:
        given = [self.torch.from_numpy(np.frombuffer(each, np.uint8)) for each in encoded]
        found: list[Tensor] = self.decode_jpeg(given, mode=self.mode, device=self.device)
        return found

    def _decode_one(self, data: bytes) -> Tensor | None:
        try:
            return self._decode([data])[0]
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
        return None

    def _fits_here(self, picture: Tensor | None) -> bool:
        return picture is not None and fits_on_device(picture.shape[1], picture.shape[2], self.spec)


def fit_or_refuse(data: bytes, spec: ImageSpec) -> tuple[Pixels, str]:
    """The fitted picture [height, width, 3], or a black one with the reason."""
    try:
        return np.array(fit(decode(data, PIXELS_MAX), spec)), ""
    except BadRequestError as error:
        return np.zeros((spec.height, spec.width, 3), np.uint8), str(error)
