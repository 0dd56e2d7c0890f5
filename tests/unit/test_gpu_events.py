"""Xid events of a GPU, told by a stand-in for NVML's C interface."""

from typing import Any

import pytest

from fermata.deployments.backend.gpu_events import GPU_IS_LOST, TIMEOUT, XID_EVENTS, watch_gpu


class Library:
    """Tells these answers one after the other: (status, Xid)."""

    def __init__(self, *answers: tuple[int, int], register: int = 0) -> None:
        self.answers = list(answers)
        self.register = register
        self.registered: list[int] = []

    def nvmlEventSetCreate(self, events: Any) -> int:  # noqa: N802
        events._obj.value = 77
        return 0

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:  # noqa: N802
        assert (handle, events.value) == ("the gpu", 77)
        self.registered.append(kinds.value)
        return self.register

    def nvmlEventSetWait_v2(self, events: Any, found: Any, timeout_ms: int) -> int:  # noqa: N802
        status, found._obj.data = self.answers.pop(0)
        return status


class Gpu:
    """As `GpuMeter`, without a GPU."""

    def __init__(self, nvml: object) -> None:
        self.nvml = nvml
        self.handle = "the gpu"


def told(library: Library) -> list[str]:
    lost: list[str] = []
    thread = watch_gpu(Gpu(library), lost.append)  # type: ignore[arg-type]
    assert thread is not None
    thread.join(5.0)
    assert not thread.is_alive()
    return lost


@pytest.mark.parametrize("xid", [48, 79, 95, 119])
def test_a_device_that_the_driver_gives_up_is_told_of_once(xid: int) -> None:
    library = Library((TIMEOUT, 0), (0, xid), (0, xid))
    assert told(library) == [f"the driver reports Xid {xid}"]
    assert library.registered == [XID_EVENTS]
    assert len(library.answers) == 1


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 94])
def test_errors_of_one_program_end_no_other(xid: int) -> None:
    assert told(Library((0, xid), (999, 0))) == []


def test_a_gpu_that_is_gone_has_no_events() -> None:
    assert told(Library((GPU_IS_LOST, 0))) == ["the driver has lost the GPU"]


def test_without_events_nothing_is_watched() -> None:
    assert watch_gpu(None, print) is None
    assert watch_gpu(Gpu(Library(register=3)), print) is None  # type: ignore[arg-type]
    assert watch_gpu(Gpu(object()), print) is None  # type: ignore[arg-type]
