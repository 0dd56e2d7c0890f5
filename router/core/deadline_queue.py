"""A queue ordered by deadline: clients of one model may differ in SLO."""

from bisect import bisect_left, insort_right
from collections.abc import Callable, Sequence

from fermata.router.core.events import Request, count_within, rows_of

COMPACT_AFTER = 512
"""Slots in front of the head are freed in one go, so that a pop costs O(1) amortised."""


def _deadline(request: Request) -> int:
    return request.deadline_ns


class DeadlineQueue:
    """Requests by deadline, ties in order of arrival; O(1) at both ends."""

    __slots__ = ("begin", "extra", "head", "items", "lost")

    def __init__(self) -> None:
        self.items: list[Request] = []
        self.head = 0
        self.extra = 0
        """Rows of those that wait, beyond one for each; 0: places and requests are the same."""
        self.lost = 0.0
        """Share of its requests that its policy has lately given up."""
        self.begin = -1
        """Where the next batch begins in `items`, if it passes heads over."""

    def __len__(self) -> int:
        return len(self.items) - self.head

    @property
    def rows(self) -> int:
        """Places that all of them take together."""
        return len(self.items) - self.head + self.extra

    def fill(self, rows: int, first: int) -> int:
        """Places taken by as many requests from an index of `items` on as fit so many."""
        items = self.items
        return rows_of(items[first : first + count_within(items, rows, first)])

    def largest_full(self, start_at_ns: int, run_ns: Callable[[int], int], size_max: int) -> int:
        """Size of the largest batch that those with most time fill, all of them in time; 0: none.
        A larger batch is never full where a smaller one is not."""
        items = self.items
        low, high = 0, min(len(items) - self.head, size_max)
        while low < high:
            size = (low + high + 1) // 2
            if items[-size].deadline_ns >= start_at_ns + run_ns(size):
                low = size
            else:
                high = size - 1
        return low

    def first_in_time(self, end_at_ns: int, size: int) -> int:
        """Where a batch of so many that ends then begins in `items`: passes over those with less
        time, as long as so many are left."""
        items, head = self.items, self.head
        if items[head].deadline_ns >= end_at_ns:
            return head
        return bisect_left(items, end_at_ns, lo=head, hi=len(items) - size, key=_deadline)

    def full_batch(
        self, start_at_ns: int, plan_ns: Sequence[int], size_max: int
    ) -> tuple[int, int]:
        """Where the largest full batch begins in `items`, and its size; 0: none."""
        size = self.largest_full(start_at_ns, plan_ns.__getitem__, size_max)
        return (self.first_in_time(start_at_ns + plan_ns[size], size), size) if size else (0, 0)

    def largest_full_rows(
        self, start_at_ns: int, run_ns: Callable[[int], int], size_max: int
    ) -> int:
        """The same in places, where whole requests fill them."""
        items = self.items
        found = rows = 0
        for index in range(len(items) - 1, self.head - 1, -1):
            rows += items[index].rows
            # Those before it have less time, and the batch would be larger.
            if rows > size_max or items[index].deadline_ns < start_at_ns + run_ns(rows):
                break
            found = rows
        return found

    def first(self) -> Request:
        return self.items[self.head]

    def push(self, request: Request) -> bool:
        """Queue a request; true if it became the first."""
        items = self.items
        if request.rows > 1:
            self.extra += request.rows - 1
        if len(items) == self.head:
            items.append(request)
            return True
        if request.deadline_ns >= items[-1].deadline_ns:
            items.append(request)
            return False
        first = items[self.head]
        insort_right(items, request, lo=self.head, key=_deadline)
        return first is not items[self.head]

    def pop(self) -> Request:
        request = self.items[self.head]
        self.head += 1
        self.extra -= request.rows - 1
        self._compact()
        return request

    def pop_many(self, count: int) -> list[Request]:
        assert 0 <= count <= len(self.items) - self.head
        taken = self.items[self.head : self.head + count]
        self.head += count
        if self.extra:
            self.extra -= rows_of(taken) - count
        self._compact()
        return taken

    def pop_rows(self, first: int, rows: int) -> list[Request]:
        """Take the requests out that fill so many places from an index of `items` on."""
        count = count_within(self.items, rows, first) if self.extra else rows
        return self.pop_from(first, count)

    def pop_from(self, first: int, count: int) -> list[Request]:
        """Take so many out from an index of `items` on."""
        if first == self.head:
            return self.pop_many(count)
        assert self.head < first <= first + count <= len(self.items)
        taken = self.items[first : first + count]
        del self.items[first : first + count]
        if self.extra:
            self.extra -= rows_of(taken) - count
        return taken

    def take(self, chosen: list[Request]) -> None:
        """Take these out, wherever they stand; cheap where they are the first."""
        leading = 0
        for request in chosen:
            if request is not self.items[self.head + leading]:
                break
            leading += 1
        for request in chosen[leading:]:
            found = self.remove(request)
            assert found, "a request was chosen that does not wait here"
        self.pop_many(leading)

    def remove(self, request: Request) -> bool:
        """Take one request out wherever it stands; false if it is not here."""
        items = self.items
        low, high = self.head, len(items)
        while low < high:
            middle = (low + high) // 2
            if items[middle].deadline_ns < request.deadline_ns:
                low = middle + 1
            else:
                high = middle
        while low < len(items) and items[low].deadline_ns == request.deadline_ns:
            if items[low] is request:
                del items[low]
                self.extra -= request.rows - 1
                return True
            low += 1
        return False

    def _compact(self) -> None:
        if self.head == len(self.items):
            self.items.clear()
            self.head = 0
        elif self.head > COMPACT_AFTER and self.head * 2 > len(self.items):
            del self.items[: self.head]
            self.head = 0
