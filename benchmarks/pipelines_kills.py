"""Kills backends in the middle of a batch of each stage; the client's ledger is the judge."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure
from benchmarks.kills import BACKENDS, loaded, recovered, unanswered
from benchmarks.live_server import Running, fermata

MARKS = "STAGE_MARKS"
"""Environment variable: the folder in which models note that they run."""
STAGES = ("first", "second")
SLO_MS = 3000
RATE_RPS = 20.0
LOAD_S, KILL_AFTER_S = 7.0, 1.5
RUN_S = 0.06
"""Of a batch: long enough to be killed in it."""
WAIT_S = 60.0
BATCH_MAX = 8


@dataclass(frozen=True, slots=True)
class Struck:
    """Queries of one load, in which a backend was killed."""

    sent: int
    unanswered: int
    twice: int
    bad: int


def mark(stage: str) -> None:
    """Note that this process runs a batch of a stage; for models."""
    folder = Path(os.environ[MARKS])
    own = folder / f"{stage}-{os.getpid()}"
    own.write_text(str(os.getpid()))
    own.rename(folder / stage)


def kill_in(stage: str, folder: Path) -> None:
    """Kill the process that next runs a batch of a stage."""
    told = folder / stage
    told.unlink(missing_ok=True)
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        with suppress(FileNotFoundError):
            os.kill(int(told.read_text()), signal.SIGKILL)
            return
        time.sleep(0.002)
    raise AssertionError(f"no batch of {stage} ran within {WAIT_S:g} s")


def _load(stage: str) -> Callable[[Any], Any]:
    def run(batch: Any) -> Any:
        mark(stage)
        time.sleep(RUN_S)
        return np.zeros((len(batch), 1), np.float32)

    return run


def load_first() -> Callable[[Any], Any]:
    return _load("first")


def load_second() -> Callable[[Any], Any]:
    return _load("second")


def three(result: Any) -> list[Any]:
    """Three inputs of one result."""
    return [np.zeros(4, np.float32)] * 3


def _application(stage: str) -> dict[str, Any]:
    model = f"{__name__}:load_{stage}"
    latency_ms = [1e3 * RUN_S + 1.0] * BATCH_MAX
    return {
        "name": stage,
        "slo_ms": SLO_MS,
        "input": {"name": "input", "dtype": "FP32", "shape": [4]},
        "variants": [{"name": f"{stage}-v", "model": model, "latency_ms": latency_ms}],
    }


def strike(server: Running, stage: str, folder: Path) -> Struck:
    """One kill in the middle of a load."""
    with loaded(server, LOAD_S, rate_rps=RATE_RPS, model="pipeline", first=STAGES[0]) as found:
        time.sleep(KILL_AFTER_S)
        kill_in(stage, folder)
    ledger, twice = found[0]
    took_ns = ledger["answered_ns"] - ledger["scheduled_ns"]
    good = (ledger["outcome"] == "OK") & (took_ns <= SLO_MS * 1e6)
    return Struck(len(good), unanswered(ledger), twice, int((~good).sum()))


def kill_figures(times: int) -> Iterator[Figure]:
    """So many kills at each stage."""
    second = {"application": "second", "transform": f"{__name__}:three"}
    pipeline = {"name": "pipeline", "slo_ms": SLO_MS}
    config: dict[str, Any] = {
        "applications": [_application(stage) for stage in STAGES],
        "pipelines": [{**pipeline, "stages": [{"application": "first"}, second]}],
        "backend": {"count": BACKENDS, "device": "cpu", "cpus": 0.1},
    }
    with tempfile.TemporaryDirectory() as name:
        os.environ[MARKS] = name
        with fermata(**config) as server:
            for stage in STAGES:
                found: list[Struck] = []
                for _ in range(times):
                    recovered(server)
                    found.append(strike(server, stage, Path(name)))
                    print(f"{stage}, {len(found)}: {found[-1]}", file=sys.stderr)
                yield from summed(stage, found)


def summed(stage: str, found: list[Struck]) -> Iterator[Figure]:
    told = f"{stage} stage killed {len(found)} times, {sum(each.sent for each in found)} queries"
    rows = {
        "without an answer": (sum(each.unanswered for each in found), 0.0),
        "answered twice": (sum(each.twice for each in found), 0.0),
        "refused or late": (sum(each.bad for each in found), float("inf")),
    }
    for what, (value, goal) in rows.items():
        yield Figure(f"{told}: {what}", value, "", goal, at_most=True)
