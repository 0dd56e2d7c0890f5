"""One window: how the backends of a sub-cluster have fared since the last decision."""

from dataclasses import dataclass, field

from fermata.autoscaler.accuracy import Answers
from fermata.autoscaler.evidence import Ended


@dataclass(frozen=True, slots=True)
class Window:
    """One window of one sub-cluster, or of one pool of it; means are over the window."""

    backends: float
    """Mean number that were up."""
    busy: float
    """Mean number that ran a batch."""
    requests: int
    """Requests that ended in it, well or badly."""
    bad: int
    wanted: float = 0.0
    """Backends needed at the least: as sources tell for their rates (Eqns 2 and 3), and as many as
    were busy for those that do not tell; 0: unknown."""
    up: int = 0
    """Backends up at its end."""
    starting: int = 0
    """Backends on their way at its end."""
    untold: float = 0.0
    """Mean number that were busy for sources that do not tell what they need."""
    planned: float = 0.0
    """Backends that the planner gives applications which have an accuracy to hold. They are no part
    of `wanted` and `untold`."""
    planned_busy: float = 0.0
    """Mean number that were busy for those."""
    answers: Answers = field(default_factory=Answers)
    """The accuracy of those."""
    share: float = 1.0
    """Its part of the backends, relative to other pools."""
    ended: Ended = field(default_factory=Ended)
    """Its requests by application, where it has several."""
    pools: tuple["Window", ...] = ()
    """Where applications do not share all backends: the window of each pool."""

    @property
    def bad_rate(self) -> float:
        return self.bad / self.requests if self.requests else 0.0

    @property
    def idle_fraction(self) -> float:
        return max(0.0, 1.0 - self.busy / self.backends) if self.backends > 0 else 0.0

    @property
    def parts(self) -> tuple["Window", ...]:
        """Windows of the pools, each of which has to have enough."""
        return self.pools or (self,)
