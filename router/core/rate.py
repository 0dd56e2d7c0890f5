"""How fast requests arrive, learnt from the arrivals themselves."""

from fermata.foundation.units import NEVER, SECOND

BUCKET_NS = 100_000_000
WEIGHT = 0.1
"""Weight of the newest bucket: a memory of about one second."""
LULL = 0.25
"""A gap this many times the mean one is a lull."""
LULLS_MIN = 5.0
LULL_MEMORY = 0.98
"""Kept of the lulls at each bucket: bursts are rare, so their memory is longer."""


class RateMeter:
    """Requests per second, updated once per bucket so that an arrival costs little.

    Beside the mean rate it learns the rate after a lull: how soon the next request comes once none
    has come for a while. For Poisson arrivals the two are equal; for bursts the second is far
    lower, since a lull says that the burst is over.
    """

    __slots__ = (
        "buckets",
        "count",
        "due_at_ns",
        "last_at_ns",
        "lull_ns",
        "lulls",
        "lulls_ns",
        "rps",
        "rps_after_lull",
    )

    def __init__(self) -> None:
        self.rps = 0.0
        self.rps_after_lull = 0.0
        self.count = 0
        """Arrivals in the current bucket."""
        self.buckets = 0
        self.due_at_ns = -1
        """When the current bucket ends."""
        self.last_at_ns = 0
        self.lull_ns = NEVER
        self.lulls = 0.0
        self.lulls_ns = 0.0
        """Time from the start of lulls to the arrivals that ended them."""

    def on_arrival(self, now_ns: int) -> bool:
        """Count one arrival; true when the estimates have just been refreshed."""
        gap_ns = now_ns - self.last_at_ns
        self.last_at_ns = now_ns
        if gap_ns > self.lull_ns:
            self.lulls += 1.0
            self.lulls_ns += gap_ns - self.lull_ns
        if now_ns < self.due_at_ns:
            self.count += 1
            return False
        self._roll(now_ns)
        self.count += 1
        return True

    def _roll(self, now_ns: int) -> None:
        """Close the buckets that have ended by now."""
        if self.due_at_ns < 0:
            self.due_at_ns = now_ns + BUCKET_NS
            return
        passed = 1 + (now_ns - self.due_at_ns) // BUCKET_NS
        rate = self.count * SECOND / (BUCKET_NS * passed)
        # Young meters take the plain mean, or the first bucket would be believed for a second.
        self.buckets = min(self.buckets + passed, 1_000_000)
        weight = max(1.0 - (1.0 - WEIGHT) ** passed, passed / self.buckets)
        self.rps += weight * (rate - self.rps)
        self.count = 0
        self.due_at_ns += passed * BUCKET_NS
        self.rps_after_lull = self.rps
        if self.lulls >= LULLS_MIN:
            self.rps_after_lull = min(self.rps, self.lulls * SECOND / self.lulls_ns)
        self.lulls *= LULL_MEMORY
        self.lulls_ns *= LULL_MEMORY
        if self.rps > 0.0:
            self.lull_ns = int(LULL * SECOND / self.rps)
