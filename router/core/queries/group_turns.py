"""Turns of pipelines at being planned: those that share stages together, some groups each time."""

from collections.abc import Collection, Sequence

from fermata.router.core.queries.budgets import groups_of
from fermata.router.core.queries.pipeline import Pipeline


class GroupTurns:
    """So many groups of pipelines have their turn at once; all of them the first time."""

    __slots__ = ("at", "groups", "most")

    def __init__(self, pipelines: Sequence[Pipeline], most: int) -> None:
        self.groups = groups_of(pipelines)
        """Places of pipelines that share stages."""
        self.most = most
        self.at = -1
        """The group whose turn comes next; -1: none has had one."""

    @property
    def rounds(self) -> int:
        """Times until all have had their turn."""
        return -(-len(self.groups) // self.most)

    def restart(self) -> None:
        """All have their turn the next time."""
        self.at = -1

    def take(self, urgent: Collection[int] = ()) -> list[int]:
        """Places of the pipelines whose turn it is. Groups with one that is `urgent` have theirs
        out of order."""
        groups, count = self.groups, len(self.groups)
        if self.at < 0 or count <= self.most:
            chosen, self.at = groups, 0
        else:
            chosen = [groups[place % count] for place in range(self.at, self.at + self.most)]
            self.at = (self.at + self.most) % count
            early = [each for each in groups if not set(each).isdisjoint(urgent)] if urgent else []
            chosen += [each for each in early if each not in chosen]
        return [place for group in chosen for place in group]
