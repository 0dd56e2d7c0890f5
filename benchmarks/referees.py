"""Load generators that are not ours: on a server of two emulated backends (see `benchmarks.live`),
and, where it is asked for, on a GPU box (see `benchmarks.gpu`) at ten times the rate.

MLPerf's LoadGen (`pip install mlcommons-loadgen`) decides when each query is due, and takes the
latencies. Its p99 and rate stand beside those of our own generator, at the same rate.
"""

import asyncio
import multiprocessing
import re
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, run_parts
from benchmarks.live_load import SLO_NS, STREAMS, TARGET, WARMUP_S, by_stream, load
from benchmarks.live_server import fermata
from fermata.clients.load.connection import OK, RequestLane
from fermata.clients.load.ledger import LoadLedger
from fermata.clients.load.report import LoadReport, report
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import SenderOptions, Target, own_part, shared_part
from fermata.clients.wire.tensors import from_array
from fermata.foundation.errors import ConfigError
from fermata.foundation.process_memory import settle_garbage
from fermata.foundation.units import seconds

PARTS = {"emulated": "400 req/s on two emulated backends", "gpu": "4,000 req/s on a GPU"}
RATE_RPS = 400
GPU_RPS = 4_000
"""About what one process of Python can send of 20 KB each."""
GPU_STREAMS = 16
DURATION_S, QUICK_S = 20.0, 5.0
AGREES = 0.05
"""Difference of two generators, as a share, below which they say the same."""
SWITCH_S = 1e-4
"""LoadGen's thread waits for the interpreter at each query, by default until the loop has had it
for 5 ms: those would be counted as the server's."""
TICK_S = 1e-3
"""Between groups of queries while caches are warmed."""
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

    def __init__(self, loadgen: Any, server: str, target: Target, streams: int) -> None:
        self.loadgen = loadgen
        self.tail_s = target.slo_ns / 1e9 + 1
        self.shared = shared_part(target)
        self.refused = 0
        self.due: deque[int] = deque()
        self.sending = False
        """The loop is about to send what is due."""
        self.warming = False
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.lanes = [RequestLane(self, server) for _ in range(streams)]
        self._wait_for(asyncio.gather, *(lane.connect() for lane in self.lanes))

    def _wait_for(self, call: Any, *given: Any) -> None:
        async def work() -> None:
            await call(*given)

        asyncio.run_coroutine_threadsafe(work(), self.loop).result()

    def warm_up(self, rate_rps: float) -> None:
        """Meet cold caches and new connections before LoadGen begins: MLPerf allows that, and our
        own generator does not count its first second either."""
        self.warming = True
        self._wait_for(self._send_evenly, rate_rps)
        self.warming = False

    async def _send_evenly(self, rate_rps: float) -> None:
        sent, begun_s = 0, self.loop.time()
        while (spent_s := self.loop.time() - begun_s) < WARMUP_S:
            while sent < rate_rps * spent_s:
                self.lanes[sent % len(self.lanes)].put(sent)
                sent += 1
            await asyncio.sleep(TICK_S)
        await asyncio.sleep(self.tail_s)

    def issue(self, samples: list[Any]) -> None:
        """Called by LoadGen, from a thread of its own, when these are due."""
        self.due.extend(sample.id for sample in samples)
        if not self.sending:
            self.sending = True
            self.loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        # Before the queue is looked at: what comes from now on asks to be sent by itself.
        self.sending = False
        while self.due:
            number = self.due.popleft()
            self.lanes[number % len(self.lanes)].put(number)

    def message(self, index: int) -> bytes:
        return self.shared + own_part(index, 0)

    def answer(self, request_id: str, outcome: str, message: str, batch: int) -> None:
        if self.warming:
            return
        self.refused += outcome != OK
        done = self.loadgen.QuerySampleResponse(int(request_id), 0, 0)
        self.loadgen.QuerySamplesComplete([done])

    def close(self) -> None:
        for lane in self.lanes:
            self._wait_for(lane.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def judge(server: str, rate_rps: float, duration_s: float, target: Target, streams: int) -> Verdict:
    """Drive a server by LoadGen's Server scenario, in a process that has nothing else to do."""
    sys.setswitchinterval(SWITCH_S)
    settle_garbage()
    with tempfile.TemporaryDirectory() as folder:
        return _judge(server, rate_rps, duration_s, target, streams, folder)


def _judge(
    server: str, rate_rps: float, duration_s: float, target: Target, streams: int, folder: str
) -> Verdict:
    try:
        loadgen: Any = import_module("mlperf_loadgen")
    except ImportError:
        raise ConfigError("LoadGen is not here: pip install mlcommons-loadgen") from None
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate_rps
    settings.server_target_latency_ns = target.slo_ns
    settings.min_duration_ms = int(1000 * duration_s)
    settings.min_query_count = int(rate_rps * duration_s)
    logs = loadgen.LogSettings()
    logs.log_output.outdir = folder
    logs.log_output.copy_summary_to_stdout = False
    queries = Queries(loadgen, server, target, streams)
    queries.warm_up(rate_rps)
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


def emulated(duration_s: float) -> Iterator[Figure]:
    with fermata() as server:
        # The first requests meet cold caches, whoever sends them.
        load(server, RATE_RPS, WARMUP_S, by_stream)
        ours = load(server, RATE_RPS, duration_s, by_stream)
        theirs = apart_from_us(server.address, RATE_RPS, duration_s, TARGET, STREAMS)
    yield from compared(ours.report, ours.ledger, theirs, duration_s, SLO_NS)


def on_gpu(duration_s: float) -> Iterator[Figure]:
    from benchmarks import gpu_figures as gpu
    from benchmarks.gpu_models import need_gpu, seed_files
    from benchmarks.gpu_rows import SIDE, configured
    from benchmarks.gpu_server import GpuServer

    need_gpu()
    model, total_ns = gpu.MODELS[0], seconds(WARMUP_S + duration_s)
    pixels = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE), np.uint8)
    target = gpu.target(model, from_array("input", pixels))
    with tempfile.TemporaryDirectory() as name:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(seed_files, (Path(name), [model]))
        with GpuServer(Path(name), configured(f"torchvision:{model}@{SIDE}", SIDE)) as server:
            server.wait(gpu.FRONTENDS)
            options = SenderOptions(server.grpc, GPU_STREAMS)
            # One process, as LoadGen has.
            for length_ns in (seconds(WARMUP_S), total_ns):
                due = gpu.due(GPU_RPS, length_ns, 1, seed=GPU_RPS)
                ledger = run_load(options, [target], due)
            theirs = apart_from_us(server.grpc, GPU_RPS, duration_s, target, GPU_STREAMS)
    slo_ns = np.array([target.slo_ns])
    ours = report(ledger, slo_ns, seconds(WARMUP_S), total_ns)
    yield from compared(ours, ledger, theirs, duration_s, target.slo_ns)


def apart_from_us(*given: Any) -> Verdict:
    """As `judge`; LoadGen keeps state of the process that it runs in."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: Verdict = pool.apply(judge, given)
    return found


def compared(
    ours: LoadReport, ledger: LoadLedger, theirs: Verdict, duration_s: float, slo_ns: int
) -> Iterator[Figure]:
    p99_ms = ours.latency_ms["p99"] or 0.0
    # LoadGen counts whatever is answered, however late.
    counted = ledger.mask(OK) & (ledger.scheduled_ns >= seconds(WARMUP_S))
    answered_rps = float(counted.sum()) / duration_s
    yield Figure("our generator: p99", p99_ms, "ms", slo_ns / 1e6, at_most=True)
    yield Figure("LoadGen, Server: p99", theirs.p99_ms, "ms", slo_ns / 1e6, at_most=True)
    apart = abs(theirs.p99_ms / p99_ms - 1) if p99_ms else 1.0
    yield Figure("  apart from ours by", apart, "share", AGREES, at_most=True)
    yield Figure("our generator: answered", answered_rps, "req/s", 0)
    yield Figure("LoadGen, Server: completed", theirs.completed_rps, "req/s", 0)
    apart = abs(theirs.completed_rps / answered_rps - 1) if answered_rps else 1.0
    yield Figure("  apart from ours by", apart, "share", AGREES, at_most=True)
    yield Figure("  refused", theirs.refused, "requests", 0, at_most=True)


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    duration_s = QUICK_S if quick else DURATION_S
    if "emulated" in parts:
        yield from emulated(duration_s)
    if "gpu" in parts:
        yield from on_gpu(duration_s)


if __name__ == "__main__":
    run_parts("Generators that are not ours", measure, PARTS, asked=["gpu"])
