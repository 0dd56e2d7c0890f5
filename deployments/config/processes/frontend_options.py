"""Options of one frontend process, from the configuration; read on its own machine, where its
secrets lie."""

import os
from pathlib import Path

from fermata.deployments.config.deployment import DeploymentConfig, FrontendConfig
from fermata.deployments.config.processes.process_options import link_options
from fermata.deployments.specs.frontend import (
    ConnectionLimits,
    FrontendOptions,
    ServerOptions,
    StreamLimits,
    TableLimits,
    TenantSpec,
    TraceOptions,
)
from fermata.deployments.specs.tls import ServerTls
from fermata.foundation.units import ms
from fermata.router.leadership.actor import own_address


def frontend_options(
    config: DeploymentConfig, number: int, secret: bytes = b"", deployment: str = ""
) -> FrontendOptions:
    """Everything that the process of this number is told, the deployment's secret for links
    included; ConfigError where a token or a certificate is missing.

    Frontends of the same `deployment` share their ports."""
    given = config.frontend
    return FrontendOptions(
        number=number,
        link_host=own_address(config.links.host),
        traces=trace_options(config),
        tenants=tenants(config),
        client_memory=given.client_memory,
        repository_open=config.repository == "open",
        to_zero=scales_to_zero(config),
        table=TableLimits(
            payload_bytes_max=int(given.payload_mb * 2**20), reply_ns=ms(given.reply_ms)
        ),
        streams=StreamLimits(
            per_client_max=given.streams_per_client_max, idle_ns_max=ms(given.idle_s * 1000)
        ),
        pixels_max=int(given.picture_megapixels_max * 1e6),
        decoders=given.decoders or decoders_of(given, len(os.sched_getaffinity(0))),
        server=ServerOptions(
            host=given.host,
            grpc_port=given.grpc_port,
            http_port=given.http_port,
            reuse_port=given.processes > 1,
            deployment=deployment,
            message_bytes_max=int(given.message_mb * 2**20),
            tls=client_tls(config),
            edge=given.edge,
            connections=ConnectionLimits(
                total_max=given.connections_max,
                per_address_max=given.connections_per_client_max,
                calls_per_address_max=given.calls_per_client_max,
                held_share=given.held_per_client_max,
                proxies=frozenset(given.proxies),
                idle_ns=ms(given.idle_s * 1000),
                receive_ns=ms(given.receive_s * 1000),
            ),
        ),
        links=link_options(config, secret),
    )


def decoders_of(given: FrontendConfig, cores: int) -> int:
    """Decoding threads of one frontend on a machine with so many cores."""
    return max(2, cores // (given.per_node or given.processes))


def scales_to_zero(config: DeploymentConfig) -> bool:
    """Whether there may be no backend although nothing is wrong."""
    spec = config.autoscaler
    return spec is not None and spec.to_zero and not spec.dry_run


def client_tls(config: DeploymentConfig) -> ServerTls | None:
    given = config.frontend.tls
    if given is None:
        return None
    return ServerTls(given.certificate_file, given.key_file, given.client_ca_file)


def tenants(config: DeploymentConfig) -> tuple[TenantSpec, ...]:
    """Everybody who is configured, with their tokens."""
    return tuple(
        TenantSpec(
            each.name,
            each.tokens(),
            frozenset(each.applications),
            each.rate_rps,
            each.burst,
            each.operator,
        )
        for each in config.tenants
    )


def check_secrets(config: DeploymentConfig) -> None:
    """ConfigError where a token or a certificate is missing, for all processes on one machine."""
    tenants(config)
    link_options(config)
    if config.control.is_given:
        config.control.tokens()
    if (tls := client_tls(config)) is not None:
        tls.check()


def trace_options(config: DeploymentConfig) -> TraceOptions | None:
    given = config.traces
    if given is None:
        return None
    return TraceOptions(Path(given.folder), given.share, int(given.file_mb * 2**20))
