"""Stages of pipelines on unequal backends: each counts by its speed, whichever is named first."""

from typing import Any

import pytest
from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.core.costs import VariantCost
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.simulator.pipelines.draw import told_scenes
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

CHAIN = Pipeline((Stage(0, (1,)), Stage(1)), ms(200))
PAIR = ((1.0, 0.9), (0.4, 0.8))
FAST: dict[str, Any] = {"count": 4, "kind": "fast"}
SLOW: dict[str, Any] = {"count": 4, "kind": "slow", "slower": 3}


def waits_ns(backends: int, slower: tuple[float, ...], variants: Any = ()) -> list[float]:
    """Waits that each of four queries leaves behind, on so many backends of these kinds."""
    world = QueryWorld([CHAIN], backends, slower=slower, variants=variants)
    found = []
    for qid in range(4):
        world.send(qid, ms(100))
        found.append(world.table.wait_ns(world.table.flows[0]))
    return found


@pytest.mark.parametrize("variants", [(), PAIR])
def test_three_that_take_three_times_as_long_count_as_one(variants: Any) -> None:
    alike = waits_ns(2, (1.0,), variants)
    assert alike[-1] > 0.0
    for slower in ((1.0, 3.0, 3.0, 3.0), (3.0, 3.0, 3.0, 1.0)):
        assert waits_ns(4, slower, variants) == pytest.approx(alike)


def test_backends_on_which_nothing_ends_in_time_count_for_nothing() -> None:
    # One request alone would take 5 x 50 ms.
    assert waits_ns(3, (1.0, 50.0, 50.0)) == pytest.approx(waits_ns(1, (1.0,)))


def test_plans_are_those_of_the_kinds_that_are_there() -> None:
    world = QueryWorld([CHAIN], 2, slower=(3.0, 1.0))
    world.send(0, ms(100))
    costs, budget = world.engine.costs, world.table.budgets[0]
    assert budget.plan_ns is costs.of(0, 1).plan_ns
    world.advance(ms(100))
    world.engine.on_backend_down(world.now_ns, 1)
    world.send(1, ms(100))
    assert budget.plan_ns is costs.of(0, 0).plan_ns
    assert budget.pace == costs.of(0, 0).pace(budget.size)


def test_it_does_not_matter_which_kind_comes_first() -> None:
    ends = []
    for backends in ([FAST, SLOW], [SLOW, FAST]):
        told = {**told_scenes()["A"], "backends": backends, "rate_rps": 480, "seed": 3}
        scenario = read_scenario({**told, "duration_s": 3, "warmup_s": 1})
        (found,) = report(scenario, simulate(scenario)).pipelines
        assert found.bad_rate <= 0.01
        ends.append((found.good_rps, found.bad_rate))
    assert ends[0] == ends[1]


def test_a_kind_with_fewer_sizes_takes_over() -> None:
    """Smaller devices are measured to fewer sizes; batches were chosen by the larger one's."""
    world = QueryWorld([CHAIN], 2, slower=(1.0, 3.0), variants=PAIR, fixed_ms=10.0)
    costs = world.engine.costs
    for variant in range(4):
        few_ns = costs.by_kind[1][variant].p50_ns[1:5]
        costs.by_kind[1][variant] = VariantCost(list(few_ns), 1.0)
    for qid in range(100):
        world.send(qid, ms(400))
        world.advance(world.now_ns + ms(5))
    assert max(each.size for each in world.table.budgets.values()) > 4
    world.advance(world.now_ns + ms(400))
    world.engine.on_backend_down(world.now_ns, 0)
    for qid in range(100, 300):
        world.send(qid, ms(400))
        world.advance(world.now_ns + ms(5))
    assert max(each.size for each in world.table.budgets.values()) <= 4
