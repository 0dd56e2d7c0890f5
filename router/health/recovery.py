"""The time that lost backends take to come back, learnt from those that did."""

from collections import deque
from dataclasses import dataclass

from fermata.foundation.units import ms, seconds


@dataclass(frozen=True, slots=True)
class RecoveryRules:
    """Limits of the estimate."""

    first_ns: int = seconds(5)
    """Assumed until a backend has come back."""
    overdue_ns: int = seconds(1)
    """Hint for a client while a backend takes longer than the one before."""
    least_ns: int = ms(100)
    most_ns: int = seconds(60)
    losses_max: int = 64
    """Losses that are remembered until a backend comes; older ones are taken for meant."""


class Recovery:
    """Pure. Pairs each backend that comes with the oldest loss that nobody has made up for."""

    def __init__(self, rules: RecoveryRules | None = None) -> None:
        self.rules = rules or RecoveryRules()
        self.lost_at_ns: deque[int] = deque(maxlen=self.rules.losses_max)
        self.usual_ns = self.rules.first_ns
        self.known = False
        """A backend has come back."""

    def on_lost(self, now_ns: int) -> None:
        """A backend is gone that had not been told to go."""
        self.lost_at_ns.append(now_ns)

    def on_up(self, now_ns: int) -> None:
        """A backend has come."""
        if not self.lost_at_ns:
            return
        took_ns = min(now_ns - self.lost_at_ns.popleft(), self.rules.most_ns)
        self.usual_ns = (self.usual_ns + took_ns) // 2 if self.known else took_ns
        self.known = True

    def retry_after_ns(self, now_ns: int) -> int:
        """The time after which a backend should be there, for a client that was refused."""
        rules = self.rules
        since_ns = self.lost_at_ns[0] if self.lost_at_ns else now_ns
        left_ns = since_ns + self.usual_ns - now_ns
        return max(left_ns, rules.least_ns) if left_ns > 0 else rules.overdue_ns
