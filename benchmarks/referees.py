"""Load generators that are not ours, on a server of two emulated backends; see `benchmarks.live`.

MLPerf's LoadGen (`pip install mlcommons-loadgen`) decides when each query is due, and takes the
latencies. Its p99 and rate stand beside those of our own generator, at the same rate.
"""

import asyncio
import multiprocessing
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, run
from benchmarks.live_load import SLO_NS, STREAMS, TARGET, WARMUP_S, by_stream, load
from benchmarks.live_server import fermata
from fermata.clients.load.connection import OK, RequestLane
from fermata.clients.load.sender import own_part, shared_part
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import seconds

RATE_RPS = 400
DURATION_S, QUICK_S = 20.0, 5.0
AGREES = 0.05
"""Difference of two generators, as a share, below which they say the same."""
SAMPLES = 64
"""Inputs that LoadGen draws from; all are alike here."""
LINE = re.compile(r"^(?P<what>[^:]+?)\s*:\s*(?P<value>.+?)\s*$")
P99, COMPLETED = "99.00 percentile latency (ns)", "Completed samples per second"


@dataclass(frozen=True, slots=True)
class Verdict:
    """LoadGen's verdict on a server."""

    p99_ms: float
    completed_rps: float
    refused: int
    """Queries that the server has answered without a result; LoadGen does not tell them apart."""


class Queries:
    """Sends LoadGen's queries on streams of our own, from a loop in a thread of its own."""

    def __init__(self, loadgen: Any, server: str) -> None:
        self.loadgen = loadgen
        self.tail_s = SLO_NS / 1e9 + 1
        self.shared = shared_part(TARGET)
        self.refused = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.lanes = [RequestLane(self, server) for _ in range(STREAMS)]
        self._wait_for(asyncio.gather, *(lane.connect() for lane in self.lanes))

    def _wait_for(self, call: Any, *given: Any) -> None:
        async def work() -> None:
            await call(*given)

        asyncio.run_coroutine_threadsafe(work(), self.loop).result()

    def issue(self, samples: list[Any]) -> None:
        """Called by LoadGen, from a thread of its own, when these are due."""
        for sample in samples:
            lane = self.lanes[sample.id % len(self.lanes)]
            self.loop.call_soon_threadsafe(lane.put, sample.id)

    def message(self, index: int) -> bytes:
        return self.shared + own_part(index, 0)

    def answer(self, request_id: str, outcome: str, message: str, batch: int) -> None:
        self.refused += outcome != OK
        done = self.loadgen.QuerySampleResponse(int(request_id), 0, 0)
        self.loadgen.QuerySamplesComplete([done])

    def close(self) -> None:
        for lane in self.lanes:
            self._wait_for(lane.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def judge(server: str, rate_rps: float, duration_s: float, folder: str) -> Verdict:
    """Drive a server by LoadGen's Server scenario; its logs go to `folder`."""
    try:
        loadgen: Any = import_module("mlperf_loadgen")
    except ImportError:
        raise ConfigError("LoadGen is not here: pip install mlcommons-loadgen") from None
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate_rps
    settings.server_target_latency_ns = SLO_NS
    settings.min_duration_ms = int(1000 * duration_s)
    settings.min_query_count = int(rate_rps * duration_s)
    logs = loadgen.LogSettings()
    logs.log_output.outdir = folder
    logs.log_output.copy_summary_to_stdout = False
    queries = Queries(loadgen, server)
    system = loadgen.ConstructSUT(queries.issue, _nothing)
    library = loadgen.ConstructQSL(SAMPLES, SAMPLES, _nothing, _nothing)
    try:
        loadgen.StartTestWithLogSettings(system, library, settings, logs)
    finally:
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)
        queries.close()
    said = read_summary((Path(folder) / "mlperf_log_summary.txt").read_text())
    return Verdict(float(said[P99]) / 1e6, float(said[COMPLETED]), queries.refused)


def _nothing(*given: Any) -> None:
    """LoadGen asks for samples to be loaded, and for queries to be flushed."""


def read_summary(text: str) -> dict[str, str]:
    """Figures of LoadGen's summary, by the words before the colon."""
    found = [LINE.match(line) for line in text.splitlines()]
    return {each["what"]: each["value"] for each in found if each is not None}


def measure(quick: bool) -> Iterator[Figure]:
    duration_s = QUICK_S if quick else DURATION_S
    with fermata() as server, tempfile.TemporaryDirectory() as folder:
        # The first requests meet cold caches, whoever sends them.
        load(server, RATE_RPS, WARMUP_S, by_stream)
        ours = load(server, RATE_RPS, duration_s, by_stream)
        # LoadGen keeps state of the process that it runs in.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            given = (server.address, RATE_RPS, duration_s, os.fspath(folder))
            theirs = pool.apply(judge, given)
    p99_ms = ours.report.latency_ms["p99"] or 0.0
    # LoadGen counts whatever is answered, however late.
    counted = ours.ledger.mask(OK) & (ours.ledger.scheduled_ns >= seconds(WARMUP_S))
    answered_rps = float(counted.sum()) / duration_s
    yield Figure("our generator: p99", p99_ms, "ms", SLO_NS / 1e6, at_most=True)
    yield Figure("LoadGen, Server: p99", theirs.p99_ms, "ms", SLO_NS / 1e6, at_most=True)
    apart = abs(theirs.p99_ms / p99_ms - 1) if p99_ms else 1.0
    yield Figure("  apart from ours by", apart, "share", AGREES, at_most=True)
    yield Figure("our generator: answered", answered_rps, "req/s", 0)
    yield Figure("LoadGen, Server: completed", theirs.completed_rps, "req/s", 0)
    apart = abs(theirs.completed_rps / answered_rps - 1) if answered_rps else 1.0
    yield Figure("  apart from ours by", apart, "share", AGREES, at_most=True)
    yield Figure("  refused", theirs.refused, "requests", 0, at_most=True)


if __name__ == "__main__":
    run("Generators that are not ours", measure)
