"""The query table: whatever comes, each query ends once, and nothing is left behind."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.core.queries.pipeline import Pipeline, Stage

SHAPES = (
    (Stage(0, (1,)), Stage(1)),
    (Stage(0, (1,)), Stage(1, (2,)), Stage(2)),
    (Stage(0, (1, 2)), Stage(1), Stage(2)),
    (Stage(0, (1, 2)), Stage(1, (3,)), Stage(2, (3,)), Stage(3, join=True)),
    (Stage(0, (1,)), Stage(1, (2,)), Stage(0)),
)
"""Chains, a tree, a join, and one application at two stages."""


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
    events=EVENTS,
)
def test_each_query_ends_once_and_leaves_nothing(
    shapes: list[tuple[Stage, ...]],
    partial: bool,
    slo_ms: int,
    backends: int,
    fan_outs: list[int],
    events: list[Event],
) -> None:
    drawn = iter(fan_outs * 1000)
    pipelines = [Pipeline(stages, ms(slo_ms), partial) for stages in shapes]
    world = QueryWorld(pipelines, backends, lambda stage, edge: next(drawn))
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
