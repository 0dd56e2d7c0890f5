"""The density of a random action: a softmax of scores with Gaussian noise (RL-edge Eq. 9)."""

import math
from typing import Any


def log_density(scores: Any, log_shares: Any, sigma: float) -> Any:
    """Logarithm of Eq. 9: the density of shares y = softmax(f + noise), for scores f and noise of
    deviation sigma; over all shares but one, which follows from the others. Over the last axis, of
    numpy arrays and torch tensors alike, so that what is tested is what is trained.

    The softmax forgets a common shift of all scores. Integrating the shift out leaves the squared
    distance of q = log y - f from its own mean.
    """
    count = scores.shape[-1]
    q = log_shares - scores
    total = q.sum(-1)
    exponent = (total * total / count - (q * q).sum(-1)) / (2.0 * sigma * sigma)
    constant = 0.5 * math.log(count) + (count - 1) * math.log(sigma * math.sqrt(2.0 * math.pi))
    return exponent - constant - log_shares.sum(-1)
