"""Requests that a router carries for a second of CPU time on this machine, by a made-up load.

The production router decides in virtual time, and messages are read and written as links do. Only
sockets are left out.
"""

import gc
import time
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.assembly import RouterConfig
from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import PROTOCOL, Done, Hello, Message, Ready, Run, Submit
from fermata.router.links.session import PREFIX, encode
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec

MODELS, BACKENDS, BATCH_MAX = 8, 16, 16
RUN_NS = tuple(ms(5) + ms(1) * size // 2 for size in range(1, BATCH_MAX + 1))
SLO_NS, TICK_NS = ms(100), ms(1)
LOAD = 0.7
"""Share of what the backends do with full batches."""
PER_TICK = int(LOAD * BACKENDS * BATCH_MAX * TICK_NS / RUN_NS[-1])
"""Requests in one frame of the frontend."""
WARM_TICKS = 30
TRIAL_NS = ms(150)
"""CPU time that the trial takes."""
_decoder = msgspec.msgpack.Decoder(list[Message])


class _Peer:
    """The other end of a link; what it is sent is encoded, as a transport does once a turn."""

    def __init__(self, trial: "_Trial", role: str, number: int) -> None:
        self.peer = Hello(PROTOCOL, role, number, 0, "here:1", "node")
        self.trial = trial
        self.free_at_ns = 0
        self.said: list[Message] = []

    def send(self, message: Message) -> None:
        self.said.append(message)
        if isinstance(message, Run):
            self.trial.on_run(self, message)

    def flush(self) -> None:
        if self.said:
            encode(self.said)
            self.said.clear()

    def close(self, code: CloseCode = CloseCode.OTHER, detail: str = "") -> None: ...


class _Trial:
    """A frontend, a router and backends, in virtual time."""

    def __init__(self, cpu_clock: Callable[[], int]) -> None:
        self.cpu_clock = cpu_clock
        self.now_ns = self.cpu_ns = self.answered = self.asked = 0
        self.soon: deque[Callable[[], None]] = deque()
        self.ends: list[tuple[int, int, _Peer, int]] = []
        """(when, batch, backend, size), earliest first."""
        self.wake_at_ns = NEVER
        self.names = [f"model-{number}" for number in range(MODELS)]
        applications = tuple(
            ApplicationSpec(name, SLO_NS, (VariantSpec(f"{name}-1", RUN_NS),))
            for name in self.names
        )
        config = RouterConfig(applications, fair_shares=True)
        self.router = LiveRouter(config, 1, lambda: self.now_ns, self.soon.append, self._timer)
        self.frontend = _Peer(self, "frontend", 1)
        self.router.on_up(self.frontend)
        for number in range(1, BACKENDS + 1):
            backend = _Peer(self, "backend", number)
            self.router.on_up(backend)
            self._hear(backend, [Ready("trial", tuple(self.router.built.variants))])

    def _timer(self, call: Callable[[], None]) -> "_Trial":
        self.on_time = call
        return self

    def set(self, at_ns: int) -> None:
        self.wake_at_ns = at_ns

    def close(self) -> None: ...

    def on_run(self, backend: _Peer, run: Run) -> None:
        size = len(run.rids)
        backend.free_at_ns = max(backend.free_at_ns, self.now_ns) + RUN_NS[size - 1]
        heappush(self.ends, (backend.free_at_ns, run.batch, backend, size))

    def _hear(self, link: _Peer, messages: list[Message]) -> None:
        (frame,) = encode(messages)
        self._count(lambda: self.router.on_messages(link, _decoder.decode(frame[PREFIX:])))

    def _count(self, event: Callable[[], None]) -> None:
        """Have something happen, and count the CPU time of the router alone."""
        began_ns = self.cpu_clock()
        event()
        while self.soon:
            self.soon.popleft()()
        self.cpu_ns += self.cpu_clock() - began_ns

    def tick(self) -> None:
        """A millisecond: what ends and wakes in it, and then one frame of requests."""
        until_ns = self.now_ns + TICK_NS
        while True:
            end_ns = self.ends[0][0] if self.ends else NEVER
            if min(end_ns, self.wake_at_ns) > until_ns:
                break
            self.now_ns = max(self.now_ns, min(end_ns, self.wake_at_ns))
            if end_ns <= self.wake_at_ns:
                _, batch, backend, size = heappop(self.ends)
                self.answered += size
                self._hear(backend, [Done(batch, RUN_NS[size - 1], 0)])
            else:
                self.wake_at_ns = NEVER
                self._count(self.on_time)
        self.now_ns = until_ns
        first, self.asked = self.asked, self.asked + PER_TICK
        rids = range(first, self.asked)
        self._hear(
            self.frontend,
            [Submit(rid, self.names[rid % MODELS], SLO_NS, SLO_NS) for rid in rids],
        )


def carried_rps(
    trial_ns: int = TRIAL_NS, cpu_clock: Callable[[], int] = time.thread_time_ns
) -> float:
    """Requests that a router carries with a whole core; the trial takes about so much CPU time."""
    collects = gc.isenabled()
    # Routers collect between events.
    gc.disable()
    try:
        begin_ns, trial = cpu_clock(), _Trial(cpu_clock)
        for _ in range(WARM_TICKS):
            trial.tick()
        trial.cpu_ns = trial.answered = 0
        while not trial.answered or cpu_clock() - begin_ns < trial_ns:
            trial.tick()
    finally:
        if collects:
            gc.enable()
    return trial.answered * SECOND / max(1, trial.cpu_ns)
