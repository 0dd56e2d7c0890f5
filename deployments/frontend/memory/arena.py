"""Shared memory for payloads: a backend on this node reads an input where the frontend wrote it."""

import fcntl
import os
import secrets
import time
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from fermata.deployments.frontend.memory.extents import Extents
from fermata.router.links.messages import Payload

PREFIX = "fermata-"
STEP_BYTES = 4 << 20
"""Pages are reserved in steps of this size, as the arena grows."""
FOLDER = Path("/dev/shm")
NEW_S = 10.0
"""A segment this young may be one whose owner has yet to lock it."""


def sweep() -> None:
    """Unlink what frontends left behind that were killed together with their resource tracker.

    A living owner holds a lock on its segment, which tells it apart also where its process id is
    of another container.
    """
    for path in FOLDER.glob(PREFIX + "*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime < NEW_S:
                continue
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


class Arena:
    """One segment, cut into slots. All methods are for the loop's thread.

    A slot is given back once no backend reads it any more (`RequestTable.lent`): another's input in
    its place might be one that brings its model down.
    """

    def __init__(self, capacity: int) -> None:
        self.extents = Extents(capacity)
        self.segment: SharedMemory | None = None
        self.name = ""
        self._reserved = 0
        self._file = -1
        if self.extents.capacity:
            sweep()
            # Python's resource tracker unlinks it, should this process be killed.
            name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            self.segment = SharedMemory(name, create=True, size=self.extents.capacity)
            self.name = name
            if FOLDER.is_dir():
                self._file = os.open(FOLDER / name, os.O_RDWR | os.O_CLOEXEC)
                fcntl.flock(self._file, fcntl.LOCK_EX)

    def take(self, size: int) -> tuple[int, memoryview] | None:
        """A slot to write to: its offset and its bytes. None when full: send inputs inline."""
        if self.segment is None:
            return None
        offset = self.extents.take(size)
        if offset is None:
            return None
        if self.extents.reached > self._reserved and not self._reserve():
            self.extents.give(offset)
            return None
        return offset, self._view()[offset : offset + size]

    def _reserve(self) -> bool:
        """Make sure that the pages are there: a write to a full /dev/shm kills the process."""
        end = min(self.extents.capacity, self.extents.reached + STEP_BYTES)
        if self._file >= 0:
            try:
                os.posix_fallocate(self._file, self._reserved, end - self._reserved)
            except OSError:
                return False
        self._reserved = end
        return True

    def place(self, rid: int, dtype: str, shape: tuple[int, ...], data: bytes) -> Payload:
        """A payload with this input, in a slot where one is free."""
        slot = self.take(len(data))
        if slot is None:
            return Payload(rid, dtype, shape, data)
        offset, view = slot
        view[:] = data
        view.release()
        return Payload(rid, dtype, shape, b"", self.name, offset, len(data))

    def inline(self, payload: Payload) -> Payload:
        """The same for a backend that does not share this node's memory."""
        if not payload.segment or self.segment is None:
            return payload
        data = bytes(self._view()[payload.offset : payload.offset + payload.length])
        return Payload(payload.rid, payload.dtype, payload.shape, data)

    def free(self, payload: Payload) -> None:
        """Nobody needs this payload any more."""
        if payload.segment and self.segment is not None:
            self.extents.give(payload.offset)

    def _view(self) -> memoryview:
        assert self.segment is not None
        view = self.segment.buf
        assert view is not None
        return view

    def close(self) -> None:
        """Unlink the segment; backends that have it open keep what they see until they let go."""
        if self.segment is None:
            return
        if self._file >= 0:
            os.close(self._file)
        segment, self.segment = self.segment, None
        segment.unlink()
        # A decoder thread may still write; then the pages go with the process.
        with suppress(BufferError):
            segment.close()
