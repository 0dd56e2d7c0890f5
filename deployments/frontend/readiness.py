"""Readiness: whether a request that comes now can be served, as far as this frontend knows."""

from fermata.deployments.frontend.requests.table import RequestTable
from fermata.router.links.messages import FleetStatus

DRAINS = "this frontend shuts down"
NO_ROUTER = "no router is linked"
NO_FLEET = "the router has not yet reported its backends"
NO_BACKEND = "no backend is up"


class Readiness:
    """Pure. Combines the router's last report with the state of the request table."""

    def __init__(self, table: RequestTable, to_zero: bool) -> None:
        self.table = table
        self.to_zero = to_zero
        """There may be no backend until a request brings one. That counts as ready, or no load
        balancer would ever let that request in."""
        self.fleet: FleetStatus | None = None
        self.leaving = False
        """Clients are sent elsewhere."""

    def on_router_up(self) -> None:
        """Forget the report of another router; the new one sends its own first."""
        self.fleet = None

    def on_fleet(self, fleet: FleetStatus) -> None:
        self.fleet = fleet

    def trouble(self, *applications: str) -> str:
        """Reason why requests, or those of some applications, are not served; empty: they are."""
        if self.leaving or self.table.draining:
            return DRAINS
        if self.table.term < 0:
            return NO_ROUTER
        if self.fleet is None:
            return NO_FLEET
        if self.to_zero:
            return ""
        if not self.fleet.backends:
            return NO_BACKEND
        for application in applications:
            if application in self.fleet.not_loaded:
                return f"no backend that is up has loaded {application}"
        return ""
