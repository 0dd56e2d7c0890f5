"""How often each class comes, learnt from evidence, and from true labels where some are told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fermata.router.policies.sneakpeek.change_test import ChangeTest

Shares = npt.NDArray[np.float64]
"""By class."""


@dataclass(frozen=True, slots=True)
class FrequencyRules:
    """Gains of the estimate, and how it starts anew."""

    gain_min: float = 1 / 20_000
    """Weight of one more request, in the long run: rare classes need as many to be seen."""
    gain_fall: float = 0.7
    """The gain falls with this power of the requests seen at first; with 1 the start would be
    remembered for long, since evidence moves the estimate only part of the way."""
    gain_most: float = 5.0
    """Then it is this over the requests seen: enough where evidence moves it by a fifth."""
    warm_up: int = 4
    """Requests that the starting point counts for."""
    prior: float = 1.0
    """Requests that even shares count for, all through (MAP): a class that has not come for long
    can come back, as a share of 0 could not."""
    rounds: int = 8
    """Rounds of expectation maximisation on the requests since a change."""


class Frequencies:
    """Online expectation maximisation (Cappe and Moulines): each request adds its posterior, by a
    gain that falls while the stream is steady. Once a test finds that the stream has changed, the
    requests since then are the new start."""

    __slots__ = ("alarms", "naming", "seen", "settled", "test")
    rules: ClassVar[FrequencyRules] = FrequencyRules()

    def __init__(self, naming: npt.ArrayLike) -> None:
        self.naming: Shares = np.ascontiguousarray(np.asarray(naming, float).T)
        """[class named][true class]: how often a look at a request of the one names the other."""
        count = len(self.naming)
        self.settled: Shares = np.full(count, 1.0 / count)
        self.seen = self.rules.warm_up
        """Requests behind the settled estimate."""
        self.test = ChangeTest(count)
        self.alarms = 0

    @property
    def gain(self) -> float:
        """Weight of the next request."""
        rules, seen = self.rules, self.seen
        return max(rules.gain_min, min(float(seen**-rules.gain_fall), rules.gain_most / seen))

    def observe(self, likelihoods: Shares, named: int) -> None:
        """Evidence that each class would have given with these probabilities, up to a factor, and
        the class that the look names by it."""
        changed = self.test.observe(named)
        if changed is not None:
            self._restart(changed.counts)
            self.alarms += 1
            return
        rules, shares = self.rules, self.settled
        joint = shares * likelihoods
        even = rules.prior / (self.seen + rules.prior)
        moved = (1 - even) * (joint / joint.sum()) + even / len(shares)
        shares += self.gain * (moved - shares)
        self.seen += 1

    def tell(self, label: int) -> None:
        """The true class of one more request: it counts as a look that cannot be wrong."""
        shares, gain = self.settled, self.gain
        shares *= 1 - gain
        shares[label] += gain

    def _restart(self, counts: Mapping[int, int]) -> None:
        """Learn from so many looks by the class that they name, and from nothing before."""
        rules, classes = self.rules, len(self.settled)
        looks = np.array(list(counts.values()), float)
        naming = self.naming[list(counts)]
        shares = np.full(classes, rules.prior / classes)
        shares[list(counts)] += looks
        total = looks.sum() + rules.prior
        shares /= total
        for _ in range(rules.rounds):
            joint = naming * shares
            weights = looks / joint.sum(axis=1)
            shares = (np.einsum("n,nc->c", weights, joint) + rules.prior / classes) / total
        self.settled[:] = shares
        self.seen = int(looks.sum())
