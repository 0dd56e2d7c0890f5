"""The devices that profiles are measured on: memory and synchronisation of each."""

import importlib.util
import platform
from pathlib import Path

from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.profiles.measure import Device

CHOICES = ("auto", "cpu", "cuda")
STATUS = Path("/proc/self/status")


class Cpu:
    """This process; its memory is what Linux counts as resident."""

    def __init__(self, threads: int) -> None:
        self.name = f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def used_bytes(self) -> int:
        return _status_bytes("VmRSS")

    def reset_peak(self) -> None:
        try:
            # 5 resets the high-water mark (proc_pid_clear_refs(5)); some containers forbid it.
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return

    def peak_bytes(self) -> int:
        return _status_bytes("VmHWM")


class Cuda:
    """The current CUDA device, as torch's allocator counts it."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self.name = torch.cuda.get_device_name()

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def used_bytes(self) -> int:
        return int(self._cuda.memory_allocated())

    def reset_peak(self) -> None:
        self._cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        return int(self._cuda.max_memory_allocated())


def choose_device(wanted: str) -> str:
    """`cpu` or `cuda`; `auto` takes a GPU where there is one."""
    if wanted not in CHOICES:
        refuse("device", wanted, f"must be one of {', '.join(CHOICES)}")
    if wanted == "cpu":
        return "cpu"
    found = _has_cuda()
    if wanted == "cuda" and not found:
        raise ConfigError("device='cuda': torch sees no CUDA device here; use cpu or auto")
    return "cuda" if found else "cpu"


def open_device(name: str, threads: int = 1) -> Device:
    """The device `cpu`, with torch held to that many threads, or `cuda`."""
    if name == "cuda":
        return Cuda()
    if _has_torch():
        import torch

        torch.set_num_threads(threads)
    return Cpu(threads)


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _has_cuda() -> bool:
    if not _has_torch():
        return False
    import torch

    return bool(torch.cuda.is_available())


def _status_bytes(key: str) -> int:
    try:
        lines = STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
