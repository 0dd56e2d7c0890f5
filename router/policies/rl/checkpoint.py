"""A trained policy as a file: JSON, so that it can be read without the tools that trained it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from fermata.foundation.errors import ConfigError
from fermata.foundation.json_types import JsonObject
from fermata.router.policies.rl.batching import LIMITS
from fermata.router.policies.rl.network import PolicyNetwork, softmax
from fermata.router.policies.rl.observation import Floats, Scales, width

FORMAT = "fermata-rl-1"
TOLERANCE = 0.1
"""Distance beyond the observations of its training at which a policy is still trusted, as a share
of their range."""
LearningCurve: TypeAlias = Sequence[Mapping[str, float]]
"""Figures of each rollout in training, by name: `slots`, `goodput`, `violations`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's settings for one slot."""

    shares: Floats
    """Share of the arrivals, by instance."""
    limits: tuple[tuple[int, int], ...]
    """Smallest and largest batch, by tier; (1, 1) where the policy does not batch."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A policy, what it was trained for, and where it may be trusted."""

    network: PolicyNetwork
    tiers: tuple[int, ...]
    """The variant of each instance, by its place in the family."""
    scales: Scales
    slot_ns: int
    low: Floats
    """The smallest number of each kind that was seen in training."""
    high: Floats
    batching: bool = False
    even: bool = True
    """Requests are drawn to instances evenly, not at random."""
    variants: tuple[str, ...] = ()
    """Names of the variants that tiers stand for; empty in files that do not say."""
    rates_rps: tuple[float, ...] = ()
    """Loads that it was trained for; empty in files that do not say."""
    training: JsonObject = field(default_factory=dict)
    """Origin of the policy: seed, slots, settings, learning curve."""

    @property
    def curve(self) -> LearningCurve:
        return cast(LearningCurve, self.training["curve"])

    def places(self, variants: Sequence[str]) -> dict[int, int]:
        """The tier that stands for each of these variants, by its place among them. A KeyError
        names one that is missing."""
        if not self.variants:
            return {tier: tier for tier in set(self.tiers)}
        known = {name: place for place, name in enumerate(variants)}
        return {known[self.variants[tier]]: tier for tier in set(self.tiers)}

    def trusts(self, observation: Floats) -> bool:
        """Whether training has seen the like."""
        slack = TOLERANCE * (self.high - self.low)
        return bool(((observation >= self.low - slack) & (observation <= self.high + slack)).all())

    def decide(self, observation: Floats) -> Decision:
        """The policy without its noise."""
        values = self.network(observation)
        count = len(self.tiers)
        limits: tuple[tuple[int, int], ...] = ((1, 1),) * (1 + max(self.tiers))
        if self.batching:
            choices = values[count:].reshape(-1, len(LIMITS)).argmax(axis=-1)
            limits = tuple(LIMITS[choice] for choice in choices)
        return Decision(softmax(values[:count]), limits)


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write it so that a reader never sees half of it."""
    data = {
        "format": FORMAT,
        "tiers": list(checkpoint.tiers),
        "buffer": checkpoint.scales.buffer,
        "slo_ns": checkpoint.scales.slo_ns,
        "arrivals": checkpoint.scales.arrivals,
        "memory": checkpoint.scales.memory,
        "slot_ns": checkpoint.slot_ns,
        "batching": checkpoint.batching,
        "even": checkpoint.even,
        "variants": list(checkpoint.variants),
        "rates_rps": list(checkpoint.rates_rps),
        "low": checkpoint.low.tolist(),
        "high": checkpoint.high.tolist(),
        "weights": [weight.tolist() for weight in checkpoint.network.weights],
        "biases": [bias.tolist() for bias in checkpoint.network.biases],
        "training": dict(checkpoint.training),
    }
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(data), encoding="utf-8")
    draft.replace(path)


def load_checkpoint(path: Path | str) -> Checkpoint:
    """The policy in a file, or a ConfigError in one line."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        remedy = "train one with `fermata policy rl train`"
        raise ConfigError(
            f"checkpoint {path} cannot be read ({error.strerror}); {remedy}"
        ) from None
    except ValueError:
        raise ConfigError(f"checkpoint {path} is not JSON; train it again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigError(f"checkpoint {path} is not of format {FORMAT}; train it again")
    try:
        checkpoint = _read(data)
        fits = _fits(checkpoint)
    except KeyError as error:
        raise ConfigError(f"checkpoint {path} lacks {error}; train it again") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"checkpoint {path} is damaged ({error}); train it again") from None
    if not fits:
        raise ConfigError(f"checkpoint {path}: its layers do not fit one another; train it again")
    return checkpoint


def _fits(checkpoint: Checkpoint) -> bool:
    """Whether each layer takes what comes in, and the last gives what a decision needs."""
    if not checkpoint.tiers or min(checkpoint.scales.memory, checkpoint.slot_ns) < 1:
        return False
    if checkpoint.variants and len(checkpoint.variants) <= max(checkpoint.tiers):
        return False
    sizes = [width(len(checkpoint.tiers), checkpoint.scales)]
    for weight, bias in zip(checkpoint.network.weights, checkpoint.network.biases, strict=True):
        if weight.shape != (sizes[-1], len(bias)):
            return False
        sizes.append(len(bias))
    limits = sizes[-1] - len(checkpoint.tiers)
    tiers = 1 + max(checkpoint.tiers) if checkpoint.batching else 0
    ranges = (len(checkpoint.low), len(checkpoint.high))
    return ranges == (sizes[0],) * 2 and limits % len(LIMITS) == 0 and limits >= tiers * len(LIMITS)


def _read(data: Any) -> Checkpoint:
    return Checkpoint(
        network=PolicyNetwork(
            tuple(np.array(weight, np.float64) for weight in data["weights"]),
            tuple(np.array(bias, np.float64) for bias in data["biases"]),
        ),
        tiers=tuple(int(tier) for tier in data["tiers"]),
        scales=Scales(
            int(data["buffer"]),
            int(data["slo_ns"]),
            float(data["arrivals"]),
            int(data["memory"]),
        ),
        slot_ns=int(data["slot_ns"]),
        low=np.array(data["low"], np.float64),
        high=np.array(data["high"], np.float64),
        batching=bool(data["batching"]),
        even=bool(data["even"]),
        variants=tuple(str(name) for name in data.get("variants", ())),
        rates_rps=tuple(float(rate_rps) for rate_rps in data.get("rates_rps", ())),
        training=data["training"],
    )
