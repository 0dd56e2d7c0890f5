"""How often each class comes, learnt from evidence alone: nobody tells true labels."""

from math import log

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]
"""By class."""

GAIN_MIN = 1 / 400
"""Weight of one more request in the settled estimate, in the long run."""
GAIN_FALL = 0.7
"""The gain falls with this power of the requests seen; with 1 the start would be remembered for
long, since evidence moves the estimate only part of the way."""
GAIN_FAST = 1 / 24
"""Weight of a request in the estimate that follows changes."""
WARM_UP = 4
"""Requests that the starting point counts for."""
ALARM = 3.5
"""Nats by which the fast estimate must have told the stream better before it takes over."""
RESTART = 12
"""Requests that the fast estimate counts for when it takes over."""
SLACK = 0.02
"""Nats a request that the fast one loses to its own noise."""


class Frequencies:
    """Online expectation maximisation: each request adds its posterior, by a gain that falls while
    the stream is steady. A second estimate with a larger gain takes over when it has foretold
    recent evidence clearly better (a CUSUM test): then the stream has changed."""

    __slots__ = ("alarms", "fast", "score", "seen", "settled")

    def __init__(self, start: npt.ArrayLike) -> None:
        shares = np.asarray(start, float)
        self.settled: Shares = shares / shares.sum()
        self.fast = self.settled.copy()
        self.seen = WARM_UP
        """Requests behind the settled estimate."""
        self.score = 0.0
        self.alarms = 0

    def observe(self, likelihoods: npt.ArrayLike) -> None:
        """Evidence that each class would have given with these probabilities, up to a factor."""
        given = np.asarray(likelihoods, float)
        told = _learn(self.settled, given, max(GAIN_MIN, float(self.seen**-GAIN_FALL)))
        told_fast = _learn(self.fast, given, GAIN_FAST)
        self.seen += 1
        self.score = max(0.0, self.score + log(told_fast / told) - SLACK)
        if self.score > ALARM:
            self.settled[:] = self.fast
            self.seen = RESTART
            self.score = 0.0
            self.alarms += 1


def _learn(shares: Shares, likelihoods: Shares, gain: float) -> float:
    """Move the shares towards the posterior; returns how likely the evidence was before."""
    joint = shares * likelihoods
    told = float(joint.sum())
    shares += gain * (joint / told - shares)
    return told
