"""The ports of a deployment, as configured."""

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.foundation.ports import Endpoint, check_free, free_port, grpc_endpoint, http_endpoint


def endpoints(config: DeploymentConfig) -> tuple[Endpoint, ...]:
    """Every port of a deployment whose processes are all on one machine."""
    frontend, control = config.frontend, config.control
    return (
        grpc_endpoint(frontend.host, frontend.grpc_port),
        http_endpoint(frontend.host, frontend.http_port),
        Endpoint("control", "port", control.host, control.port),
    )


def with_free_ports(config: DeploymentConfig) -> DeploymentConfig:
    """The same with a free port in place of each 0: one that all frontends share."""
    frontend = config.frontend
    free: dict[str, int] = {}
    for each in endpoints(config):
        if each.port == 0:
            check_free(each)
            free[each.option] = free_port(each.host, free.values())
    return config.model_copy(update={"frontend": frontend.model_copy(update=free)})
