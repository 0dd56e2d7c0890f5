"""Requests that not every variant may serve."""

from bisect import insort_right
from collections.abc import Sequence

from fermata.router.core.events import Request


class ConstrainedQueue:
    """Queued requests whose client's floor or pin leaves only some variants.

    They are kept by when they must start, not by deadline: who insists on a slow variant would
    otherwise reach the head of the queue too late for it.
    """

    __slots__ = ("entries", "tables", "variants")

    def __init__(self, variants: Sequence[int]) -> None:
        self.variants = variants
        """The engine's numbers of those that the application may run."""
        self.tables: Sequence[Sequence[int]] = ()
        """Run times of each, by size."""
        self.entries: list[tuple[int, int, Request]] = []
        """(latest start, rid, request), ascending."""

    def __len__(self) -> int:
        return len(self.entries)

    def left_to(self, request: Request) -> list[int]:
        """Places of the variants that may serve it."""
        allowed = request.allowed
        everywhere = range(len(self.variants))
        return [each for each in everywhere if allowed is None or self.variants[each] in allowed]

    def alone_ns(self, request: Request) -> int:
        """Its shortest run; only for requests that some variant may serve."""
        return min(self.tables[each][1] for each in self.left_to(request))

    def push(self, request: Request) -> None:
        start_by_ns = request.deadline_ns - self.alone_ns(request)
        insort_right(self.entries, (start_by_ns, request.rid, request))

    def first(self) -> Request:
        return self.entries[0][2]

    def start_by_ns(self) -> int:
        """Latest start of the first."""
        return self.entries[0][0]

    def remove(self, request: Request) -> bool:
        for index, entry in enumerate(self.entries):
            if entry[2] is request:
                del self.entries[index]
                return True
        return False

    def content_with(self, variant: int) -> list[Request]:
        """Those whom this variant may serve."""
        return [
            request
            for _, _, request in self.entries
            if request.allowed is None or variant in request.allowed
        ]
