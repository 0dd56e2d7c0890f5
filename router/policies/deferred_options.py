"""The knobs of deferred scheduling; every ingredient can be switched off on its own."""

from dataclasses import dataclass

from fermata.foundation.units import NEVER

HOLDS = ("deferred", "auto", "eager")


@dataclass(frozen=True, slots=True)
class DeferredOptions:
    """Defaults are the best known; `PUBLISHED` is the paper's algorithm as its code reads."""

    hold: str = "deferred"
    """`deferred`: hold as long as the deadline allows, right when backends are scaled.
    `auto`: only while it raises goodput, right on a fixed fleet. `eager`: never."""
    hold_ns_max: int = NEVER
    """Never hold a request longer than this."""
    drop_window: float = 0.8
    """Share of the target batch that a head must leave room for, or be dropped."""
    pass_over: bool = True
    """In overload heads that would keep a batch small stay, and those behind them go first."""
    wait_margin: float = 2.0
    """Leave earlier by this many times the mean wait of ripe bids."""
    beta_lambda: float = 0.0
    """Leave at once with more than this many times beta x lambda requests, as the paper has it;
    0: off. It gives much of the idle signal away when the load is low."""
    efficient: float = 0.02
    """Leave at once when the cost per request is within this share of the target batch's: models
    with next to no fixed cost gain nothing by waiting; 0: off."""
    lull_beta_lambda: float = 1.0
    """The same in a lull after a burst, with the rate after lulls; 0: off."""
    auto_load: float = 0.75
    """`hold: auto` holds from this load on, counted as if each request ran alone; stages of
    pipelines from this load on in full batches."""
    auto_busy: float = 0.9
    """From there on it leaves with the smallest batches that keep backends no busier than this:
    what is not held until its deadline is late less often. 0: it holds as `deferred` does."""


PUBLISHED = DeferredOptions(
    drop_window=1.0, pass_over=False, wait_margin=0.0, efficient=0.0, lull_beta_lambda=0.0
)
EAGER = DeferredOptions(hold="eager")
