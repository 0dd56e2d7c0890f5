"""Backend time of pipelines: by stage, and in vain; and how the page shows it."""

import json

import pytest
from pipeline_world import PipelineWorld
from router_world import LOST, rid

from fermata.deployments.control.page.pipeline_frames import pipeline_frames
from fermata.foundation.units import ms
from fermata.router.links.messages import Answered, Cancel, Done, FrontendStats
from fermata.router.live.snapshot import take_snapshot
from fermata.router.telemetry.dashboard_frames import DashboardFrame, StageFrame, read_frame
from fermata.router.telemetry.histogram import LATENCY_NS


def spent(world: PipelineWorld) -> tuple[list[int], int]:
    """Backend time by stage, and what of it was in vain, in ms."""
    told = take_snapshot(world.router).pipelines["objects"]
    return [each.busy_ns // ms(1) for each in told.stages], told.wasted_ns // ms(1)


def test_queries_that_end_well_waste_nothing() -> None:
    world = PipelineWorld()
    world.begin(1, 2)
    assert spent(world) == ([5, 0], 0)
    assert world.run() == [1, 2]
    assert spent(world) == ([5, 5], 0)
    world.nothing_is_left()


def test_all_that_went_into_a_query_that_fails_is_wasted() -> None:
    world = PipelineWorld()
    world.begin(1, 2)
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0, failed="it broke"))
    assert spent(world) == ([5, 0], 5)
    world.nothing_is_left()


def test_what_runs_on_after_its_query_has_ended_is_wasted_too() -> None:
    world = PipelineWorld()
    world.begin(1, 2)
    ((link, order),) = world.runs()
    world.hear(world.frontend, Cancel(rid(0)))
    assert world.ended() == {"cancelled": 1}
    assert spent(world) == ([5, 0], 5)
    world.hear(link, Done(order.batch, ms(8), 0))
    assert spent(world) == ([5, 8], 13)
    assert not world.queries.table.in_vain
    world.nothing_is_left()


def test_nothing_is_kept_of_a_frontend_that_left_a_batch_which_fails() -> None:
    world = PipelineWorld()
    world.begin(1, 2)
    ((link, order),) = world.runs()
    world.router.on_down(world.frontend, LOST)
    world.settle()
    assert len(world.queries.table.in_vain) == 2
    world.hear(link, Done(order.batch, ms(5), 0, failed="it broke"))
    assert not world.queries.table.in_vain


def test_the_page_shows_the_last_minute_of_each_stage() -> None:
    world = PipelineWorld()
    world.begin(1, 2)
    world.run()
    before = take_snapshot(world.router)
    world.query(10)
    world.run()
    world.hand_on(10, 11, 12, 13)
    world.run()
    latency = tuple([0] * (len(LATENCY_NS) + 1))
    answered = Answered("objects", {"good": 3, "late": 1}, latency, 0)
    world.hear(world.frontend, FrontendStats((answered,)))
    world.advance(ms(1000))
    now = take_snapshot(world.router)
    span_s = (now.up_ns - before.up_ns) / 1e9
    (frame,) = pipeline_frames(now, before)
    assert (frame.name, frame.slo_ms, frame.wasted) == ("objects", 200.0, 0.0)
    assert (frame.rps, frame.bad_rate) == (pytest.approx(4 / span_s), 0.25)
    assert [each.rps * span_s for each in frame.stages] == [pytest.approx(1), pytest.approx(3)]
    assert frame.stages[0].busy * span_s == pytest.approx(0.005)
    assert all(isinstance(each, StageFrame) for each in frame.stages)


def test_frames_with_pipelines_are_read_as_they_were_written() -> None:
    world = PipelineWorld()
    world.begin(1)
    frames = pipeline_frames(take_snapshot(world.router), None)
    shown = DashboardFrame(1.0, "t", 0, 0, (), (), (), pipelines=frames)
    assert read_frame(json.loads(shown.to_json())).pipelines == frames
