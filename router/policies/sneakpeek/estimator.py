"""From votes on a request to the accuracy that each variant will have on it."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fermata.router.core.events import Estimate
from fermata.router.policies.sneakpeek.classes import (
    JEFFREYS,
    Classes,
    measured_recalls,
    shortfalls,
    standard_error,
)
from fermata.router.policies.sneakpeek.frequencies import Frequencies, Shares
from fermata.router.policies.sneakpeek.possible_shares import possible_shares
from fermata.router.policies.sneakpeek.truths import Truths

Numbers = npt.NDArray[np.intp]
"""Number of classes."""

ROUNDING = 1e-6
"""Probabilities that differ by less, relatively, come of the same votes."""


@dataclass(frozen=True, slots=True)
class EstimatorRules:
    """How much is made of evidence."""

    known_from: int = 60
    """Requests after which class frequencies are good enough to answer by; again after a change."""
    floored_weight: float = 20.0
    """How much more a class with a recall floor counts where it cannot be ruled out. One that is
    dropped is missed, so in overload the others have to give way; and an answer at once rather
    names that class than misses it."""


def dirichlet(prior: Sequence[float], votes: Sequence[float]) -> Shares:
    """Mean of the posterior on raw votes (Eqs. 10 and 11)."""
    return _shares(np.asarray(prior, float) + np.asarray(votes, float))


class Estimator:
    """One application's estimates. The posterior is calibrated: a class counts by how likely the
    SneakPeek model is to vote like that on it, and by how often it comes. Raw votes with a
    Jeffreys prior, as the paper has it, take a poor SneakPeek model at its word."""

    rules: ClassVar[EstimatorRules] = EstimatorRules()

    def __init__(
        self, classes: Classes, accuracy: Sequence[float], accuracy_floor: float = 0.0
    ) -> None:
        self.classes = classes
        count = classes.count
        self.weights = np.array(classes.weights or (1.0,) * count)
        self.floors = classes.recall_floors or (0.0,) * count
        self.recall = np.array(measured_recalls(classes))
        self.truths = Truths(self.recall, classes.counts)
        self.looked = 0
        """Requests with votes."""
        self.shortfalls = np.array(
            [shortfalls(classes, variant) for variant in range(len(classes.recall))]
        )
        """[variant][class]: by how much it may miss the class's floor; 0 where it keeps it."""
        enough = np.array([each >= accuracy_floor for each in accuracy], bool)
        self.fallback = enough if enough.any() else np.ones(len(self.recall), bool)
        """Variants of which one runs where each of them may miss a floor."""
        self.floored = np.flatnonzero(self.floors)
        even = np.full(count, 1.0 / count)
        self.calibrated = classes.prior in ("online", "even")
        gains = self._gains(even, self.floored)
        self.profiled = Estimate((), self._worths(gains, self.floored), -1, 0.0, -1)
        """The estimate while there is no evidence."""
        if not any(self.floors) and not classes.weights and accuracy:
            self.profiled.accuracies = tuple(accuracy)
        if classes.peek is not None:
            peek = classes.peek
            shares = possible_shares(peek.confusion)
            self.log_votes = np.ascontiguousarray(peek.sharpness * np.log(shares).T)
            """[voted class][true class]: a request has few votes, so few of the rows are read."""
            self.frequencies = Frequencies(possible_shares(peek.named) if peek.named else shares)
            self.profiled_peek = float(np.average(peek.recall, weights=self.weights))
            self.unseen = [self._unseen(number) for number in range(count)]
            self.edges = np.array([self.unseen[number][0] for number in self.floored])
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
        kept = [variant for variant in variants if not self.shortfalls[variant, number]]
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

    def likelihoods(self, votes: Sequence[float]) -> Shares:
        """Likelihood of these votes, for each class, up to a factor."""
        given = np.asarray(votes, float)
        voted = np.flatnonzero(given)
        # Not a product of BLAS: that would wake threads of its own, on the router's loop.
        logs = np.einsum("v,vc->c", given[voted], self.log_votes[voted])
        found: Shares = np.exp(logs - logs.max())
        return found

    def on_votes(self, votes: Sequence[float]) -> Estimate:
        """The estimate for one request; also teaches how often classes come."""
        peek = self.classes.peek
        assert peek is not None, "votes for an application without a SneakPeek model"
        self.looked += 1
        likelihoods = self.likelihoods(votes)
        even = _shares(likelihoods)
        prior = self.classes.prior
        if prior == "jeffreys":
            theta = dirichlet([JEFFREYS] * len(even), votes)
        elif not isinstance(prior, str):
            theta = dirichlet(prior, votes)
        elif prior == "even":
            theta = even
        else:
            self._learn(votes, likelihoods)
            theta = _shares(self.frequencies.settled * likelihoods)
        likely = int(theta.argmax())
        possible = self._possible(even)
        gains = self._gains(theta, possible)
        label, instant = self._short_circuit(gains, possible)
        if prior == "online" and self.frequencies.seen < self.rules.known_from:
            # While nobody knows how often classes come, a look knows less than it seems to.
            instant = 0.0
        return Estimate(
            tuple(theta.tolist()),
            self._worths(gains, possible),
            label,
            instant,
            likely if theta[likely] > 0.5 else -1,
        )

    def on_truth(
        self, label: int, variant: int, looked: bool, right: bool | None, tenant: int
    ) -> bool:
        """The true class of an earlier request: teaches how often classes come and, where it is
        known whether the answer was right, the recall of whoever gave it. False where the tenant
        has told its share already."""
        if not self.truths.admits(tenant, self.looked):
            return False
        if self.classes.prior == "online":
            self.frequencies.tell(label)
        if right is not None and looked:
            self.truths.on_look(right)
        elif right is not None and variant >= 0:
            self.truths.on_variant(variant, label, right)
        return True

    def _learn(self, votes: Sequence[float], likelihoods: Shares) -> None:
        """How often classes come, by the class that most votes name where it is known how often
        that is right; and by the votes themselves elsewhere."""
        assert self.classes.peek is not None
        named = max(range(len(votes)), key=votes.__getitem__)
        if self.classes.peek.named:
            likelihoods = self.frequencies.naming[named]
        self.frequencies.observe(likelihoods, named)

    def _possible(self, even: Shares) -> Numbers:
        """The classes with a recall floor that this request is not taken not to be of."""
        if not len(self.floored):
            return self.floored
        apart = even[self.floored] - self.edges
        ruled_out = apart < 0
        for place in np.flatnonzero(np.abs(apart) <= ROUNDING * self.edges).tolist():
            ruled_out[place] = self._let_off(int(self.floored[place]))
        possible: Numbers = self.floored[~ruled_out]
        return possible

    def _let_off(self, number: int) -> bool:
        """Votes are few, so many requests are on a class's edge: some of them, evenly spread, are
        taken not to be of it."""
        self.credit[number] += self.unseen[number][1]
        if self.credit[number] < 1.0:
            return False
        self.credit[number] -= 1.0
        return True

    def _gains(self, theta: Shares, possible: Numbers) -> Shares:
        """The worth of naming each class in this request; `possible` are the classes with a recall
        floor that are not ruled out."""
        gains: Shares = theta * self.weights
        if len(possible):
            gains[possible] *= self.rules.floored_weight
        return gains

    def _worths(self, gains: Shares, possible: Numbers) -> tuple[float, ...]:
        """Eq. 9 with class weights; 0 for variants that a recall floor bars. Where floors bar all
        of them, whoever misses one by least stays: an answer that may miss a class still is one."""
        worths = np.einsum("vc,c->v", self.recall, gains)
        if len(possible):
            worst = self.shortfalls[:, possible].max(axis=1)
            barred = worst > 0.0
            if barred.all():
                barred = (worst > worst[self.fallback].min()) | ~self.fallback
            worths[barred] = 0.0
        return tuple(worths.tolist())

    def _short_circuit(self, gains: Shares, possible: Numbers) -> tuple[int, float]:
        """The answer that is worth most, and its worth. Raw votes do not know how good they are,
        so there the profiled accuracy judges (section 5.3.1); a calibrated posterior is made of
        profiled accuracies already."""
        label = int(gains.argmax())
        if len(possible) and (possible != label).any():
            # However good looks are as a rule, here this answer would miss the class.
            return label, 0.0
        return label, float(gains[label]) if self.calibrated else self.profiled_peek


def _shares(counts: Shares) -> Shares:
    """The same, so that they sum to 1."""
    shares: Shares = counts / counts.sum()
    return shares
