"""RL-edge Eq. 9 against numerical integration over the simplex and against samples."""

import numpy as np
import pytest

from fermata.router.policies.rl.density import log_density

SCORES = {2: [0.4, -0.3], 3: [0.5, -0.2, 0.1]}


def simplex(count: int, cells: int) -> tuple[np.ndarray, float]:
    """Midpoints of a grid over the simplex, and the area of a cell: the last share follows from
    the others, and the density is over those."""
    axis = (np.arange(cells) + 0.5) / cells
    if count == 2:
        points = np.stack([axis, 1.0 - axis], axis=1)
    else:
        one, two = np.meshgrid(axis, axis)
        points = np.stack([one.ravel(), two.ravel(), 1.0 - one.ravel() - two.ravel()], axis=1)
        points = points[points[:, 2] > 0.0]
    return points, 1.0 / cells ** (count - 1)


@pytest.mark.parametrize("sigma", [0.4, 0.698, 1.0])
@pytest.mark.parametrize(("count", "cells"), [(2, 20_000), (3, 900)])
def test_the_density_integrates_to_one(count: int, cells: int, sigma: float) -> None:
    points, area = simplex(count, cells)
    density = np.exp(log_density(np.array(SCORES[count]), np.log(points), sigma))
    assert density.sum() * area == pytest.approx(1.0, abs=2e-3)


def test_the_density_has_the_mean_of_the_samples() -> None:
    sigma, scores = 0.698, np.array(SCORES[3])
    points, area = simplex(3, 900)
    density = np.exp(log_density(scores, np.log(points), sigma))
    noisy = scores + sigma * np.random.default_rng(1).standard_normal((200_000, 3))
    shares = np.exp(noisy) / np.exp(noisy).sum(axis=1, keepdims=True)
    assert (density[:, None] * points).sum(axis=0) * area == pytest.approx(
        shares.mean(axis=0), abs=3e-3
    )


def test_it_is_equation_9_as_printed() -> None:
    sigma, scores, shares = 0.698, np.array([0.3, -0.1, 0.2, 0.0]), np.array([0.1, 0.2, 0.3, 0.4])
    q = -scores + np.log(shares)
    count = 4
    numerator = np.exp(q.sum() ** 2 / (2 * count * sigma**2) - (q**2).sum() / (2 * sigma**2))
    printed = numerator / (
        np.sqrt(count) * (sigma * np.sqrt(2 * np.pi)) ** (count - 1) * shares.prod()
    )
    assert np.exp(log_density(scores, np.log(shares), sigma)) == pytest.approx(printed)


def test_a_common_shift_of_the_scores_changes_nothing() -> None:
    scores, log_shares = np.array([0.3, -0.1]), np.log(np.array([0.25, 0.75]))
    assert log_density(scores + 7.0, log_shares, 0.5) == pytest.approx(
        log_density(scores, log_shares, 0.5)
    )
