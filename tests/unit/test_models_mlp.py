"""The trainer of the digits family, on patterns that anyone can tell apart."""

import numpy as np
import pytest

from fermata.deployments.models.mlp import Floats, Recipe, forward, softmax, train

LABELS = np.tile(np.arange(3), 40)


def stripes() -> Floats:
    """Images with one bright row; the row is the class."""
    images = np.random.default_rng(0).random((len(LABELS), 8, 8), dtype=np.float32) * 0.1
    images[np.arange(len(LABELS)), LABELS * 2 + 1] += 1
    return images


@pytest.mark.parametrize("hidden", [(), (16,)])
def test_learns_which_row_is_bright(hidden: tuple[int, ...]) -> None:
    pool = np.eye(64, dtype=np.float32)
    layers = train(Recipe(hidden, epochs=30, seed=1), stripes(), LABELS, pool)
    answers = forward(layers, stripes().reshape(-1, 64)).argmax(axis=1)
    assert (answers == LABELS).all()


def test_same_seed_same_weights_and_all_64_pixels_taken() -> None:
    pool = np.full((64, 2), 1 / 64, np.float32)
    recipe = Recipe((4,), epochs=2, seed=7, shift=True)
    first, second = (train(recipe, stripes(), LABELS, pool) for _ in range(2))
    assert first[0][0].shape == (64, 4)
    for (left, _), (right, _) in zip(first, second, strict=True):
        assert (left == right).all()


def test_scores_sum_to_one_also_for_huge_logits() -> None:
    scores = softmax(np.array([[1000.0, 1000.0], [0.0, -1000.0]], np.float32))
    assert scores.tolist() == [[0.5, 0.5], [1.0, 0.0]]
