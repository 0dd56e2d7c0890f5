"""Lead time: how long before its start a batch has to be decided on, learnt from what happened."""

from bisect import bisect_left, insort_right
from collections import deque

WINDOW = 256
LEAD_QUANTILE = 0.98
"""A held batch is planned to end at its deadline: every start later than this makes it late, so
the quantile has to leave room within the share of bad requests that one tolerates."""
LATE_QUANTILE = 0.9
LINK_WEIGHT = 0.1


class QuantileWindow:
    """Quantiles of the most recent values."""

    __slots__ = ("ordered", "recent", "size")

    def __init__(self, size: int = WINDOW) -> None:
        self.size = size
        self.recent: deque[int] = deque()
        self.ordered: list[int] = []

    def add(self, value: int) -> None:
        self.recent.append(value)
        insort_right(self.ordered, value)
        if len(self.recent) > self.size:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]

    def quantile(self, share: float, default: int = 0) -> int:
        count = len(self.ordered)
        return self.ordered[min(count - 1, int(share * count))] if count else default


class LeadTime:
    """Dispatch, fetch and timer lateness of the recent past.

    A backend tells when a batch's inputs were there, counted from the arrival of the order: the
    fetch. The way there is seen on batches sent to idle backends only: what is left of the time
    from order to end, run and fetch aside, is the way there and back.
    """

    __slots__ = ("first_ns", "late", "link_ns", "max_ns", "starts")

    def __init__(self, first_ns: int, max_ns: int) -> None:
        self.first_ns = first_ns
        self.max_ns = max_ns
        self.starts = QuantileWindow()
        self.late = QuantileWindow()
        self.link_ns = 0
        """The way to a backend; a moving average."""

    def on_batch(self, fetch_ns: int, away_ns: int | None) -> None:
        """A batch was fetched in that time; `away_ns` is order to end, less its run, or None
        where it had to wait for the one before."""
        fetch_ns = max(0, fetch_ns)
        if away_ns is None:
            link_ns = self.link_ns
        else:
            link_ns = max(0, away_ns - fetch_ns) // 2
            self.link_ns += int(LINK_WEIGHT * (link_ns - self.link_ns))
        self.starts.add(fetch_ns + link_ns)

    def on_timer(self, late_ns: int) -> None:
        """A timer was served that much after it was due."""
        self.late.add(late_ns)

    def lead_ns(self) -> int:
        """From a decision's due time to the start it can count on."""
        start_ns = self.starts.quantile(LEAD_QUANTILE, self.first_ns)
        return min(self.max_ns, start_ns + self.late.quantile(LATE_QUANTILE))
