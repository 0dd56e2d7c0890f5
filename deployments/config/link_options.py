"""Options of links, from the configuration; the same for every process."""

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.router.links.tls import LinkTls
from fermata.router.links.transport import LinkOptions


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
