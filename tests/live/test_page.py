"""The page in a real browser, against a live server: its numbers are those of the metrics."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import browser
import pytest
from prometheus_client import parser

from benchmarks.chromium import CHROMIUM, rendered
from fermata.commands.view import Record, make_server
from fermata.router.telemetry.dashboard_frames import (
    ApplicationFrame,
    DashboardFrame,
    PipelineFrame,
    StageFrame,
    write_frames,
)
from fermata.router.telemetry.snapshot import CameraSnapshot, LookSnapshot

pytest.importorskip("ray")
from served import ROOT, Server, load, wait_until

pytestmark = pytest.mark.live
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: chromium)")


def metric(server: Server, name: str, **labels: str) -> float:
    for family in parser.text_string_to_metric_families(server.page("metrics")):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    raise AssertionError(f"no {name} with {labels}")


@needs_browser
def test_the_page_shows_what_the_metrics_say(server: Server) -> None:
    load(server, "emulated", rate=60, seconds=2)
    # Whatever is under way has ended, and everybody has told.
    time.sleep(2.5)
    document = rendered(f"http://127.0.0.1:{server.port}/")
    names = browser.texts(document, "name")
    place = names.index("emulated")
    shown = {
        key: float(browser.texts(document, key)[place].replace(",", ""))
        for key in ("requests", "goods")
    }
    wanted = {
        "requests": metric(server, "fermata_requests_total", application="emulated"),
        "goods": metric(server, "fermata_good_total", application="emulated"),
    }
    assert shown == wanted
    bad_rate = metric(server, "fermata_bad_rate", application="emulated")
    attained = [text for text in browser.texts(document, "attained") if text.endswith("%")]
    assert f"{100 * (1 - bad_rate):.2f} %" in attained
    assert browser.texts(document, "state")[0] == ""


def shown(folder: Path, frames: list[DashboardFrame]) -> str:
    """The page that replays these."""
    write_frames(frames, str(folder / "record"))
    with make_server(Record(folder / "record"), 0) as replayed:
        thread = Thread(target=replayed.serve_forever)
        thread.start()
        document = rendered(f"http://127.0.0.1:{replayed.server_port}/")
        replayed.shutdown()
        thread.join()
    return document


@needs_browser
def test_the_page_tells_of_looks(tmp_path: Path) -> None:
    plain = ApplicationFrame("faces", 50, 1, 1, {}, 1, 1, 0, None, None, None, None, 0, 0, {})
    looks = LookSnapshot(2000, 1500, 3, 90, 0, 80, 76, {7: 0.25, 1: 0.5})
    looked = replace(plain, name="digits", looks=looks)
    frames = [DashboardFrame(at_s, "here", 0, 0, (looked, plain), (), ()) for at_s in (1.0, 2.0)]
    told = "2,000 looks: 75.0 % answered at once, 95.0 % right of 80 known; 3 changes; "
    assert browser.texts(shown(tmp_path, frames), "looks")[:2] == [
        f"{told}classes 1 50.0 %, 7 25.0 %",
        "",
    ]


@needs_browser
def test_the_page_shows_which_stage_is_the_bottleneck(tmp_path: Path) -> None:
    stages = StageFrame("detect", 3, 20.0, 12.5, 0.5), StageFrame("read", 1, 100.0, None, 1.25)
    pipeline = PipelineFrame("words", 200.0, 20.0, 0.025, 0.01, stages)
    frames = [
        DashboardFrame(at_s, "here", 0, 0, (), (), (), pipelines=(pipeline,)) for at_s in (1.0, 2.0)
    ]
    document = shown(tmp_path, frames)
    for name, wanted in {
        "figures": [
            "20.0 queries/s within 200 ms, 2.5 % bad, 1.0 % of backend time in vain",
            "20.0 /s, 13 ms, 3 open, 0.50 backends busy",
            "100.0 /s, \u2013, 1 open, 1.25 backends busy",
        ],
        "application": ["detect", "read"],
        "bottleneck": ["", "bottleneck"],
    }.items():
        assert browser.texts(document, name)[: len(wanted)] == wanted


@needs_browser
def test_the_page_lists_cameras(tmp_path: Path) -> None:
    out = CameraSnapshot(
        "faces", "gate", 5.5e6, 8, 30, 224, 160, 640, "", -1, 200, 50, False, "full"
    )
    well = replace(out, client="yard", variant="v160", missed=0, served=True, reason="")
    frames = [
        DashboardFrame(at_s, "here", 0, 0, (), (), (), cameras=(out, well), cameras_seen=9)
        for at_s in (1.0, 2.0)
    ]
    document = shown(tmp_path, frames)
    for name, wanted in {
        "client": ["gate", "yard"],
        "dnn": ["\u2013", "v160"],
        "uplink_rate": ["5.5 Mbit/s"] * 2,
        "sides": ["224 → 160 px"] * 2,
        "pace": ["30.0 of 8.0 /s"] * 2,
        "missed": ["25.0 %", "0.0 %"],
        "because": ["left out: full", ""],
        "cameras_seen": ["\u2013 2 of 9"],
    }.items():
        # The last one may be the row as the script has it, without values.
        assert browser.texts(document, name)[: len(wanted)] == wanted


def test_a_frame_has_the_batches_once_somebody_looks(server: Server) -> None:
    load(server, "emulated", rate=60, seconds=2)

    def batches() -> list[tuple[float, float]]:
        frame = json.loads(server.page("frame"))
        return [
            (batch["end_s"] - batch["start_s"], frame["at_s"] - batch["end_s"])
            for backend in frame["backends"]
            for batch in backend["batches"]
        ]

    wait_until(lambda: bool(batches()), 10)
    assert all(run_s > 0 and ago_s >= 0 for run_s, ago_s in batches())


def test_top_looks_once(server: Server) -> None:
    command = [sys.executable, "-m", "fermata.commands.main", "top", "--once"]
    command += ["--control", f"127.0.0.1:{server.port}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "emulated" in done.stdout
    assert "backend" in done.stdout
