"""Memory of a process that answers within deadlines: its garbage, its heap and its size."""

import ctypes
import gc
import os
from pathlib import Path

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Options of `mallopt`."""
MAPPED_FROM_BYTES = 32 << 20
KEPT_BYTES = 2 * MAPPED_FROM_BYTES
"""The threshold that glibc comes to by itself, once something of 32 MB has been freed."""
STATM = Path("/proc/self/statm")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def settle_garbage() -> None:
    """Take what is here out of the collector's sight: it stays until the process ends.

    A full collection of the modules that a backend or a frontend has imported holds every thread up
    for longer than many an SLO. Objects are freed as before once nothing refers to them; cycles
    among those that are here now are not.
    """
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> bool:
    """Keep some freed memory for what is allocated next; returns whether the library can.

    By default glibc gives memory back whenever a few hundred kilobytes at the end of the heap are
    free. Each message of that size would then be written to fresh pages, and each of those takes
    the kernel longer to hand out than it takes to fill.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, MAPPED_FROM_BYTES) and mallopt(TRIM_THRESHOLD, KEPT_BYTES))


def resident_bytes() -> int:
    """Memory of this process; 0 if the system does not report it."""
    try:
        return int(STATM.read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0
