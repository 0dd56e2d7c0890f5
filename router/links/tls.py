"""TLS of links, bytes in and bytes out, so that the heartbeat thread can write as it does without.
Data connections have it on a blocking socket.

Both ends show a certificate of one authority with one name in it: the authority is the deployment's
own, and the name tells its processes from whomever else it may vouch for. The processes' addresses
change too often to stand in certificates. One that also has the name with a role behind it, such as
`fermata-router`, speaks for that role alone.
"""

import os
import socket
import ssl
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fermata.foundation.errors import ConfigError

READ_BYTES = 1 << 14
"""Size of one record; a larger buffer would be thrown away each time."""
ROLES = ("router", "frontend", "backend")
CONTEXTS = 8
"""Contexts that are kept: of client and server, for a few sets of files."""


@dataclass(frozen=True, slots=True)
class LinkTls:
    """Files in PEM, looked at for each link, so that new files need no restart."""

    certificate_file: str
    key_file: str
    ca_file: str
    name: str = "fermata"

    def seal(self, server_side: bool) -> "TlsChannel":
        """For one link; ConfigError where the files are no good."""
        return TlsChannel(self._context(server_side), server_side, self.name)

    def wrap(self, connection: socket.socket, server_side: bool) -> ssl.SSLSocket:
        """The same connection with TLS, before its handshake; ConfigError as above."""
        return self._context(server_side).wrap_socket(
            connection,
            server_side,
            do_handshake_on_connect=False,
            server_hostname=None if server_side else self.name,
        )

    def shake(self, connection: ssl.SSLSocket) -> frozenset[str]:
        """Go through the handshake of a connection that was wrapped: the roles of the peer's
        certificate. Raises OSError."""
        connection.do_handshake()
        names = names_in(connection.getpeercert())
        # The client's side has checked the name in the handshake.
        if connection.server_side and self.name not in names:
            raise ssl.SSLError(f"the certificate is not of {self.name!r}")
        return roles_among(names, self.name)

    def _context(self, server_side: bool) -> ssl.SSLContext:
        try:
            return _context(self, server_side, self._stamp())
        except OSError as error:
            raise ConfigError(
                f"links.tls: {self.certificate_file}, {self.key_file} and {self.ca_file} are no "
                f"certificate, key and CA ({error.strerror or error})"
            ) from None

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes whenever one of the files does."""
        files = (self.certificate_file, self.key_file, self.ca_file)
        found = [os.stat(each) for each in files]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


@lru_cache(maxsize=CONTEXTS)
def _context(
    tls: LinkTls, server_side: bool, stamp: tuple[tuple[int, int, int], ...]
) -> ssl.SSLContext:
    """The files as OpenSSL wants them. Reading them takes milliseconds, which a mere
    connection must not cost."""
    protocol = ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if server_side:
        # Links live for days: there is nothing to resume.
        context.num_tickets = 0
    context.load_verify_locations(tls.ca_file)
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def names_in(certificate: Any) -> list[str]:
    """Names of a peer that its certificate vouches for."""
    found = (certificate or {}).get("subjectAltName", ())
    return [value for kind, value in found if kind == "DNS"]


def roles_among(names: list[str], name: str) -> frozenset[str]:
    """Roles that a certificate with these names may speak for; empty: any."""
    return frozenset(role for role in ROLES if f"{name}-{role}" in names)


class TlsChannelError(Exception):
    """The peer is not who it should be, or what it says is no TLS."""

    def __init__(self, reason: str, last: bytes) -> None:
        super().__init__(reason)
        self.last = last
        """Bytes for the peer before the connection is closed."""


class TlsChannel:
    """One end of one link's TLS. One thread at a time."""

    def __init__(self, context: ssl.SSLContext, server_side: bool, name: str) -> None:
        self.server_side = server_side
        self.name = name
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_side, None if server_side else name
        )
        self._waiting: list[bytes] = []
        """Said before hands were shaken."""
        self.made = False
        self.roles: frozenset[str] = frozenset()
        """Named in the peer's certificate; empty: any."""

    def wrap(self, data: bytes) -> bytes:
        """Encrypt this; it waits for the handshake, which the first call begins. Raises SealError,
        as `unwrap` does, once the peer has refused."""
        if self.made:
            self._write(data)
        else:
            self._waiting.append(data)
            self._shake()
        return self._out.read()

    def unwrap(self, data: bytes) -> tuple[bytes, bytes]:
        """Decrypt; returns the peer's bytes and an immediate reply; raises SealError."""
        self._in.write(data)
        if not self.made:
            self._shake()
        heard: list[bytes] = []
        try:
            # Not until it says that there is no more: that would be an exception each time.
            while self.made and (self._in.pending or self._tls.pending()):
                heard.append(self._tls.read(READ_BYTES))
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            # Nothing more for now, or for good: then the connection ends by itself.
            pass
        except ssl.SSLError as error:
            raise self._error(error) from None
        return b"".join(heard), self._out.read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise self._error(error) from None
        names = names_in(self._tls.getpeercert())
        # The client's side has checked the name in the handshake.
        if self.server_side and self.name not in names:
            raise TlsChannelError(f"the certificate is not of {self.name!r}", self._out.read())
        self.roles = roles_among(names, self.name)
        self.made = True
        for data in self._waiting:
            self._write(data)
        self._waiting.clear()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError as error:
            raise self._error(error) from None

    def _error(self, error: ssl.SSLError) -> TlsChannelError:
        return TlsChannelError(getattr(error, "verify_message", "") or str(error), self._out.read())
