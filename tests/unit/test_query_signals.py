"""Signals of queries for the control loop: each counts once, and its parts do not."""

from pipeline_world import GAPS, PipelineWorld
from router_world import rid

from fermata.autoscaler.readings import ClusterReading, window_between
from fermata.autoscaler.window import Window
from fermata.deployments.control.scaling import reading_of
from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Done
from fermata.router.live.snapshot import take_snapshot


def read(world: PipelineWorld) -> ClusterReading:
    return reading_of(take_snapshot(world.router))


def window(world: PipelineWorld, before: ClusterReading) -> Window:
    return window_between(before, read(world), 0, 1)


def spoil(world: PipelineWorld, counter: int) -> None:
    """Run whatever is due; one request breaks, once beside others and once alone."""
    for _ in range(2):
        for link, order in world.runs():
            spoilt = (rid(counter),) if rid(counter) in order.rids else ()
            error = "it broke" if spoilt else ""
            world.hear(link, Done(order.batch, ms(5), 0, spoilt=spoilt, error=error))


def test_a_query_counts_once_whatever_its_stages_run() -> None:
    world = PipelineWorld()
    before = read(world)
    world.begin(1, 2, 3)
    # What has not ended is neither good nor bad.
    assert window(world, before).requests == 0
    world.run()
    seen = window(world, before)
    assert (seen.requests, seen.bad) == (1, 0)
    assert seen.ended.requests == (0, 0, 1)
    # Requests of stages are requests all the same where models are placed by their rates.
    assert {name: each.received for name, each in read(world).applications.items()} == {
        "detect": 1,
        "classify": 3,
    }
    assert seen.busy > 0.0


def test_a_query_that_the_door_refuses_is_bad_and_no_stages_request() -> None:
    world = PipelineWorld()
    before = read(world)
    world.query(0, slo_ns=ms(4))
    assert world.dropped() == {0: DropReason.SHED}
    seen = window(world, before)
    assert (seen.requests, seen.bad) == (1, 1)
    assert seen.ended.bad == (0, 0, 1)


def test_a_part_that_is_lost_is_a_bad_query_once() -> None:
    world = PipelineWorld()
    before = read(world)
    world.begin(1, 2, 3)
    spoil(world, 2)
    seen = window(world, before)
    assert (seen.requests, seen.bad) == (1, 1)


def test_a_gap_in_an_answer_is_no_bad_request() -> None:
    world = PipelineWorld(GAPS)
    before = read(world)
    world.begin(1, 2)
    spoil(world, 2)
    seen = window(world, before)
    assert (seen.requests, seen.bad) == (1, 0)


def test_a_query_that_its_client_gave_up_does_not_count() -> None:
    world = PipelineWorld()
    before = read(world)
    world.begin(1, 2)
    world.router.queries.on_cancel(world.now_ns, rid(0))  # type: ignore[union-attr]
    assert window(world, before).requests == 0


def test_direct_requests_of_a_stage_count_beside_queries() -> None:
    world = PipelineWorld()
    before = read(world)
    world.submit(7, 8, application="classify", slo_ns=ms(200))
    while world.run():
        pass
    world.begin(1, 2, 3)
    world.run()
    seen = window(world, before)
    assert (seen.requests, seen.bad) == (3, 0)
    assert seen.ended.requests == (2, 0, 1)
