"""The knobs of the central queue."""

from dataclasses import dataclass

from fermata.foundation.units import NEVER


@dataclass(frozen=True, slots=True)
class CentralOptions:
    """Defaults are the best known; waits are shares of what the SLO leaves beside a run."""

    hold: str = "auto"
    """`auto`: hold a batch while one more request would save more backend time than waiting for it
    costs; where backends' time is shared, as `deferred`. `deferred`: as long as the deadline
    allows, right when backends are scaled. `eager`: never."""
    hold_ns_max: int = NEVER
    """Never hold a request longer than this."""
    pinned: bool = False
    """Only the serving variant runs, whatever the load."""
    calm: float = 0.25
    """Waits up to here are met with the two variants between which the load lies."""
    strained: float = 0.6
    """At this wait the cheapest variant takes over."""
    headroom: float = 0.04
    """Batches that leave less of the SLO than this for waiting are not planned with."""
    late_share: float = 0.0003
    """Share of the requests that ran which may end late. From those that do the queue learns how
    much longer than planned to allow for."""
    drop_window: float = 0.6
    """Share of the cheapest variant's batch that a head must leave room for in overload, or be
    dropped."""
