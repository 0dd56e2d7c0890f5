"""How much of its rate a tenant may use at each frontend: all of them together keep to it."""

from collections.abc import Collection, Mapping

FLOOR = 0.01
"""Least share of a tenant's requests that each frontend is thought to get: a client that connects
there is not refused everything until that is known."""
MEMORY = 0.5
"""Weight of earlier requests, beside the last second."""


class TenantShares:
    """Pure. In proportion to what was asked where: most clients keep one connection, and even parts
    would leave such a one with a fraction of its rate."""

    def __init__(self) -> None:
        self.asked: dict[str, dict[int, float]] = {}
        """By tenant and frontend: requests in a second, of late."""

    def on_asked(self, frontend: int, counts: Mapping[str, int]) -> None:
        """Requests of each tenant at a frontend in the last second; others sent none."""
        for tenant in self.asked.keys() | counts.keys():
            known = self.asked.setdefault(tenant, {})
            asked = MEMORY * known.get(frontend, 0.0) + (1 - MEMORY) * counts.get(tenant, 0)
            if asked < FLOOR:
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
                least = FLOOR * total
                asked = known.get(frontend, 0.0) + least
                found[tenant] = asked / (total + least * len(frontends))
        return found
