"""Several routers in one deployment: what they carry together.

Rates are by CPU time of the routers, so that neither generators nor a busy machine count. Each
router is the production one, on links and a clock of the benchmark's own, and requests find it by
the directory in a frontend's request table. What each has heard is played to it again, alone: it
has a core's caches to itself then, as in a process of its own.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from benchmarks.figures import Figure, run_parts
from benchmarks.live_server import ROOT
from fermata.deployments.frontend.requests.pending_request import RequestTerms, ToRouter
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation import native
from fermata.foundation.units import NEVER, SECOND, ms, seconds
from fermata.router.assembly import RouterConfig
from fermata.router.compiled import build
from fermata.router.leadership.actor import quiet_gc
from fermata.router.links.closing import CloseCode
from fermata.router.links.directory import Directory, Home
from fermata.router.links.messages import (
    PROTOCOL,
    Done,
    Dropped,
    Hello,
    Message,
    Ready,
    Result,
    Run,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.live.snapshot import snapshot_in_slices
from fermata.router.policies.application import ApplicationSpec, VariantSpec

PARTS = {
    "rate": "requests by CPU time of 1, 2 and 4 routers",
    "large": "800 models on 1,000 backends in 20 sub-clusters, batches of one",
    "compiled": "both with the compiled router, which takes minutes to build",
}
COMPILED = ("rate", "large")
"""Parts that are measured with the compiled router too."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Models and backends of each router."""

    models: int
    backends: int
    table: tuple[int, ...]
    """Run times by batch size."""

    @property
    def full_rps(self) -> float:
        """The rate that backends do with full batches."""
        return self.backends * len(self.table) * SECOND / self.table[-1]


BATCHES = Shape(20, 64, tuple(ms(5) + ms(1) * size // 2 for size in range(1, 33)))
"""l(b) = 5 + b / 2 ms, batches up to 32."""
ONES = Shape(40, 50, (ms(5),))
LARGE = 20
"""Sub-clusters of these, for 800 models and 1,000 backends."""
SLO_NS = ms(100)
TICK_NS = ms(1)
"""Requests of one tick come in one frame."""
LOAD = 0.7
"""Share of the rate that backends do with full batches."""
SPAN_S, QUICK_S, WARM_S = 1.0, 0.1, 0.1
REPLAYS = 3
SCRAPE_NS = SECOND
GOALS = {2: 1.9, 4: 3.6}
BATCH_US_MAX, EVENT_MS_MAX, COMPILED_RPS = 60.0, 2.0, 60_000.0


Heard = tuple[int, tuple[str, int] | None, list[Message]]
"""When a router heard what, and from whom; nobody stands for its own timer."""


class Peer:
    """The other end of a router's link."""

    def __init__(self, cluster: "SubCluster", role: str, number: int) -> None:
        self.peer = Hello(PROTOCOL, role, number, 0, "here:1", "node")
        self.cluster = cluster
        self.free_at_ns = 0

    def send(self, message: Message) -> None:
        if self.cluster.replayed:
            return
        if isinstance(message, Run):
            self.cluster.on_run(self, message)
        elif isinstance(message, Dropped):
            world = self.cluster.world
            world.table.on_dropped(world.now_ns, message, self.cluster.number)

    def flush(self) -> None: ...
    def close(self, code: CloseCode = CloseCode.OTHER, detail: str = "") -> None: ...


class SubCluster:
    """A router with its backends, in virtual time."""

    def __init__(
        self, world: "World", number: int, names: Sequence[str], replayed: bool = False
    ) -> None:
        self.world = world
        self.number = number
        self.names = names
        self.replayed = replayed
        """Whether all that happens has been heard before, and nobody listens."""
        self.heard: list[Heard] = []
        self.cpu_ns = 0
        self.longest_ns = 0
        self.requests = self.batches = 0
        self.soon: deque[Callable[[], None]] = deque()
        self.ends: list[tuple[int, int, Peer, Run]] = []
        self.wake_at_ns = NEVER
        applications = tuple(
            ApplicationSpec(name, SLO_NS, (VariantSpec(f"{name}-1", world.shape.table),))
            for name in names
        )
        config = RouterConfig(applications, lead_ns=0, fair_shares=True)
        self.router = LiveRouter(
            config, number + 1, lambda: world.now_ns, self.soon.append, self._timer
        )
        self.frontend = Peer(self, "frontend", 1)
        backends = [Peer(self, "backend", each + 1) for each in range(world.shape.backends)]
        self.peers = {("frontend", 1): self.frontend}
        self.router.on_up(self.frontend)
        for backend in backends:
            self.peers["backend", backend.peer.number] = backend
            self.router.on_up(backend)
            if not replayed:
                self.hear(backend, [Ready("gpu", tuple(self.router.built.variants))])

    def _timer(self, call: Callable[[], None]) -> "SubCluster":
        self.on_time = call
        return self

    def set(self, at_ns: int) -> None:
        self.wake_at_ns = at_ns

    def close(self) -> None: ...

    def on_run(self, backend: Peer, run: Run) -> None:
        run_ns = self.world.shape.table[len(run.rids) - 1]
        backend.free_at_ns = max(backend.free_at_ns, self.world.now_ns) + run_ns
        heappush(self.ends, (backend.free_at_ns, run.batch, backend, run))

    def hear(self, link: Peer, messages: list[Message]) -> None:
        self._note((link.peer.role, link.peer.number), messages)
        self._call(lambda: self.router.on_messages(link, messages))

    def wake(self) -> None:
        """Tell the router that its time has come."""
        self._note(None, [])
        self._call(self.on_time)

    def _note(self, peer: tuple[str, int] | None, messages: list[Message]) -> None:
        # What is kept for nothing makes garbage collections, which count as a router's event.
        if self.world.replays:
            self.heard.append((self.world.now_ns, peer, messages))

    def replay(self, from_ns: int) -> float:
        """Requests by nanosecond of a router that hears the same again, counted from a time on."""
        self.world.now_ns = 0
        router = SubCluster(self.world, self.number, self.names, replayed=True)
        next_scrape_ns = SCRAPE_NS
        for at_ns, peer, messages in self.heard:
            self.world.now_ns = at_ns
            if at_ns < from_ns:
                router.cpu_ns = 0
            while next_scrape_ns <= at_ns:
                router.scrape()
                next_scrape_ns += SCRAPE_NS
            if peer is None:
                router.wake()
            else:
                router.hear(router.peers[peer], messages)
        return self.requests / router.cpu_ns

    def _call(self, event: Callable[[], None]) -> None:
        began_ns = time.thread_time_ns()
        event()
        while self.soon:
            self.soon.popleft()()
        took_ns = time.thread_time_ns() - began_ns
        self.cpu_ns += took_ns
        self.longest_ns = max(self.longest_ns, took_ns)

    def scrape(self) -> None:
        """Tell the counters, as a router does between other events: a slice at a time."""
        slices = snapshot_in_slices(self.router)
        ended = False

        def take() -> None:
            nonlocal ended
            ended = next(slices, self) is self

        while not ended:
            self._call(take)

    def next_at_ns(self) -> int:
        return min(self.ends[0][0] if self.ends else NEVER, self.wake_at_ns)

    def step(self) -> None:
        """The next thing that happens here."""
        if self.ends and self.ends[0][0] <= self.wake_at_ns:
            _, _, backend, run = heappop(self.ends)
            self.hear(backend, [Done(run.batch, self.world.shape.table[len(run.rids) - 1], 0)])
            for rid in run.rids:
                result = Result(rid, run.variant, len(run.rids), 0, 0)
                self.world.table.on_result(self.world.now_ns, backend.peer.number, result)
            self.requests += len(run.rids)
            self.batches += 1
        else:
            self.wake_at_ns = NEVER
            self.wake()


class World:
    """A frontend and sub-clusters that are all alike, each with as much load as one has alone; with
    models of their own, or with one application that lives in all of them."""

    def __init__(
        self, count: int, spread: bool = False, shape: Shape = BATCHES, replays: bool = True
    ) -> None:
        """`replays`: what routers hear is kept, to be heard again."""
        self.now_ns = 0
        self.replays = replays
        self.shape = shape
        self.rate_rps = LOAD * shape.full_rps * count
        models = 1 if spread else shape.models * count
        self.names = [f"m{number}" for number in range(models)]
        homes = {
            name: tuple((home, 1 / count) for home in range(count)) if spread else ((at, 1.0),)
            for name, at in zip(self.names, itertools.cycle(range(count)), strict=False)
        }
        self.table = RequestTable(1, TableLimits(requests_max=10**9), count)
        self.clusters = [
            SubCluster(
                self,
                number,
                [name for name, at in homes.items() if number in dict(at)],
            )
            for number in range(count)
        ]
        for number in range(count):
            self.table.on_router_up(0, number + 1, number)
        self.table.on_directory(0, Directory(1, tuple(map(Home, range(count))), homes))

    def play(self, span_s: float, seed: int) -> None:
        """Poisson requests, in one frame a tick for each router."""
        rng = np.random.default_rng(seed)
        for _ in range(int(span_s * SECOND / TICK_NS)):
            until_ns = self.now_ns + TICK_NS
            while True:
                cluster = min(self.clusters, key=SubCluster.next_at_ns)
                if cluster.next_at_ns() > until_ns:
                    break
                self.now_ns = max(self.now_ns, cluster.next_at_ns())
                cluster.step()
            self.now_ns = until_ns
            if until_ns % SCRAPE_NS == 0:
                for cluster in self.clusters:
                    cluster.scrape()
            came = int(rng.poisson(self.rate_rps * TICK_NS / SECOND))
            for model in rng.integers(0, len(self.names), came).tolist():
                self.table.admit(self.now_ns, RequestTerms(self.names[model], SLO_NS, SLO_NS, 1))
            said: list[list[Message]] = [[] for _ in self.clusters]
            for effect in self.table.take_effects():
                if isinstance(effect, ToRouter):
                    said[effect.home].append(effect.message)
            for cluster, messages in zip(self.clusters, said, strict=True):
                if messages:
                    cluster.hear(cluster.frontend, messages)

    def measure(self, span_s: float) -> None:
        """Play, and count from when all is warm."""
        self.play(WARM_S, seed=1)
        quiet_gc()
        for cluster in self.clusters:
            cluster.cpu_ns = cluster.longest_ns = cluster.requests = cluster.batches = 0
        self.play(span_s, seed=2)

    def carried_rps(self, span_s: float) -> float:
        """Requests a second that all routers carry, with a core for each."""
        self.measure(span_s)
        quiet_gc()
        # Whatever else the machine does only adds to the CPU time of the same events.
        replays = (
            max(each.replay(seconds(WARM_S)) for _ in range(REPLAYS)) for each in self.clusters
        )
        return sum(replays) * SECOND


def measure_rates(quick: bool) -> Iterator[Figure]:
    span_s = QUICK_S if quick else SPAN_S
    for spread in (False, True):
        what = "one application" if spread else f"{BATCHES.models} models each"
        alone = World(1, spread).carried_rps(span_s)
        name = f"{what}, {BATCHES.backends} backends each, 1 router: requests a CPU-second"
        yield Figure(name, alone, "req/s", COMPILED_RPS if is_compiled() and not spread else 0.0)
        for count, goal in GOALS.items():
            rate = World(count, spread).carried_rps(span_s) / alone
            yield Figure(f"  {count} routers, a core each: over that", rate, "x", goal)


def measure_large(quick: bool) -> Iterator[Figure]:
    """Each router sees its own part alone, however many there are."""
    world = World(LARGE, shape=ONES, replays=False)
    world.measure(QUICK_S if quick else SPAN_S)
    batches = sum(each.batches for each in world.clusters)
    each_us = sum(each.cpu_ns for each in world.clusters) / batches / 1e3
    longest_ms = max(each.longest_ns for each in world.clusters) / 1e6
    models, backends = LARGE * ONES.models, LARGE * ONES.backends
    name = f"{models} models, {backends:,} backends, {LARGE} sub-clusters: CPU a batch of one"
    goal = BATCH_US_MAX if is_compiled() else float("inf")
    yield Figure(name, each_us, "us", goal, at_most=True)
    yield Figure("  longest event of a router", longest_ms, "ms", EVENT_MS_MAX, at_most=True)


def is_compiled() -> bool:
    return native.installed()


def measure_compiled(quick: bool) -> Iterator[Figure]:
    """The same figures of a process with the compiled router."""
    build()
    only = [word for part in COMPILED for word in ("--only", part)]
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.clusters", "--json", *only, *(["--quick"] * quick)],
        env={**os.environ, **native.USE},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for row in json.loads(told):
        del row["reached"]
        yield Figure(
            **{**row, "figure": f"compiled: {row['figure']}"}, at_most=row["unit"] in UP_TO
        )


UP_TO = ("us", "ms")
"""Units of figures whose goals are upper bounds."""


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    if "rate" in parts:
        yield from measure_rates(quick)
    if "large" in parts:
        yield from measure_large(quick)
    if "compiled" in parts:
        yield from measure_compiled(quick)


if __name__ == "__main__":
    run_parts("Several routers", measure, PARTS, asked=("compiled",))
