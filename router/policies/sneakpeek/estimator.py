"""From votes on a request to the accuracy that each variant will have on it."""

from collections.abc import Sequence
from math import exp, log, sqrt

from router.core.events import Estimate
from router.policies.sneakpeek.classes import JEFFREYS, Classes, lower_recall, sharpened
from router.policies.sneakpeek.frequencies import Frequencies

TINY = 1e-3
"""No vote is impossible: a confusion matrix is measured on finitely many samples."""

KNOWN_FROM = 60
"""Requests after which class frequencies are good enough to answer by; again after a change."""
FLOORED = 10.0
"""How much more a request counts that may be of a class with a recall floor: one that is dropped
is missed, so in overload the others have to give way."""


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
        self.barred_by = [
            [number for number in range(count) if self._below(variant, number)]
            for variant in range(len(classes.recall))
        ]
        """By variant: the classes whose floor it may not be able to keep."""
        self.floored = [number for number, floor in enumerate(self.floors) if floor]
        even = [1.0 / count] * count
        self.frequencies = Frequencies(even)
        self.calibrated = classes.prior in ("online", "even")
        self.profiled = Estimate((), self._worths(even, None), -1, 0.0, -1)
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
            self.unseen_below = [self._unseen_below(number) for number in range(count)]
            self.peek_barred_by = [
                number for number in range(count) if peek.recall[number] < self.floors[number]
            ]

    def _below(self, variant: int, number: int) -> bool:
        return lower_recall(self.classes, variant, number) < self.floors[number]

    def _unseen_below(self, number: int) -> float:
        """Below which probability (all classes equally frequent) a request is taken not to be of
        this class, so that variants weak on it may serve it. So many requests of the class go
        unseen that the others still keep the floor, even if none of the unseen is answered right.
        """
        peek, floor = self.classes.peek, self.floors[number]
        assert peek is not None
        if floor == 0.0:
            return 1.0
        if not peek.hidden:
            return 0.0
        variants = range(len(self.classes.recall))
        kept = [lower_recall(self.classes, variant, number) for variant in variants]
        strong = min(recall for recall in kept if recall >= floor)
        share = 1.0 - floor / strong
        if self.classes.counts:
            # Less its standard error: few samples say little about the least probabilities.
            share -= sqrt(share * (1.0 - share) / (self.classes.counts[number] + 2))
        hidden = peek.hidden[number]
        return hidden[int(share * len(hidden))] if hidden and share > 0.0 else 0.0

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
        label, instant = self._short_circuit(theta, even)
        if prior == "online" and self.frequencies.seen < KNOWN_FROM:
            # While nobody knows how often classes come, a look knows less than it seems to.
            instant = 0.0
        return Estimate(
            tuple(theta),
            self._worths(theta, even),
            label,
            instant,
            likely if theta[likely] > 0.5 else -1,
        )

    def _worths(self, theta: Sequence[float], even: Sequence[float] | None) -> tuple[float, ...]:
        """Eq. 9 with class weights; 0 for variants that a recall floor bars."""
        weighted = [share * weight for share, weight in zip(theta, self.weights, strict=True)]
        if any(not self._unseen(number, even) for number in self.floored):
            weighted = [FLOORED * each for each in weighted]
        worths: list[float] = []
        for variant, recall in enumerate(self.classes.recall):
            barred = any(not self._unseen(number, even) for number in self.barred_by[variant])
            worths.append(0.0 if barred else sharpened(recall, weighted))
        return tuple(worths)

    def _unseen(self, number: int, even: Sequence[float] | None) -> bool:
        """Whether evidence, if there is any, says that the request is not of this class."""
        return even is not None and even[number] < self.unseen_below[number]

    def _short_circuit(self, theta: Sequence[float], even: Sequence[float]) -> tuple[int, float]:
        """The answer that is worth most, and its worth. Raw votes do not know how good they are,
        so there the profiled accuracy judges (section 5.3.1); a calibrated posterior is made of
        profiled accuracies already."""
        gains = [share * weight for share, weight in zip(theta, self.weights, strict=True)]
        label = max(range(len(gains)), key=gains.__getitem__)
        for number in self.peek_barred_by:
            if label != number and not self._unseen(number, even):
                return label, 0.0
        return label, gains[label] if self.calibrated else self.profiled_peek


def normalised(prior: Sequence[float], likelihoods: Sequence[float]) -> list[float]:
    """Bayes: posterior of each class."""
    joint = [share * each for share, each in zip(prior, likelihoods, strict=True)]
    total = sum(joint)
    return [each / total for each in joint]
