"""What looking costs: CPU time that metrics, page and logs take in each process, at 10,000 req/s.

Production objects are fed with a second's worth of batches, and then read as a scrape reads them.
CPU time, so that a busy machine does not matter.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure, run
from fermata.deployments.control.page.history import History
from fermata.deployments.control.page.page_frames import live_frame
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.pending_request import PendingRequest, RequestTerms
from fermata.deployments.frontend.requests.request_log import RequestLog
from fermata.deployments.metrics.families import prometheus_text
from fermata.deployments.specs.status import DeploymentStatus
from fermata.foundation.logs import LOG, LogOptions, debugging, start_logs
from fermata.foundation.precise_timer import PreciseTimer
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.events import Batch, Request
from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import Fetch, FrontendStats, Hello, Message, Ready, Result
from fermata.router.live.driver import LiveRouter
from fermata.router.live.snapshot import take_snapshot
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.telemetry.batch_log import LoggedMeters
from fermata.router.telemetry.meters import Meters
from fermata.router.telemetry.stream_counts import WINDOW, StreamCounts

RATE_RPS = 10_000
BATCH = 8
"""Small, so that what is done once a batch is done often."""
MODELS = 20
BACKENDS = 16
SHARE_MAX = 0.02
"""Of a core."""
LOGGED_SHARE_MAX = 0.5
"""Of a core, where every request and every batch gets a line."""


def config(models: int) -> RouterConfig:
    table = tuple(ms(4 + size) for size in range(1, 33))
    return RouterConfig(
        tuple(
            ApplicationSpec(f"m{number}", ms(50), (VariantSpec(f"m{number}-1", table),))
            for number in range(models)
        )
    )


def cpu_share(work: Callable[[], None], tries: int) -> float:
    """CPU time of what is done in a second; the least of several tries."""
    return min(_cpu_s(work) for _ in range(tries))


def _cpu_s(work: Callable[[], None]) -> float:
    from_s = time.process_time()
    work()
    return time.process_time() - from_s


def batches(clients: int) -> list[Batch]:
    """A second of them; `clients` 0: requests stand alone."""
    found: list[Batch] = []
    for first in range(0, RATE_RPS, BATCH):
        requests = [
            Request(rid, 0, 0, ms(50), client=1 + rid % clients if clients else 0)
            for rid in range(first, first + BATCH)
        ]
        batch = Batch(0, requests)
        batch.batch_id = first + 1
        found.append(batch)
    return found


def router_share(tries: int, clients: int = 0, kind: type[Meters] = Meters) -> float:
    """Of the router: every batch sent and ended."""
    meters = kind(config(1), assemble(config(1)))
    second = batches(clients)

    def work() -> None:
        for number, batch in enumerate(second):
            meters.on_dispatch(0, number % BACKENDS, batch)
            meters.on_done(ms(30), number % BACKENDS, batch, ms(12), ms(1), True)
        write_lines()

    return cpu_share(work, tries)


def streams_share(tries: int) -> float:
    """Of the router: one look at an application with as many streams as are ever counted."""
    counts = StreamCounts()
    for half in (0, 1):
        at_ns, first = half * 2 * WINDOW.half_ns, 1 + half * WINDOW.streams_max
        for client in range(first, first + WINDOW.streams_max):
            for number in range(WINDOW.requests_min):
                counts.count(at_ns, client, number > 0)
    return cpu_share(lambda: void(counts.worst(2 * WINDOW.half_ns)), tries)


def frontend_share(tries: int) -> float:
    """Of a frontend that takes all of it: every answer, and the word to the router."""
    tally = OutcomeCounts()
    arrival = RequestTerms("m0", ms(50), ms(50), 20_000)
    entries = [PendingRequest(rid, arrival, 0, ms(50), ms(50)) for rid in range(RATE_RPS)]
    results = [Result(rid, "m0-1", BATCH, 0, ms(12)) for rid in range(RATE_RPS)]

    def work() -> None:
        for entry, result in zip(entries, results, strict=True):
            tally.serve(ms(30), entry, result)
        tally.take()

    return cpu_share(work, tries)


def request_log_share(tries: int) -> float:
    """Of a frontend that takes all of it: every request followed to its line."""
    arrival = RequestTerms("m0", ms(50), ms(50), 20_000)
    results = [Result(rid, "m0-1", BATCH, 0, ms(12)) for rid in range(RATE_RPS)]
    requests = RequestLog()

    def work() -> None:
        for rid in range(RATE_RPS):
            requests.begin(0, rid, arrival, "", "")
        for first in range(0, RATE_RPS, BATCH):
            requests.on_fetch(ms(5), 1, Fetch(first, tuple(range(first, first + BATCH))))
        for result in results:
            requests.end(ms(30), result.rid, result)
        write_lines()

    return cpu_share(work, tries)


def write_lines() -> None:
    """What a thread does when it serves, where there is anything to write."""
    for handler in LOG.handlers:
        handler.flush()


def logged(share: Callable[[], float]) -> float:
    """The same with lines of `debug`."""
    with TemporaryDirectory() as folder:
        start_logs("process", LogOptions("debug", folder))
        try:
            return share()
        finally:
            start_logs("process", LogOptions("error"))


def log_figures(tries: int) -> Iterator[Figure]:
    """Above `debug` nobody follows requests, and a batch costs a backend one question."""

    def ask() -> None:
        for _ in range(RATE_RPS // BATCH):
            debugging()

    yield _share("logs: backend, a second of batches, not at debug", cpu_share(ask, tries))
    router = logged(lambda: router_share(tries, kind=LoggedMeters))
    yield _share("logs: router, at debug, metrics included", router, LOGGED_SHARE_MAX)
    frontend = logged(lambda: request_log_share(tries))
    yield _share("logs: frontend, at debug", frontend, LOGGED_SHARE_MAX)


class Silent:
    """A link and a timer that nobody listens to."""

    def __init__(self, role: str, number: int) -> None:
        self.peer = Hello(0, role, number, 0, "here:1", "node")

    def send(self, message: Message) -> None: ...
    def flush(self) -> None: ...
    def close(self, code: CloseCode = CloseCode.OTHER, detail: str = "") -> None: ...
    def set(self, at_ns: int) -> None: ...


def busy_router() -> LiveRouter:
    """Twenty models on sixteen backends, with something in every counter."""
    wake: PreciseTimer = Silent("timer", 0)
    router = LiveRouter(config(MODELS), 1, time.monotonic_ns, lambda call: call(), lambda _: wake)
    for number in range(BACKENDS):
        link = Silent("backend", number)
        router.on_up(link)
        router.on_messages(link, [Ready("gpu", tuple(router.built.variants))])
    frontend = Silent("frontend", 1)
    router.on_up(frontend)
    router.on_messages(frontend, [FrontendStats(())])
    for number, batch in enumerate(batches(clients=200)):
        router.meters.on_dispatch(0, number % BACKENDS, batch)
        router.meters.on_done(ms(30), number % BACKENDS, batch, ms(12), ms(1), True)
    return router


def measure(quick: bool) -> Iterator[Figure]:
    tries = 3 if quick else 20
    rate = f"{RATE_RPS:,} req/s in batches of {BATCH}"
    yield _share(f"router, {rate}", router_share(tries))
    yield _share(f"router, {rate}, of 200 streams", router_share(tries, clients=200))
    most = f"router, one look a second at {2 * WINDOW.streams_max:,} streams of one model"
    yield _share(most, streams_share(tries))
    yield _share(f"frontend, {RATE_RPS:,} req/s", frontend_share(tries))
    router = busy_router()
    read = cpu_share(lambda: void(take_snapshot(router)), tries)
    yield _share(f"router, one look a second at {MODELS} models, {BACKENDS} backends", read)
    told = take_snapshot(router)
    history = History()
    status = DeploymentStatus(told, history.bad_rates(told), [0.0])
    page = cpu_share(lambda: void(prometheus_text(status)), tries)
    yield _share("control plane, one scrape a second", page)
    yield from page_figures(router, status, history, tries)
    yield from log_figures(tries)


def page_figures(
    router: LiveRouter, status: DeploymentStatus, history: History, tries: int
) -> Iterator[Figure]:
    """However many look at the page, it is made once a second."""
    names = router.built.variants
    recent = cpu_share(lambda: void(router.meters.recent_batches(ms(40), 0, names)), tries)
    yield _share("page: router, the last batches once a second", recent)
    told = replace(status.router, recent=router.meters.recent_batches(ms(40), 0, names))
    status = replace(status, router=told)
    frame = cpu_share(lambda: void(live_frame(status, history, "here").to_json()), tries)
    yield _share("page: control plane, one frame a second", frame)


def void(value: object) -> None:
    """What was made is of no use here."""


def _share(name: str, share: float, share_max: float = SHARE_MAX) -> Figure:
    return Figure(name, 100 * share, "% of a core", 100 * share_max, at_most=True)


if __name__ == "__main__":
    run("Cost of metrics, page and logs", measure)
