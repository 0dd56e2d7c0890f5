"""A simulated run on the page: the record holds the report's own figures, and is served."""

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fermata.commands.view import Record, make_server
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND
from fermata.router.telemetry.dashboard_frames import write_frames
from fermata.simulator.reports.record import Recorder
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

SCENARIO: dict[str, Any] = {
    "seed": 3,
    "duration_s": 5,
    "warmup_s": 0,
    "backends": 2,
    "rate_rps": 1700,
    "applications": [
        {
            "name": "a",
            "slo_ms": 50,
            "variants": [{"name": "a-1", "alpha_ms": 1, "beta_ms": 5, "accuracy": 0.9}],
        }
    ],
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scenario = read_scenario(SCENARIO)
    found = tmp_path_factory.mktemp("record") / "run.jsonl"
    write_frames(Recorder(scenario, simulate(scenario), "run").frames(), str(found))
    return found


def frames(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_last_frame_has_every_request_of_the_report(path: Path) -> None:
    scenario = read_scenario(SCENARIO)
    result = report(scenario, simulate(scenario))
    (told,) = frames(path)[-1]["applications"]
    assert told["requests"] == result.requests
    bad = sum(told["bad"].values())
    assert told["good"] + bad == result.requests
    assert bad / result.requests == pytest.approx(result.bad_rate)
    assert told["accuracy"] == pytest.approx(0.9)
    assert told["p99_ms"] <= 50


def test_counts_only_grow_and_nothing_is_counted_early(path: Path) -> None:
    seen = 0
    for frame in frames(path):
        (told,) = frame["applications"]
        ended = told["good"] + sum(told["bad"].values())
        assert seen <= ended
        assert ended + frame["queued"] + frame["under_way"] == told["requests"]
        seen = ended


def test_batches_of_a_backend_do_not_overlap(path: Path) -> None:
    for frame in frames(path):
        for backend in frame["backends"]:
            ends_s = 0.0
            for batch in backend["batches"]:
                assert ends_s <= batch["start_s"] + 1 / SECOND
                assert batch["end_s"] <= frame["at_s"]
                ends_s = batch["end_s"]


def test_idleness_is_that_of_the_batches(path: Path) -> None:
    (told,) = frames(path)[2]["sub_clusters"]
    assert told["backends"] == 2
    # More comes than two backends can take.
    assert told["idle"] < 0.1


def test_the_record_is_served_frame_by_frame(path: Path) -> None:
    server = make_server(Record(path), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{url}/", timeout=5) as answer:
            assert "<title>Fermata</title>" in answer.read().decode()
        with urllib.request.urlopen(f"{url}/frame?index=2", timeout=5) as answer:
            frame = json.loads(answer.read())
        assert frame["at_s"] == 3.0
        assert frame["notes"]["count"] == len(frames(path))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_is_no_record_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="holds no frames"):
        Record(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Record(tmp_path / "absent.jsonl")
