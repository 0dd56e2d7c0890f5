"""TLS towards clients: certificates that are replaced on disk serve the next handshakes."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from fermata.deployments.specs.tls import ServerTls
from fermata.foundation.errors import ConfigError


def grpc_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Credentials of a gRPC server, which asks for certificates at each handshake."""
    tls.check()
    changed = _change_detector(tls)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(tls),
        lambda: _configuration(tls) if changed() else None,
        bool(tls.client_ca_file),
    )


def http_context(tls: ServerTls) -> ssl.SSLContext:
    """Context of an HTTP server, which looks for new files at each handshake.

    New files, the clients' authority among them, need a context of their own in place of the first.
    """
    first = newest = tls.context()
    changed = _change_detector(tls)

    def pick(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        nonlocal newest
        if changed():
            newest = tls.context()
        connection.context = newest

    first.sni_callback = pick
    return first


def _change_detector(tls: ServerTls) -> Callable[[], bool]:
    """A function that returns whether the files have changed since its last call, and are valid."""
    seen = tls.modified_at_ns()

    def changed() -> bool:
        nonlocal seen
        found = tls.modified_at_ns()
        if found in (seen, None):
            return False
        try:
            tls.check()
        except ConfigError:
            # One of them has been replaced, and the other has not yet.
            return False
        seen = found
        return True

    return changed


def _configuration(tls: ServerTls) -> Any:
    pair = Path(tls.key_file).read_bytes(), Path(tls.certificate_file).read_bytes()
    roots = Path(tls.client_ca_file).read_bytes() if tls.client_ca_file else None
    return grpc.ssl_server_certificate_configuration([pair], roots)
