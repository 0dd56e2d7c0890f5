"""Files of TLS towards clients, for gRPC and for HTTP."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from fermata.foundation.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Names of files in PEM."""

    certificate_file: str
    key_file: str
    client_ca_file: str = ""
    """Clients need a certificate of this authority; empty: they need none."""

    @property
    def files(self) -> tuple[str, ...]:
        names = (self.certificate_file, self.key_file, self.client_ca_file)
        return tuple(name for name in names if name)

    def modified_at_ns(self) -> tuple[int, ...] | None:
        """Time of the last change of each file; None while one of them is missing."""
        try:
            return tuple(Path(name).stat().st_mtime_ns for name in self.files)
        except OSError:
            return None

    def check(self) -> None:
        """Raise ConfigError for unusable files: gRPC itself would not report them."""
        self.context()

    def context(self) -> ssl.SSLContext:
        """The files as they are now; ConfigError where they do not work together."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate_file, self.key_file)
            if self.client_ca_file:
                context.load_verify_locations(self.client_ca_file)
                context.verify_mode = ssl.CERT_REQUIRED
                # A client that resumes with a ticket is not asked for a certificate.
                context.num_tickets = 0
                context.options |= ssl.OP_NO_TICKET
        except OSError as error:
            raise ConfigError(
                f"frontend.tls: {', '.join(self.files)} do not work together "
                f"({error.strerror or error})"
            ) from None
        return context
