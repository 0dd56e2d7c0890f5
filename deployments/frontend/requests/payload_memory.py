"""Memory for inputs of open requests, shared by tenants."""

from collections import Counter

from fermata.deployments.specs.frontend import TableLimits


class PayloadMemory:
    """Counts bytes against the limit of the process and the shares of tenants. Pure."""

    def __init__(self, limits: TableLimits) -> None:
        self.limits = limits
        self.total = 0
        self.tenants: Counter[int] = Counter()
        """The part of each tenant that has any; without tenants there is no part."""

    def objection(self, size: int, tenant: int) -> str:
        """Reason against taking so many bytes more; empty if there is none."""
        most = self.limits.payload_bytes_max
        if self.total + size > most:
            return (
                f"memory: {size} bytes on top of {self.total} would pass "
                f"payload_bytes_max={most}; send less or raise it"
            )
        if tenant and self._is_above_share(size, tenant):
            return (
                f"memory: its tenant holds {self.tenants[tenant]} of {most} bytes, and the rest is "
                "for others; send less at a time"
            )
        return ""

    def _is_above_share(self, size: int, tenant: int) -> bool:
        """Whether a tenant would hold more than a multiple of what is left free.

        So one alone has most of the memory, several share it, and a newcomer always finds some
        (dynamic thresholds, Choudhury and Hahne 1998). One request is always taken.
        """
        held = self.tenants[tenant]
        free = self.limits.payload_bytes_max - self.total - size
        return held > 0 and held + size > self.limits.tenant_share * free

    def take(self, size: int, tenant: int) -> None:
        self.total += size
        if tenant:
            self.tenants[tenant] += size

    def free(self, size: int, tenant: int) -> None:
        self.total -= size
        if tenant:
            self.tenants[tenant] -= size
            if not self.tenants[tenant]:
                del self.tenants[tenant]
