"""Whether a request that comes now can be served, as far as this frontend knows."""

from fermata.deployments.frontend.requests.table import RequestTable
from fermata.router.links.messages import FleetStatus

DRAINS = "this frontend shuts down"
NO_ROUTER = "no router is linked"
UNTOLD = "the router has not said yet who is there"
NO_BACKEND = "no backend is there"


class Readiness:
    """Pure: what the router said last, beside what the table knows."""

    def __init__(self, table: RequestTable, to_zero: bool) -> None:
        self.table = table
        self.to_zero = to_zero
        """There may be no backend, and the next request brings one: that counts as ready, or no
        balancer would ever let that request in."""
        self.fleet: FleetStatus | None = None

    def on_router_up(self) -> None:
        """A router says who is there before anything else; what another one said is over."""
        self.fleet = None

    def on_fleet(self, fleet: FleetStatus) -> None:
        self.fleet = fleet

    def trouble(self, application: str = "") -> str:
        """Why nobody, or nobody of this application, can be served now; empty where they can."""
        if self.table.draining:
            return DRAINS
        if self.table.epoch < 0:
            return NO_ROUTER
        if self.fleet is None:
            return UNTOLD
        if self.to_zero:
            return ""
        if not self.fleet.backends:
            return NO_BACKEND
        if application in self.fleet.unheld:
            return f"no backend that is there holds {application}"
        return ""
