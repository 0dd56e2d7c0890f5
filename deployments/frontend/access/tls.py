"""TLS towards clients, for gRPC and for HTTP."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from fermata.foundation.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Files in PEM."""

    certificate_file: str
    key_file: str
    client_ca_file: str = ""
    """Clients need a certificate of this authority; empty: they need none."""

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """gRPC asks at each handshake, so that certificates can be replaced under way."""
        self.check()
        changed = self._watch()
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            lambda: self._configuration() if changed() else None,
            bool(self.client_ca_file),
        )

    def http_context(self) -> ssl.SSLContext:
        """HTTP looks at each handshake too: what is new, clients' authority among it, is a context
        of its own, which takes the place of the first."""
        first = newest = self._context()
        changed = self._watch()

        def look(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            nonlocal newest
            if changed():
                newest = self._context()
            connection.context = newest

        first.sni_callback = look
        return first

    def _watch(self) -> Callable[[], bool]:
        """Whether there are new files, and good ones, since the last call."""
        seen = self._stamp()

        def changed() -> bool:
            nonlocal seen
            stamp = self._stamp()
            if stamp in (seen, None):
                return False
            try:
                self.check()
            except ConfigError:
                # One of them has been replaced, and the other has not yet.
                return False
            seen = stamp
            return True

        return changed

    def _stamp(self) -> tuple[int, ...] | None:
        """Changes when a file does; None while one of them is away."""
        files = filter(None, (self.certificate_file, self.key_file, self.client_ca_file))
        try:
            return tuple(Path(each).stat().st_mtime_ns for each in files)
        except OSError:
            return None

    def _configuration(self) -> Any:
        pair = Path(self.key_file).read_bytes(), Path(self.certificate_file).read_bytes()
        roots = Path(self.client_ca_file).read_bytes() if self.client_ca_file else None
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def check(self) -> None:
        """ConfigError where the files are no good: gRPC itself would say so to nobody."""
        self._context()

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate_file, self.key_file)
            if self.client_ca_file:
                context.load_verify_locations(self.client_ca_file)
                context.verify_mode = ssl.CERT_REQUIRED
                # Who comes again with a ticket is not asked for a certificate.
                context.num_tickets = 0
                context.options |= ssl.OP_NO_TICKET
        except OSError as error:
            files = ", ".join(
                filter(None, (self.certificate_file, self.key_file, self.client_ca_file))
            )
            raise ConfigError(
                f"frontend.tls: {files} do not work together ({error.strerror or error})"
            ) from None
        return context
