"""Lead time: how long before its start a batch has to be decided on, learnt from what happened."""

from bisect import bisect_left, insort_right
from collections import deque

from fermata.foundation.units import ms
from fermata.router.core.engine import Engine

WINDOW = 256
LEAD_QUANTILE = 0.98
"""A held batch is planned to end at its deadline: every start later than this makes it late, so
the quantile has to leave room within the share of bad requests that one tolerates."""
LATE_QUANTILE = 0.9
LINK_WEIGHT = 0.1
STEP_NS = ms(1)
"""A lead that has grown by more makes what waits start sooner."""


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


class LeadTimeEstimator:
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


class LeadTimeUpdater:
    """Sets what has been learnt as the lead of an engine's ranks."""

    def __init__(self, engine: Engine, lead: LeadTimeEstimator) -> None:
        self.engine = engine
        self.lead = lead
        self.heeded_ns = lead.first_ns
        """With which standing bids have been made, at most."""

    def set(self) -> None:
        lead_ns = self.lead.lead_ns()
        for rank in self.engine.ranks:
            rank.lead_start_ns = lead_ns
        self.heeded_ns = min(self.heeded_ns, lead_ns)

    def heed(self, now_ns: int) -> None:
        """What waits was planned with a lead that has grown since: it must start sooner, or would
        be dropped with backends idle."""
        lead_ns = self.engine.ranks[0].lead_start_ns
        if lead_ns - self.heeded_ns > STEP_NS:
            self.heeded_ns = lead_ns
            for application in range(len(self.engine.sources)):
                self.engine.on_plan(now_ns, application)
