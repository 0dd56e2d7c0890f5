"""A live router over millions of batches: does its memory grow, and does any event hold it up?

The production router on links, a clock and a timer of the benchmark's own, with the default
policies: one model has several variants. The load is first a third of what the backends can do,
then three times as much. Each call into the router is timed in CPU time, so that a busy machine
does not matter.
"""

import argparse
import gc
import itertools
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush

import numpy as np

from benchmarks.figures import Figure, run
from benchmarks.live_server import resident_mb
from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.assembly import RouterConfig
from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import (
    PROTOCOL,
    RID_BITS,
    Done,
    Hello,
    Message,
    Ready,
    Run,
    Submit,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.live.subprocess_worker import Then, Work
from fermata.router.policies.application import ApplicationSpec, VariantSpec

BACKENDS, MODELS = 8, 5
TABLE = tuple(ms(4 + size) for size in range(1, 17))
SEVERAL = {"small": (1, 0.70), "middle": (1.5, 0.76), "large": (2, 0.80)}
"""Variants of the last model: run times over the others', and accuracy."""
SLO_NS = ms(50)
SETTLED = 100_000
"""Batches after which memory is to be flat."""
GROWTH_MB_MAX = 2.0
EVENT_MS_MAX = 20.0
FULL_RPS = BACKENDS * 16 * SECOND / TABLE[-1]
"""Rate that the backends carry with full batches."""
LOW, HIGH = 1 / 3, 3.0
SATURATED_S = 5.0
FRONTEND = 1


def application(number: int) -> ApplicationSpec:
    """A model of one variant, or of several."""
    name = f"m{number}"
    if number < MODELS - 1:
        return ApplicationSpec(name, SLO_NS, (VariantSpec(f"{name}-1", TABLE),))
    variants = tuple(
        VariantSpec(f"{name}-{size}", tuple(int(slower * each) for each in TABLE), accuracy=right)
        for size, (slower, right) in SEVERAL.items()
    )
    return ApplicationSpec(name, SLO_NS, variants)


APPLICATIONS = tuple(map(application, range(MODELS)))
RUNS_NS = {variant.name: variant.p50_ns for each in APPLICATIONS for variant in each.variants}


class Peer:
    """The other end of a link; a backend runs what it is given, one batch after the other."""

    def __init__(self, world: "World", role: str, number: int) -> None:
        self.peer = Hello(PROTOCOL, role, number, 0, "here:1", "node")
        self.world = world
        self.free_at_ns = 0

    def send(self, message: Message) -> None:
        if isinstance(message, Run):
            run_ns = RUNS_NS[message.variant][len(message.rids) - 1]
            self.free_at_ns = max(self.free_at_ns, self.world.now_ns) + run_ns
            self.world.on_run(self, message, run_ns)

    def flush(self) -> None: ...
    def close(self, code: CloseCode = CloseCode.OTHER, detail: str = "") -> None: ...


class Alarm:
    """The router's only timer."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.at_ns = NEVER

    def set(self, at_ns: int) -> None:
        self.at_ns = at_ns

    def close(self) -> None:
        self.at_ns = NEVER


class World:
    """Drives a router in virtual time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.batches = 0
        self.ran: Counter[str] = Counter()
        """Batches, by variant."""
        self.longest_ns = 0
        self.soon: deque[Callable[[], None]] = deque()
        self.ends: list[tuple[int, int, Peer, Done]] = []
        self.rids = itertools.count(FRONTEND << RID_BITS)
        self.asked: deque[tuple[Work, Then]] = deque()
        """Tables to be solved, which is done in a process of its own live, and not timed here."""
        self.solved = 0
        alarms: list[Alarm] = []

        def make_timer(call: Callable[[], None]) -> Alarm:
            alarms.append(Alarm(call))
            return alarms[-1]

        config = RouterConfig(APPLICATIONS, lead_ns=0, fair_shares=True)
        clock = lambda: self.now_ns  # noqa: E731
        submit = lambda work, then: self.asked.append((work, then))  # noqa: E731
        self.router = LiveRouter(config, 1, clock, self.soon.append, make_timer, submit)
        (self.alarm,) = alarms
        self.frontend = Peer(self, "frontend", FRONTEND)
        self._call(lambda: self.router.on_up(self.frontend))
        for number in range(BACKENDS):
            backend = Peer(self, "backend", number + 1)
            self._call(partial(self.router.on_up, backend))
            self._hear(backend, Ready("gpu", tuple(self.router.built.variants)))

    def on_run(self, backend: Peer, asked: Run, run_ns: int) -> None:
        self.batches += 1
        self.ran[asked.variant] += 1
        done = Done(asked.batch, run_ns, 0)
        heappush(self.ends, (backend.free_at_ns, asked.batch, backend, done))

    def _hear(self, link: Peer, message: Message) -> None:
        self._call(lambda: self.router.on_messages(link, [message]))

    def _call(self, event: Callable[[], None]) -> None:
        """One event and what it leaves to be done at once."""
        self.soon.append(event)
        while self.soon or self.asked:
            if not self.soon:
                work, then = self.asked.popleft()
                self.soon.append(partial(then, work()))
                self.solved += 1
            began_ns = time.thread_time_ns()
            self.soon.popleft()()
            self.longest_ns = max(self.longest_ns, time.thread_time_ns() - began_ns)

    def play(self, rate_rps: float, is_over: Callable[[], bool], seed: int) -> None:
        """Poisson requests at this rate until it is over."""
        rng = np.random.default_rng(seed)
        while not is_over():
            gaps_ns = rng.exponential(SECOND / rate_rps, 4096)
            models = rng.integers(0, MODELS, 4096)
            for gap_ns, model in zip(gaps_ns.tolist(), models.tolist(), strict=True):
                self._until(self.now_ns + int(gap_ns))
                request = Submit(next(self.rids), f"m{model}", SLO_NS, SLO_NS)
                self._hear(self.frontend, request)

    def _until(self, at_ns: int) -> None:
        """Everything that happens up to then."""
        while True:
            end_ns = self.ends[0][0] if self.ends else NEVER
            next_ns = min(end_ns, self.alarm.at_ns)
            if next_ns > at_ns:
                self.now_ns = at_ns
                return
            self.now_ns = max(self.now_ns, next_ns)
            if end_ns <= self.alarm.at_ns:
                _, _, backend, done = heappop(self.ends)
                self._hear(backend, done)
            else:
                self.alarm.at_ns = NEVER
                self._call(self.alarm.call)


def memory_mb() -> float:
    gc.collect()
    return resident_mb(os.getpid())


def measure(asked: int, quick: bool) -> Iterator[Figure]:
    batches = asked or (200_000 if quick else 5_000_000)
    world = World()
    world.play(LOW * FULL_RPS, lambda: world.batches >= SETTLED, seed=1)
    before_mb = memory_mb()
    world.play(LOW * FULL_RPS, lambda: world.batches >= batches, seed=2)
    grown_mb = memory_mb() - before_mb
    name = f"{batches:,} batches below saturation"
    yield _most(f"{name}: memory after the first {SETTLED:,}", grown_mb, "MB", GROWTH_MB_MAX)
    yield _most(f"{name}: longest event", world.longest_ns / 1e6, "ms of CPU", EVENT_MS_MAX)
    world.longest_ns, until_ns = 0, world.now_ns + int(SATURATED_S * SECOND)
    world.play(HIGH * FULL_RPS, lambda: world.now_ns >= until_ns, seed=3)
    yield _most(
        f"  then {SATURATED_S:g} s at three times what they carry: longest event",
        world.longest_ns / 1e6,
        "ms of CPU",
        EVENT_MS_MAX,
    )
    # What was queued in between is gone once the load falls.
    last = world.batches + SETTLED // 10
    world.play(LOW * FULL_RPS, lambda: world.batches >= last, seed=4)
    left_mb = memory_mb() - before_mb
    yield _most("  and back again: memory left", left_mb, "MB", 2 * GROWTH_MB_MAX)


def _most(name: str, value: float, unit: str, goal: float) -> Figure:
    return Figure(name, value, unit, goal, at_most=True)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--batches", type=int, default=0, help="5,000,000 unless given")
    arguments, _ = parser.parse_known_args()
    run("Growth of a live router", partial(measure, arguments.batches), parser)


if __name__ == "__main__":
    main()
