"""Tuning of the search for a plan."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Effort of each part of the search; the defaults suit 10 s and up to 800 models."""

    exact_binaries_max: int = 600
    """Binaries up to which the solver gets the whole program; beyond, it gets parts of it."""
    search_share: float = 0.5
    """Share of the time for local search, where exact re-solves follow."""
    search_share_exact: float = 0.1
    """Share of the time for local search, where the solver gets the whole program."""
    resolve_s: float = 1.0
    """Time for one exact re-solve of a few sub-clusters."""
    resolved_models_max: int = 160
    """Models in one re-solve; more make it too slow to find anything."""
    cost_prices: tuple[float, ...] = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)
    """Prices of the whole allowed load cost, in squared deviation. They fall, so that the first
    exchanges gain much for their cost, and the allowance lasts."""
    pairs_sampled: int = 700
    """Pairs of models tried from each side of an exchange, beside all single ones."""
    patience: int = 3
    """Rounds over all pairs of sub-clusters without a gain until the search gives up."""
    thrift_share: float = 0.1
    """Time to look for fewer moves in, as a share of the whole and beside it, and the least."""
    thrift_s_min: float = 0.1
    top_share: float = 0.3
    """Share of the time for the upper of two levels."""


SEARCH = SearchOptions()
