"""A token bucket, kept as the one point in time at which it is full again."""


class RateLimit:
    """So many a second, and so many at once. Pure: the time is given."""

    __slots__ = ("full_at_ns", "gap_ns", "room_ns")

    def __init__(self, rate_rps: float, burst: int) -> None:
        self.gap_ns = max(1, round(1e9 / rate_rps))
        self.room_ns = (burst - 1) * self.gap_ns
        self.full_at_ns = 0

    def take(self, now_ns: int) -> int:
        """0 where one more may pass now; else how long until one may, and nothing is taken."""
        full_at_ns = max(self.full_at_ns, now_ns)
        wait_ns = full_at_ns - self.room_ns - now_ns
        if wait_ns > 0:
            return wait_ns
        self.full_at_ns = full_at_ns + self.gap_ns
        return 0
