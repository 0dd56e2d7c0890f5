"""Functions under load: what they call is served as well as what a graph makes."""

import random

import pytest
from query_world import QueryWorld

from fermata.foundation.units import SECOND, ms
from fermata.router.core.events import GOOD
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.core.queries.query_table import Query

STAGES = (Stage(0, (1,)), Stage(1))
SLO_NS = ms(100)
QUERIES = 2000


def good_of(called: bool, rate: float, seed: int) -> int:
    """Queries that end well. Each makes five requests of the second stage on average, on eight
    backends."""
    rng, fan_out = random.Random(seed), random.Random(seed + 1)
    world = QueryWorld(
        [Pipeline(STAGES, SLO_NS, called=called)], 8, lambda *_: int(fan_out.expovariate(0.18))
    )
    world.minds_losses = True

    def function(query: Query) -> list[int] | str:
        if not any(query.called):
            return [0]
        if query.called[1] or not query.ended[0]:
            return ""
        return [1] * world.fan_out(0, 0) or ""

    world.function = function
    for qid in range(QUERIES):
        world.advance(world.now_ns + int(rng.expovariate(rate) * SECOND))
        world.send(qid, SLO_NS)
    world.advance(world.now_ns + 5 * SLO_NS)
    ends = [end for (end,) in world.ends.values()]
    assert len(ends) == QUERIES
    return ends.count(GOOD)


def good_rounds(pipeline: Pipeline, rate: float, seed: int) -> int:
    """Queries that end well, of 2,000 that run one application four times in a row."""
    rng = random.Random(seed)
    world = QueryWorld([pipeline], 8)
    world.minds_losses = True
    world.function = lambda query: [0] if query.called[0] < 4 else ""
    for qid in range(QUERIES):
        world.advance(world.now_ns + int(rng.expovariate(rate) * SECOND))
        world.send(qid, SLO_NS)
    world.advance(world.now_ns + 5 * SLO_NS)
    return [end for (end,) in world.ends.values()].count(GOOD)


def test_a_loop_does_nearly_as_well_as_a_chain() -> None:
    """Each call of it comes to the same queue, and for some time nobody knows how many will."""
    chain = Pipeline((Stage(0, (1,)), Stage(0, (2,)), Stage(0, (3,)), Stage(0)), SLO_NS)
    loop = Pipeline((Stage(0),), SLO_NS, called=True)
    for rate, least in ((1000, 0.95), (2500, 0.8)):
        good = good_rounds(chain, rate, 1_000_001)
        assert good_rounds(loop, rate, 1_000_001) > least * good


@pytest.mark.parametrize("rate", [1100, 1600, 2400])
def test_overload_costs_a_function_no_more_than_a_graph(rate: int) -> None:
    graph = good_of(False, rate, 1_000_001)
    function = good_of(True, rate, 1_000_001)
    assert function > 0.92 * graph
    # There is an overload at all.
    assert graph < QUERIES
