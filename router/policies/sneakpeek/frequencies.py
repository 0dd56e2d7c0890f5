"""How often each class comes, learnt from evidence alone: nobody tells true labels."""

from dataclasses import dataclass
from math import log
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]
"""By class."""


@dataclass(frozen=True, slots=True)
class FrequencyRules:
    """Gains of the two estimates, and when one takes over."""

    gain_min: float = 1 / 400
    """Weight of one more request in the settled estimate, in the long run."""
    gain_fall: float = 0.7
    """The gain falls with this power of the requests seen; with 1 the start would be remembered for
    long, since evidence moves the estimate only part of the way."""
    gain_fast: float = 1 / 24
    """Weight of a request in the estimate that follows changes."""
    warm_up: int = 4
    """Requests that the starting point counts for."""
    alarm: float = 3.5
    """Nats by which the fast estimate must have told the stream better before it takes over."""
    restart: int = 12
    """Requests that the fast estimate counts for when it takes over."""
    slack: float = 0.02
    """Nats a request that the fast one loses to its own noise."""


class Frequencies:
    """Online expectation maximisation: each request adds its posterior, by a gain that falls while
    the stream is steady. A second estimate with a larger gain takes over when it has foretold
    recent evidence clearly better (a CUSUM test): then the stream has changed."""

    __slots__ = ("alarms", "fast", "score", "seen", "settled")
    rules: ClassVar[FrequencyRules] = FrequencyRules()

    def __init__(self, start: npt.ArrayLike) -> None:
        shares = np.asarray(start, float)
        self.settled: Shares = shares / shares.sum()
        self.fast = self.settled.copy()
        self.seen = self.rules.warm_up
        """Requests behind the settled estimate."""
        self.score = 0.0
        self.alarms = 0

    def observe(self, likelihoods: npt.ArrayLike) -> None:
        """Evidence that each class would have given with these probabilities, up to a factor."""
        given = np.asarray(likelihoods, float)
        rules = self.rules
        told = _learn(self.settled, given, max(rules.gain_min, float(self.seen**-rules.gain_fall)))
        told_fast = _learn(self.fast, given, rules.gain_fast)
        self.seen += 1
        self.score = max(0.0, self.score + log(told_fast / told) - rules.slack)
        if self.score > rules.alarm:
            self.settled[:] = self.fast
            self.seen = rules.restart
            self.score = 0.0
            self.alarms += 1


def _learn(shares: Shares, likelihoods: Shares, gain: float) -> float:
    """Move the shares towards the posterior; returns how likely the evidence was before."""
    joint = shares * likelihoods
    told = float(joint.sum())
    shares += gain * (joint / told - shares)
    return told
