"""Options of processes from the configuration: what a backend loads, and the links of all."""

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.resolve import known_profiles, model_specs, variants
from fermata.deployments.specs.backend import StoreOptions
from fermata.router.links.tls import LinkTls
from fermata.router.links.transport import LinkOptions


def store_options(config: DeploymentConfig) -> StoreOptions:
    """Variants that every backend of a deployment may hold, and the device that runs them."""
    given = config.backend
    return StoreOptions(
        specs=tuple(model_specs(config, known_profiles(config))),
        device=given.device,
        memory_bytes_max=None if given.memory_mb is None else int(given.memory_mb * 2**20),
        swap=given.swap,
        kind=given.kind,
        # Ray gives OpenMP the same number, from the cores that it sets aside.
        threads=max(1, int(given.cpus)),
        measure=given.measure,
        kernels=given.kernels,
        on_demand=frozenset(
            variant.name for application, variant in variants(config) if application.load == "asked"
        ),
    )


def link_options(config: DeploymentConfig, secret: bytes = b"") -> LinkOptions:
    """`secret` is the deployment's own; see
    `fermata.deployments.control.ray_cluster.link_secret`. ConfigError where files of TLS are
    missing on this machine, or are none."""
    given = config.links.tls
    if given is None:
        return LinkOptions(secret=secret)
    tls = LinkTls(given.certificate_file, given.key_file, given.ca_file, given.name)
    tls.seal(server_side=False)
    return LinkOptions(tls=tls, secret=secret)
