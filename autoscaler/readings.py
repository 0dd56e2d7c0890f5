"""Readings of a router's counters, and what happened between two of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fermata.autoscaler.accuracy import Answers, need, price
from fermata.autoscaler.evidence import Ended
from fermata.autoscaler.window import Window
from fermata.foundation.units import SECOND
from fermata.partitioner.plan import PlacedModel, Plan


@dataclass(frozen=True, slots=True)
class ApplicationReading:
    """Requests of one application since the router started."""

    received: int
    """Requests offered, whatever became of them."""
    good: int
    """Requests that ended in time. Those that queries have made count with their query."""
    bad: int
    """Requests that ended late or without a result, other than by the client's own wish."""
    busy_ns: int = 0
    """Time of its batches."""
    rated: int = 0
    """Answers of known accuracy."""
    right: float = 0.0
    """Right ones among them, as accuracies lead one to expect."""


NOTHING = ApplicationReading(0, 0, 0)
"""Counts of an application that was never there."""


@dataclass(frozen=True, slots=True)
class PipelineReading:
    """Queries of one pipeline since the router started."""

    applications: frozenset[str]
    """Those that run its stages."""
    good: int
    bad: int
    """Queries refused at the door among them: no stage hears of those."""


@dataclass(frozen=True, slots=True)
class PoolReading:
    """Backends of one owner, or those that applications share; times since the router started."""

    applications: tuple[str, ...]
    untold: tuple[str, ...]
    """Those of them that do not tell how many backends they need."""
    share: float
    """Its part of the sub-cluster's backends, relative to other pools."""
    backends: int
    uptime_ns: int
    busy_ns: int
    backends_min: float
    """Backends that those which tell need at the least."""


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
    router_cpu_ns: int = 0
    """CPU time of the event loop of a router of its own; 0: not known. Below, the requests that
    this has taken."""
    router_requests: int = 0
    settled_requests: int = 0
    """Those of them for applications that do not move."""
    memory_bytes: int = 0
    """Room for models on the smallest device there, as backends tell; 0: not known."""


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
    closed: frozenset[int] = frozenset()
    """Sub-clusters about which nothing is decided for now."""
    bare: frozenset[int] = frozenset()
    """Sub-clusters that nothing can move to. What lives there is not served, and may leave."""
    pipelines: Mapping[str, PipelineReading] = field(default_factory=dict)
    planned: bool = True
    """Whether the router was given a plan. One that has taken the lead may know only what backends
    hold, and loads nothing on those that come."""


def window_between(
    before: ClusterReading,
    after: ClusterReading,
    sub_cluster: int,
    target: int,
    goals: Mapping[str, PlacedModel] | None = None,
) -> Window:
    """The window of one sub-cluster between two readings of one term.

    A backend that was asked for and is not there yet counts as on its way; one that was released
    and is still there, as gone. `goals` are the applications with an accuracy to hold.
    """
    old, new = before.sub_clusters[sub_cluster], after.sub_clusters[sub_cluster]
    up = min(new.backends, target)
    whole = PoolReading(
        _served(before.plan, after.plan, sub_cluster),
        tuple(name for each in new.pools for name in each.untold),
        1.0,
        up,
        new.uptime_ns,
        new.busy_ns,
        new.backends_min,
    )
    known = {each.applications: each for each in old.pools}
    # Nothing is known of one that has come since: its window begins now.
    pairs = [(known.get(each.applications, each), each) for each in new.pools]
    pools = [
        _pool_window(before, after, *pair, goals or {}) for pair in pairs if len(new.pools) > 1
    ]
    then = replace(whole, uptime_ns=old.uptime_ns, busy_ns=old.busy_ns)
    return replace(
        _pool_window(before, after, then, whole, goals or {}),
        starting=target - up,
        pools=tuple(pools),
    )


def _served(then: Plan, now: Plan, sub_cluster: int) -> tuple[str, ...]:
    """Applications of a sub-cluster at either end of a window: some may have come or left where
    each router counts what it has served itself."""
    served = now.models_of(sub_cluster)
    return served if then == now else tuple(sorted({*then.models_of(sub_cluster), *served}))


def _pool_window(
    before: ClusterReading,
    after: ClusterReading,
    then: PoolReading,
    now: PoolReading,
    goals: Mapping[str, PlacedModel],
) -> Window:
    """The window of backends that some applications share."""
    span_ns = max(1, after.at_ns - before.at_ns)
    ended = _ended(before, after, now.applications)
    busy: dict[str, float] = {}
    for name in now.applications:
        first, last = _counts(before, after, name)
        busy[name] = (last.busy_ns - first.busy_ns) / span_ns
    held = [name for name in now.applications if name in goals]
    rates = rates_between(before, after) if held else {}
    # A router knows of applications that live elsewhere, too.
    untold = sum(busy[name] for name in now.untold if name in busy and name not in goals)
    return Window(
        backends=(now.uptime_ns - then.uptime_ns) / span_ns,
        busy=(now.busy_ns - then.busy_ns) / span_ns,
        requests=int(sum(ended.requests)),
        bad=int(sum(ended.bad)),
        wanted=now.backends_min + untold,
        up=now.backends,
        untold=untold,
        planned=sum(need(goals[name], rates[name]) for name in held),
        planned_busy=sum(busy[name] for name in held),
        answers=_answers(before, after, {name: goals[name] for name in held}, rates),
        share=now.share,
        ended=ended,
    )


def _counts(
    before: ClusterReading, after: ClusterReading, name: str
) -> tuple[ApplicationReading, ApplicationReading]:
    """Counts of an application at both ends of a window. A router that had not served it before
    had counted nothing, and one that does not tell of it any more has counted no more."""
    then = before.applications.get(name, NOTHING)
    return then, after.applications.get(name, then)


def _ended(before: ClusterReading, after: ClusterReading, applications: Sequence[str]) -> Ended:
    """Requests of these applications, and queries that need them, which ended between two
    readings."""
    requests: list[float] = []
    bad: list[float] = []
    for name in applications:
        then, now = _counts(before, after, name)
        bad.append(now.bad - then.bad)
        requests.append(now.good - then.good + bad[-1])
    for name, each in after.pipelines.items():
        if not each.applications.isdisjoint(applications):
            start = before.pipelines.get(name)
            bad.append(each.bad - (0 if start is None else start.bad))
            requests.append(each.good - (0 if start is None else start.good) + bad[-1])
    return Ended(tuple(requests), tuple(bad))


def _answers(
    before: ClusterReading,
    after: ClusterReading,
    goals: Mapping[str, PlacedModel],
    rates: Mapping[str, float],
) -> Answers:
    """Answers between two readings of the applications with an accuracy to hold."""
    lacking: list[float] = []
    counts: list[float] = []
    for name, model in goals.items():
        assert model.accuracy is not None
        then, now = _counts(before, after, name)
        counts.append(now.rated - then.rated)
        lacking.append(model.accuracy * counts[-1] - (now.right - then.right))
    prices = [price(model, rates[name]) for name, model in goals.items()]
    return Answers(tuple(lacking), tuple(counts), tuple(prices), 1 if goals else 0)


def rates_between(before: ClusterReading, after: ClusterReading) -> dict[str, float]:
    """Requests per second of each application, as offered.

    What ended would lag behind a rising rate, and count an overloaded application as a small one.
    """
    span_s = max(1, after.at_ns - before.at_ns) / SECOND
    return {
        name: (each.received - before.applications.get(name, NOTHING).received) / span_s
        for name, each in after.applications.items()
    }
