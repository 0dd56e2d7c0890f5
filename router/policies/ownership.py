"""Which backends belong to which policy, where policies need backends of their own."""

from collections.abc import Mapping


class Ownership:
    """Gives each backend that comes up to an owner that has none, or to the one furthest below its
    share."""

    def __init__(self, shares: Mapping[int | None, float]) -> None:
        """Shares of the owners, by the first application of each; None stands for the pool."""
        self.shares = dict(shares)
        self.held: dict[int | None, int] = dict.fromkeys(self.shares, 0)
        """Backends of each owner; of one that has left, those that it has still."""
        self.owner: dict[int, int | None] = {}
        """By backend."""

    def serve(self, shares: Mapping[int | None, float]) -> None:
        """Have these owners from now on: applications have come, or left for another router. Those
        that have left keep their backends until others can take them."""
        self.shares = dict(shares)
        kept = {owner: held for owner, held in self.held.items() if held or owner in shares}
        self.held = {**dict.fromkeys(shares, 0), **kept}

    def take(self, backend: int) -> int | None:
        """The owner of a backend that comes up; None for the pool."""
        neediest = self.neediest()
        self.keep(backend, neediest)
        return neediest

    def keep(self, backend: int, owner: int | None) -> None:
        """Have a backend belong to this owner, whoever misses it."""
        self.held[owner] = self.held.get(owner, 0) + 1
        self.owner[backend] = owner

    def release(self, backend: int) -> None:
        """The backend drains or is gone; its successor goes to whoever misses it most."""
        if backend in self.owner:
            self.held[self.owner.pop(backend)] -= 1

    def neediest(self) -> int | None:
        """The owner of the next backend; the pool, where nobody has come yet."""
        if not self.shares:
            return None
        return min(self.shares, key=lambda owner: self._turn(owner, self.held[owner] + 1))

    def is_uneven(self) -> bool:
        """Whether the richest has a backend too many, and the neediest one too few."""
        if not self.shares:
            return False
        rich, poor = self.richest(), self.neediest()
        if self.has_left(rich):
            return True
        return self._turn(poor, self.held[poor] + 1) < self._turn(rich, self.held[rich])

    def richest(self) -> int | None:
        """The owner that can spare a backend first: one that has left, else the one that was given
        the last one."""
        for owner, held in self.held.items():
            if held and self.has_left(owner):
                return owner
        return max(reversed(self.shares), key=lambda owner: self._turn(owner, self.held[owner]))

    def has_left(self, owner: int | None) -> bool:
        """Whether nothing of an owner is served here."""
        return owner not in self.shares

    def _turn(self, owner: int | None, held: int) -> tuple[bool, float]:
        """Orders the turns at which owners are given backends, by the number that each then has.

        Without a backend nobody is served at all: the first one of each comes before all others.
        """
        return held > 1, held / self.shares[owner]
