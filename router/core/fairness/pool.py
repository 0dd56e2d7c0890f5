"""Backends that applications share, how much of their time was given away, and who waits."""

from dataclasses import dataclass
from math import exp
from typing import Final

from fermata.foundation.units import SECOND


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How fast a pool forgets, and how far its gain moves."""

    memory_ns: int = SECOND
    """How long what was given away is remembered: those who share take turns within that."""
    rescale: float = 32.0
    """Memories after which everything that was given away is written down anew."""
    look_ns: int = 100_000_000
    """How often the gain is reviewed, at most."""
    reviewed: int = 32
    """Requests that must have left their queues in between."""
    loss_tolerated: float = 0.02
    """Share of admitted requests: with so few lost in queues, a few more may enter."""
    shrink_max: float = 0.2
    grow: float = 1.01
    grow_unrefused: float = 1.25
    gain_min: float = 0.5
    gain_max: float = 1.5
    pressed: float = 0.5
    """Backends reserved, over all: below it a loss has other reasons than load."""
    backlog: float = 0.5
    """Weight of a backend's worth of backlog against one that is busy."""


RULES: Final = PoolRules()


class Pool:
    """Backends that some applications share, as admission sees them."""

    __slots__ = (
        "backends",
        "began_at_ns",
        "busy_ns",
        "due_at_ns",
        "gain",
        "lost",
        "missed",
        "refused",
        "reserved",
        "rules",
        "scale",
        "scaled_at_ns",
        "served",
        "settled_at_ns",
        "sojourn_ns",
        "up_since_ns",
        "uptime_ns",
        "used",
    )

    def __init__(self, rules: PoolRules = RULES) -> None:
        self.rules = rules
        self.backends = 0
        self.up_since_ns = 0
        """When the first of them came; until then there was none."""
        self.busy_ns = 0
        """Backend time spent on batches that have ended."""
        self.uptime_ns = 0
        """Backend time, up to when it was last settled."""
        self.settled_at_ns = 0
        self.used = 0.0
        """Backends kept busy by those who were let in lately, times `scale`. All of it fades at
        one pace, so what is added counts for more instead."""
        self.missed = 0.0
        """Backends that those who were refused lately would have kept busy, on the same scale."""
        self.scale = 1.0
        self.scaled_at_ns = 0
        self.began_at_ns = 0
        """When the scale was 1."""
        self.reserved = 0.0
        """Backends that would be busy with all who wait, until their latest starts."""
        self.gain = self.rules.gain_max
        """Backends that may be used, over those that there are. Estimates of what they can do are
        never right: it falls while queues lose requests that were let in."""
        self.sojourn_ns = self.rules.look_ns
        """The longest time that a request of this review may spend in a queue: what the gain does
        shows only then."""
        self.due_at_ns = 0
        self.served = 0
        self.lost = 0
        self.refused = 0

    def count(self, now_ns: int, change: int) -> None:
        """Have so many backends more from now on, or fewer."""
        self.settle(now_ns)
        if self.backends == 0:
            self.up_since_ns = now_ns
        self.backends += change

    def settle(self, now_ns: int) -> None:
        """Bring the backends' uptime up to now."""
        self.uptime_ns += self.backends * (now_ns - self.settled_at_ns)
        self.settled_at_ns = now_ns

    def at(self, now_ns: int) -> None:
        """Bring the scale up to now."""
        if now_ns == self.scaled_at_ns:
            return
        self.scaled_at_ns = now_ns
        passed = (now_ns - self.began_at_ns) / self.rules.memory_ns
        assert passed >= 0.0
        if passed > self.rules.rescale:
            self.used *= exp(-passed)
            self.missed *= exp(-passed)
            self.began_at_ns, passed = now_ns, 0.0
        self.scale = exp(passed)

    def headroom(self, share: float) -> float:
        """Backends not given away, at this scale; `share` is how much of all one may have."""
        backlog = self.rules.backlog * (self.backends - self.reserved)
        free = share * self.gain * self.backends + backlog
        return free * self.scale - self.used

    def missing(self, now_ns: int) -> float:
        """Backends that are missing to serve whoever is refused: demand that no source sees."""
        self.at(now_ns)
        return self.missed / self.scale

    def on_lost(self) -> None:
        if self.reserved > self.rules.pressed * self.backends:
            self.lost += 1

    def review(self, now_ns: int) -> None:
        """Set the gain by what has become of those who were let in."""
        rules, left = self.rules, self.served + self.lost
        if now_ns < self.due_at_ns or left < rules.reviewed:
            return
        # Where nothing at all was served, all backends stand still: that says nothing of shares.
        if self.served:
            loss = self.lost / left
            if loss > rules.loss_tolerated:
                self.gain = max(rules.gain_min, self.gain * (1.0 - min(rules.shrink_max, loss)))
            else:
                grow = rules.grow if self.refused else rules.grow_unrefused
                self.gain = min(rules.gain_max, self.gain * grow)
        assert rules.gain_min <= self.gain <= rules.gain_max
        self.served = self.lost = self.refused = 0
        self.due_at_ns = now_ns + self.sojourn_ns
        self.sojourn_ns = self.rules.look_ns
