"""Each camera as its operator sees it: sizes, rates, misses, and why it is left out."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import numpy as np
import pytest
from prometheus_client import parser
from snapshots import router
from typer.testing import CliRunner

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import add_input, from_array
from fermata.commands.main import app
from fermata.deployments.control.page.history import History
from fermata.deployments.control.page.page_frames import CAMERAS_SHOWN, live_frame
from fermata.deployments.control.sub_clusters.merging import merged_frame, merged_snapshot
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.metrics.cameras import CAMERAS_MAX
from fermata.deployments.metrics.families import prometheus_text
from fermata.deployments.specs.status import DeploymentStatus
from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import ClientReport
from fermata.router.links.messages import ClientNetworkReport
from fermata.router.live.clients.cameras import cameras
from fermata.router.policies.family import family_of
from fermata.router.policies.jellyfish.left_out import UnmappedReason, why_left_out
from fermata.router.policies.jellyfish.options import JellyfishOptions
from fermata.router.policies.jellyfish.source import Jellyfish
from fermata.router.telemetry.dashboard_frames import DashboardFrame, read_frame
from fermata.router.telemetry.snapshot import CameraSnapshot
from fermata.router.telemetry.stream_counts import StreamCounts
from tests.unit.test_frontend_intake import REGISTRY
from tests.unit.test_replanning import World

TABLES = ([10.0, 14.0, 18.0], [15.0, 22.0, 29.0], [25.0, 40.0, 55.0])


def jellyfish(backends: int = 1) -> tuple[Engine, Jellyfish]:
    costs = Costs()
    for variant, table in enumerate(TABLES):
        costs.add(variant, [ms(value) for value in table], None)
    made = Engine(costs)
    family = family_of(0, "cameras", ms(100), (0, 1, 2), 0, (0.3, 0.5, 0.6), (128, 224, 320))
    source = Jellyfish(family, JellyfishOptions(), random.Random(0))
    made.add_application(source)
    for backend in range(backends):
        made.on_backend_up(0, backend, owner=0)
    return made, source


@pytest.mark.parametrize(
    ("wanted", "slo_ms", "fps", "mbps", "floor"),
    [
        (UnmappedReason.FLOOR, 100, 10.0, 50.0, 0.9),
        # 100 kbit take 100 ms.
        (UnmappedReason.NETWORK, 100, 10.0, 1.0, 0.0),
        (UnmappedReason.RATE, 100, 500.0, 500.0, 0.0),
    ],
)
def test_a_camera_is_left_out_for_a_reason(
    wanted: UnmappedReason, slo_ms: float, fps: float, mbps: float, floor: float
) -> None:
    made, source = jellyfish()
    report = ClientReport(1, ms(slo_ms), fps, mbps * 1e6, 128, 100_000, accuracy_floor=floor)
    made.on_report(0, 0, report)
    assert why_left_out(source, source.clients[1]) is UnmappedReason.UNPLANNED
    made.on_time(1)
    assert source.mapped == {}
    assert why_left_out(source, source.clients[1]) is wanted


def test_a_camera_beside_too_many_others_is_told_so() -> None:
    made, source = jellyfish()
    for client in range(1, 9):
        made.on_report(0, 0, ClientReport(client, ms(100), 30.0, 500e6, 128, 100_000))
    made.on_time(1)
    left_out = [known for client, known in source.clients.items() if client not in source.mapped]
    assert left_out
    assert {why_left_out(source, known) for known in left_out} == {UnmappedReason.FULL}
    bare, alone = jellyfish(backends=0)
    bare.on_report(0, 0, ClientReport(1, ms(100), 30.0, 500e6, 128, 100_000))
    assert why_left_out(alone, alone.clients[1]) is UnmappedReason.NO_BACKEND


def test_misses_are_counted_for_each_camera() -> None:
    counts = StreamCounts()
    for index in range(10):
        counts.count(index, 7, good=index != 3)
    counts.count(40 * SECOND, 7, good=True)
    assert counts.of(7) == (11, 1)
    assert counts.of(8) == (0, 0)


def test_the_status_lists_cameras() -> None:
    world = World()
    world.report("faces", 50)
    world.replan()
    (seen,) = cameras(world.router.clients, world.router.meters)
    assert (seen.application, seen.client, seen.size_asked, seen.size_sent) == (
        "faces",
        "9",
        320,
        128,
    )
    assert (seen.served, seen.reason, seen.bandwidth_bps) == (True, "", 50e6)
    assert seen.variant
    assert seen.declared_fps == 10.0


def test_the_name_of_a_camera_reaches_the_router() -> None:
    request = pb.ModelInferRequest(model_name="words")
    request.parameters["client"].string_param = "gate-7"
    request.parameters["fps"].double_param = 8.0
    add_input(request, from_array("text", np.arange(5)))
    report = parse_request(request, REGISTRY).report
    assert report is not None
    assert report.name == "gate-7"


@pytest.mark.parametrize(("told", "bits"), [(None, 320), (0, 320), (100, 100), (9999, 320)])
def test_frame_counts_with_the_bits_that_it_needs_at_least(told: int | None, bits: int) -> None:
    request = pb.ModelInferRequest(model_name="words")
    request.parameters["client"].string_param = "gate-7"
    request.parameters["fps"].double_param = 8.0
    if told is not None:
        request.parameters["frame_bits"].int64_param = told
    add_input(request, from_array("text", np.arange(5)))
    report = parse_request(request, REGISTRY).report
    assert report is not None
    assert report.frame_bits == bits


def test_cameras_of_two_tenants_with_one_name_are_two() -> None:
    world = World()
    for client in (9, 10):
        said = ClientNetworkReport(
            "faces", client, ms(100), 10.0, 5e7, 128, 100_000, 0, name="gate"
        )
        world.hear(world.frontends[0], said)
    seen = [each.client for each in cameras(world.router.clients, world.router.meters)]
    assert len(set(seen)) == 2
    assert all(each.startswith("gate") for each in seen)


def camera(name: str, **figures: object) -> CameraSnapshot:
    served = CameraSnapshot("faces", name, 5e6, 8, 8, 224, 160, 640, "v", 5, 100, 0, True, "")
    return replace(served, **figures)  # type: ignore[arg-type]


def series(listed: list[CameraSnapshot]) -> dict[str, dict[tuple[str, ...], float]]:
    text = prometheus_text(DeploymentStatus(router({}, cameras=listed), {}, []))
    return {
        family.name.removeprefix("fermata_"): {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for sample in family.samples
        }
        for family in parser.text_string_to_metric_families(text)
        if "camera" in family.name
    }


def test_metrics_tell_of_each_camera() -> None:
    out = camera("gate", served=False, reason="it is too slow", variant="", frames=200, missed=50)
    found = series([out, camera("yard", fps=30.0)])
    assert found["cameras"] == {("faces", "served"): 1, ("faces", "it is too slow"): 1}
    assert found["camera_served"] == {("faces", "gate"): 0, ("faces", "yard"): 1}
    assert found["camera_variant"] == {("faces", "yard", "v"): 1}
    assert found["camera_bandwidth_bps"]["faces", "yard"] == 5e6
    assert found["camera_fps"]["faces", "yard"] == 30
    assert found["camera_declared_fps"]["faces", "yard"] == 8
    assert found["camera_size_asked"]["faces", "gate"] == 224
    assert found["camera_size_sent"]["faces", "gate"] == 160
    assert found["camera_missed_ratio"]["faces", "gate"] == 0.25


def test_names_that_clients_choose_make_no_endless_series() -> None:
    listed = [camera(f"gate-{number:03}") for number in range(3 * CAMERAS_MAX)]
    found = series(list(reversed(listed)))
    assert found["cameras"] == {("faces", "served"): 3 * CAMERAS_MAX}
    for name, each in found.items():
        assert name == "cameras" or len(each) == CAMERAS_MAX
    # The same ones in every scrape, in whatever order they reported.
    assert series(listed) == found


def frame(*listed: CameraSnapshot) -> DashboardFrame:
    status = DeploymentStatus(router({}, cameras=list(listed)), {}, [])
    return live_frame(status, History(), "here")


def test_the_page_gets_the_worst_cameras_first() -> None:
    listed = [camera(f"gate-{number:03}", missed=number % 7) for number in range(150)]
    shown = frame(*listed)
    assert (len(shown.cameras), shown.cameras_seen) == (CAMERAS_SHOWN, 150)
    assert [each.missed for each in shown.cameras] == sorted(
        (each.missed for each in listed), reverse=True
    )[:CAMERAS_SHOWN]
    assert read_frame(json.loads(shown.to_json())) == shown


def test_a_camera_that_moved_is_listed_where_it_is_served() -> None:
    old, new = camera("gate", served=False, reason="moved", backend=-1), camera("gate", backend=7)
    routers = {0: router({}, cameras=[old]), 1: router({}, cameras=[new])}
    assert merged_snapshot(routers).cameras == [new]
    shown = read_frame(json.loads(merged_frame({0: frame(old).to_json(), 1: frame(new).to_json()})))
    assert shown.cameras == (new,)


CAMERA = {
    "application": "faces",
    "client": "gate-7",
    "bandwidth_bps": 5.5e6,
    "declared_fps": 8.0,
    "fps": 30.0,
    "size_asked": 224,
    "size_sent": 160,
    "source_size": 640,
    "variant": "",
    "backend": -1,
    "frames": 200,
    "missed": 50,
    "served": False,
    "reason": "the backends are full",
}


@pytest.fixture
def control() -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"cameras": [CAMERA]} if self.path == "/status" else {}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_top_lists_cameras(control: str) -> None:
    shown = CliRunner().invoke(app, ["top", "--cameras", "--once", "--control", control])
    assert shown.exit_code == 0
    for part in ("gate-7", "5.5", "224", "160", "30.0", "8.0", "25.0%", "the backends are full"):
        assert part in shown.stdout
    as_json = CliRunner().invoke(app, ["top", "--cameras", "--json", "--control", control])
    assert json.loads(as_json.stdout) == [CAMERA]
