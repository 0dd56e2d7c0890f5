"""A small network for the request path: a few matrix products, numpy only."""

from dataclasses import dataclass

import numpy as np

from fermata.router.policies.rl.observation import Floats


@dataclass(frozen=True, slots=True)
class PolicyNetwork:
    """Layers of a tanh network, the last one linear."""

    weights: tuple[Floats, ...]
    """Each (inputs, outputs)."""
    biases: tuple[Floats, ...]

    def __call__(self, observation: Floats) -> Floats:
        values = observation
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = values @ weight + bias
            if layer < last:
                values = np.tanh(values)
        return values


def softmax(scores: Floats) -> Floats:
    """Shares that sum to 1 over the last axis (RL-edge Eq. 8 without its noise)."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
