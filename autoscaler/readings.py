"""Readings of a router's counters, and what happened between two of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fermata.autoscaler.evidence import Ended
from fermata.autoscaler.rule import Window
from fermata.foundation.units import SECOND
from fermata.partitioner.plan import Plan


@dataclass(frozen=True, slots=True)
class ApplicationReading:
    """Requests of one application since the router started."""

    received: int
    """Requests offered, whatever became of them."""
    good: int
    bad: int
    """Requests that ended late or without a result, other than by the client's own wish."""


@dataclass(frozen=True, slots=True)
class PoolReading:
    """Backends of one owner, or those that applications share; times since the router started."""

    applications: tuple[str, ...]
    share: float
    """Its part of the sub-cluster's backends, relative to other pools."""
    backends: int
    uptime_ns: int
    busy_ns: int
    untold_ns: int
    """The part of `busy_ns` for sources that do not tell how many backends they need."""
    backends_min: float
    """Backends that the other sources need at the least."""


@dataclass(frozen=True, slots=True)
class SubClusterReading:
    """Backends of one sub-cluster; times are since the router started."""

    backends: int
    """Backends up now."""
    uptime_ns: int
    busy_ns: int
    backends_min: float
    """Backends that the sources need at the least for their rates; 0: unknown."""
    pools: tuple[PoolReading, ...] = ()
    """In the order in which they are given backends; empty: all share."""


@dataclass(frozen=True, slots=True)
class ClusterReading:
    """The counters of the router that leads, read at one time."""

    at_ns: int
    """Time on the router's own clock."""
    term: int
    """Another term is another router, whose counters start at 0."""
    applications: Mapping[str, ApplicationReading]
    sub_clusters: tuple[SubClusterReading, ...]
    plan: Plan
    """The sub-cluster that serves each application now."""
    on_their_way: frozenset[str] = frozenset()
    """Applications that the router is about to serve from another sub-cluster."""
    targets: tuple[int, ...] = ()
    """Targets that the router was given last; empty: it has none yet."""


def window_between(
    before: ClusterReading, after: ClusterReading, sub_cluster: int, target: int
) -> Window:
    """The window of one sub-cluster between two readings of one term.

    A backend that was asked for and is not there yet counts as on its way; one that was released
    and is still there, as gone.
    """
    span_ns = max(1, after.at_ns - before.at_ns)
    old, new = before.sub_clusters[sub_cluster], after.sub_clusters[sub_cluster]
    up = min(new.backends, target)
    requests, bad, ended = _ended(before, after, after.plan.models_of(sub_cluster))
    pools: list[Window] = []
    for then, now in zip(old.pools, new.pools, strict=True):
        untold = (now.untold_ns - then.untold_ns) / span_ns
        own_requests, own_bad, own_ended = _ended(before, after, now.applications)
        pools.append(
            Window(
                backends=(now.uptime_ns - then.uptime_ns) / span_ns,
                busy=(now.busy_ns - then.busy_ns) / span_ns,
                requests=own_requests,
                bad=own_bad,
                wanted=now.backends_min + untold,
                up=now.backends,
                untold=untold,
                share=now.share,
                ended=own_ended,
            )
        )
    untold = sum(each.untold for each in pools)
    return Window(
        backends=(new.uptime_ns - old.uptime_ns) / span_ns,
        busy=(new.busy_ns - old.busy_ns) / span_ns,
        requests=requests,
        bad=bad,
        wanted=new.backends_min + untold,
        up=up,
        starting=target - up,
        untold=untold,
        ended=ended,
        pools=tuple(pools) if len(pools) > 1 else (),
    )


def _ended(
    before: ClusterReading, after: ClusterReading, applications: Iterable[str]
) -> tuple[int, int, Ended]:
    """Requests of these applications that ended between two readings, the bad among them, and
    both by application."""
    requests: list[int] = []
    bad: list[int] = []
    for name in applications:
        then, now = before.applications[name], after.applications[name]
        bad.append(now.bad - then.bad)
        requests.append(now.good - then.good + bad[-1])
    return sum(requests), sum(bad), Ended(tuple(requests), tuple(bad))


def rates_between(before: ClusterReading, after: ClusterReading) -> dict[str, float]:
    """Requests per second of each application, as offered.

    What ended would lag behind a rising rate, and count an overloaded application as a small one.
    """
    span_s = max(1, after.at_ns - before.at_ns) / SECOND
    return {
        name: (each.received - before.applications[name].received) / span_s
        for name, each in after.applications.items()
    }
