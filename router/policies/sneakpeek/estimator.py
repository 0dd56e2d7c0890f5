"""From votes on a request to the accuracy that each variant will have on it."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import exp, hypot, log

from router.core.events import Estimate
from router.policies.sneakpeek.classes import (
    JEFFREYS,
    TINY,
    Classes,
    misses,
    sharpened,
    standard_error,
)
from router.policies.sneakpeek.frequencies import Frequencies

ROUNDING = 1e-6
"""Probabilities that differ by less, relatively, come of the same votes."""

KNOWN_FROM = 60
"""Requests after which class frequencies are good enough to answer by; again after a change."""
FLOORED = 20.0
"""How much more a class with a recall floor counts where it cannot be ruled out: one that is
dropped is missed, so in overload the others have to give way, and an answer at once rather names
that class than misses it."""


def dirichlet(prior: Sequence[float], votes: Sequence[float]) -> list[float]:
    """Mean of the posterior on raw votes (Eqs. 10 and 11)."""
    total = sum(prior) + sum(votes)
    return [(alpha + count) / total for alpha, count in zip(prior, votes, strict=True)]


class Estimator:
    """One application's estimates. The posterior is calibrated: a class counts by how likely the
    SneakPeek model is to vote like that on it, and by how often it comes. Raw votes with a
    Jeffreys prior, as the paper has it, take a poor SneakPeek model at its word."""

    def __init__(self, classes: Classes, accuracy: Sequence[float]) -> None:
        self.classes = classes
        count = classes.count
        self.weights = classes.weights or (1.0,) * count
        self.floors = classes.recall_floors or (0.0,) * count
        self.barred_by = [misses(classes, variant) for variant in range(len(classes.recall))]
        """By variant: the classes whose floor it may not be able to keep."""
        self.floored = [number for number, floor in enumerate(self.floors) if floor]
        even = [1.0 / count] * count
        self.frequencies = Frequencies(even)
        self.calibrated = classes.prior in ("online", "even")
        self.profiled = Estimate((), self._worths(even, self.floored), -1, 0.0, -1)
        """What holds while there is no evidence."""
        if not any(self.floors) and not classes.weights and accuracy:
            self.profiled.accuracies = tuple(accuracy)
        if classes.peek is not None:
            peek = classes.peek
            self.log_votes = [
                [peek.sharpness * log((1 - TINY) * share + TINY / count) for share in row]
                for row in peek.confusion
            ]
            self.profiled_peek = sum(
                right * weight for right, weight in zip(peek.recall, self.weights, strict=True)
            ) / sum(self.weights)
            self.unseen = [self._unseen(number) for number in range(count)]
            self.credit = [0.0] * count
            """By class: requests on the edge of `unseen` that may yet be taken not to be of it."""

    def _unseen(self, number: int) -> tuple[float, float]:
        """Below which probability (all classes equally frequent) a request is taken not to be of
        this class, so that variants weak on it may serve it; and of how many of those with just
        that probability the same is true. So few of the class go unseen that the others still keep
        the floor, even if none of the unseen is answered right.
        """
        assert self.classes.peek is not None
        floor, hidden = self.floors[number], self.classes.peek.hidden
        if floor == 0.0:
            return 1.0, 1.0
        if not hidden:
            return 0.0, 0.0
        variants = range(len(self.classes.recall))
        kept = [variant for variant in variants if number not in self.barred_by[variant]]
        allowed = 0
        while allowed < len(hidden[number]) and all(
            self._seen_recall(variant, number, allowed + 1) >= floor for variant in kept
        ):
            allowed += 1
        edge = hidden[number][min(allowed, len(hidden[number]) - 1)]
        first, end = bisect_left(hidden[number], edge), bisect_right(hidden[number], edge)
        return edge, (allowed - first) / (end - first)

    def _seen_recall(self, variant: int, number: int, unseen: int) -> float:
        """A class's recall on this variant when so many of the samples in `hidden` go unseen, less
        its standard error. Recall and share come of two sets of samples: their errors are
        independent."""
        assert self.classes.peek is not None
        samples = len(self.classes.peek.hidden[number])
        share = unseen / samples
        recall = self.classes.recall[variant][number]
        counts = self.classes.counts
        if not counts:
            return recall * (1.0 - share)
        recall_error = standard_error(recall, counts[number]) * (1.0 - share)
        share_error = standard_error(share, samples) * recall
        return recall * (1.0 - share) - hypot(recall_error, share_error)

    def likelihoods(self, votes: Sequence[float]) -> list[float]:
        """Of these votes, for each class, up to a factor."""
        logs = [
            sum(count * each for count, each in zip(votes, row, strict=True) if count)
            for row in self.log_votes
        ]
        highest = max(logs)
        return [exp(each - highest) for each in logs]

    def on_votes(self, votes: Sequence[float]) -> Estimate:
        """The estimate for one request; also teaches how often classes come."""
        peek = self.classes.peek
        assert peek is not None, "votes for an application without a SneakPeek model"
        likelihoods = self.likelihoods(votes)
        total = sum(likelihoods)
        even = [each / total for each in likelihoods]
        prior = self.classes.prior
        if prior == "jeffreys":
            theta = dirichlet([JEFFREYS] * len(even), votes)
        elif not isinstance(prior, str):
            theta = dirichlet(prior, votes)
        elif prior == "even":
            theta = even
        else:
            self.frequencies.observe(likelihoods)
            theta = normalised(self.frequencies.settled, likelihoods)
        likely = max(range(len(theta)), key=theta.__getitem__)
        possible = [number for number in self.floored if not self._ruled_out(number, even)]
        label, instant = self._short_circuit(theta, possible)
        if prior == "online" and self.frequencies.seen < KNOWN_FROM:
            # While nobody knows how often classes come, a look knows less than it seems to.
            instant = 0.0
        return Estimate(
            tuple(theta),
            self._worths(theta, possible),
            label,
            instant,
            likely if theta[likely] > 0.5 else -1,
        )

    def _ruled_out(self, number: int, even: Sequence[float]) -> bool:
        """Whether the request is taken not to be of this class."""
        edge, share = self.unseen[number]
        if abs(even[number] - edge) > ROUNDING * edge:
            return even[number] < edge
        # Votes are few, so many requests are on the edge: some of them, evenly spread.
        self.credit[number] += share
        if self.credit[number] < 1.0:
            return False
        self.credit[number] -= 1.0
        return True

    def _weighted(self, theta: Sequence[float], possible: Sequence[int]) -> list[float]:
        """What each class counts for in this request; `possible` are the classes with a recall
        floor that are not ruled out."""
        weighted = [share * weight for share, weight in zip(theta, self.weights, strict=True)]
        for number in possible:
            weighted[number] *= FLOORED
        return weighted

    def _worths(self, theta: Sequence[float], possible: Sequence[int]) -> tuple[float, ...]:
        """Eq. 9 with class weights; 0 for variants that a recall floor bars."""
        weighted = self._weighted(theta, possible)
        worths: list[float] = []
        for variant, recall in enumerate(self.classes.recall):
            barred = any(number in possible for number in self.barred_by[variant])
            worths.append(0.0 if barred else sharpened(recall, weighted))
        return tuple(worths)

    def _short_circuit(self, theta: Sequence[float], possible: Sequence[int]) -> tuple[int, float]:
        """The answer that is worth most, and its worth. Raw votes do not know how good they are,
        so there the profiled accuracy judges (section 5.3.1); a calibrated posterior is made of
        profiled accuracies already."""
        gains = self._weighted(theta, possible)
        label = max(range(len(gains)), key=gains.__getitem__)
        if any(label != number for number in possible):
            # However good looks are as a rule, here this answer would miss the class.
            return label, 0.0
        return label, gains[label] if self.calibrated else self.profiled_peek


def normalised(prior: Sequence[float], likelihoods: Sequence[float]) -> list[float]:
    """Bayes: posterior of each class."""
    joint = [share * each for share, each in zip(prior, likelihoods, strict=True)]
    total = sum(joint)
    return [each / total for each in joint]
