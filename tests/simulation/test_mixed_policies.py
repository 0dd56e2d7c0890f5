"""Applications of one cost lose alike in overload, whichever policy serves them."""

import pytest

from benchmarks.mixed_policies import play


@pytest.mark.parametrize("seed", [1, 3, 4, 7, 8])
def test_applications_of_one_cost_lose_alike(seed: int) -> None:
    found = play(seed, "equal", fair=False)
    assert {True, False} == set(found.single)
    assert min(found.bad) > 0.2
    assert found.apart < 0.1


def test_nobody_loses_where_there_is_enough() -> None:
    assert max(play(30, "equal", fair=False).bad) < 0.015
