"""Shared memory of frontends on this node, opened for reading.

Not `multiprocessing.shared_memory`: before Python 3.13 that registers an opened segment with the
resource tracker. The tracker unlinks it when this process ends, although the frontend owns it.
"""

import mmap
import os

FOLDER = "/dev/shm/"
"""Folder of POSIX shared memory on Linux; on other systems inputs travel inline."""
SEGMENTS_MAX = 1024
"""Mappings kept open; one node never has so many frontends."""


class Segments:
    """Maps segments by name, each once."""

    def __init__(self) -> None:
        self.maps: dict[str, mmap.mmap] = {}

    def read(self, name: str) -> memoryview:
        """The whole segment, read-only; FileNotFoundError if it does not exist."""
        mapped = self.maps.get(name)
        if mapped is None:
            if len(self.maps) >= SEGMENTS_MAX:
                # Views into a dropped mapping keep it alive until they are gone.
                del self.maps[next(iter(self.maps))]
            mapped = self.maps[name] = _map(name)
        return memoryview(mapped)

    def forget(self) -> None:
        """Drop every mapping, so that the memory of frontends that are gone can be freed."""
        self.maps.clear()


def _map(name: str) -> mmap.mmap:
    if "/" in name:
        raise FileNotFoundError(f"{name!r} is not the name of a segment")
    fd = os.open(FOLDER + name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
