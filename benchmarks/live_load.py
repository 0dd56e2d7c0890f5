"""Loads on a server of two emulated backends, l(b) = 5 + b ms, SLO 50 ms, inputs of 20 KB."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.calm import undisturbed
from benchmarks.http_load import HttpOptions, HttpSender, post
from benchmarks.live_server import Running
from benchmarks.search import Good
from fermata.clients.load.arrivals import poisson, single
from fermata.clients.load.ledger import LoadLedger
from fermata.clients.load.report import LoadReport, report
from fermata.clients.load.run import START_NS, run_load
from fermata.clients.load.sender import Sender, SenderOptions, Target
from fermata.clients.wire.tensors import RawTensor
from fermata.foundation.units import ms, seconds

SLO_NS = ms(50)
BAD_RATE_MAX = 0.01
WARMUP_S = 1.5
STREAMS = 8
CONNECTIONS = 256
TARGET = Target("emulated", RawTensor("input", "UINT8", (20_000,), bytes(20_000)), SLO_NS)
Sending = tuple[SenderOptions, type[Sender]]
Way = Callable[[Running], Sending]
"""How requests travel to that server."""


@dataclass(frozen=True, slots=True)
class Load:
    """What became of a load."""

    report: LoadReport
    ledger: LoadLedger


@dataclass(slots=True)
class Watch:
    """CPU time and the router's counters over the steady part of a load."""

    server: Running
    wait_s: float
    length_s: float
    cpu_s: float = 0.0
    """Of frontend, router and backends together, a second."""
    idle: float = 0.0
    """Share of the backends' time without a batch."""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        time.sleep(self.wait_s)
        before, cpu_s, from_s = _rank(self.server), self.server.cpu_s(), time.monotonic()
        time.sleep(self.length_s)
        spent_s = sum(self.server.cpu_s().values()) - sum(cpu_s.values())
        self.cpu_s = spent_s / (time.monotonic() - from_s)
        after = _rank(self.server)
        busy_ns, up_ns = (after[name] - before[name] for name in before)
        self.idle = 1 - busy_ns / up_ns


def _rank(server: Running) -> dict[str, int]:
    rank = server.status()["ranks"][0]
    return {name: int(rank[name]) for name in ("backend_busy_ns", "backend_up_ns")}


def by_stream(server: Running) -> Sending:
    return SenderOptions(server.address, STREAMS), Sender


def by_unary(server: Running) -> Sending:
    return SenderOptions(server.address, STREAMS, unary=True), Sender


def by_http(server: Running) -> Sending:
    """The input as the body of a POST, one request at a time on each connection."""
    request = post("/", bytes(TARGET.tensor.data), "application/octet-stream")
    address = f"127.0.0.1:{server.status_port}"
    return HttpOptions(address, CONNECTIONS, requests=(request,)), HttpSender


def load(server: Running, rate_rps: float, seconds_s: float, way: Way = by_stream) -> Load:
    """Poisson arrivals at that rate, on a machine that is left alone."""
    return undisturbed(lambda: _load(server, rate_rps, seconds_s, way))


def _load(server: Running, rate_rps: float, seconds_s: float, way: Way) -> Load:
    total_ns = seconds(WARMUP_S + seconds_s)
    due = single(poisson(rate_rps, total_ns, np.random.default_rng(int(rate_rps))))
    options, kind = way(server)
    found = run_load(options, [TARGET], due, kind=kind)
    result = report(found, np.array([SLO_NS]), seconds(WARMUP_S), total_ns)
    return Load(result, found)


def watched(server: Running, rate_rps: float, seconds_s: float, way: Way = by_stream) -> Watch:
    def probe() -> Watch:
        # The sender's process has to start first.
        watch = Watch(server, WARMUP_S + 1 + START_NS / 1e9, seconds_s - 1)
        _load(server, rate_rps, seconds_s + 0.5, way)
        watch.thread.join()
        return watch

    return undisturbed(probe)


def serves(server: Running, seconds_s: float, tries: int, way: Way = by_stream) -> Good:
    """Whether a rate is served; a hiccup of the machine gets another try."""

    def good(rate_rps: float) -> bool:
        return any(
            load(server, rate_rps, seconds_s, way).report.bad_rate <= BAD_RATE_MAX
            for _ in range(tries)
        )

    return good
