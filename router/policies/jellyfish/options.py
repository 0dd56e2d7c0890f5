"""What can be set of Jellyfish's decisions, and the decider that follows it."""

from dataclasses import dataclass
from random import Random

from fermata.foundation.units import SECOND
from fermata.router.policies.jellyfish.decision import SPLITS, Decider, SearchEffort
from fermata.router.policies.jellyfish.problem import make_zoo


@dataclass(frozen=True, slots=True)
class JellyfishRules:
    """How soon clients are mapped anew."""

    gone_after_ns: int = 2 * SECOND
    """A client that has said nothing for so long asks for nothing."""
    soon_ns: int = 100_000_000
    """Between two decisions, at least."""
    relax_after: int = 8
    """Decisions after which the margin of a DNN that nobody runs is trusted a little less."""
    collapsed: float = 0.85
    """A client whose bandwidth falls below this share of the planned one is planned anew at
    once."""


@dataclass(frozen=True, slots=True)
class JellyfishOptions:
    """How often, how hard and with what margins clients are mapped."""

    replan_ns: int = 500_000_000
    """From one decision to the next."""
    replan_here: bool = True
    """Decide within the router; false: somebody else asks and answers (`question`, `take_plan`)."""
    selection: str = "resplit"
    """`resplit`, or `published` for Algorithms 1 and 2 as printed."""
    splits: int = SPLITS
    """For `resplit`: pairs of backends that each decision re-splits, in all."""
    turn: int = 4
    """Decisions after which clients left out change places with clients served."""
    headroom: float = 0.0
    """Share of a client's frame rate kept free for bursts."""
    prefetch: int = 5
    """DNNs that a backend keeps at hand: the one it runs and its neighbours in size."""


def make_decider(options: JellyfishOptions, rng: Random) -> Decider:
    """The decider that these options ask for; its zoo comes with the first question."""
    effort = SearchEffort(options.selection, options.splits)
    return Decider(make_zoo((), ()), effort, options.turn, rng)
