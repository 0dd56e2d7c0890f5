"""The death of a process is heard by another one, early, and nothing else is."""

import ctypes
import errno
import signal
import subprocess
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from child_process import child

from fermata.deployments.backend.death_alarm import DeathAlarm
from fermata.deployments.backend.seats import FileLock

HOLD = """
import sys
from pathlib import Path
from fermata.deployments.backend.death_alarm import DeathAlarm
from fermata.deployments.backend.seats import FileLock
folder = Path(sys.argv[1])
lock = FileLock(folder / "lock")
assert lock.try_take()
memory = bytearray(int(sys.argv[2]))
memory[::4096] = b"x" * len(memory[::4096])
DeathAlarm(folder / "alarm").arm()
print("armed", flush=True)
sys.stdin.read()
"""
SOON_S = 10.0


def armed(folder: Path, memory: int = 0) -> AbstractContextManager[subprocess.Popen[str]]:
    return child(HOLD, folder, memory, says="armed")


def heard(folder: Path) -> threading.Event:
    found = threading.Event()
    DeathAlarm(folder / "alarm").when_dead(found.set)
    return found


def test_a_kill_is_heard(tmp_path: Path) -> None:
    with armed(tmp_path) as process:
        dead = heard(tmp_path)
        assert not dead.wait(0.2)
        process.kill()
        assert dead.wait(SOON_S)


def test_an_orderly_end_is_heard(tmp_path: Path) -> None:
    with armed(tmp_path) as process:
        dead = heard(tmp_path)
        assert process.stdin is not None
        process.stdin.close()
        assert dead.wait(SOON_S)


def test_a_stop_is_not_heard(tmp_path: Path) -> None:
    with armed(tmp_path) as process:
        dead = heard(tmp_path)
        process.send_signal(signal.SIGSTOP)
        assert not dead.wait(0.3)
        process.send_signal(signal.SIGCONT)
        assert not dead.wait(0.1)


def test_a_file_that_nobody_has_armed_says_nothing(tmp_path: Path) -> None:
    assert not heard(tmp_path).wait(0.2)


def test_it_is_heard_no_later_than_locks_of_files_are_released(tmp_path: Path) -> None:
    """The process has memory that takes the kernel longer to clear than a thread to wake up."""
    with armed(tmp_path, memory=1 << 29) as process:
        at_s: dict[str, float] = {}
        both = threading.Barrier(3)

        def note(name: str) -> None:
            at_s[name] = time.monotonic()
            both.wait(SOON_S)

        lock = FileLock(tmp_path / "lock")
        threading.Thread(target=lambda: (lock.wait(), note("lock")), daemon=True).start()
        DeathAlarm(tmp_path / "alarm").when_dead(lambda: note("alarm"))
        process.kill()
        both.wait(SOON_S)
        assert at_s["alarm"] <= at_s["lock"]
        print(f"{1e3 * (at_s['lock'] - at_s['alarm']):.1f} ms earlier")


class FaultyLibrary:
    """The C library, with one call that is missing, or that returns an error."""

    def __init__(self, call: str, code: int | None) -> None:
        self.inner = ctypes.CDLL(None)
        self.call, self.code = call, code
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        if name != self.call:
            return getattr(self.inner, name)
        if self.code is None:
            raise AttributeError(f"undefined symbol: {name}")
        return lambda *arguments: self.code


CALLS = (
    "pthread_mutexattr_init",
    "pthread_mutexattr_setpshared",
    "pthread_mutexattr_setrobust",
    "pthread_mutex_init",
    "pthread_mutex_lock",
)


@pytest.mark.parametrize("code", [None, errno.ENOTSUP])
@pytest.mark.parametrize("call", CALLS)
def test_without_robust_mutexes_nothing_waits_and_nothing_is_heard(
    call: str, code: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    alarm = DeathAlarm(tmp_path / "alarm")
    alarm.library = FaultyLibrary(call, code)
    arming = threading.Thread(target=alarm.arm, daemon=True)
    arming.start()
    arming.join(SOON_S / 5)
    assert not arming.is_alive(), "the event loop would stand still"
    assert len(caplog.records) == 1
    assert call in str(caplog.records[0].__dict__)
    assert not heard(tmp_path).wait(0.1)


@pytest.mark.parametrize("code", [None, errno.EINVAL])
def test_a_waiter_without_robust_mutexes_asks_once_and_says_so(
    code: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    with armed(tmp_path) as process:
        alarm, dead = DeathAlarm(tmp_path / "alarm"), threading.Event()
        library = alarm.library = FaultyLibrary("pthread_mutex_lock", code)
        alarm.when_dead(dead.set)
        process.kill()
        assert not dead.wait(0.3)
    assert library.calls == ["pthread_mutex_lock"]
    assert len(caplog.records) == 1
