"""Target batches of stages that share a deadline."""

from fermata.router.core.queries.budgets import StageBudget, fit
from fermata.router.core.queries.pipeline import Pipeline, Stage

MS = 1_000_000
PIPELINE = Pipeline((Stage(0, (1,)), Stage(1)), 100 * MS)


def times(fixed_ms: float, each_ms: float, margins: dict[int, float], size_max: int) -> list[int]:
    """Planned run times with a margin from each of these sizes on."""
    planned = [0]
    for size in range(1, size_max + 1):
        margin = margins[max(first for first in margins if first <= size)]
        planned.append(int(MS * margin * (fixed_ms + each_ms * size)))
    return planned


def sizes(first: list[int], second: list[int], rps: float) -> tuple[int, int]:
    budgets = {0: StageBudget(first, rps), 1: StageBudget(second, 5.0 * rps)}
    fit([(PIPELINE, 95 * MS)], budgets)
    return budgets[0].size, budgets[1].size


def test_a_margin_of_some_sizes_does_not_forbid_larger_ones() -> None:
    """A hiccup doubles the batches of one octave and those above: 32 cost less all the
    same."""
    second = times(0.75, 0.05, {1: 1.2}, 64)
    calm, _ = sizes(times(0.8, 0.063, {1: 1.1}, 32), second, 1450.0)
    for first in (2, 4, 8):
        shaken, _ = sizes(times(0.8, 0.063, {1: 1.1, first: 2.0}, 32), second, 1450.0)
        assert shaken == calm == 32


def test_sizes_that_cost_more_for_each_request_are_not_chosen() -> None:
    """Where memory leaves no room, and where larger ones gain nothing."""
    flat = times(0.0, 1.0, {1: 1.0}, 32)
    torn = times(0.8, 0.063, {1: 1.0, 8: 100.0}, 32)
    first, second = sizes(torn, flat, 1450.0)
    assert first == 7
    assert second == 1
