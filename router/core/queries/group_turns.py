"""Turns of pipelines at being planned: those that share stages together, some groups each time."""

from collections.abc import Sequence

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

    def take(self) -> list[int]:
        """Places of the pipelines whose turn it is."""
        groups, count = self.groups, len(self.groups)
        if self.at < 0 or count <= self.most:
            chosen, self.at = groups, 0
        else:
            chosen = [groups[place % count] for place in range(self.at, self.at + self.most)]
            self.at = (self.at + self.most) % count
        return [place for group in chosen for place in group]
