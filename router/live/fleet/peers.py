"""Peers of a router: a link, and the orders of the backend behind it."""

from dataclasses import dataclass
from typing import Protocol

from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import Hello, Message


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

    __slots__ = ("link", "met", "sent")

    def __init__(self, link: LinkPeer) -> None:
        self.link = link
        self.met: set[int] = set()
        """Frontends whose address it has been given."""
        self.sent: dict[int, SentBatch] = {}
        """By batch that it has."""
