"""Heartbeats from a thread of their own: a busy loop must not be taken for dead. The thread also
notices a loop that hangs."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

LOG = logging.getLogger("fermata")
Clock = Callable[[], int]
"""Nanoseconds of a clock that never goes back."""


class HeartbeatTarget(Protocol):
    """A link that can send a heartbeat from any thread."""

    def beat(self) -> None: ...


class LoopWatch:
    """Check at each beat whether an event loop still turns.

    Beats are counted, not time: where a starved machine or a stopped process gives the loop no time
    to run, the thread that beats gets none either.
    """

    def __init__(
        self,
        post: Callable[[Callable[[], None]], object],
        beats_max: int,
        on_hung: Callable[[], None],
    ) -> None:
        """`post` has the loop call something. `on_hung` is called by the thread, after so many
        beats without a sign of the loop."""
        self.post = post
        self.beats_max = beats_max
        self.on_hung = on_hung
        # Each is written by one thread alone.
        self.asked = self.answered = self.unanswered = 0

    def on_beat(self) -> None:
        if self.answered == self.asked:
            self.asked += 1
            self.unanswered = 0
            self.post(self._answer)
            return
        self.unanswered += 1
        if self.unanswered >= self.beats_max:
            self.on_hung()

    def _answer(self) -> None:
        self.answered = self.asked


class HeartbeatThread:
    """One for each process; beats for all of its links, and tells them the time."""

    def __init__(self, every_ns: int, clock: Clock = time.monotonic_ns) -> None:
        self.every_ns = every_ns
        self.clock = clock
        self.lock = threading.Lock()
        self.links: dict[HeartbeatTarget, None] = {}
        self.watch: LoopWatch | None = None
        """None where a hung loop is noticed otherwise."""
        self.stopped = threading.Event()
        self.thread: threading.Thread | None = None

    def join(self, link: HeartbeatTarget) -> None:
        """Beat for this link from now on."""
        with self.lock:
            self.links[link] = None
            self._start()

    def watch_loop(self, watch: LoopWatch) -> None:
        """Watch the loop from now on, whether or not there are links."""
        with self.lock:
            self.watch = watch
            self._start()

    def _start(self) -> None:
        if self.thread is None and not self.stopped.is_set():
            self.thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self.thread.start()

    def leave(self, link: HeartbeatTarget) -> None:
        with self.lock:
            self.links.pop(link, None)

    def stop(self) -> None:
        self.stopped.set()
        if self.thread is not None:
            self.thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(self.every_ns / 1e9):
            self.beat_all()

    def beat_all(self) -> None:
        """Beat once for every link; an error of one does not concern the others."""
        with self.lock:
            links = tuple(self.links)
        if self.watch is not None:
            self.watch.on_beat()
        for link in links:
            try:
                link.beat()
            # This is the thread's outermost loop.
            except Exception:
                LOG.exception("a link sends no more heartbeats")
                # Its peer hears nothing, and cuts it; then it is made anew.
                self.leave(link)
