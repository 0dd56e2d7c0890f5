"""The query table: whatever comes, each query ends once, and nothing is left behind."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.core.queries.query_table import Query

SHAPES = (
    (Stage(0, (1,)), Stage(1)),
    (Stage(0, (1,)), Stage(1, (2,)), Stage(2)),
    (Stage(0, (1, 2)), Stage(1), Stage(2)),
    (Stage(0, (1, 2)), Stage(1, (3,)), Stage(2, (3,)), Stage(3, join=True)),
    (Stage(0, (1,)), Stage(1, (2,)), Stage(0)),
)
"""Chains, a tree, a join, and one application at two stages."""
CALLED = (SHAPES[0], SHAPES[1], SHAPES[4])
"""Those whose stages a function can call."""


@dataclass(frozen=True)
class Event:
    kind: str
    subject: int
    after_ns: int


EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(("query", "query", "query", "cancel", "kill")),
        st.integers(0, 30),
        st.integers(0, 6).map(ms),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2),
    partial=st.booleans(),
    slo_ms=st.sampled_from((8, 30, 60, 150)),
    backends=st.integers(1, 3),
    fan_outs=st.lists(st.integers(0, 7), min_size=1, max_size=16),
    variants=st.sampled_from(((), ((1.0, 0.9), (0.4, 0.8)), ((0.3, 0.5), (1.0, 0.9), (2.0, 0.95)))),
    events=EVENTS,
)
def test_each_query_ends_once_and_leaves_nothing(
    shapes: list[tuple[Stage, ...]],
    partial: bool,
    slo_ms: int,
    backends: int,
    fan_outs: list[int],
    variants: tuple[tuple[float, float], ...],
    events: list[Event],
) -> None:
    drawn = iter(fan_outs * 1000)
    pipelines = [Pipeline(stages, ms(slo_ms), partial) for stages in shapes]
    world = QueryWorld(pipelines, backends, lambda stage, edge: next(drawn), variants=variants)
    sent: dict[int, bool] = {}
    for event in events:
        world.advance(world.now_ns + event.after_ns)
        if event.kind == "query":
            qid = len(sent)
            query = world.send(qid, ms(slo_ms), event.subject % len(pipelines))
            sent[qid] = query.refused
        elif event.kind == "cancel":
            world.cancel(event.subject)
        else:
            world.kill(event.subject % backends)
        _check(world)
    world.advance(world.now_ns + ms(1000))
    assert {qid: len(ends) for qid, ends in world.ends.items()} == dict.fromkeys(sent, 1)
    assert world.table.queries == {}
    assert world.table.parts == {}
    assert all(not any(flow.open) for flow in world.table.flows)
    assert not world.engine.outbox.queued
    refused = {qid for qid, was in sent.items() if was}
    assert not refused & set(world.owners.values()), "a refused query has cost backend time"


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.sampled_from(CALLED), min_size=1, max_size=2),
    graph=st.sampled_from(SHAPES),
    slo_ms=st.sampled_from((8, 30, 60, 150)),
    backends=st.integers(1, 3),
    steps=st.lists(st.integers(0, 40), min_size=1, max_size=16),
    events=EVENTS,
)
def test_functions_call_what_they_like_and_each_query_ends_once(
    shapes: list[tuple[Stage, ...]],
    graph: tuple[Stage, ...],
    slo_ms: int,
    backends: int,
    steps: list[int],
    events: list[Event],
) -> None:
    """Pipelines with functions beside a graph, whose stages are the same."""
    drawn = iter(steps * 1000)
    pipelines = [Pipeline(stages, ms(slo_ms), called=True) for stages in shapes]
    pipelines.append(Pipeline(graph, ms(slo_ms)))
    world = QueryWorld(pipelines, backends, lambda stage, edge: next(drawn) % 4)

    def step(query: Query) -> list[int] | str:
        what = next(drawn)
        if what % 5 == 0 or sum(query.called) > 12:
            return DropReason.FAILED if query.missing and what % 2 else ""
        return [next(drawn) % len(query.called) for _ in range(1 + what % 4)]

    world.function = step
    sent: dict[int, bool] = {}
    for event in events:
        world.advance(world.now_ns + event.after_ns)
        if event.kind == "query":
            qid = len(sent)
            sent[qid] = world.send(qid, ms(slo_ms), event.subject % len(pipelines)).refused
        elif event.kind == "cancel":
            world.cancel(event.subject)
        else:
            world.kill(event.subject % backends)
        _check(world)
        _check_calls(world)
    world.advance(world.now_ns + ms(3000))
    assert {qid: len(ends) for qid, ends in world.ends.items()} == dict.fromkeys(sent, 1)
    assert (world.table.queries, world.table.parts) == ({}, {})
    for flow in world.table.flows:
        assert (sum(flow.open), sum(flow.called), flow.running) == (0, 0, 0)
    assert not world.engine.outbox.queued


def _check_calls(world: QueryWorld) -> None:
    """Functions that run, and their calls, are counted alike by queries and flows."""
    for number, flow in enumerate(world.table.flows):
        mine = [each for each in world.table.queries.values() if each.pipeline == number]
        if flow.pipeline.called:
            assert flow.running == len(mine)
            counted = [sum(each.called[place] for each in mine) for place in range(len(flow.open))]
            assert counted == flow.called
        assert all(each >= 0 for each in flow.awaited())


def _check(world: QueryWorld) -> None:
    """What is open is counted alike by queries, flows and the table."""
    table = world.table
    for number, flow in enumerate(table.flows):
        mine = [query for query in table.queries.values() if query.pipeline == number]
        counted = [sum(query.open[place] for query in mine) for place in range(len(flow.open))]
        assert counted == flow.open
    assert sum(len(query.parts) for query in table.queries.values()) == len(table.parts)
    ran = {rid for rids in world.ran for rid in rids}
    waiting = set(world.engine.outbox.queued)
    # Made, and neither dropped, nor dispatched once, nor waiting: there is no such request.
    assert set(range(1, world.made + 1)) == ran | waiting | set(world.drops)
