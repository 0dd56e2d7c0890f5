"""Fair shares at the door of queries: whoever was given the most leaves some time to others."""

from collections import Counter
from typing import Any

from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.core.events import HIGHEST
from fermata.router.core.fairness.shares import FairAdmission
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.core.queries.query_table import Query
from fermata.simulator.pipelines.draw import told_scenes
from fermata.simulator.run import RunLog, simulate
from fermata.simulator.scenario.scenario import read_scenario

CHAIN = Pipeline((Stage(0, (1,)), Stage(1)), ms(100))
FLOOD, HONEST = 1, 2


def shared_world(weights: dict[int, float] | None = None) -> QueryWorld:
    world = QueryWorld([CHAIN], backends=2)
    for number, source in enumerate(world.engine.sources):
        fair = FairAdmission(source, (number,), ms(100), weights=weights)
        world.engine.admissions[number] = fair
    world.engine.admits = True
    return world


def given(world: QueryWorld, **queries: int) -> None:
    """Let so many queries of each tenant in, and end."""
    for tenant, count in queries.items():
        for _ in range(count):
            world.send(world.made + 1000, ms(100), tenant=int(tenant.removeprefix("t")))
            world.advance(world.now_ns + ms(20))
    world.advance(world.now_ns + ms(100))


def yields(world: QueryWorld, tenant: int, priority: int = 0, refused: int = 1) -> bool:
    """Whether a tenant yields where so many of ten queries were lately refused."""
    for number in range(10):
        world.table.shares.count(number < refused)
    world.table.shares.look_at_ns = 0
    query = Query(0, 0, world.now_ns, world.now_ns + ms(100), 0, priority, tenant)
    return world.table.shares.yields(world.now_ns, query)


def test_whoever_was_given_more_yields() -> None:
    world = shared_world()
    given(world, t1=10, t2=2)
    assert yields(world, 1)
    assert not yields(world, 2)
    assert not yields(world, 3)


def test_one_alone_and_those_who_have_the_same_do_not_yield() -> None:
    world = shared_world()
    given(world, t1=10)
    assert not yields(world, 1)
    world = shared_world()
    for _ in range(10):
        given(world, t1=1, t2=1)
    assert not yields(world, 1)
    assert not yields(world, 2)


def test_several_floods_yield_and_those_between_do_not() -> None:
    world = shared_world()
    for _ in range(3):
        given(world, t1=4, t2=4, t3=1)
    assert yields(world, 1) or yields(world, 2)
    assert not yields(world, 3)


def test_weights_count() -> None:
    world = shared_world({1: 10.0})
    given(world, t1=10, t2=4)
    assert not yields(world, 1)
    assert yields(world, 2)


def test_the_highest_priority_counts_what_went_to_it_alone() -> None:
    world = shared_world()
    given(world, t1=10, t2=2)
    assert not yields(world, 1, HIGHEST)


def test_what_was_given_fades() -> None:
    world = shared_world()
    given(world, t2=10)
    world.advance(world.now_ns + ms(10_000))
    given(world, t1=10)
    # The other has left, and takes no part of the time any more.
    assert not yields(world, 1)


def test_nobody_yields_where_hardly_any_query_is_refused() -> None:
    world = shared_world()
    given(world, t1=10, t2=2)
    assert not yields(world, 1, refused=0)
    world.advance(world.now_ns + ms(200))
    assert yields(world, 1)
    # What was refused is forgotten, and with it why some yielded.
    for _ in range(40):
        world.advance(world.now_ns + ms(200))
        found = yields(world, 1, refused=0)
    assert not found


def test_without_fair_shares_nobody_yields() -> None:
    world = QueryWorld([CHAIN])
    given(world, t1=10, t2=2)
    assert not yields(world, 1)


def test_the_door_closes_earlier_for_whoever_yields() -> None:
    world = shared_world()
    given(world, t1=10, t2=2)
    first = {}
    assert yields(world, 1)
    for tenant in (1, 2):
        # Work only grows while nothing ends.
        for number in range(200):
            qid = 1000 * tenant + 5000 + number
            if world.send(qid, ms(100), tenant=tenant).refused:
                first[tenant] = number
                break
    # Once some were refused, the one leaves what is there for the other.
    assert first[1] > 0
    assert first[2] > 0


def bad_of(result: RunLog, warmup_ns: int) -> dict[int, float]:
    """Part of each client's queries that ended bad."""
    sent: Counter[int] = Counter()
    bad: Counter[int] = Counter()
    clients, times = result.arrivals.client.tolist(), result.arrivals.at_ns.tolist()
    assert result.pipelines is not None
    for qid, (client, at_ns) in enumerate(zip(clients, times, strict=True)):
        if at_ns >= warmup_ns:
            sent[client] += 1
            bad[client] += result.pipelines.queries[qid].outcome != "good"
    return {client: bad[client] / count for client, count in sent.items()}


def test_a_flood_of_queries_does_not_take_the_door() -> None:
    # Four backends serve about 410 queries a second; the honest client asks for less than a third.
    found = []
    for fair in (False, True):
        told: Any = {**told_scenes()["A"], "backends": 4, "rate_rps": 1320, "fair_shares": fair}
        told["pipelines"][0] |= {"clients": [{"fps": 10}, {"fps": 1}]}
        scenario = read_scenario({**told, "seed": 5, "duration_s": 3, "warmup_s": 4})
        found.append(bad_of(simulate(scenario), scenario.warmup_ns))
    assert found[0][HONEST] > 0.5
    assert found[1][HONEST] <= 0.01
    assert found[1][FLOOD] > 0.5
