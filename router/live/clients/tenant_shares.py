"""Shares of a tenant's rate at each frontend: all of them together keep to the rate."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """Constants of the division."""

    floor: float = 0.01
    """Least share of a tenant's requests that each frontend is thought to get: a client that
    connects there is not refused everything until that is known."""
    memory: float = 0.5
    """Weight of earlier requests, beside the last second."""


class TenantShares:
    """Pure. In proportion to what was asked where: most clients keep one connection, and even parts
    would leave such a one with a fraction of its rate."""

    def __init__(self, options: ShareOptions | None = None) -> None:
        self.options = options or ShareOptions()
        self.asked: dict[str, dict[int, float]] = {}
        """By tenant and frontend: requests in a second, of late."""

    def on_asked(self, frontend: int, counts: Mapping[str, int]) -> None:
        """Requests of each tenant at a frontend in the last second; others sent none."""
        memory = self.options.memory
        for tenant in self.asked.keys() | counts.keys():
            known = self.asked.setdefault(tenant, {})
            asked = memory * known.get(frontend, 0.0) + (1 - memory) * counts.get(tenant, 0)
            if asked < self.options.floor:
                known.pop(frontend, None)
            else:
                known[frontend] = asked

    def on_gone(self, frontend: int) -> None:
        for known in self.asked.values():
            known.pop(frontend, None)

    def of(self, frontend: int, frontends: Collection[int]) -> dict[str, float]:
        """The share of each tenant at this frontend, 1 being all of its rate; for those who have
        asked anywhere of late, while the others' is even."""
        found: dict[str, float] = {}
        for tenant, known in self.asked.items():
            total = sum(known.values())
            if total > 0.0:
                least = self.options.floor * total
                asked = known.get(frontend, 0.0) + least
                found[tenant] = asked / (total + least * len(frontends))
        return found
