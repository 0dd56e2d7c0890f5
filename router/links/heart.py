"""Heartbeats from a thread of their own: a loop that is busy must not be taken for dead."""

import threading
from typing import Protocol


class Beating(Protocol):
    """Something that can say from any thread that its process lives."""

    def beat(self) -> None: ...


class Heart:
    """One for each process; beats for all of its links."""

    def __init__(self, every_ns: int) -> None:
        self.every_ns = every_ns
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
            with self.lock:
                links = tuple(self.links)
            for link in links:
                link.beat()
