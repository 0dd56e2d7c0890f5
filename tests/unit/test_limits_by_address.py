"""Limits of frontends as a file sets them."""

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.processes.frontend_options import frontend_options

APPLICATION = {
    "name": "a",
    "slo_ms": 50,
    "input": {"dtype": "UINT8", "shape": [4]},
    "variants": [{"name": "v", "model": "emulated", "alpha_ms": 1, "beta_ms": 5}],
}


def test_what_one_address_may_have_is_set_in_the_file() -> None:
    frontend = {
        "connections_per_client_max": 7,
        "calls_per_client_max": 70,
        "held_per_client_max": 0.5,
        "proxies": ["10.0.0.9"],
    }
    given = read_config({"applications": [APPLICATION], "frontend": frontend})
    limits = frontend_options(given, 1).server.connections
    found = limits.per_address_max, limits.calls_per_address_max, limits.held_share
    assert (*found, limits.proxies) == (7, 70, 0.5, {"10.0.0.9"})
