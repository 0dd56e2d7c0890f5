"""Queries of parties whose inputs have hung backends, in whatever stage they did."""

import pytest
from pipeline_world import PipelineWorld
from router_world import rid

from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.health.suspects import Suspects
from fermata.router.links.messages import Done, Dropped

HANGS, HONEST = 7, 8


def suspects_of(world: PipelineWorld) -> Suspects:
    return world.router.fleet.separation.suspects


@pytest.mark.parametrize("stage", [0, 1])
def test_a_query_is_refused_whose_party_hangs_one_of_its_stages(stage: int) -> None:
    world = PipelineWorld()
    for _ in range(3):
        suspects_of(world).on_hang(world.now_ns, stage, [HANGS])
    world.tenant = HANGS
    world.query(0)
    (dropped,) = world.frontend.take(Dropped)
    assert (dropped.reason, dropped.unread) == (DropReason.BLAMED, True)
    assert dropped.retry_after_ns > ms(100)
    world.tenant = HONEST
    world.query(1)
    assert world.run() == [1]
    world.hand_on(1)
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_parts_of_suspects_meet_with_nobody_elses() -> None:
    world = PipelineWorld()
    for counter, tenant in ((0, HANGS), (1, HONEST)):
        world.tenant = tenant
        world.query(counter)
    assert world.run() + world.run() == [0, 1]
    # Both were in a batch that hung: either may be the cause.
    suspects_of(world).on_hang(world.now_ns, 1, [HANGS, HONEST])
    world.query(2)
    ((link, busy),) = world.runs()
    world.tenant = HANGS
    world.hand_on(0, 10, 11)
    world.tenant = HONEST
    world.hand_on(1, 20)
    world.hear(link, Done(busy.batch, ms(5), 0))
    world.hand_on(2)
    ran = [sorted(world.run()) for _ in range(2)]
    assert sorted(ran) == [[10, 11], [20]]
    assert world.ended() == {"good": 3}
    world.nothing_is_left()


def test_parts_of_a_suspect_that_come_together_run_together() -> None:
    world = PipelineWorld()
    world.tenant = HANGS
    world.begin()
    world.query(1)
    assert world.run() == [1]
    suspects_of(world).on_hang(world.now_ns, 1, [HANGS, HONEST])
    # The backend is idle: the first must not go alone.
    world.hand_on(1, 10, 11, 12)
    assert [sorted(order.rids) for _, order in world.runs()] == [[rid(10), rid(11), rid(12)]]
