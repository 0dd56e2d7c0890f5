"""Target batches of stages that share a deadline."""

from fermata.router.core.costs import VariantCost
from fermata.router.core.queries.budgets import StageBudget, fit
from fermata.router.core.queries.means import mean_times
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


def taught(runs: dict[int, list[float]]) -> VariantCost:
    """Costs of 0.8 ms and 0.063 ms a request, after runs of these sizes that took so many times as
    long."""
    cost = VariantCost(times(0.8, 0.063, {1: 1.0}, 32)[1:], 1.0)
    for size, ratios in runs.items():
        for ratio in ratios:
            cost.learn(size, ratio, 1.0)
    return cost


def first_size(cost: VariantCost) -> int:
    """The first stage's target, before a second one that is the same with 1 as with more."""
    budgets = {
        0: StageBudget(cost.plan_ns, 1450.0),
        1: StageBudget(times(0.0, 1.0, {1: 1.0}, 4), 1450.0),
    }
    budgets[0].use(cost)
    fit([(PIPELINE, 95 * MS)], budgets)
    return budgets[0].size


def test_sizes_are_compared_by_mean_run_times() -> None:
    """Each 20th run of the large ones takes five times as long. With that as their margin they
    would be 0.44 ms for each request, and the small ones 0.12."""
    cost = taught({32: ([1.0] * 19 + [5.0]) * 10, 16: ([1.0] * 19 + [5.0]) * 10, 8: [1.0] * 20})
    assert cost.plan_ns[32] > 5 * cost.plan_ns[15]
    assert first_size(cost) == 32


def test_a_few_quick_runs_make_no_size_the_cheapest() -> None:
    """A mean of 16 runs that were quick by chance: 15 in a batch would be as cheap as 32."""
    cost = taught({32: [1.0] * 200, 16: [1.0] * 200, 8: [0.75] * 16})
    assert cost.mean_ratio(15) * cost.p50_ns[15] / 15 < cost.p50_ns[32] / 32
    assert first_size(cost) == 32


def test_sizes_that_have_run_often_are_believed() -> None:
    """Large ones that always take three times as long cost more for each request. Batches grow by
    an eighth: the next one after 14 is 16."""
    cost = taught({32: [3.0] * 200, 16: [3.0] * 200, 8: [1.0] * 200})
    assert first_size(cost) == 14


def test_means_of_octaves_lean_on_the_mean_of_all() -> None:
    cost = taught({32: [1.5] * 64, 8: [1.0] * 64, 1: [9.0] * 3})
    usual = 1.25
    means = mean_times(cost)
    assert means[32] == (64 * 1.5 + 64 * usual) / 128 * cost.p50_ns[32]
    assert means[8] == (64 * 1.0 + 64 * usual) / 128 * cost.p50_ns[8]
    # Three runs tell nothing, and sizes that have not run are as all.
    assert means[1] == usual * cost.p50_ns[1]
    assert means[16] == usual * cost.p50_ns[16]


def test_sizes_without_room_keep_the_time_that_none_has() -> None:
    cost = taught({8: [1.0] * 20})
    cost.room = 24
    cost._rewrite()
    # After 22 comes 25.
    assert mean_times(cost)[25] == cost.plan_ns[25] > 1_000_000 * cost.plan_ns[24]
    assert first_size(cost) == 22
