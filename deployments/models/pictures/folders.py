"""Labelled pictures of a folder: one folder inside it for each class, read as they are needed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fermata.clients.frames import PICTURES
from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.models.model import Array, Card
from fermata.deployments.models.pictures.decoding import decode_fitted, write
from fermata.deployments.specs.served_model import ImageSpec
from fermata.foundation.errors import ConfigError

PIXELS_MAX = 100_000_000


class LabelledFolder:
    """Pictures by class; a class is a label of the model, or the place of its folder by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = sorted(each.name for each in folder.iterdir() if each.is_dir())
        self.pictures = [
            (path, index)
            for index, name in enumerate(self.names)
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in PICTURES
        ]
        if not self.pictures:
            raise ConfigError(
                f"data={folder}: must hold a folder for each class, with pictures in it "
                f"({', '.join(PICTURES)})"
            )

    def __len__(self) -> int:
        return len(self.pictures)

    def labels(self, card: Card) -> list[int]:
        """The class of each folder, as the model counts classes."""
        if set(self.names) <= set(card.labels):
            return [card.labels.index(name) for name in self.names]
        return list(range(len(self.names)))

    def batches(self, card: Card, size: int) -> Iterator[tuple[Array, Array]]:
        """(samples, labels), so many at a time: never more than one batch is in memory."""
        image = _image(card)
        classes = self.labels(card)
        for first in range(0, len(self.pictures), size):
            part = self.pictures[first : first + size]
            samples: Array = np.empty((len(part), *card.input_shape), card.input_dtype)
            for place, (path, _) in enumerate(part):
                try:
                    pixels = decode_fitted(path.read_bytes(), PIXELS_MAX, image)
                except BadRequestError as error:
                    raise ConfigError(f"data={path}: {error}") from None
                write(pixels, image, samples[place])
            yield samples, np.array([classes[index] for _, index in part])


def _image(card: Card) -> ImageSpec:
    """The conversion that frontends would make."""
    if len(card.input_shape) != 3 or card.input_shape[0] != 3:
        raise ConfigError(f"{card.name} takes {list(card.input_shape)}, no pictures; give an .npz")
    height, width = card.input_shape[1:]
    given = ImageSpec(height, width, fit=card.fit or "crop")  # type: ignore[arg-type]
    if not card.mean:
        return given
    return ImageSpec(height, width, card.mean, card.std, given.fit)
