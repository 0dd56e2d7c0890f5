"""How fast requests arrive, learnt from the arrivals themselves."""

from dataclasses import dataclass
from typing import Final

from fermata.foundation.units import NEVER, SECOND


@dataclass(frozen=True, slots=True)
class RateRules:
    """Buckets and memories of a rate meter."""

    bucket_ns: int = 100_000_000
    weight: float = 0.1
    """Weight of the newest bucket: a memory of about one second."""
    first_ns: int = 100_000_000
    """After so long the first bucket is looked at, and again whenever it is twice as old."""
    few: int = 50
    """Fewer arrivals say nothing of the rate until that bucket is whole."""
    lull: float = 0.25
    """A gap this many times the mean one is a lull."""
    lulls_min: float = 5.0
    lull_memory: float = 0.98
    """Kept of the lulls at each bucket: bursts are rare, so their memory is longer."""


RULES: Final = RateRules()
QUICK: Final = RateRules(first_ns=1_000_000)
"""For requests that clients send one by one: a batch of results is no rate."""


class RateMeter:
    """Requests per second, updated once per bucket so that an arrival costs little.

    Beside the mean rate it learns the rate after a lull: how soon the next request comes once none
    has come for a while. For Poisson arrivals the two are equal; for bursts the second is far
    lower, since a lull says that the burst is over.
    """

    __slots__ = (
        "begun_at_ns",
        "buckets",
        "count",
        "due_at_ns",
        "last_at_ns",
        "lull_ns",
        "lulls",
        "lulls_ns",
        "rps",
        "rps_after_lull",
        "rules",
    )

    def __init__(self, rules: RateRules = RULES) -> None:
        self.rules = rules
        self.rps = 0.0
        self.rps_after_lull = 0.0
        self.count = 0
        """Arrivals in the current bucket."""
        self.buckets = 0
        self.begun_at_ns = 0
        self.due_at_ns = -1
        """When the current bucket ends, or the first one is looked at."""
        self.last_at_ns = 0
        self.lull_ns = NEVER
        self.lulls = 0.0
        self.lulls_ns = 0.0
        """Time from the start of lulls to the arrivals that ended them."""

    def on_arrival(self, now_ns: int, count: int = 1) -> bool:
        """Count what arrives now; true when the estimates have just been refreshed."""
        gap_ns = now_ns - self.last_at_ns
        self.last_at_ns = now_ns
        if gap_ns > self.lull_ns:
            self.lulls += 1.0
            self.lulls_ns += gap_ns - self.lull_ns
        if now_ns < self.due_at_ns:
            self.count += count
            return False
        told = self._roll(now_ns)
        self.count += count
        return told

    def fall_silent(self) -> None:
        """Forget the rate: nothing has come for so long that it tells of the past alone."""
        self.rps = self.rps_after_lull = 0.0

    def _roll(self, now_ns: int) -> bool:
        """Close the buckets that have ended by now; returns whether there are estimates anew."""
        rules = self.rules
        if self.due_at_ns < 0:
            self.begun_at_ns = now_ns
            self.due_at_ns = now_ns + rules.first_ns
            return True
        if self.buckets == 0:
            end_at_ns = self.begun_at_ns + rules.bucket_ns
            if now_ns < end_at_ns:
                self.due_at_ns = min(end_at_ns, 2 * now_ns - self.begun_at_ns)
                return self._guess(now_ns - self.begun_at_ns)
            self.due_at_ns = end_at_ns
        passed = 1 + (now_ns - self.due_at_ns) // rules.bucket_ns
        rate = self.count * SECOND / (rules.bucket_ns * passed)
        # Young meters take the plain mean, or the first bucket would be believed for a second.
        self.buckets = min(self.buckets + passed, 1_000_000)
        weight = max(1.0 - (1.0 - rules.weight) ** passed, passed / self.buckets)
        self.rps += weight * (rate - self.rps)
        self.count = 0
        self.due_at_ns += passed * rules.bucket_ns
        self.rps_after_lull = self.rps
        if self.lulls >= rules.lulls_min:
            self.rps_after_lull = min(self.rps, self.lulls * SECOND / self.lulls_ns)
        self.lulls *= rules.lull_memory
        self.lulls_ns *= rules.lull_memory
        if self.rps > 0.0:
            self.lull_ns = int(rules.lull * SECOND / self.rps)
        return True

    def _guess(self, age_ns: int) -> bool:
        """Take the rate of a first bucket that is not whole, if it tells one. At a high rate,
        thousands of requests would be served one by one before it is."""
        if self.count < self.rules.few:
            return False
        self.rps = self.rps_after_lull = self.count * SECOND / age_ns
        return True
