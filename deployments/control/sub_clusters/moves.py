"""Moves of applications between routers: loaded at the new home, told, then left. Pure.

What moves is a unit: an application, or all applications that pipelines join. A move never leaves
it without a home. The new router has its backends load it. Then the directory names the new home.
The old router serves what still reaches it for a while, and only then hands back and unloads. Each
step follows from the directory and the order of now, so a new order at any time turns a move back,
or elsewhere.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fermata.deployments.control.sub_clusters.homes import DirectoryKeeper
from fermata.foundation.units import SECOND
from fermata.partitioner.plan import Plan

LEAVE_NS = SECOND
"""Time for all frontends to hear of a new home, before the old one hands requests back."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """An application that its old home still serves."""

    source: int
    until_ns: int


@dataclass(slots=True)
class HomeMoves:
    """The way of applications to the homes that the last plan has for them."""

    keeper: DirectoryKeeper
    members: Mapping[str, tuple[str, ...]]
    """By unit that may move: the router's names of its applications, with all their versions and
    buckets, which live together."""
    wanted: dict[str, int] = field(default_factory=dict)
    """The sub-cluster that each should live in."""
    leaving: dict[str, Leaving] = field(default_factory=dict)

    def home(self, application: str) -> int:
        """The sub-cluster that frontends submit an application's requests to."""
        (found,) = self.keeper.directory.homes_of(self.members[application][0])
        return found

    def order(self, plan: Plan) -> None:
        """Have applications live by this plan."""
        self.wanted = dict(plan.home)

    def plan(self) -> Plan:
        """The homes that frontends are told of. A move that has come so far ends: its time may
        run out while the old home is left, and the new one serves already."""
        return Plan({name: self.home(name) for name in self.members})

    def on_their_way(self) -> list[str]:
        """Applications that are not yet where they should be, or that their old home still
        holds."""
        return sorted({*Plan(self.wanted).away(self.plan()), *self.leaving})

    def served_at(self, sub_cluster: int) -> tuple[str, ...]:
        """Applications that a router has to hold, by its own names: those that live there, those
        that leave, and last those that come, which may have to wait for room."""
        homes = self.keeper.homes_of_applications()
        living = [each for each in sorted(homes) if sub_cluster in homes[each]]
        leave = [name for name, each in self.leaving.items() if each.source == sub_cluster]
        come = [name for name, target in self.wanted.items() if target == sub_cluster]
        moving = (each for name in (*sorted(leave), *sorted(come)) for each in self.members[name])
        return tuple(dict.fromkeys((*living, *moving)))

    def on_loaded(self, now_ns: int, wall_ms: int, loaded: Mapping[int, Collection[str]]) -> None:
        """Tell new homes whose backends have all loaded what comes. `loaded` has, by sub-cluster,
        applications that every backend there holds."""
        arrived: dict[str, int] = {}
        for name, target in self.wanted.items():
            source, there = self.home(name), loaded.get(target, ())
            if target != source and all(each in there for each in self.members[name]):
                arrived.update(dict.fromkeys(self.members[name], target))
                self.leaving[name] = Leaving(source, now_ns + LEAVE_NS)
        if arrived:
            self.keeper.on_moved(arrived, wall_ms)

    def on_time(self, now_ns: int) -> None:
        """Have old homes forget what has left them long enough ago."""
        for name, each in list(self.leaving.items()):
            if now_ns >= each.until_ns:
                del self.leaving[name]
