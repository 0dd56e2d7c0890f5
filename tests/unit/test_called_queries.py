"""Queries whose function calls stages: what is admitted, learnt and planned of them."""

import pytest
from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.core.events import GOOD, DropReason
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.core.queries.query_table import Query

CASCADE = Pipeline((Stage(0, (1,)), Stage(1)), ms(100), called=True)
"""A run of either takes 4 ms and 1 ms for each request."""


def world_of(*steps: list[int], ends: str = "", backends: int = 1) -> QueryWorld:
    """A world whose functions call these stages, one list after another, and end."""
    world = QueryWorld([CASCADE], backends)
    calls: dict[int, int] = {}

    def step(query: Query) -> list[int] | str:
        done = calls.setdefault(query.qid, 0)
        calls[query.qid] += 1
        return steps[done] if done < len(steps) else ends

    world.function = step
    return world


def test_stages_run_when_they_are_called_and_the_query_ends_when_its_function_does() -> None:
    world = world_of([0], [1, 1], [0])
    world.send(0, ms(100))
    world.advance(ms(100))
    assert world.ends == {0: [GOOD]}
    # One request, then two at once, then one.
    assert [len(each) for each in world.ran] == [1, 2, 1]


def test_a_function_that_calls_nothing_ends_at_once() -> None:
    world = world_of()
    world.send(0, ms(100))
    assert world.ends == {0: [GOOD]}
    assert world.ran == []


def test_how_often_stages_are_called_is_learnt() -> None:
    world = world_of([0], [1, 1, 1])
    for qid in range(20):
        world.send(qid, ms(100))
        world.advance(world.now_ns + ms(100))
    (flow,) = world.table.flows
    assert [each.mean for each in flow.calls] == [1.0, 3.0]
    world.table._plan(world.now_ns)
    assert world.table.budgets[1].rps == pytest.approx(3 * world.table.budgets[0].rps)


def test_the_door_counts_calls_that_are_still_to_come() -> None:
    world = world_of([0], [1, 1, 1])
    for qid in range(20):
        world.send(qid, ms(100))
        world.advance(world.now_ns + ms(100))
    world.send(20, ms(100))
    (flow,) = world.table.flows
    # Its first call is made, and waits in a queue or runs; three are awaited.
    assert list(flow.awaited()) == [0.0, 3.0]
    world.advance(world.now_ns + ms(5))
    assert list(flow.awaited()) == [0.0, 0.0]


def test_overload_is_refused_at_the_door() -> None:
    world = world_of([0], [1, 1, 1, 1, 1, 1, 1, 1])
    for qid in range(200):
        world.send(qid, ms(60))
        world.advance(world.now_ns + ms(2))
    world.advance(world.now_ns + ms(100))
    ends = [ends for (ends,) in world.ends.values()]
    # Nine requests take 9 ms at least, so that no more than 51 of 200 end well within 460 ms.
    assert ends.count(GOOD) > 35
    assert ends.count(DropReason.SHED) > 140
    (flow,) = world.table.flows
    assert [round(each.mean) for each in flow.calls] == [1, 8]


def test_time_is_left_for_stages_that_are_still_to_be_called() -> None:
    world = world_of([0], [1], [0])
    query = world.send(0, ms(100))
    run_ns = world.table.budgets[1].run_ns
    assert run_ns >= ms(5)
    first = world.engine.outbox.queued.copy()
    (request,) = first.values()
    assert request.deadline_ns == query.deadline_ns - run_ns
    while sum(query.called) < 3:
        world.advance(world.now_ns + ms(1))
    # The second stage has been called: a first one after it has all the time that is left.
    assert world.table.dates(world.now_ns, query, 0)[0] == query.deadline_ns


def looping(rounds: int) -> QueryWorld:
    """A world whose functions call one stage so often, one call after another."""
    world = QueryWorld([Pipeline((Stage(0),), ms(100), called=True)], 4)
    world.minds_losses = True
    world.function = lambda query: [0] if query.called[0] < rounds else ""
    return world


def test_time_is_left_for_the_rounds_of_a_loop() -> None:
    world = looping(4)
    for qid in range(100):
        world.send(qid, ms(100))
        world.advance(world.now_ns + ms(5))
    world.advance(world.now_ns + ms(200))
    (flow,) = world.table.flows
    assert flow.rounds[0].mean == pytest.approx(4.0, abs=0.1)
    world.table._plan(world.now_ns)
    assert flow.times == [4]
    assert [len(each.stages) for each in (flow.pipeline, flow.planned)] == [1, 4]
    query = world.send(100, ms(100))
    run_ns = world.table.budgets[0].run_ns
    assert flow.path_ns == 4 * run_ns
    assert world.table.dates(world.now_ns, query, 0)[0] == query.deadline_ns - 3 * run_ns
    # All but some of the first, before any had shown how many rounds there are.
    assert [*world.ends.values()].count([GOOD]) > 85


def test_calls_at_once_are_one_round() -> None:
    world = world_of([0], [1, 1, 1, 1])
    world.send(0, ms(100))
    world.advance(ms(100))
    assert [each.mean for each in world.table.flows[0].rounds] == [1.0, 1.0]


def test_more_rounds_than_fit_are_not_planned_for_and_can_be_unlearnt() -> None:
    world = looping(1)
    (flow,) = world.table.flows
    flow.rounds[0].learn(90)
    world.send(0, ms(100))
    # 14 runs of 5 ms are 70 of 100 ms.
    assert flow.times == [14]
    for qid in range(1, 100):
        world.advance(world.now_ns + ms(20))
        world.send(qid, ms(100))
    world.advance(world.now_ns + ms(100))
    assert [*world.ends.values()].count([GOOD]) == 100
    assert flow.rounds[0].mean < 2


def test_a_lost_part_leaves_its_query_to_the_function() -> None:
    world = world_of([0], [1, 1], ends=DropReason.FAILED)
    query = world.send(0, ms(100))
    (rid,) = query.parts
    world.engine.on_cancel(world.now_ns, rid)
    world._settle()
    assert query.missing == 1
    assert not query.outcome
    world.advance(ms(100))
    assert world.ends == {0: [DropReason.FAILED]}
    assert world.table.flows[0].lost == 1


def test_a_cancelled_query_frees_its_calls() -> None:
    world = world_of([0, 0, 1])
    world.send(0, ms(100))
    assert world.cancel(0)
    assert not world.engine.outbox.queued
    assert not world.table.on_return(world.now_ns, 0, GOOD)
    assert world.ends == {0: [DropReason.CANCELLED]}


def test_a_function_that_returns_leaves_nothing_that_it_did_not_wait_for() -> None:
    world = world_of([0, 1])
    world.send(0, ms(100))
    assert world.table.on_return(world.now_ns, 0, GOOD)
    world._settle()
    assert world.table.parts == {}
    assert not world.engine.outbox.queued
