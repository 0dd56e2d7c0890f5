"""The directory: the sub-clusters in which each application lives, and the router of each. Pure.

The control plane makes it, routers publish it, and frontends submit by it. A sub-cluster has one
number for good. Of two directories the one with the higher version holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

DIRECTORY_FROM = 9
"""Version of the protocol that knows directories; routers send none to earlier peers."""


Shares = tuple[tuple[int, float], ...]
"""(sub-cluster, share of the requests) of an application or a pipeline; shares are relative to one
another."""


class Home(msgspec.Struct, array_like=True, frozen=True):
    """The router of one sub-cluster, as the control plane has last seen it."""

    sub_cluster: int
    address: str = ""
    """host:port of its links; empty while it is not known."""
    term: int = 0
    """Term in which it leads; a router of a lower one is stale."""


class Directory(msgspec.Struct, tag=28, array_like=True, frozen=True):
    """Homes of all applications and pipelines. On the links from routers to frontends, since
    protocol 9."""

    version: int
    homes: tuple[Home, ...]
    applications: dict[str, Shares]
    """Homes of each application, and of each pipeline by its name."""
    sticky: tuple[str, ...] = ()
    """Those of which all requests of a client go to one home, while that can be had."""

    def homes_of(self, application: str) -> tuple[int, ...]:
        """Numbers of the sub-clusters in which it lives; none where it is unknown."""
        return tuple(home for home, _ in self.applications.get(application, ()))

    def homes_by_name(self) -> dict[str, tuple[int, ...]]:
        """The same of all applications."""
        return {name: self.homes_of(name) for name in self.applications}

    def split_among_several(self) -> tuple[str, ...]:
        """Applications that live in more than one sub-cluster."""
        return tuple(name for name, homes in self.applications.items() if len(homes) > 1)


def with_pipelines(
    applications: Mapping[str, Shares], stages: Mapping[str, Sequence[str]]
) -> dict[str, Shares]:
    """Rows of applications, and of the pipelines whose stages these run: one lives where all of
    them do, with the least share of any."""
    found = {name: row for name, row in applications.items() if name not in stages}
    for pipeline, names in stages.items():
        first, *others = (dict(found[name]) for name in names)
        found[pipeline] = tuple(
            (home, min(share, *(each[home] for each in others)) if others else share)
            for home, share in first.items()
            if all(home in each for each in others)
        )
    return found


def is_newer(directory: Directory, known: Directory | None) -> bool:
    """Whether a directory holds in place of the known one."""
    return known is None or directory.version > known.version


def next_version(last: int, wall_ms: int) -> int:
    """A version above the last one known, also where a new control plane knows of none: frontends
    remember what an earlier one has said."""
    return max(last + 1, wall_ms)


@dataclass(frozen=True, slots=True)
class SplitRules:
    """Pace at which the requests of one application shift to homes with more headroom."""

    gain: float = 0.5
    """Change of a share, relative to itself, for each unit of headroom above the mean."""
    share_min: float = 0.02
    """No home gets less: without requests its headroom would say nothing."""
    change_min: float = 0.02
    """A smaller change of every share is not worth a new directory."""


def shifted(
    shares: Sequence[tuple[int, float]],
    headroom: Mapping[int, float],
    rules: SplitRules | None = None,
) -> tuple[tuple[int, float], ...]:
    """Shares that move towards homes with more headroom (the idle fraction of each), and
    stay where all have the same. A home that does not tell keeps its part."""
    rules = rules or SplitRules()
    known = [headroom[home] for home, _ in shares if home in headroom]
    if len(known) < 2:
        return tuple(shares)
    mean = sum(known) / len(known)
    grown = [
        share * (1.0 + rules.gain * (headroom.get(home, mean) - mean)) for home, share in shares
    ]
    total = sum(grown)
    # One without any share is closed.
    floored = [max(each / total, rules.share_min) if each else 0.0 for each in grown]
    total = sum(floored)
    return tuple((home, each / total) for (home, _), each in zip(shares, floored, strict=True))


def is_worth_telling(
    before: Sequence[tuple[int, float]],
    after: Sequence[tuple[int, float]],
    rules: SplitRules | None = None,
) -> bool:
    """Whether shares differ by more than routers' noise."""
    least = (rules or SplitRules()).change_min
    old = dict(before)
    return any(abs(share - old.get(home, 0.0)) >= least for home, share in after)
