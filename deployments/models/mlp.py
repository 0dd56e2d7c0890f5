"""A multilayer perceptron in numpy: trained once at first start, so it must not need torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Layer = tuple[Floats, Floats]
"""Weights [inputs, outputs] and bias [outputs]."""

RATE = 2e-3
BATCH = 64
DECAY = (0.9, 0.999)
# Adam's epsilon; its paper's value.
TINY = 1e-8


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a training run, beside its data."""

    hidden: tuple[int, ...]
    epochs: int
    seed: int
    shift: bool = False
    """Move each image by up to one pixel in every epoch, so that large nets do not overfit."""


def forward(layers: Sequence[Layer], inputs: Floats) -> Floats:
    """Logits of a batch: ReLU between layers, none after the last."""
    values = inputs
    for weights, bias in layers[:-1]:
        values = np.maximum(values @ weights + bias, 0)
    weights, bias = layers[-1]
    return values @ weights + bias


def softmax(logits: Floats) -> Floats:
    """Scores that sum to 1 in each row."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), np.float32)


def train(recipe: Recipe, images: Floats, labels: NDArray[np.int64], pool: Floats) -> list[Layer]:
    """Layers fitted to images [n, 8, 8] seen through `pool` [64, features], by Adam.

    The pooling is folded into the first layer, so that every model takes all 64 pixels.
    """
    rng = np.random.default_rng(recipe.seed)
    widths = (pool.shape[1], *recipe.hidden, int(labels.max()) + 1)
    layers = [_start(rng, left, right) for left, right in pairwise(widths)]
    moments = [[np.zeros_like(part) for part in layer for _ in DECAY] for layer in layers]
    steps = -(-len(images) // BATCH)
    for epoch in range(recipe.epochs):
        seen = _shifted(rng, images) if recipe.shift else images
        features = seen.reshape(len(seen), -1) @ pool
        order = rng.permutation(len(features))
        # Cosine decay to zero: the last epochs settle instead of jumping about the optimum.
        rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / recipe.epochs))
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            slopes = _slopes(layers, features[rows], labels[rows])
            _adam(layers, moments, slopes, float(rate), epoch * steps + step + 1)
    weights, bias = layers[0]
    return [(np.asarray(pool @ weights, np.float32), bias), *layers[1:]]


def _start(rng: np.random.Generator, left: int, right: int) -> Layer:
    # He's initialisation, made for ReLU.
    weights = rng.standard_normal((left, right), dtype=np.float32) * np.float32((2 / left) ** 0.5)
    return weights, np.zeros(right, np.float32)


def _shifted(rng: np.random.Generator, images: Floats) -> Floats:
    """Each image moved by -1, 0 or 1 pixel both ways; what leaves one edge is lost."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    side = images.shape[1]
    moved = np.empty_like(images)
    moves = rng.integers(0, 3, size=(len(images), 2))
    for down in range(3):
        for right in range(3):
            rows = (moves[:, 0] == down) & (moves[:, 1] == right)
            moved[rows] = padded[rows, down : down + side, right : right + side]
    return moved


def _slopes(layers: Sequence[Layer], inputs: Floats, labels: NDArray[np.int64]) -> list[Layer]:
    """Gradient of the mean cross-entropy, layer by layer."""
    values = [inputs]
    for weights, bias in layers[:-1]:
        values.append(np.maximum(values[-1] @ weights + bias, 0))
    error = softmax(values[-1] @ layers[-1][0] + layers[-1][1])
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    slopes: list[Layer] = []
    for index in range(len(layers) - 1, -1, -1):
        slopes.append((values[index].T @ error, error.sum(axis=0)))
        if index:
            error = (error @ layers[index][0].T) * (values[index] > 0)
    return slopes[::-1]


def _adam(
    layers: Sequence[Layer],
    moments: Sequence[list[Floats]],
    slopes: Sequence[Layer],
    rate: float,
    step: int,
) -> None:
    """One step of Adam (Kingma and Ba, algorithm 1), in place."""
    slow, fast = DECAY
    scale = np.float32(rate * (1 - fast**step) ** 0.5 / (1 - slow**step))
    for layer, held, slope in zip(layers, moments, slopes, strict=True):
        for index, (part, change) in enumerate(zip(layer, slope, strict=True)):
            mean, square = held[2 * index], held[2 * index + 1]
            mean += np.float32(1 - slow) * (change - mean)
            square += np.float32(1 - fast) * (change * change - square)
            part -= scale * mean / (np.sqrt(square) + np.float32(TINY))
