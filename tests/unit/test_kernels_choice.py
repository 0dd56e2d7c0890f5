"""Choices by run time, their file, and whether answers agree."""

from pathlib import Path

import numpy as np
import pytest

from fermata.deployments.backend.kernels.agreement import compare
from fermata.deployments.backend.kernels.choice import Choice, choose, load_choice, save_choice


def test_the_fastest_way_is_taken_size_by_size() -> None:
    times = {
        "plain": {1: 100, 8: 200, 64: 1000},
        "fused": {1: 50, 8: 210, 64: 500},
        "other": {1: 60, 64: 400},
    }
    found = choose(times, [1, 2, 8, 32, 64]).ways
    # Sizes between two measured ones go by the larger: there they are padded least.
    assert found == {1: "fused", 32: "other", 64: "other"}


def test_a_way_that_gains_next_to_nothing_is_not_taken() -> None:
    assert choose({"plain": {1: 100}, "fused": {1: 98}}, [1]).ways == {}
    assert choose({"plain": {1: 100}, "fused": {1: 97}}, [1, 2]).ways == {1: "fused", 2: "fused"}


def test_a_choice_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "choice.json"
    choice = Choice({1: "fused", 64: "plain"}, {"plain": {1: 5}})
    save_choice(path, choice)
    assert load_choice(path) == choice
    assert [each.name for each in path.parent.iterdir()] == ["choice.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ways": 3, "times_ns": {}}', '{"ways": {"x": "fused"}}']
)
def test_a_broken_file_is_no_choice(tmp_path: Path, text: str) -> None:
    path = tmp_path / "choice.json"
    assert load_choice(path) is None
    path.write_text(text)
    assert load_choice(path) is None


PLAIN = np.array([[0.0, 10.0, 9.0], [5.0, 4.9, 0.0]])


def test_small_differences_agree_and_are_told() -> None:
    found = compare(PLAIN, PLAIN + 0.1)
    assert found.holds
    assert found.difference == pytest.approx(0.01)
    assert not compare(PLAIN, PLAIN + 0.3).holds


def test_a_class_may_change_only_where_scores_are_close() -> None:
    other = PLAIN.copy()
    other[1] = [4.9, 5.0, 0.0]
    assert compare(PLAIN, other).holds
    other[0] = [0.0, 9.0, 10.0]
    found = compare(PLAIN, other, bound=0.2)
    assert (found.classes, found.holds) == (0, True)
    found = compare(PLAIN, other, bound=0.04)
    assert (found.classes, found.holds) == (1, False)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_number_agrees_with_nothing(value: float) -> None:
    other = PLAIN.copy()
    other[0, 0] = value
    assert not compare(PLAIN, other).holds
    assert not compare(PLAIN, PLAIN[:, :2]).holds


def test_one_score_and_all_zeros_are_compared_too() -> None:
    assert compare(np.ones((2, 1)), np.ones((2, 1))).holds
    assert compare(np.zeros((2, 3)), np.zeros((2, 3))).holds
    assert not compare(np.zeros((2, 3)), np.ones((2, 3))).holds
