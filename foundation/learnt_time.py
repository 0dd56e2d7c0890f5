"""A duration that is learnt from those that came before."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LearntRules:
    """How a duration is learnt."""

    weight: float = 0.05
    """Weight of the newest one."""
    spread: float = 2.0
    """Times the mean deviation, that is planned for on top of the mean."""
    doubt_ns: int = 500_000_000
    """Without a new one for so long, it may be what is planned that keeps any from coming."""


RULES: Final = LearntRules()


class LearntTime:
    """Mean and mean deviation of a duration; both 0 before there was any."""

    __slots__ = ("changed_at_ns", "deviation_ns", "mean_ns", "rules")

    def __init__(self, rules: LearntRules = RULES) -> None:
        self.rules = rules
        self.mean_ns = self.deviation_ns = 0.0
        self.changed_at_ns = 0
        """When one was learnt, or the rest doubted."""

    @property
    def planned_ns(self) -> int:
        """The time to plan with."""
        return int(self.mean_ns + self.rules.spread * self.deviation_ns)

    def learn(self, now_ns: int, took_ns: int) -> None:
        """One more took so long."""
        self.changed_at_ns = now_ns
        if self.mean_ns == 0.0:
            self.mean_ns, self.deviation_ns = float(took_ns), took_ns / 2.0
        off_ns = took_ns - self.mean_ns
        self.mean_ns += self.rules.weight * off_ns
        self.deviation_ns += self.rules.weight * (abs(off_ns) - self.deviation_ns)

    def doubt(self, now_ns: int) -> bool:
        """Something planned with it had no time. Where nothing was learnt for long, plan with half
        of it from now on: one slow run must not refuse all that would correct it."""
        if now_ns - self.changed_at_ns < self.rules.doubt_ns or not self.planned_ns:
            return False
        self.changed_at_ns = now_ns
        self.mean_ns /= 2.0
        self.deviation_ns /= 2.0
        return True
