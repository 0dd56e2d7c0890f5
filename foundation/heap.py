"""The C library's heap in a process that takes large messages."""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Options of `mallopt`."""
MAPPED_FROM_BYTES = 32 << 20
KEPT_BYTES = 2 * MAPPED_FROM_BYTES
"""What glibc comes to by itself, once something of 32 MB has been freed."""


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
