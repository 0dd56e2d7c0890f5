"""What it costs a server at load that people look at its page and Prometheus scrapes it."""

import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.figures import Figure
from benchmarks.live_load import load
from benchmarks.live_server import Running, fermata

PAGES = 3
"""Open at one time; each asks for a frame a second, as the page does."""
RATE_RPS = 300.0
SHARE_MAX = 0.02
"""Of a core, and of requests that may be worse off."""
BESIDE_SHARE_MAX = 0.05
"""Of a core, in processes that no request passes."""
PASSED = (":Frontend", "RouterActor", ":Backend")
"""What Ray calls the processes that requests pass."""
BESIDE = (":ControlPlane", "ProxyActor")
"""Those that answer whoever looks."""


@contextmanager
def looked_at(server: Running, paths: Sequence[str]) -> Iterator[None]:
    """Ask for each of these once a second, until the block ends."""
    ended = threading.Event()

    def look(path: str) -> None:
        while not ended.wait(1.0):
            url = f"http://127.0.0.1:{server.status_port}/{path}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                answer.read()

    threads = [threading.Thread(target=look, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def at_load(server: Running, seconds_s: float, paths: Sequence[str]) -> tuple[float, float, float]:
    """CPU a second of the processes that requests pass and of those beside, and the bad rate."""
    before, from_s = (server.cpu_of(PASSED), server.cpu_of(BESIDE)), time.monotonic()
    with looked_at(server, paths):
        found = load(server, RATE_RPS, seconds_s)
    took_s = time.monotonic() - from_s
    passed, beside = (
        (server.cpu_of(marks) - spent) / took_s
        for marks, spent in zip((PASSED, BESIDE), before, strict=True)
    )
    return passed, beside, found.report.bad_rate


def measure(quick: bool) -> Iterator[Figure]:
    """The same load by turns with and without lookers, so that a machine that grows slower or
    faster does not count as theirs."""
    seconds_s, turns = (3.0, 1) if quick else (10.0, 3)
    paths = [*["frame"] * PAGES, "metrics"]
    alone: list[tuple[float, float, float]] = []
    seen: list[tuple[float, float, float]] = []
    with fermata() as server:
        for _ in range(turns):
            alone.append(at_load(server, seconds_s, ()))
            seen.append(at_load(server, seconds_s, paths))
    told = f"{PAGES} pages and a scrape a second at {RATE_RPS:g} req/s"
    passed, beside, bad = (
        sum(each[part] for each in seen) / turns - sum(each[part] for each in alone) / turns
        for part in range(3)
    )
    yield _share(f"{told}: more CPU of frontend, router and backends", passed, "% of a core")
    yield _share(
        f"{told}: more CPU of control plane and Serve's proxy",
        beside,
        "% of a core",
        BESIDE_SHARE_MAX,
    )
    yield _share(f"{told}: more bad requests", bad, "%")


def _share(name: str, share: float, unit: str, share_max: float = SHARE_MAX) -> Figure:
    return Figure(name, 100 * share, unit, 100 * share_max, at_most=True)
