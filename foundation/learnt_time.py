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


RULES: Final = LearntRules()


class LearntTime:
    """Mean and mean deviation of a duration; both 0 before there was any."""

    __slots__ = ("deviation_ns", "mean_ns", "rules")

    def __init__(self, rules: LearntRules = RULES) -> None:
        self.rules = rules
        self.mean_ns = self.deviation_ns = 0.0

    @property
    def planned_ns(self) -> int:
        """The time to plan with."""
        return int(self.mean_ns + self.rules.spread * self.deviation_ns)

    def learn(self, took_ns: int) -> None:
        """One more took so long."""
        if self.mean_ns == 0.0:
            self.mean_ns, self.deviation_ns = float(took_ns), took_ns / 2.0
        off_ns = took_ns - self.mean_ns
        self.mean_ns += self.rules.weight * off_ns
        self.deviation_ns += self.rules.weight * (abs(off_ns) - self.deviation_ns)
