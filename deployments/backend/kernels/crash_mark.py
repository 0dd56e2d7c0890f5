"""A mark on disk while compiled code is tried for the first time: it could end the process.

A backend that ends so is started again, and would end again. A mark whose process is gone says so.
"""

import fcntl
import os
import uuid
from pathlib import Path


class CrashMark:
    """The mark of this process, and those that others have left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file: int | None = None
        self.path = Path()

    def set(self, what: str) -> None:
        """Mark that `what` is tried now; the lock goes with the process, and the file stays."""
        if self.file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.path = self.folder / f"{what}-{uuid.uuid4().hex[:8]}.trying"
            self.file = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def clear(self) -> None:
        """It went well, or failed as it may."""
        if self.file is not None:
            self.path.unlink(missing_ok=True)
            os.close(self.file)
            self.file = None

    def left(self, what: str) -> Path | None:
        """The mark of a process that ended while it tried `what`; None without one."""
        for path in self.folder.glob(f"{what}-*.trying"):
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Its process is at it still.
                continue
            finally:
                os.close(file)
            return path
        return None
