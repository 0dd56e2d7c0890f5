"""Batches that memory did not suffice for: smaller ones are asked for, for a while."""

from fermata.foundation.units import seconds

REST_NS = seconds(60)
"""Then the sizes of the profile are tried again: whoever took the memory may have gone."""
REST_NS_MAX = seconds(3600)


class BatchLimits:
    """Pure. The largest batch of each variant that fits, where it is not the profile's."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.until_ns: dict[str, int] = {}
        self.rest_ns: dict[str, int] = {}
        """How long the next limit of a variant holds: twice as long each time."""
        self.lifted_at_ns: dict[str, int] = {}

    def set(self, now_ns: int, variant: str, size: int) -> bool:
        """No more than so many fit at once; whether that is news."""
        if self.sizes.get(variant, size + 1) <= size:
            return False
        rest_ns = self.rest_ns.get(variant, REST_NS)
        if variant not in self.sizes:
            if now_ns - self.lifted_at_ns.get(variant, now_ns) > rest_ns:
                # All had fitted for longer than that: whatever it was, it is not the same.
                rest_ns = REST_NS
            self.rest_ns[variant] = min(2 * rest_ns, REST_NS_MAX)
        self.sizes[variant] = size
        self.until_ns[variant] = now_ns + rest_ns
        return True

    def lift(self, now_ns: int) -> bool:
        """Forget limits that have held for long enough; whether there were any."""
        over = [variant for variant, until_ns in self.until_ns.items() if until_ns <= now_ns]
        for variant in over:
            del self.sizes[variant], self.until_ns[variant]
            self.lifted_at_ns[variant] = now_ns
        return bool(over)

    def told(self) -> tuple[tuple[str, int], ...]:
        """As `Ready` carries them."""
        return tuple(sorted(self.sizes.items()))
