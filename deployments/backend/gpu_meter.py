"""Utilization and memory of this process' GPU, read from NVML by its C interface."""

import ctypes
from typing import Any

OK = 0


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class GpuMeter:
    """One GPU, by the name that CUDA gives it."""

    def __init__(self, uuid: str) -> None:
        self.handle = ctypes.c_void_p()
        self.nvml: Any = ctypes.CDLL("libnvidia-ml.so.1")
        name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
        if (
            self.nvml.nvmlInit_v2() != OK
            or self.nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self.handle)) != OK
        ):
            raise OSError(f"NVML does not know the GPU {uuid}")

    def used(self) -> float:
        """Share of the driver's last sampling period with a kernel running; -1: unknown."""
        found = _Utilization()
        failed = self.nvml.nvmlDeviceGetUtilizationRates(self.handle, ctypes.byref(found))
        return -1.0 if failed else found.gpu / 100

    def memory_bytes(self) -> tuple[int, int]:
        """(in use by all processes, total); -1 if unknown."""
        found = _Memory()
        failed = self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(found))
        return (-1, -1) if failed else (found.used, found.total)


def find_gpu(device: str) -> GpuMeter | None:
    """The meter of this process' GPU; None without a GPU or without NVML."""
    if device != "cuda":
        return None
    import torch

    try:
        return GpuMeter(str(torch.cuda.get_device_properties(0).uuid))
    except (OSError, AttributeError):
        return None
