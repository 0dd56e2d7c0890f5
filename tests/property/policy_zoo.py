"""Every policy that is played against the rules, and how each is built."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fermata.foundation import native
from fermata.foundation.units import ms
from fermata.router.core.source import Source
from fermata.router.policies.catalog import POLICIES
from fermata.router.policies.family import alone, family_of
from fermata.router.policies.rl.batching import LIMITS
from fermata.router.policies.rl.checkpoint import Checkpoint
from fermata.router.policies.rl.network import PolicyNetwork
from fermata.router.policies.rl.observation import Scales, width
from fermata.router.policies.rl.options import SlotRoutingOptions
from fermata.router.policies.rl.slot_routing import SlotRouting

Build = Callable[[Sequence[int], random.Random], list[Source]]


def from_catalog(name: str, **changes: object) -> Build:
    policy = POLICIES[name]
    options = replace(policy.defaults, **changes) if changes else policy.defaults
    if not policy.chooses:
        return lambda variants, rng: policy.build(alone(variants), options, rng)

    def build(variants: Sequence[int], rng: random.Random) -> list[Source]:
        known = alone(variants, accuracy=(0.5,), input_sizes=(128,))
        return policy.build(known, options, rng)

    return build


def trained(variants: Sequence[int], rng: random.Random) -> list[Source]:
    """Slot routing with a policy for two instances that batches; it falls back with others."""
    scales = Scales(buffer=4, slo_ns=ms(15), arrivals=50.0)
    inputs = width(2, scales)
    draw = np.random.default_rng(rng.randrange(2**16)).standard_normal
    checkpoint = Checkpoint(
        PolicyNetwork((draw((inputs, 2 + len(LIMITS))),), (draw(2 + len(LIMITS)),)),
        tiers=(0, 0),
        scales=scales,
        slot_ns=ms(20),
        low=np.zeros(inputs),
        high=np.full(inputs, 3.0),
        batching=True,
    )
    options = SlotRoutingOptions(buffer=4)
    return [SlotRouting(family, options, checkpoint, rng) for family in alone(variants)]


def choosing(name: str, **changes: object) -> Build:
    """A policy that may serve every application with every variant."""
    policy = POLICIES[name]
    options = replace(policy.defaults, **changes)

    def build(variants: Sequence[int], rng: random.Random) -> list[Source]:
        accuracy = tuple(0.5 + 0.1 * variant for variant in variants)
        families = [
            family_of(each, f"application {each}", ms(15), tuple(variants), each, accuracy)
            for each in variants
        ]
        return policy.build(families, options, rng)

    return build


SOURCES: dict[str, Build] = {
    **{name: from_catalog(name) for name in POLICIES},
    # Coarse, so that its tables are solved in no time.
    "ramsis": from_catalog("ramsis", bins=10, queue_max=4),
    "model-switching": from_catalog("model-switching", sustained_rps=(100.0,)),
    "deferred, auto": from_catalog("deferred", hold="auto"),
    "deferred, hold at most 5 ms": from_catalog("deferred", hold_ns_max=ms(5)),
    "deferred, beta lambda": from_catalog("deferred", beta_lambda=1.0, efficient=0.0),
    "rl, trained": trained,
    "central-queue, any variant": choosing("central-queue"),
    "central-queue, deferred": choosing("central-queue", hold="deferred"),
    "lookahead, any variant": choosing("lookahead"),
    "ramsis, any variant": choosing("ramsis", bins=10, queue_max=4, load_rps=200.0),
    "ramsis, shortest queue": choosing(
        "ramsis", bins=10, queue_max=4, load_rps=200.0, balancing="shortest-queue"
    ),
    "jellyfish-plus, any variant": choosing("jellyfish-plus"),
}
# No class of a test extends a native one.
if not native.installed():
    from toy_policies import Lanes, Swapper

    SOURCES["lanes"] = lambda variants, rng: [Lanes(variants)] * len(variants)
    SOURCES["swapper"] = lambda variants, rng: [Swapper(variants)] * len(variants)
POOLED = [
    name
    for name, build in SOURCES.items()
    if name != "swapper" and not build(range(1), random.Random(0))[0].owns_backends
]
"""Policies that share all backends."""
CHOOSING = {
    "lookahead, any variant",
    "central-queue, any variant",
    "central-queue, deferred",
    "ramsis, any variant",
    "ramsis, shortest queue",
    "jellyfish-plus, any variant",
}
NOT_STRICT = {
    "timeout",
    "sneakpeek",
    "grouped",
    "lo-edf",
    "lo-priority",
    "maxacc-edf",
    "single-queue",
    "rl, trained",
    "ramsis",
    "jellyfish-plus",
    # A step that is late is better than a state that lacks it; it runs until its hard limit.
    "sequences",
    "model-switching",
    "ramsis, any variant",
    "ramsis, shortest queue",
    "jellyfish-plus, any variant",
}
