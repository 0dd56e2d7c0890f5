"""The outcome to expect of a table: what its process foretells, corrected by what it has done."""

from dataclasses import dataclass
from typing import ClassVar

from fermata.router.core.signals import Promise


@dataclass(frozen=True, slots=True)
class OutcomeRules:
    """How soon experience outweighs the process, and how long it counts."""

    weight: float = 20.0
    """Requests that what is foretold counts for."""
    memory: float = 20_000.0
    """Requests after which what was seen counts half."""


class Outcomes:
    """Requests that ended while one table was in use."""

    __slots__ = ("answered", "bad", "good", "right")
    rules: ClassVar[OutcomeRules] = OutcomeRules()

    def __init__(self) -> None:
        self.good = 0.0
        self.bad = 0.0
        """Late or dropped."""
        self.answered = 0.0
        """Answers, late ones among them."""
        self.right = 0.0
        """The sum of their accuracies."""

    def add(self, good: float, bad: float, answered: float, right: float) -> None:
        """Count what has ended since the last time."""
        self.good += good
        self.bad += bad
        self.answered += answered
        self.right += right
        if self.good + self.bad > self.rules.memory:
            self.good, self.bad = self.good / 2.0, self.bad / 2.0
            self.answered, self.right = self.answered / 2.0, self.right / 2.0

    def expected(self, foretold: Promise) -> Promise:
        """The outcome of requests to come, where the process foretells this one."""
        weight = self.rules.weight
        return Promise(
            (weight * foretold.accuracy + self.right) / (weight + self.answered),
            (weight * foretold.violation + self.bad) / (weight + self.good + self.bad),
        )


class OutcomeCount:
    """One application's outcomes so far, and how many of them some table has on its account."""

    __slots__ = ("answered", "right", "settled", "whole")

    def __init__(self) -> None:
        self.answered = 0
        """Requests of batches that have ended."""
        self.right = 0.0
        """The sum of their accuracies."""
        self.settled = (0, 0, 0, 0.0)
        self.whole = Outcomes()
        """Of all tables together."""

    def settle(self, good: int, bad: int, outcomes: Outcomes | None) -> None:
        """Put what has ended since the last time on a table's account, if there is one."""
        before, now = self.settled, (good, bad, self.answered, self.right)
        self.settled = now
        if outcomes is not None and good + bad > before[0] + before[1]:
            ended = [new - old for new, old in zip(now, before, strict=True)]
            outcomes.add(*ended)
            self.whole.add(*ended)
