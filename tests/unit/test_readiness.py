"""When a frontend says that it is ready."""

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.processes.frontend_options import scales_to_zero
from fermata.deployments.frontend.readiness import (
    DRAINS,
    NO_BACKEND,
    NO_FLEET,
    NO_ROUTER,
    Readiness,
)
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.router.links.messages import FleetStatus


def test_ready_takes_a_router_that_has_backends() -> None:
    table = RequestTable(1)
    readiness = Readiness(table, to_zero=False)
    assert readiness.trouble() == NO_ROUTER
    table.on_router_up(0, 1)
    readiness.on_router_up()
    assert readiness.trouble() == NO_FLEET
    readiness.on_fleet(FleetStatus(1, 0, ("a", "b")))
    assert readiness.trouble() == readiness.trouble("a") == NO_BACKEND
    readiness.on_fleet(FleetStatus(1, 2, ("b",)))
    assert readiness.trouble() == readiness.trouble("a") == ""
    assert "has loaded b" in readiness.trouble("b")
    # What the router before had is no word of this one.
    readiness.on_router_up()
    assert readiness.trouble() == NO_FLEET
    readiness.on_fleet(FleetStatus(1, 2))
    table.on_drain()
    assert readiness.trouble() == DRAINS


def test_no_backend_is_no_trouble_where_the_next_request_brings_one() -> None:
    table = RequestTable(1)
    readiness = Readiness(table, to_zero=True)
    assert readiness.trouble() == NO_ROUTER
    table.on_router_up(0, 1)
    readiness.on_fleet(FleetStatus(1, 0, ("a",)))
    assert readiness.trouble() == readiness.trouble("a") == ""


def test_zero_is_meant_only_where_somebody_acts_on_it() -> None:
    variant = {"name": "v", "alpha_ms": 1, "beta_ms": 1}
    given = {"applications": [{"name": "a", "slo_ms": 100, "variants": [variant]}]}
    assert not scales_to_zero(read_config(given))
    for spec, meant in (
        ({"maximum": 2}, False),
        ({"maximum": 2, "minimum": 0, "to_zero": True}, True),
        ({"maximum": 2, "minimum": 0, "to_zero": True, "dry_run": True}, False),
    ):
        assert scales_to_zero(read_config({**given, "autoscaler": spec})) is meant
