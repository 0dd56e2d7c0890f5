"""A token bucket, kept as the one point in time at which it is full again."""


class RateLimit:
    """Limits requests to a rate and a burst. Pure: the time is given."""

    __slots__ = ("burst", "full_at_ns", "gap_ns", "rate_rps", "room_ns")

    def __init__(self, rate_rps: float, burst: int) -> None:
        self.rate_rps = rate_rps
        self.burst = burst
        self.full_at_ns = 0
        self.set_share(1.0)

    def set_share(self, share: float) -> None:
        """Grant this share of the rate and of the burst, but always one request at once.

        Other frontends grant the rest. The debt is kept as a time, so a used-up burst takes as
        long as before to come back.
        """
        self.gap_ns = max(1, round(1e9 / (self.rate_rps * share)))
        self.room_ns = round((max(1.0, self.burst * share) - 1) * self.gap_ns)

    def take(self, now_ns: int) -> int:
        """Take one request: 0 if it may pass now, else the time until one may."""
        full_at_ns = max(self.full_at_ns, now_ns)
        wait_ns = full_at_ns - self.room_ns - now_ns
        if wait_ns > 0:
            return wait_ns
        self.full_at_ns = full_at_ns + self.gap_ns
        return 0
