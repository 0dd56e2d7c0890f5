"""`digits`: five classifiers of handwritten digits, trained at first start and then cached."""

import hashlib
import importlib.util
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.models.cache import cache_folder, cached
from fermata.deployments.models.mlp import Floats, Layer, Recipe, forward, softmax, train
from fermata.deployments.models.model import Answers, Array, Card, TorchModel, check_batch, pick
from fermata.foundation.logs import LOG, fields

if TYPE_CHECKING:
    import torch

SIDE = 8
CLASSES = 10
# scikit-learn's images count ink from 0 to 16; models take them as they are.
INK_MAX = 16
HELD_OUT = 497
SPLIT_SEED = 2026
# Part of the cache's key: raise it when training itself changes.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Size:
    """One member of the family."""

    block: int
    """Side of the squares of pixels that it sees as one: what small models lose is detail."""
    recipe: Recipe


SIZES = {
    "nano": Size(2, Recipe(hidden=(), epochs=40, seed=1)),
    "small": Size(2, Recipe(hidden=(48,), epochs=40, seed=1)),
    "medium": Size(1, Recipe(hidden=(32, 32), epochs=40, seed=1)),
    "large": Size(1, Recipe(hidden=(256, 256), epochs=40, seed=1)),
    "xl": Size(1, Recipe(hidden=(1024, 1024), epochs=40, seed=1, shift=True)),
}
NAMES = tuple(SIZES)


@dataclass(frozen=True, slots=True)
class TrainedClassifier:
    """Layers, and how good they are on images that training never saw."""

    layers: tuple[Layer, ...]
    accuracy: float
    recall: tuple[float, ...]


class DigitsModel:
    """Runs in numpy, where torch is not installed."""

    def __init__(self, card: Card, layers: Sequence[Layer]) -> None:
        self.card = card
        self._layers = layers

    def static_bytes(self) -> int:
        return sum(part.nbytes for layer in self._layers for part in layer)

    def __call__(self, batch: Array) -> Floats:
        """Scores [b, 10] of images [b, 64] or [b, 1, 8, 8], ink from 0 to 16."""
        return softmax(forward(self._layers, _flat(self.card, batch)))


class TorchDigits(TorchModel):
    """The same in torch: runs on a GPU too."""

    def __call__(self, batch: Array) -> Answers:
        """Scores [b, 10] of images [b, 64] or [b, 1, 8, 8], ink from 0 to 16."""
        return super().__call__(_flat(self.card, batch))


def load(name: str, device: str = "cpu", folder: Path | None = None) -> DigitsModel | TorchDigits:
    """A classifier by name: trained where `folder` does not hold it yet (xl: about 20 s)."""
    size = SIZES[pick("digits", name, NAMES)]
    about = describe(name)
    trained = _trained(name, size, cache_folder(os.environ) if folder is None else folder)
    card = replace(
        about,
        accuracy=trained.accuracy,
        recall=trained.recall,
        file_bytes=sum(part.nbytes for layer in trained.layers for part in layer),
    )
    if importlib.util.find_spec("torch") is None:
        return DigitsModel(card, trained.layers)
    network = _sequential(trained.layers)
    # Cast, for 16-bit weights.
    model = TorchDigits(card, network, lambda batch: network(batch.to(_kind(network))))
    model.to(device)
    return model


def describe(name: str) -> Card:
    """The card that `load` would give, without figures that only training gives."""
    pick("digits", name, NAMES)
    labels = tuple(map(str, range(CLASSES)))
    return Card(f"digits:{name}", (SIDE * SIDE,), "float32", (CLASSES,), labels=labels)


def _kind(network: "torch.nn.Module") -> "torch.dtype":
    return next(network.parameters()).dtype


def held_out() -> tuple[Floats, NDArray[np.int64]]:
    """Images [n, 64] and labels that no model was trained on."""
    images, labels = _data()
    return images[:HELD_OUT].reshape(HELD_OUT, -1), labels[:HELD_OUT]


def training_data() -> tuple[Floats, NDArray[np.int64]]:
    """Images [n, 64] and labels that every model was trained on."""
    images, labels = _data()
    return images[HELD_OUT:].reshape(len(images) - HELD_OUT, -1), labels[HELD_OUT:]


def _data() -> tuple[Floats, NDArray[np.int64]]:
    """All images [n, 8, 8] in a fixed order of which the first HELD_OUT are held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(digits.target))
    return digits.images[order].astype(np.float32), digits.target[order].astype(np.int64)


def _flat(card: Card, batch: Array) -> Array:
    flat = batch.reshape(len(batch), -1) if batch.shape[1:] == (1, SIDE, SIDE) else batch
    check_batch(card, flat, ("float32",))
    return flat


def _sequential(layers: Sequence[Layer]) -> "torch.nn.Sequential":
    import torch

    parts: list[torch.nn.Module] = []
    for weights, bias in layers:
        linear = torch.nn.Linear(*weights.shape)
        linear.weight.data = torch.from_numpy(weights.T.copy())
        linear.bias.data = torch.from_numpy(bias.copy())
        parts += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1], torch.nn.Softmax(dim=1))


def _trained(name: str, size: Size, folder: Path) -> TrainedClassifier:
    key = hashlib.sha256(f"{VERSION} {SPLIT_SEED} {HELD_OUT} {size}".encode()).hexdigest()[:12]
    path = folder / f"digits-{name}-{key}.npz"
    try:
        for _ in range(2):
            cached(path, lambda part: _write(part, _train(size)))
            try:
                return _read(path)
            except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
                LOG.warning(
                    "cached model is damaged; training it again",
                    extra=fields(path=path, model=name),
                )
                path.unlink(missing_ok=True)
    except OSError as error:
        LOG.warning(
            "cannot cache the trained model", extra=fields(path=path, model=name, reason=error)
        )
    return _train(size)


def _train(size: Size) -> TrainedClassifier:
    images, labels = _data()
    layers = train(size.recipe, images[HELD_OUT:], labels[HELD_OUT:], _pool(size.block))
    answers = forward(layers, images[:HELD_OUT].reshape(HELD_OUT, -1)).argmax(axis=1)
    right = answers == labels[:HELD_OUT]
    recall = [float(right[labels[:HELD_OUT] == digit].mean()) for digit in range(CLASSES)]
    return TrainedClassifier(
        tuple(layers), round(float(right.mean()), 4), tuple(round(r, 4) for r in recall)
    )


def _pool(block: int) -> Floats:
    """The matrix [64, features] that averages squares of pixels and scales ink to 0 to 1."""
    count = SIDE // block
    pool = np.zeros((SIDE, SIDE, count, count), np.float32)
    for row in range(SIDE):
        for column in range(SIDE):
            pool[row, column, row // block, column // block] = 1 / (block * block * INK_MAX)
    return pool.reshape(SIDE * SIDE, count * count)


def _write(path: Path, trained: TrainedClassifier) -> None:
    about = json.dumps({"accuracy": trained.accuracy, "recall": trained.recall})
    parts = {f"{index}": part for index, part in enumerate(sum(trained.layers, ()))}
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, about=np.array(about), **parts)


def _read(path: Path) -> TrainedClassifier:
    # Opened here: numpy leaves a damaged file open.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as held:
        about = json.loads(str(held["about"]))
        parts = [held[f"{index}"] for index in range(len(held.files) - 1)]
    layers = tuple((parts[at], parts[at + 1]) for at in range(0, len(parts), 2))
    return TrainedClassifier(layers, about["accuracy"], tuple(about["recall"]))
