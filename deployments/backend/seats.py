"""Seats: two processes on one accelerator, of which the kernel lets one serve at a time."""

import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from fermata.deployments.backend.death_alarm import DeathAlarm
from fermata.foundation.errors import ConfigError

PROBE_S = 0.005
"""Another process may hold a lock for an instant, to see whether it is free."""


class FileLock:
    """An exclusive lock, which the kernel takes from a process that ends, however it ends.

    A process that is stopped, or that nobody can reach, keeps it.
    """

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.mine = False

    def try_take(self) -> bool:
        """Take it, unless another process holds it."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return False
        self.mine = True
        return True

    def wait(self) -> None:
        """Take it, as soon as the process that holds it has ended."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.mine = True

    def is_held(self) -> bool:
        """Whether any process has it, this one among them."""
        if self.mine or not self.try_take():
            return True
        self.release()
        return False

    def release(self) -> None:
        self.mine = False
        fcntl.flock(self.file, fcntl.LOCK_UN)


class Holder(msgspec.Struct, frozen=True):
    """The process that serves on a seat."""

    number: int
    """Its number as a backend."""
    pid: int
    actor: str = ""
    """Name of its actor; empty for a replica of Serve's."""
    on_host: bool = False
    """Processes beside it wait without memory on the device."""


class Seat:
    """The place of one backend on its node. One replica of Serve's owns it; beside that there may
    be one process more, and one of the two serves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = FileLock(path.with_suffix(".replica"))
        self.serving = FileLock(path.with_suffix(".serving"))

    def holder(self) -> Holder | None:
        """The process that serves; None where it has not said so yet."""
        text = os.pread(self.serving.file, 1000, 0)
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=Holder)
        return None

    def alarm(self, pid: int) -> DeathAlarm:
        """Early news of the death of this process, which is named as the one that serves."""
        return DeathAlarm(self.path.with_suffix(f".alarm-{pid}"))

    def note(self, holder: Holder) -> None:
        """Name this process as the one that serves; it holds the lock."""
        assert self.serving.mine, "only the process that serves is named"
        for path in self.path.parent.glob(f"{self.path.name}.alarm-*"):
            path.unlink(missing_ok=True)
        self.alarm(holder.pid).arm()
        os.ftruncate(self.serving.file, 0)
        os.pwrite(self.serving.file, msgspec.json.encode(holder), 0)

    def when_free(self, call: Callable[[], object]) -> None:
        """Call this, from a thread of its own, once this process may serve."""

        def wait() -> None:
            self.serving.wait()
            call()

        # A daemon, since nothing ends the wait but the end of another process, or of this one.
        threading.Thread(target=wait, name="seat", daemon=True).start()


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has its memory and files still."""
    try:
        # The state comes after the command's name, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def seats_folder() -> Path:
    """The folder of this machine's seats; its owner is this user."""
    folder = Path(tempfile.gettempdir()) / f"fermata-seats-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to another user: remove it, or set TMPDIR")
    return folder


def claim_seat(folder: Path, name: str) -> Seat:
    """The first seat of this name that no replica owns: where one has died, its own."""
    for number in count():
        seat = Seat(folder / f"{name}-{number}")
        for _ in range(3):
            if seat.owner.try_take():
                return seat
            time.sleep(PROBE_S)
        os.close(seat.owner.file)
        os.close(seat.serving.file)
    raise AssertionError("numbers do not end")
