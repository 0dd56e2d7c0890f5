"""Heartbeats from a thread of their own: a loop that is busy must not be taken for dead."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

LOG = logging.getLogger("fermata")
Clock = Callable[[], int]
"""Nanoseconds of a clock that never goes back."""


class Beating(Protocol):
    """Something that can say from any thread that its process lives."""

    def beat(self) -> None: ...


class Heart:
    """One for each process; beats for all of its links, and tells them the time."""

    def __init__(self, every_ns: int, clock: Clock = time.monotonic_ns) -> None:
        self.every_ns = every_ns
        self.clock = clock
        self.lock = threading.Lock()
        self.links: set[Beating] = set()
        self.stopped = threading.Event()
        self.thread: threading.Thread | None = None

    def join(self, link: Beating) -> None:
        """Beat for this link from now on."""
        with self.lock:
            self.links.add(link)
            if self.thread is None and not self.stopped.is_set():
                self.thread = threading.Thread(target=self._run, name="heart", daemon=True)
                self.thread.start()

    def leave(self, link: Beating) -> None:
        with self.lock:
            self.links.discard(link)

    def stop(self) -> None:
        self.stopped.set()
        if self.thread is not None:
            self.thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(self.every_ns / 1e9):
            self.pulse()

    def pulse(self) -> None:
        """Beat once for every link; what ails one is no matter of the others."""
        with self.lock:
            links = tuple(self.links)
        for link in links:
            try:
                link.beat()
            # This is the thread's outermost loop.
            except Exception:
                LOG.exception("a link has no heartbeat any more")
                # Its peer hears nothing, and cuts it; then it is made anew.
                self.leave(link)
