"""The networks that are trained: an actor that acts by Eq. 8 and a critic that knows more."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from fermata.router.policies.rl.batching import LIMITS
from fermata.router.policies.rl.density import log_density
from fermata.router.policies.rl.network import PolicyNetwork
from fermata.router.policies.rl.observation import Floats


def mlp(inputs: int, hidden: tuple[int, ...], outputs: int, gain: float) -> nn.Sequential:
    """A tanh network; the last layer starts small, so that training starts from even scores."""
    layers: list[nn.Module] = []
    for width in hidden:
        layer = nn.Linear(inputs, width)
        nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
        nn.init.zeros_(layer.bias)
        layers.extend((layer, nn.Tanh()))
        inputs = width
    last = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(last.weight, gain)
    nn.init.zeros_(last.bias)
    layers.append(last)
    return nn.Sequential(*layers)


class Actor(nn.Module):  # type: ignore[misc,unused-ignore]
    """Scores of the instances and, where the policy batches, of the limits of each tier."""

    def __init__(
        self, inputs: int, instances: int, batching_tiers: int, hidden: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.instances = instances
        self.batching_tiers = batching_tiers
        outputs = instances + batching_tiers * len(LIMITS)
        self.body = mlp(inputs, hidden, outputs, gain=0.01)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and the log probabilities of the limits by tier."""
        values = self.body(observations)
        logits = values[..., self.instances :].reshape(
            *values.shape[:-1], self.batching_tiers, len(LIMITS)
        )
        return values[..., : self.instances], torch.log_softmax(logits, dim=-1)

    def act(self, observations: Tensor, sigma: float) -> tuple[Tensor, Tensor, Tensor]:
        """A random action: log shares, limits, and its log density."""
        with torch.no_grad():
            scores, log_limits = self(observations)
            log_shares = torch.log_softmax(scores + sigma * torch.randn_like(scores), dim=-1)
            choices = torch.zeros(log_limits.shape[:-1], dtype=torch.long)
            if self.batching_tiers:
                flat = log_limits.exp().flatten(0, -2)
                choices = torch.multinomial(flat, 1).reshape(choices.shape)
            return (
                log_shares,
                choices,
                self._density(scores, log_limits, log_shares, choices, sigma),
            )

    def density(
        self, observations: Tensor, log_shares: Tensor, choices: Tensor, sigma: float
    ) -> Tensor:
        """Log density of an action, with a gradient."""
        scores, log_limits = self(observations)
        return self._density(scores, log_limits, log_shares, choices, sigma)

    def _density(
        self, scores: Tensor, log_limits: Tensor, log_shares: Tensor, choices: Tensor, sigma: float
    ) -> Tensor:
        density: Tensor = log_density(scores, log_shares, sigma)
        if self.batching_tiers:
            picked = log_limits.gather(-1, choices[..., None])[..., 0]
            density = density + picked.sum(-1)
        return density

    def export(self) -> PolicyNetwork:
        """The same network for the request path."""
        linear = [layer for layer in self.body if isinstance(layer, nn.Linear)]
        return PolicyNetwork(
            tuple(_array(layer.weight.T) for layer in linear),
            tuple(_array(layer.bias) for layer in linear),
        )


def _array(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().numpy(), np.float64)
