"""How a client gets in: its token, whom it trusts, and its own certificate.

Held as names of files and of a variable, so that no secret is copied, printed or pickled with the
options that it is part of; what they name is read when a connection is made.
"""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from fermata.clients.wire.errors import BadRequestError

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Access:
    """Nothing of it: plain connections without a token."""

    token_file: str = ""
    """Its first line is the token."""
    token_env: str = ""
    """Environment variable that holds the token, in place of a file."""
    ca_file: str = ""
    """Certificates of who may vouch for the server (PEM); with it connections are TLS."""
    certificate_file: str = ""
    """This client's own certificate, for servers that ask for one; needs `ca_file`."""
    key_file: str = ""
    server_name: str = ""
    """The name in the server's certificate, where that is not the host connected to."""

    def __post_init__(self) -> None:
        if bool(self.certificate_file) != bool(self.key_file):
            raise BadRequestError("a client's certificate and its key come together: give both")
        if self.certificate_file and not self.ca_file:
            raise BadRequestError("a client's certificate needs TLS: give the server's CA too")

    @property
    def tls(self) -> bool:
        return bool(self.ca_file)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers that every call carries."""
        token = self._token()
        return (("authorization", f"Bearer {token}"),) if token else ()

    def _token(self) -> str:
        if self.token_file:
            lines = _read(self.token_file).decode(errors="replace").split()
            if not lines:
                raise BadRequestError(f"{self.token_file} holds no token")
            return lines[0]
        if self.token_env:
            token = os.environ.get(self.token_env, "")
            if not token:
                raise BadRequestError(f"the environment has no {self.token_env}: set it")
            return token
        return ""

    def channel(self, server: str, options: Options = ()) -> grpc.Channel:
        if not self.tls:
            return grpc.insecure_channel(server, options=options)
        return grpc.secure_channel(server, self._credentials(), self._named(options))

    def aio_channel(self, server: str, options: Options = ()) -> Any:
        if not self.tls:
            return grpc.aio.insecure_channel(server, options=options)
        return grpc.aio.secure_channel(server, self._credentials(), self._named(options))

    def _credentials(self) -> grpc.ChannelCredentials:
        key = _read(self.key_file) if self.key_file else None
        chain = _read(self.certificate_file) if self.certificate_file else None
        return grpc.ssl_channel_credentials(_read(self.ca_file), key, chain)

    def _named(self, options: Options) -> Options:
        if not self.server_name:
            return options
        return (*options, ("grpc.ssl_target_name_override", self.server_name))

    def context(self) -> ssl.SSLContext | None:
        """For connections that are not gRPC's own; None: plain ones."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except OSError as error:
            raise BadRequestError(f"{self.ca_file}: no TLS with these files ({error})") from None
        return context


OPEN = Access()
"""To servers that ask for nothing."""


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadRequestError(f"{path} cannot be read ({error.strerror})") from None
