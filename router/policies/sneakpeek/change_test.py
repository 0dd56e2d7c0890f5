"""A sequential test for changed class frequencies, with its false alarms bounded beforehand."""

from collections import deque
from dataclasses import dataclass
from math import log
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """Rate of false alarms, and the stretches of requests in which a change may show."""

    false_alarm_rate: float = 1 / 10_000
    """False alarms for each request of a steady stream, at most."""
    reserve: float = 3.0
    """By how much stricter the test is: the usual shares are themselves estimates."""
    lengths: tuple[int, ...] = (128, 512)
    """Requests of a stretch. Clear changes show in the short ones, those of many classes in the
    long ones."""
    starts: int = 8
    """Stretches of each length that overlap at any time, evenly spaced."""
    doubt_least: float = 2.0
    """Requests that the usual shares count for in a stretch with few classes."""
    remembered: int = 100_000
    """Requests after which the usual shares are half forgotten."""


class Stretch:
    """Requests since some start, and the evidence that they are not the usual ones."""

    __slots__ = ("counts", "length", "score")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        """By class named."""
        self.length = 0
        self.score = 0.0
        """Log of a Bayes factor: these requests with shares of their own, over the usual ones."""


class ChangeTest:
    """Compares the classes that looks name lately with those that they have named all along.

    A stretch bets on a change: it foretells each request from the usual shares and its own counts
    (a Dirichlet prior). On a steady stream the mean of such a Bayes factor is 1, so by Ville's
    inequality it exceeds x in one of x stretches at most, however many classes there are.
    """

    rules: ClassVar[ChangeRules] = ChangeRules()

    def __init__(self, classes: int) -> None:
        self.classes = classes
        rules = self.rules
        rate = rules.false_alarm_rate / rules.reserve / len(rules.lengths)
        self.gaps = [length // rules.starts for length in rules.lengths]
        self.limits = [log(1 / (rate * gap)) for gap in self.gaps]
        """Scores that are an alarm: one stretch starts every `gap` requests."""
        self.doubts = [max(rules.doubt_least, min(classes, length)) for length in rules.lengths]
        self._usual({})

    def _usual(self, counts: dict[int, int]) -> None:
        """Begin anew with these as the usual requests. One more is spread over all classes."""
        self.counts = [1.0 / self.classes] * self.classes
        for number, count in counts.items():
            self.counts[number] += count
        self.total = 1.0 + sum(counts.values())
        self.seen = 0
        self.stretches: list[deque[Stretch]] = [
            deque(maxlen=self.rules.starts) for _ in self.rules.lengths
        ]

    def observe(self, named: int) -> Stretch | None:
        """One more request, of the class that its look names. Returns the stretch in which the
        stream has been another one, if it has; from then on that is the usual one."""
        usual = self.counts[named] / self.total
        found: Stretch | None = None
        for stretches, gap, limit, doubt in zip(
            self.stretches, self.gaps, self.limits, self.doubts, strict=True
        ):
            if self.seen % gap == 0:
                stretches.append(Stretch())
            for stretch in stretches:
                own = stretch.counts.get(named, 0)
                stretch.score += log((doubt + own / usual) / (doubt + stretch.length))
                stretch.counts[named] = own + 1
                stretch.length += 1
                if found is None and stretch.score > limit:
                    found = stretch
        self.seen += 1
        if found is not None:
            self._usual(found.counts)
            return found
        self.counts[named] += 1.0
        self.total += 1.0
        if self.total > 2 * self.rules.remembered:
            self.counts = [count / 2 for count in self.counts]
            self.total /= 2
        return None
