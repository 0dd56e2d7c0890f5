"""Peers of a router: a link, and the orders of the backend behind it."""

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


class BackendPeer:
    """A backend's link, and what the router has told it."""

    __slots__ = ("link", "met", "sent")

    def __init__(self, link: LinkPeer) -> None:
        self.link = link
        self.met: set[int] = set()
        """Frontends whose address it has been given."""
        self.sent: dict[int, tuple[int, int, bool, set[int]]] = {}
        """(when, planned start from then, whether it was idle, frontends that have the inputs) of
        each batch it has."""
