"""Structured logs: JSON lines that can be joined by ids, and nothing at all where nobody asked."""

import json
import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from router_world import LEFT, LOST, World, rid

from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.observers import RequestObservers, observe_with
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.frontend.requests.request_log import RequestLog
from fermata.deployments.frontend.requests.tracing.traces import Tracer
from fermata.foundation import logs
from fermata.foundation.logs import LOG, LineHandler, LogOptions, debugging, fields, start_logs
from fermata.foundation.units import NEVER, ms
from fermata.router.links.messages import Done, Fetch, Ready, Result
from fermata.router.telemetry.batch_log import LoggedMeters

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CATS = RequestTerms("cats", ms(50), ms(50), 1)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    handlers, level, propagate = list(LOG.handlers), LOG.level, LOG.propagate
    yield
    for handler in [each for each in LOG.handlers if each not in handlers]:
        LOG.removeHandler(handler)
        handler.close()
    LOG.setLevel(level)
    LOG.propagate = propagate


def lines(folder: Path, process: str = "p") -> list[dict[str, Any]]:
    for handler in LOG.handlers:
        handler.flush()
    path = folder / f"{process}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_line_says_when_who_what_and_its_fields(tmp_path: Path) -> None:
    start_logs("backend-7", LogOptions("info", str(tmp_path)))
    LOG.info("loaded", extra=fields(variant="v", path=Path("/weights")))
    (line,) = lines(tmp_path, "backend-7")
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "process": "backend-7",
        "event": "loaded",
        "variant": "v",
        "path": "/weights",
    }


def test_an_error_comes_with_where_it_was_raised(tmp_path: Path) -> None:
    start_logs("p", LogOptions("error", str(tmp_path)))
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        LOG.exception("went wrong")
    (line,) = lines(tmp_path)
    assert "RuntimeError: boom" in line["error"]
    assert "test_logs.py" in line["error"]


def test_without_debug_nobody_follows_and_nothing_is_formatted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formatted: list[object] = []
    monkeypatch.setattr(logs, "log_line", lambda *given: formatted.append(given))
    start_logs("p", LogOptions("warning", str(tmp_path)))
    assert not debugging()
    assert observe_with([]) is None
    LOG.debug("request", extra=fields(request=1))
    LOG.info("linked")
    assert not formatted


def test_a_folder_that_cannot_be_written_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_logs("p", LogOptions("info", str(tmp_path / "logs")))
    (tmp_path / "logs/p.jsonl").mkdir()
    LOG.warning("said nowhere")
    LOG.handlers[-1].flush()
    assert "logs cannot be written: Is a directory" in capsys.readouterr().err


def test_lines_that_the_disk_does_not_take_in_time_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "WAITING_MAX", 2)
    written: list[str] = []
    handler = LineHandler("p", written.append)
    handler.stopped.set()
    handler.thread.join()
    for number in range(5):
        handler.handle(LOG.makeRecord("", logging.DEBUG, "", 0, f"e{number}", (), None))
    handler.flush()
    told = [json.loads(line) for line in "".join(written).splitlines()]
    assert [line["event"] for line in told] == ["e0", "e1", "lines left out"]
    assert told[-1]["lines"] == 3


def test_a_slow_disk_holds_nobody_up() -> None:
    """Lines above `debug` were written by whoever logs: a router, for as long as the disk took."""
    free, written = threading.Event(), list[str]()

    def write(text: str) -> None:
        free.wait(30)
        written.append(text)

    handler = LineHandler("p", write)
    began_s = time.monotonic()
    for number in range(200):
        handler.handle(logging.LogRecord("", logging.WARNING, "", 0, str(number), None, None))
    assert time.monotonic() - began_s < 5
    free.set()
    handler.close()
    lines = "".join(written).splitlines()
    assert [json.loads(line)["event"] for line in lines] == [str(each) for each in range(200)]


def test_a_line_above_debug_is_there_when_it_was_logged() -> None:
    written: list[str] = []
    handler = LineHandler("p", written.append)
    for number in range(50):
        handler.handle(logging.LogRecord("", logging.ERROR, "", 0, str(number), None, None))
    assert len("".join(written).splitlines()) == 50 or handler.slow
    handler.close()


FULL = """
from fermata.foundation.logs import LOG, LogOptions, start_logs
start_logs("p", LogOptions("info"))
for number in range(20):
    LOG.warning("line %d", number)
print("serves on")
"""


def test_a_full_disk_ends_nothing_where_errors_go_there_too() -> None:
    """Ray keeps standard error in a file. A line that could not be written ended the process."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", FULL],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert done.stdout == "serves on\n"


def test_a_request_a_batch_and_a_drop_can_be_joined(tmp_path: Path) -> None:
    start_logs("p", LogOptions("debug", str(tmp_path)))
    world = World(policy="eager", make_meters=LoggedMeters)
    world.submit(1, 2)
    world.advance(ms(6))
    world.hear(world.backend, Done(1, ms(6), 0))
    # Run time of one is 5 ms.
    world.submit(3, slo_ns=ms(4))
    requests = RequestLog()
    requests.begin(0, rid(1), CATS, PARENT, "frame 12")
    requests.on_fetch(ms(1), 5, Fetch(1, (rid(1), rid(2))))
    requests.end(ms(60), rid(1), Result(rid(1), "v", 2, 0, ms(6)))
    told = {line["event"]: line for line in lines(tmp_path)}
    request, batch = told["request"], told["dispatched"]
    assert request["batch"] == batch["batch"] == told["done"]["batch"] == 1
    assert request["request"] in batch["requests"]
    assert request["backend"] == batch["backend"] == 5
    assert request["called"] == "frame 12"
    assert request["trace"] in PARENT
    assert (request["outcome"], request["latency_ms"], request["slo_ms"]) == ("ran-late", 60, 50)
    assert (batch["variant"], batch["size"], batch["start_in_ms"]) == ("v", 2, 0)
    assert told["done"]["slack_ms"] == 14
    assert (told["dropped"]["request"], told["dropped"]["reason"]) == (str(rid(3)), "late")


def test_a_refusal_is_a_line_with_or_without_an_id(tmp_path: Path) -> None:
    start_logs("p", LogOptions("debug", str(tmp_path)))
    requests = RequestLog()
    refusal = Refusal("UNAVAILABLE", "draining", "draining: reconnect")
    requests.refuse("cats", refusal)
    requests.begin(0, 1, RequestTerms("cats", ms(50), ms(50), 1, left_ns=NEVER), "", "")
    requests.end(ms(3), 1, refusal)
    first, second = lines(tmp_path)
    assert "request" not in first
    assert first["outcome"] == second["outcome"] == "draining"
    assert not requests.open


def test_traces_and_logs_follow_side_by_side() -> None:
    tracer, requests = Tracer(1.0, random.Random(1)), RequestLog()
    both = observe_with([tracer, requests])
    assert isinstance(both, RequestObservers)
    both.begin(0, 1, CATS, "", "")
    both.on_payload(1, 1)
    both.on_fetch(2, 5, Fetch(9, (1,)))
    both.on_result(3, 1)
    assert requests.open[1].batch == tracer.open[1].batch == 9
    both.end(4, 1, Result(1, "v", 1, 0, 1))
    assert tracer.take()
    assert not requests.open


def test_a_lost_backend_is_a_warning_and_one_that_leaves_is_not(tmp_path: Path) -> None:
    start_logs("p", LogOptions("info", str(tmp_path)))
    world = World()
    world.router.on_down(world.backend, LEFT)
    again = world.link("backend", 6)
    world.hear(again, Ready("emulated", ("v",)))
    world.router.on_down(again, LOST)
    told = [(line["level"], line["event"], line["backend"]) for line in lines(tmp_path)]
    assert told == [
        ("info", "backend up", 5),
        ("info", "backend gone", 5),
        ("info", "backend up", 6),
        ("warning", "backend gone", 6),
    ]
