"""Errors that the driver reports of this process' GPU (Xid events), read from NVML.

A device that is lost runs nothing any more, and what waits for it may never hear so. The driver
tells at once.
"""

import ctypes
import threading
from collections.abc import Callable

from fermata.deployments.backend.gpu_meter import OK, GpuMeter
from fermata.foundation.logs import LOG, fields

XID_EVENTS = 0x8
TIMEOUT, GPU_IS_LOST = 10, 15
WAIT_MS = 5000
LOST = frozenset((48, 62, 64, 74, 79, 95, 119, 120, 140))
"""Xids after which every process has to leave the device: memory errors that are not contained, a
microcontroller or a link between GPUs that has failed, a GPU that has fallen off its bus. Others
are of one program, which its own next call tells, or of memory that the driver has replaced."""


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class GpuEvents:
    """Xid events of one GPU. OSError where its driver has none."""

    def __init__(self, gpu: GpuMeter) -> None:
        self.nvml = gpu.nvml
        self.events = ctypes.c_void_p()
        if (
            self.nvml.nvmlEventSetCreate(ctypes.byref(self.events)) != OK
            or self.nvml.nvmlDeviceRegisterEvents(
                gpu.handle, ctypes.c_ulonglong(XID_EVENTS), self.events
            )
            != OK
        ):
            raise OSError("NVML has no events of this GPU")

    def wait(self) -> int:
        """The next Xid; 0 where none has come for a while, below 0 where the GPU is lost."""
        found = _Event()
        failed = self.nvml.nvmlEventSetWait_v2(self.events, ctypes.byref(found), WAIT_MS)
        if failed == TIMEOUT:
            return 0
        if failed == GPU_IS_LOST:
            return -1
        if failed != OK:
            raise OSError(f"NVML tells no more events: error {failed}")
        return int(found.data)


def watch_gpu(gpu: GpuMeter | None, on_lost: Callable[[str], None]) -> threading.Thread | None:
    """Call `on_lost`, once and from a thread, when the driver says that the GPU is of no use any
    more; None where there are no such events."""
    if gpu is None:
        return None
    try:
        events = GpuEvents(gpu)
    # Drivers of old lack the functions.
    except (OSError, AttributeError):
        return None
    thread = threading.Thread(target=_watch, args=(events, on_lost), name="gpu-events", daemon=True)
    thread.start()
    return thread


def _watch(events: GpuEvents, on_lost: Callable[[str], None]) -> None:
    while True:
        try:
            xid = events.wait()
        except OSError as error:
            LOG.warning("GPU events end", extra=fields(reason=str(error)))
            return
        if xid < 0 or xid in LOST:
            on_lost("the driver has lost the GPU" if xid < 0 else f"the driver reports Xid {xid}")
            return
        if xid > 0:
            LOG.warning("GPU error", extra=fields(xid=xid))
