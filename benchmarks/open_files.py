"""Open files of a process, without the connections that Ray keeps between its workers."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LISTENING = 10
"""State of a socket in /proc/net/tcp."""
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def own_files(pid: int) -> int:
    """How many files a process has open; OSError where it is gone.

    A worker of Ray listens at every address, and others connect to it as Ray sees fit: now one
    calls back its caller, now it does not. Our own sockets have one address each.
    """
    sockets = list(_sockets())
    of_ray = {local for _, local, _, everywhere in sockets if everywhere}
    left_out = {inode for inode, local, peer, _ in sockets if local in of_ray or peer in of_ray}
    files = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
            files += found is None or int(found[1]) not in left_out
    return files


def _sockets() -> Iterator[tuple[int, int, int, bool]]:
    """Inode, port and peer's port of each, and whether it listens at every address."""
    for table in TABLES:
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            everywhere = int(fields[3], 16) == LISTENING and int(address, 16) == 0
            yield int(fields[9]), int(port, 16), int(fields[2].split(":")[1], 16), everywhere
