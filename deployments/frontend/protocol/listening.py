"""Ports of a frontend process, which it shares with frontends of its own deployment alone.

SO_REUSEPORT lets any process of the same user listen beside us, and the kernel then gives it a part
of our clients. So each frontend marks its listening sockets: it binds an abstract Unix name made of
the socket's inode and its deployment. Such names live in the network namespace, as ports do, and
end with their process: there is no file to go stale, and pods do not meet. A port is shared only
where every socket on it bears the mark of the same deployment.
"""

import asyncio
import hashlib
import os
import socket
import stat
import sys
from contextlib import suppress

from fermata.foundation.ports import Endpoint, bind_error, listeners, refusal

LOOK_S = 0.05
STRANGER_S = 2.0
"""A stranger may be a sibling that has not marked its socket yet, or a process that is ending."""
SIBLING_S = 20.0
"""A frontend that is replaced drains before it closes ports that are not shared."""


class Listening:
    """The listening sockets of one frontend process."""

    def __init__(self, deployment: str, shared: bool) -> None:
        """`shared`: with other frontends of the same `deployment`."""
        self.deployment = deployment
        self.shared = shared
        self.sockets: dict[int, int] = {}
        """Inodes, by file descriptor."""
        self.marks: list[socket.socket] = []

    async def wait_for(self, endpoint: Endpoint) -> None:
        """Return once it may be bound; a ConfigError where another process keeps it."""
        if self.shared and sys.platform != "linux":
            return
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (error := bind_error(endpoint)) is not None:
            found = listeners(endpoint)
            strangers = [each for each in found if not self._is_marked(each.inode)]
            siblings = bool(found) and not strangers
            if siblings and self.shared:
                return
            if loop.time() - began_s > (SIBLING_S if siblings else STRANGER_S):
                raise refusal(endpoint, error, strangers or found)
            await asyncio.sleep(LOOK_S)

    async def mark(self, endpoint: Endpoint) -> None:
        """Mark our sockets there; a ConfigError where a stranger has come in at the same time."""
        for fd, inode in own_listeners(endpoint.port).items():
            self.sockets[fd] = inode
            if sys.platform == "linux" and not self._is_marked(inode):
                mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self.marks.append(mark)
                mark.bind(self._name(inode))
        if self.shared:
            await self.wait_for(endpoint)

    def is_lost(self) -> bool:
        """Whether one of the sockets takes no connections any more."""
        return not all(_listens(fd, inode) for fd, inode in self.sockets.items())

    def close(self) -> None:
        """Take the marks back, once the sockets are closed."""
        for mark in self.marks:
            mark.close()

    def _is_marked(self, inode: int) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            return asking.connect_ex(self._name(inode)) == 0

    def _name(self, inode: int) -> str:
        # A deployment's name may be longer than that of a socket.
        digest = hashlib.blake2s(self.deployment.encode(), digest_size=16).hexdigest()
        return f"\0fermata-listener-{inode}-{digest}"


def own_listeners(port: int) -> dict[int, int]:
    """Inodes of this process's sockets that listen on the port, by file descriptor."""
    found: dict[int, int] = {}
    for fd in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):
            inode = os.fstat(fd).st_ino
            if _listens(fd, inode) and _port_of(fd) == port:
                found[fd] = inode
    return found


def _listens(fd: int, inode: int) -> bool:
    """Whether the descriptor is that socket's still, and it takes connections."""
    with suppress(OSError):
        status = os.fstat(fd)
        if status.st_ino == inode and stat.S_ISSOCK(status.st_mode):
            with socket.socket(fileno=os.dup(fd)) as one:
                return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _port_of(fd: int) -> int:
    with socket.socket(fileno=os.dup(fd)) as one:
        return int(one.getsockname()[1]) if one.family in (socket.AF_INET, socket.AF_INET6) else 0
