"""The few best of many scores are those of a full sort."""

import numpy as np
import pytest

from fermata.deployments.models.highest import highest


@pytest.mark.parametrize("seed", range(40))
def test_they_are_the_first_of_a_stable_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.choice([rng.random(30), rng.integers(0, 4, 30).astype(float)])
    if seed % 3 == 0:
        scores[rng.random(30) < 0.5] = np.nan
    for count in (0, 1, 3, 20, 30, 99):
        expected = np.argsort(-scores, kind="stable")[:count].tolist()
        assert highest(scores, count) == expected


def test_whole_numbers_without_a_sign_have_an_order_too() -> None:
    assert highest(np.array([3, 255, 0, 7], np.uint8), 2) == [1, 3]
