"""What the page and `fermata top` are shown of a router."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from router_world import World
from snapshots import rated
from test_metrics import busy_world

from fermata.commands.top import shown, strip
from fermata.deployments.control.page.history import History
from fermata.deployments.control.page.page_frames import live_frame
from fermata.foundation.units import ms, seconds
from fermata.router.links.messages import Done, Run
from fermata.router.telemetry.dashboard_frames import (
    BackendFrame,
    BatchFrame,
    DashboardFrame,
    read_frame,
)
from fermata.router.telemetry.histogram import quantile
from fermata.router.telemetry.snapshot import LookSnapshot


def look(world: World, history: History) -> DashboardFrame:
    status = rated(world.router, history, with_batches=True)
    frame = live_frame(status, history, "here")
    history.add(status.router)
    return frame


def test_totals_are_those_of_the_router() -> None:
    world = busy_world()
    (told,) = look(world, History()).applications
    assert (told.requests, told.good, told.bad) == (1, 1, {"ran-late": 0})
    # One of two answers was bad, by the frontends' count.
    assert told.bad_rate == 0.5
    assert told.variants == {"v": 1.0}
    assert told.mean_batch == 1.0
    assert told.accuracy is None


def test_looks_are_shown_where_there_are_any() -> None:
    status = rated(busy_world().router, History())
    ((name, told),) = status.router.applications.items()
    looks = LookSnapshot(2000, 1500, 3, 90, 0, 80, 76, {7: 0.25, 1: 0.5})
    router = replace(status.router, applications={name: replace(told, looks=looks)})
    frame = live_frame(replace(status, router=router), History(), "here")
    assert frame.applications[0].looks == looks
    assert read_frame(json.loads(frame.to_json())) == frame
    assert live_frame(status, History(), "here").applications[0].looks is None


def test_rates_are_of_the_last_second() -> None:
    world, history = World(policy="eager"), History()
    world.advance(seconds(1))
    look(world, history)
    world.submit(1, 2, 3)
    world.advance(ms(7))
    (run,) = world.backend.take(Run)
    world.hear(world.backend, Done(run.batch, ms(7), 0))
    world.advance(seconds(1) - ms(7))
    (told,) = look(world, history).applications
    assert told.rps == pytest.approx(3, rel=0.01)
    assert told.good_rps == pytest.approx(3, rel=0.01)


def test_batches_stand_where_they_ran() -> None:
    world = busy_world()
    world.advance(ms(15))
    frame = look(world, History())
    (backend,) = frame.backends
    (batch,) = backend.batches
    assert batch.end_s == pytest.approx(frame.at_s - 0.015)
    assert batch.start_s == pytest.approx(frame.at_s - 0.020)
    # It came 20 ms ago, with an SLO of 20 ms.
    assert batch.deadline_s == pytest.approx(frame.at_s)
    assert (backend.kind, backend.state, backend.gpu_used) == ("emulated", "idle", 0.5)


def test_a_frame_is_plain_json() -> None:
    frame = look(busy_world(), History())
    assert json.loads(frame.to_json())["applications"][0]["name"] == "cats"


def test_a_frame_is_read_back_and_fields_of_a_newer_server_are_left_out() -> None:
    frame = look(busy_world(), History())
    document = json.loads(frame.to_json())
    assert read_frame(document) == frame
    document["backends"][0]["batches"][0]["newer"] = 1
    assert read_frame(document | {"newer": 1}) == frame
    with pytest.raises(TypeError, match="queued"):
        read_frame({name: value for name, value in document.items() if name != "queued"})


def test_top_prints_the_same_figures() -> None:
    frame = read_frame(json.loads(look(busy_world(), History()).to_json()))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown(frame))
    text = console.export_text()
    assert "cats" in text
    assert "50.00%" in text
    assert "v 100%" in text


def test_the_strip_marks_what_was_late() -> None:
    batch = BatchFrame(9.0, 9.4, "v", size=1, deadline_s=9.3, late=1)
    line = strip(BackendFrame("0", 0, "emulated", "idle", ("v",), (batch,)), at_s=10.0)
    assert line.plain[20:28] == "▇" * 8
    assert line.plain[:20].strip() == ""
    assert line.plain[30:].strip() == ""


def test_quantiles_are_read_off_buckets_as_prometheus_does() -> None:
    assert quantile((10, 20), (0, 0, 0), 0.5) is None
    assert quantile((10, 20), (4, 4, 0), 0.5) == 10
    assert quantile((10, 20), (4, 4, 0), 0.75) == 15
    # Above the last bound nothing is known.
    assert quantile((10, 20), (0, 0, 3), 0.99) == 20
