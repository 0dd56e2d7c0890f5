"""Readiness: whether a request that comes now can be served, as far as this frontend knows."""

from collections.abc import Iterable

from fermata.deployments.frontend.requests.table import RequestTable
from fermata.router.links.messages import FleetStatus

DRAINS = "this frontend shuts down"
NO_ROUTER = "no router is linked"
NO_FLEET = "the router has not yet reported its backends"
NO_BACKEND = "no backend is up"
NO_HOME = "no sub-cluster is known that serves it"


class Readiness:
    """Pure. Combines the router's last report with the state of the request table."""

    def __init__(self, table: RequestTable, to_zero: bool) -> None:
        self.table = table
        self.to_zero = to_zero
        """There may be no backend until a request brings one. That counts as ready, or no load
        balancer would ever let that request in."""
        self.fleets: dict[int, FleetStatus] = {}
        """The last report of each sub-cluster."""
        self.leaving = False
        """Clients are sent elsewhere."""

    @property
    def fleet(self) -> FleetStatus | None:
        """The report of the first sub-cluster."""
        return self.fleets.get(0)

    def on_router_up(self, home: int = 0) -> None:
        """Forget the report of another router; the new one sends its own first."""
        self.fleets.pop(home, None)

    def on_fleet(self, fleet: FleetStatus, home: int = 0) -> None:
        self.fleets[home] = fleet

    def trouble(self, *applications: str) -> str:
        """Reason why requests, or those of some applications, are not served; empty: they are."""
        if self.leaving or self.table.draining:
            return DRAINS
        homes = self.table.homes
        if not applications:
            return self._trouble_of("", range(homes.count))
        found = (self._trouble_of(each, homes.of(each)) for each in applications)
        return next((each for each in found if each), "")

    def _trouble_of(self, application: str, homes: Iterable[int]) -> str:
        troubles = [self._trouble_at(home, application) for home in homes]
        # One sub-cluster that serves is enough.
        return min(troubles, key=len, default=NO_HOME)

    def _trouble_at(self, home: int, application: str) -> str:
        if self.table.homes.terms[home] < 0:
            return NO_ROUTER
        fleet = self.fleets.get(home)
        if fleet is None:
            return NO_FLEET
        if self.to_zero:
            return ""
        if not fleet.backends:
            return NO_BACKEND
        if application in fleet.not_loaded:
            return f"no backend that is up has loaded {application}"
        return ""
