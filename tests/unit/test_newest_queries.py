"""Queries of which only the newest of each stream waits: the same rule as for requests."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from pipeline_world import CALLED, CHAIN, QID, PipelineWorld
from query_world import QueryWorld
from router_world import rid

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.core.fairness.admission import StreamAdmission
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.core.queries.query import Query
from fermata.router.links.messages import HandedOn, QueryPart, Submit
from fermata.simulator.pipelines.draw import told_scenes
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

KEPT = Pipeline((Stage(0, (1,)), Stage(1)), ms(100))
NEWEST = replace(KEPT, newest=True)


def admission_of(world: QueryWorld) -> StreamAdmission:
    streams = world.table.streams[0]
    assert streams is not None
    assert isinstance(streams.admission, StreamAdmission)
    return streams.admission


def test_a_new_query_takes_the_place_of_one_that_waits() -> None:
    world = QueryWorld([NEWEST])
    world.send(0, ms(100), client=1)
    world.send(1, ms(100), client=2)
    world.send(2, ms(100), client=1)
    assert world.ends == {0: [DropReason.SUPERSEDED]}
    world.advance(ms(100))
    assert world.ends == {0: [DropReason.SUPERSEDED], 1: ["good"], 2: ["good"]}
    assert world.table.parts == {}
    # Whoever was superseded has cost no backend time.
    assert sum(len(each) for each in world.ran) == 4


def test_all_queries_are_kept_unless_only_the_newest_counts() -> None:
    world = QueryWorld([KEPT])
    world.send(0, ms(100), client=1)
    world.send(1, ms(100), client=1)
    world.advance(ms(100))
    assert world.ends == {0: ["good"], 1: ["good"]}


def test_queries_that_stand_alone_do_not_supersede_one_another() -> None:
    world = QueryWorld([NEWEST])
    world.send(0, ms(100))
    world.send(1, ms(100))
    world.advance(ms(100))
    assert world.ends == {0: ["good"], 1: ["good"]}


def test_a_query_on_which_time_was_spent_is_not_superseded() -> None:
    world = QueryWorld([NEWEST], fan_out=lambda stage, edge: 20)
    world.send(0, ms(150), client=1)
    while not world.ran:
        world.advance(world.now_ns + ms(1))
    # It runs: nobody takes its place, nor that of what it makes.
    world.send(1, ms(150), client=1)
    while len(world.ran) < 2:
        world.advance(world.now_ns + ms(1))
    world.send(2, ms(150), client=1)
    world.advance(ms(400))
    assert world.ends[0] == ["good"]
    assert world.ends[2] == ["good"]


def test_a_refused_query_supersedes_nobody() -> None:
    world = QueryWorld([NEWEST])
    world.send(0, ms(100), client=1)
    # The door has no time for it, and its stream is spared the next turn.
    debt = admission_of(world).streams[1].debt
    assert world.send(1, ms(4), client=1).refused
    assert admission_of(world).streams[1].debt == debt - 1.0
    admission_of(world).shed = 0.9
    admission_of(world).streams[1].debt = 0.5
    assert world.send(2, ms(100), client=1).refused
    # It was its turn: that is no loss of the queue's.
    assert admission_of(world).lost == 1
    world.advance(ms(100))
    assert world.ends == {0: ["good"], 1: [DropReason.SHED], 2: [DropReason.SHED]}


def test_a_query_is_to_start_before_the_next_of_its_stream_is_due() -> None:
    world = QueryWorld([NEWEST])
    for qid in range(3):
        world.advance(ms(20) * qid)
        world.send(qid, ms(100), client=1)
    (request,) = world.engine.outbox.queued.values()
    # 0.8 of the period after its arrival.
    assert request.start_by_ns == ms(40 + 16)


def test_what_queues_lose_is_shared_among_streams() -> None:
    world = QueryWorld([NEWEST])
    world.send(0, ms(100), client=1)
    world.send(1, ms(100), client=1)
    assert admission_of(world).lost == 1
    world.cancel(1)
    assert admission_of(world).lost == 1


# A live router


def busy_world(pipeline: Pipeline) -> PipelineWorld:
    """A router whose only backend has two batches of others, so that whoever comes waits."""
    world = PipelineWorld(replace(pipeline, newest=True))
    for counter in (8, 9):
        if pipeline.called:
            world.hear(world.frontend, first_call(world, counter, rid(QID + counter)))
        else:
            world.query(counter)
    world.client = 7
    return world


def first_call(world: PipelineWorld, counter: int, qid: int) -> Submit:
    call = world.a_call(counter, 0, ms(200), begins=True)
    return msgspec.structs.replace(call, part=QueryPart("objects", 0, -1, qid))


def test_the_client_is_told_and_the_end_is_counted() -> None:
    world = busy_world(CHAIN)
    world.query(0)
    world.query(1)
    assert world.dropped() == {0: DropReason.SUPERSEDED}
    assert world.ended() == {DropReason.SUPERSEDED: 1}
    # As requests of an application are counted.
    assert world.router.engine.ledger.applications[0].drops == {DropReason.SUPERSEDED: 1}


def test_a_function_loses_calls_that_wait() -> None:
    world = busy_world(CALLED)
    world.hear(world.frontend, first_call(world, 0, rid(QID)))
    world.hear(world.frontend, first_call(world, 1, rid(QID + 1)))
    # It says itself how its query ends: it may go on without what it has lost.
    assert world.dropped() == {0: DropReason.SUPERSEDED}
    world.hear(world.frontend, HandedOn(rid(QID), DropReason.SUPERSEDED))
    assert world.ended() == {DropReason.SUPERSEDED: 1}


# Scenarios


def scenario_of(newest: bool, **more: Any) -> Any:
    """Scene A with a fourth of its backends; ten cameras send more than those can serve."""
    found: Any = {**told_scenes()["A"], "backends": 4, "rate_rps": 800}
    found = {**found, "seed": 3, "duration_s": 2, "warmup_s": 1}
    found["pipelines"][0] |= {"newest": newest, "clients": [{"count": 10}], **more}
    return found


def test_old_frames_of_cameras_are_superseded_in_scenarios() -> None:
    reasons = []
    for newest in (False, True):
        scenario = read_scenario(scenario_of(newest))
        result = simulate(scenario)
        assert set(result.arrivals.client) == set(range(1, 11))
        reasons.append(set(result.reasons.values()))
        assert report(scenario, result).pipelines[0].wasted <= 0.01
    assert DropReason.SUPERSEDED not in reasons[0]
    assert DropReason.SUPERSEDED in reasons[1]


def test_newest_needs_clients() -> None:
    with pytest.raises(ConfigError, match=r"pipelines\[0\].newest=True: needs clients"):
        read_scenario(scenario_of(True, clients=[]))


def test_clients_of_pipelines_pin_nothing() -> None:
    with pytest.raises(ConfigError, match=r"clients\[0\].pinned='x': unknown key"):
        read_scenario(scenario_of(True, clients=[{"pinned": "x"}]))


def test_queries_of_functions_that_come_together_supersede_one_another() -> None:
    """Their calls begin once all that came with them is read."""
    table = QueryWorld([replace(NEWEST, called=True)]).table
    for qid in (0, 1):
        table.on_query(0, Query(qid, 0, 0, ms(100), 7))
    assert [each.outcome for each in table.take_ended()] == [DropReason.SUPERSEDED]
    assert list(table.queries) == [1]
    table.on_calls(0, [(1, 0)])
    assert len(table.parts) == 1
