"""Payloads in shared memory that backends may still read, though their requests have ended."""

from fermata.deployments.frontend.requests.pending_request import PendingRequest
from fermata.foundation.units import NEVER
from fermata.router.links.messages import Payload


class LentPayloads:
    """Counts the readers of payloads, and says when each is free. Pure."""

    def __init__(self, lent_ns: int) -> None:
        """A payload is free so long after its request's end, whatever is heard."""
        self.lent_ns = lent_ns
        self.ended: dict[int, tuple[int, PendingRequest]] = {}
        """Ended requests with the time of their release, in the order of their ends."""
        self.looked_at: set[int] = set()
        """Requests whose payloads a backend looks at; apart from the readers, of whom some answer
        more than once."""

    def __len__(self) -> int:
        return len(self.ended)

    def lend(self, now_ns: int, entry: PendingRequest) -> Payload | None:
        """Keep the payload of a request that ends, while it has readers; else it is returned."""
        payload = entry.payload
        is_read = entry.readers or entry.rid in self.looked_at
        if payload is not None and payload.segment and is_read:
            self.ended[entry.rid] = now_ns + self.lent_ns, entry
            return None
        return payload

    def on_read(self, rid: int, entry: PendingRequest | None) -> Payload | None:
        """A backend reads it no more, if it ever did; returns what is free now. `entry` is the
        request, if it is open."""
        entry = entry or self._ended(rid)
        if entry is not None and entry.readers:
            entry.readers -= 1
            if not entry.readers and rid not in self.looked_at and rid in self.ended:
                return self.ended.pop(rid)[1].payload
        return None

    def on_look(self, rid: int) -> None:
        """A backend is asked to look at it."""
        self.looked_at.add(rid)

    def on_looked(self, rid: int) -> Payload | None:
        """That backend looks at it no more; returns what is free now."""
        self.looked_at.discard(rid)
        ended = self._ended(rid)
        if ended is None or ended.readers:
            return None
        return self.ended.pop(rid)[1].payload

    def on_unread(self, rid: int, entry: PendingRequest | None) -> Payload | None:
        """No backend was told its place; returns what is free now."""
        entry = entry or self._ended(rid)
        if entry is None or not entry.is_told:
            return None
        entry.unread = True
        return self.on_read(rid, entry)

    def _ended(self, rid: int) -> PendingRequest | None:
        return self.ended[rid][1] if rid in self.ended else None

    def wake_at_ns(self) -> int:
        """The time of the next release."""
        return next(iter(self.ended.values()))[0] if self.ended else NEVER

    def take_due(self, now_ns: int) -> list[Payload]:
        """Payloads that were lent for too long."""
        due: list[Payload] = []
        while self.wake_at_ns() <= now_ns:
            entry = self.ended.pop(next(iter(self.ended)))[1]
            self.looked_at.discard(entry.rid)
            payload = entry.payload
            assert payload is not None
            due.append(payload)
        return due
