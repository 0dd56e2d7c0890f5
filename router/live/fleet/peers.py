"""Peers of a router: a link, and the orders of the backend behind it."""

from dataclasses import dataclass
from typing import Protocol

from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import Hello, Message

MET_MAX = 1024
"""Frontends whose address a backend is sure to know still; it keeps the latest ones alone."""


class LinkPeer(Protocol):
    """A link as the router needs it."""

    @property
    def peer(self) -> Hello: ...
    def send(self, message: Message) -> None: ...
    def flush(self) -> None: ...
    def close(self, code: CloseCode, detail: str) -> None: ...


@dataclass(slots=True)
class SentBatch:
    """A batch that a backend has been given."""

    sent_at_ns: int
    start_in_ns: int
    """Planned start, from then on."""
    idle: bool
    """The backend had nothing else to run."""
    frontends: set[int]
    """Frontends that have the inputs."""


class BackendPeer:
    """A backend's link, and the orders on it."""

    __slots__ = ("link", "met", "runs_in", "sent")

    def __init__(self, link: LinkPeer) -> None:
        self.link = link
        self.met: dict[int, None] = {}
        """Frontends whose address it has been given, the latest last."""
        self.sent: dict[int, SentBatch] = {}
        """By batch that it has."""
        self.runs_in: dict[str, str] = {}
        """By variant: library and device that run it, where a backend chose between several."""

    def meet(self, frontends: set[int]) -> set[int]:
        """Those of the frontends of a batch whose address it has to be given.

        It forgets the oldest addresses in time, so that they are given again.
        """
        new = frontends - self.met.keys()
        for frontend in new:
            self.met[frontend] = None
        while len(self.met) > max(MET_MAX, len(frontends)):
            del self.met[next(iter(self.met))]
        return new
