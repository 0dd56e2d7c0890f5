"""Signals of pools: how the backends fare that one policy owns, or that applications share."""

from dataclasses import dataclass

from fermata.router.core.engine import Engine
from fermata.router.core.rank import RankThread
from fermata.router.policies.ownership import Ownership


@dataclass(frozen=True, slots=True)
class PoolSignals:
    """How the backends of one owner fare, or those of the shared pool; times are running sums."""

    applications: tuple[int, ...]
    share: float
    """Its part of the backends, relative to other owners."""
    backends: int
    uptime_ns: int
    busy_ns: int
    untold_ns: int
    """The part of `busy_ns` for sources that do not tell how many backends they need."""
    backends_min: float
    """Backends that the other sources need at the least."""


def read_pools(
    engine: Engine, ownership: Ownership, rank: RankThread, now_ns: int
) -> tuple[PoolSignals, ...]:
    """The signals of every pool of a sub-cluster, in the order in which owners are given."""
    pools = engine.pools(rank)
    found: list[PoolSignals] = []
    for owner, share in ownership.shares.items():
        pool = pools.get(owner)
        if pool is None:
            continue
        pool.settle(now_ns)
        applications = tuple(
            number for number, source in enumerate(engine.sources) if source.pool is pool
        )
        # Sources with backends of their own tell nothing.
        least = rank.signals.backends_min if owner is None else 0.0
        found.append(
            PoolSignals(
                applications,
                share,
                pool.backends,
                pool.uptime_ns,
                pool.busy_ns,
                pool.untold_ns,
                max(0.0, least) + pool.missing(now_ns),
            )
        )
    return tuple(found)
