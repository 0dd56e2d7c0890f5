"""Rooms: how much of the SLO target batches take, and how much is left for waits."""

import pytest
from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.core.queries.flow import RULES as QUERY_RULES
from fermata.router.core.queries.flow import Flow
from fermata.router.core.queries.pipeline import FanOut, Pipeline, Stage
from fermata.router.core.queries.rooms import RULES, load_of

CHAIN = Pipeline((Stage(0, (1,)), Stage(1)), ms(100))
JOINED = Pipeline((Stage(0, (1, 2)), Stage(1, (2,)), Stage(2, join=True)), ms(100))
WORK_NS = {0: 2.0, 1: 3.0, 2: 5.0}


def test_a_fan_out_knows_how_far_results_differ() -> None:
    alike, apart = FanOut(), FanOut()
    for made in (0, 4) * 50:
        alike.learn(2)
        apart.learn(made)
    assert (alike.mean, alike.variance) == (2.0, 0.0)
    assert apart.mean == pytest.approx(2.0, abs=0.1)
    assert apart.variance == pytest.approx(4.0, abs=0.1)


def test_work_of_a_query_differs_as_its_fan_out_does() -> None:
    flow = Flow(CHAIN, 1.0)
    fan_out = flow.fan_outs[0][0]
    fan_out.mean, fan_out.square = 4.0, 20.0
    mean, square = flow.work(WORK_NS)
    assert mean == 2.0 + 4.0 * 3.0
    assert square - mean * mean == 4.0 * 3.0**2


def test_work_of_a_function_differs_as_its_calls_do() -> None:
    flow = Flow(Pipeline(CHAIN.stages, ms(100), called=True), 1.0)
    flow.calls[1].mean, flow.calls[1].square = 4.0, 20.0
    mean, square = flow.work(WORK_NS)
    assert mean == 2.0 + 4.0 * 3.0
    assert square - mean * mean == 4.0 * 3.0**2


def test_a_join_is_one_request_of_a_query() -> None:
    flow = Flow(JOINED, 1.0)
    flow.fan_outs[0][0].mean = 4.0
    mean, _ = flow.work(WORK_NS)
    assert mean == 2.0 + 4.0 * 3.0 + 5.0


def test_backends_may_be_busier_with_more_time_to_wait() -> None:
    loads = [load_of(lumps, 0.01) for lumps in (0.0, 1.0, 10.0, 50.0, 1000.0)]
    assert loads == sorted(loads)
    assert loads[0] == 0.0
    assert loads[-1] > 0.99
    # Fewer may be lost: then backends have to be less busy.
    assert load_of(10.0, 0.001) < load_of(10.0, 0.01)


def room_after(fan_out: tuple[int, int], slower: tuple[float, ...] = (1.0,)) -> float:
    """The room after two seconds of a pipeline whose results make these numbers in turn."""
    made = 0

    def next_fan_out(stage: int, edge: int) -> int:
        nonlocal made
        made += 1
        return fan_out[made % 2]

    world = QueryWorld([CHAIN], backends=4, fan_out=next_fan_out, slower=slower)
    for qid in range(400):
        world.send(qid, ms(100))
        world.advance(world.now_ns + ms(5))
    return world.table.flows[0].room


def test_more_is_left_for_waits_where_fan_outs_differ() -> None:
    assert RULES.room_min <= room_after((0, 24)) < room_after((1, 1)) <= RULES.room_max


def test_a_share_of_lost_queries_is_known() -> None:
    flow = Flow(CHAIN, 1.0)
    for number in range(3000):
        flow.note_end(number % 4 != 0)
    assert flow.missed == pytest.approx(0.25, abs=0.02)


def test_the_room_stays_where_backends_are_of_several_kinds() -> None:
    assert room_after((0, 24), slower=(1.0, 3.0)) == QUERY_RULES.room
