"""Many pipelines: those that share no stage are planned by themselves, and by turns."""

import random
from collections.abc import Mapping

import pytest
from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.core.queries import query_table
from fermata.router.core.queries.budgets import StageBudget, Timed, fit, groups_of
from fermata.router.core.queries.pipeline import Pipeline, Stage

MANY = 20


def chain(*applications: int, slo_ms: int = 150) -> Pipeline:
    last = len(applications) - 1
    stages = [
        Stage(application, () if place == last else (place + 1,))
        for place, application in enumerate(applications)
    ]
    return Pipeline(tuple(stages), ms(slo_ms))


def test_pipelines_that_share_stages_are_one_group() -> None:
    pipelines = [chain(0, 1), chain(2, 3), chain(4, 5), chain(3, 4), chain(6)]
    assert groups_of(pipelines) == [[0], [1, 2, 3], [4]]
    assert groups_of([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_group_is_given_the_same_batches_beside_others(seed: int) -> None:
    rng = random.Random(seed)
    pipelines = [
        chain(*rng.sample(range(12), rng.randint(1, 3)), slo_ms=rng.randint(60, 300))
        for _ in range(8)
    ]

    def budgets() -> dict[int, StageBudget]:
        draw = random.Random(seed)
        found: dict[int, StageBudget] = {}
        for application in range(12):
            alone_ms, each_ms = draw.uniform(1, 12), draw.uniform(0.2, 4)
            plan_ns = (0, *(ms(alone_ms + each_ms * size) for size in range(1, 33)))
            found[application] = StageBudget(plan_ns, draw.uniform(0, 400))
        return found

    together = budgets()
    fit([(each, each.slo_ns) for each in pipelines], together)
    for group in groups_of(pipelines):
        alone = budgets()
        fit([(pipelines[place], pipelines[place].slo_ns) for place in group], alone)
        for place in group:
            for application in pipelines[place].applications:
                assert together[application].size == alone[application].size


def test_many_groups_are_planned_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[set[int]] = []

    def noted(timed: Timed, budgets: Mapping[int, StageBudget]) -> None:
        planned.append(set(budgets))
        fit(timed, budgets)

    monkeypatch.setattr(query_table, "fit", noted)
    world = QueryWorld([chain(2 * place, 2 * place + 1) for place in range(MANY)])
    for turn in range(8):
        world.advance(ms(101) * turn)
        world.send(turn, ms(150))
    assert len(planned[0]) == 2 * MANY
    assert {len(each) for each in planned[1:]} == {16}
    assert planned[1] | planned[2] | planned[3] == set(range(2 * MANY))


def test_a_group_whose_batch_has_no_room_any_more_does_not_wait_for_its_turn() -> None:
    world = QueryWorld([chain(2 * place, 2 * place + 1) for place in range(MANY)])
    world.send(0, ms(150))
    # The first turn is that of all; those after it begin with the first pipelines again.
    last, budget = MANY - 1, world.table.budgets[2 * MANY - 1]
    assert budget.size > 2
    world.engine.costs.limit(2 * MANY - 1, 2)
    world.advance(ms(101))
    assert not world.send(1, ms(150), pipeline=last).refused
    assert budget.size == 2


def test_a_group_whose_backends_are_of_a_kind_with_smaller_batches_does_not_wait() -> None:
    world = QueryWorld(
        [chain(2 * place, 2 * place + 1) for place in range(MANY)], 2, slower=(1.0, 3.0)
    )
    world.send(0, ms(150))
    costs, number = world.engine.costs, 2 * MANY - 1
    assert world.table.budgets[number].size > 2
    costs.add(number, [ms(15), ms(18)], kind=1)
    world.engine.on_backend_down(0, 0)
    world.advance(ms(101))
    assert not world.send(1, ms(150), pipeline=MANY - 1).refused
    assert world.table.budgets[number].size == 2
