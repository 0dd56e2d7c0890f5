"""The options of a trained routing policy."""

from dataclasses import dataclass

from fermata.router.policies.routing.deadline import RoutingOptions


@dataclass(frozen=True, slots=True)
class SlotRoutingOptions(RoutingOptions):
    """A trained policy, and the routing that takes over where it cannot be trusted."""

    checkpoint: str = ""
    """File written by `fermata policy rl train`."""
