"""Which backends belong to which policy, where policies need backends of their own."""

from collections.abc import Mapping


class Ownership:
    """Gives each backend that comes up to an owner that has none, or to the one furthest below its
    share."""

    def __init__(self, shares: Mapping[int | None, float]) -> None:
        """Shares of the owners, by the first application of each; None stands for the pool."""
        self.shares = dict(shares)
        self.held: dict[int | None, int] = dict.fromkeys(self.shares, 0)
        self.owner: dict[int, int | None] = {}
        """By backend."""

    def take(self, backend: int) -> int | None:
        """The owner of a backend that comes up; None for the pool."""
        neediest = min(self.shares, key=self._need)
        self.held[neediest] += 1
        self.owner[backend] = neediest
        return neediest

    def _need(self, owner: int | None) -> tuple[bool, float]:
        """Orders owners, the neediest first. Without a backend nobody is served at all."""
        held = self.held[owner]
        return held > 0, (held + 1) / self.shares[owner]

    def release(self, backend: int) -> None:
        """The backend is gone; its successor goes to whoever misses it most."""
        self.held[self.owner.pop(backend)] -= 1
