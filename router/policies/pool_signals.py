"""Signals of pools: how the backends fare that one policy owns, or that applications share."""

from collections.abc import Mapping
from dataclasses import dataclass

from fermata.router.core.engine import Engine
from fermata.router.core.fairness.pool import Pool
from fermata.router.policies.ownership import Ownership


@dataclass(frozen=True, slots=True)
class PoolSignals:
    """How the backends of one owner fare, or those of the shared pool; times are running sums."""

    applications: tuple[int, ...]
    untold: tuple[int, ...]
    """Those of them whose sources do not tell how many backends they need."""
    share: float
    """Its part of the backends, relative to other owners."""
    backends: int
    uptime_ns: int
    busy_ns: int
    backends_min: float
    """Backends that the sources which tell need at the least."""


def read_pools(engine: Engine, ownership: Ownership, now_ns: int) -> list[tuple[PoolSignals, ...]]:
    """The signals of every pool, by sub-cluster, in the order in which owners are given."""
    members: dict[Pool, list[int]] = {}
    owned: dict[int | None, Pool] = {}
    for number, source in enumerate(engine.sources):
        members.setdefault(source.pool, []).append(number)
        if source.owns_backends:
            owned[source.application] = source.pool
    found: list[tuple[PoolSignals, ...]] = []
    for rank in engine.ranks:
        # Sources with backends of their own are all in one place, since they cannot move.
        pools = {**(owned if len(engine.ranks) == 1 else {}), None: rank.pool}
        least = max(0.0, rank.signals.backends_min)
        found.append(
            tuple(
                _signals(
                    engine, now_ns, pools[owner], members, share, least if owner is None else 0.0
                )
                for owner, share in ownership.shares.items()
                if owner in pools
            )
        )
    return found


def _signals(
    engine: Engine,
    now_ns: int,
    pool: Pool,
    members: Mapping[Pool, list[int]],
    share: float,
    least: float,
) -> PoolSignals:
    pool.settle(now_ns)
    applications = tuple(members.get(pool, ()))
    return PoolSignals(
        applications=applications,
        untold=tuple(each for each in applications if not engine.sources[each].tells_demand),
        share=share,
        backends=pool.backends,
        uptime_ns=pool.uptime_ns,
        busy_ns=pool.busy_ns,
        backends_min=least + pool.missing(now_ns),
    )
