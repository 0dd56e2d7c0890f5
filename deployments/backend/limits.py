"""Batch sizes that memory did not suffice for, kept off a variant for a while."""

from dataclasses import dataclass

from fermata.foundation.units import seconds


@dataclass(frozen=True, slots=True)
class LimitDurations:
    """Time for which a limit holds; it doubles each time the profile's sizes fail again."""

    first_ns: int = seconds(60)
    max_ns: int = seconds(3600)


class BatchLimits:
    """Pure. The largest batch of each variant that fits, where it is not the profile's."""

    def __init__(self, durations: LimitDurations | None = None) -> None:
        self.durations = durations or LimitDurations()
        self.sizes: dict[str, int] = {}
        self.until_ns: dict[str, int] = {}
        self.next_ns: dict[str, int] = {}
        """Duration of the next limit of each variant."""
        self.lifted_at_ns: dict[str, int] = {}

    def set(self, now_ns: int, variant: str, size: int) -> bool:
        """Limit a variant's batches to this size; returns whether that is new."""
        if self.sizes.get(variant, size + 1) <= size:
            return False
        durations = self.durations
        duration_ns = self.next_ns.get(variant, durations.first_ns)
        if variant not in self.sizes:
            if now_ns - self.lifted_at_ns.get(variant, now_ns) > duration_ns:
                # All sizes fitted for longer than that, so this is a new shortage.
                duration_ns = durations.first_ns
            self.next_ns[variant] = min(2 * duration_ns, durations.max_ns)
        self.sizes[variant] = size
        self.until_ns[variant] = now_ns + duration_ns
        return True

    def lift(self, now_ns: int) -> bool:
        """Forget limits that have held for long enough; returns whether there were any."""
        over = [variant for variant, until_ns in self.until_ns.items() if until_ns <= now_ns]
        for variant in over:
            del self.sizes[variant], self.until_ns[variant]
            self.lifted_at_ns[variant] = now_ns
        return bool(over)

    def items(self) -> tuple[tuple[str, int], ...]:
        """(variant, size) of each limit, as `Ready` carries them."""
        return tuple(sorted(self.sizes.items()))
