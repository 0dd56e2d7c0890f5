"""The sockets on which servers talk to clients, found among this process's descriptors.

gRPC tells neither the connections that it has taken nor the bytes that it holds, and TLS none that
shake hands. The kernel knows them: each connection is a descriptor of this process, and
TCP counts what came in on it.
"""

import ctypes
import os
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass

from fermata.deployments.frontend.access.callers import MAPPED

TCP_INFO_BYTES = 136
RECEIVED = struct.Struct("<Q")
RECEIVED_AT = 128
"""Offset of `tcpi_bytes_received` in the kernel's `tcp_info`."""
UNSPECIFIED = bytes(16)
"""An address of no family: a TCP socket that is connected to it is reset, and forgets its bytes."""
_libc = ctypes.CDLL(None)
FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(slots=True)
class ClientSocket:
    """One accepted connection."""

    fd: int
    inode: int
    address: str
    port: int
    received_bytes: int = 0

    def cut(self) -> None:
        """End the connection, for the server and for its client."""
        # A descriptor of our own stays that socket's, whatever the server does meanwhile.
        with suppress(OSError), socket.socket(fileno=os.dup(self.fd)) as one:
            if os.fstat(one.fileno()).st_ino != self.inode:
                return
            # A shutdown would leave what has come in to be read: thousands of calls, in a flood.
            if _libc.connect(one.fileno(), UNSPECIFIED, len(UNSPECIFIED)) != 0:
                one.shutdown(socket.SHUT_RDWR)


class ClientSockets:
    """Connections to one port. Used by one thread at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.known: dict[int, ClientSocket | None] = {}
        """By inode; None for a socket that is none of these."""

    def look(self) -> list[ClientSocket]:
        """The connections that are open now, the oldest first as far as it was seen."""
        found: dict[int, ClientSocket | None] = {}
        for fd in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):
                status = os.fstat(fd)
                if stat.S_ISSOCK(status.st_mode):
                    inode = status.st_ino
                    found[inode] = (
                        self.known[inode] if inode in self.known else self._new(fd, inode)
                    )
        kept = {inode: found[inode] for inode in self.known if inode in found}
        self.known = kept | found
        sockets = [each for each in self.known.values() if each is not None]
        for each in sockets:
            with suppress(OSError):
                each.received_bytes = received_bytes(each.fd)
        return sockets

    def _new(self, fd: int, inode: int) -> ClientSocket | None:
        with socket.socket(fileno=os.dup(fd)) as one:
            if one.family not in FAMILIES or one.getsockname()[1] != self.port:
                return None
            try:
                host, port = one.getpeername()[:2]
            except OSError:
                # The socket that listens, or one that its client has left already.
                return None
        return ClientSocket(fd, inode, host.removeprefix(MAPPED), port)


def received_bytes(fd: int) -> int:
    """Bytes that have come in on a TCP connection; 0 where the system does not say."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
    try:
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    finally:
        # The descriptor is the server's own.
        one.detach()
    return int(RECEIVED.unpack_from(info, RECEIVED_AT)[0]) if len(info) == TCP_INFO_BYTES else 0
