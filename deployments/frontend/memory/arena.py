"""Shared memory for payloads: a backend on this node reads an input where the frontend wrote it."""

import fcntl
import os
import secrets
import time
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import msgspec

from fermata.deployments.frontend.memory.extents import Extents
from fermata.router.links.messages import PackedTensors, Payload

PREFIX = "fermata-"
STEP_BYTES = 4 << 20
"""Pages are reserved in steps of this size, as the arena grows."""
FOLDER = Path("/dev/shm")
NEW_S = 10.0
"""The owner of a segment this young may not have locked it yet."""


def sweep() -> None:
    """Unlink segments of frontends that were killed together with their resource tracker.

    A live owner holds a lock on its segment, which also works across containers.
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

    A slot is freed once no backend reads it any more (`RequestTable.lent`): another input in its
    place might bring the model down.
    """

    def __init__(self, capacity: int) -> None:
        self.extents = Extents(capacity)
        self.segment: SharedMemory | None = None
        self.name = ""
        self.shared: dict[int, int] = {}
        """By offset: payloads that have the same slot, where several do."""
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
        """Allocate a slot: its offset and its bytes; None if full, so inputs travel inline."""
        offset = self._take(size)
        return None if offset is None else (offset, self._view()[offset : offset + size])

    def _take(self, size: int) -> int | None:
        if self.segment is None:
            return None
        offset = self.extents.take(size)
        if offset is None:
            return None
        if self.extents.reached > self._reserved and not self._reserve():
            self.extents.free(offset)
            return None
        return offset

    def _reserve(self) -> bool:
        """Allocate pages: a write to a full /dev/shm would kill the process."""
        end = min(self.extents.capacity, self.extents.reached + STEP_BYTES)
        if self._file >= 0:
            try:
                os.posix_fallocate(self._file, self._reserved, end - self._reserved)
            except OSError:
                return False
        self._reserved = end
        return True

    def place(
        self,
        rid: int,
        dtype: str,
        shape: tuple[int, ...],
        data: bytes | memoryview,
        tensors: PackedTensors = (),
        rows: int = 0,
    ) -> Payload:
        """A payload with this input, in a slot if one is free."""
        size = len(data)
        offset = self._take(size)
        if offset is None:
            return Payload(rid, dtype, shape, bytes(data), tensors=tensors, rows=rows)
        self._view()[offset : offset + size] = data
        return Payload(rid, dtype, shape, b"", self.name, offset, size, False, tensors, rows)

    def written(
        self,
        rid: int,
        dtype: str,
        shape: tuple[int, ...],
        offset: int,
        view: memoryview,
        tensors: PackedTensors = (),
        rows: int = 0,
    ) -> Payload:
        """The payload that a thread has written: into this slot, or, where `offset` is negative,
        into memory of its own."""
        if offset < 0:
            return Payload(rid, dtype, shape, bytes(view), tensors=tensors, rows=rows)
        place = self.name, offset, len(view), False
        return Payload(rid, dtype, shape, b"", *place, tensors, rows)

    def inline(self, payload: Payload) -> Payload:
        """The payload with its data, for a backend that does not share this memory."""
        if not payload.segment or self.segment is None:
            return payload
        data = bytes(self._view()[payload.offset : payload.offset + payload.length])
        return msgspec.structs.replace(payload, data=data, segment="", offset=0, length=0)

    def hold(self, payload: Payload) -> memoryview:
        """The input of a payload, in place; its slot is to be freed once more."""
        if not payload.segment or self.segment is None:
            return memoryview(payload.data)
        self.shared[payload.offset] = self.shared.get(payload.offset, 1) + 1
        return self._view()[payload.offset : payload.offset + payload.length]

    def share(self, payload: Payload, count: int) -> None:
        """Have a payload's slot be that of so many, each of which is freed by itself."""
        if payload.segment and count > 1:
            self.shared[payload.offset] = count

    def free(self, payload: Payload) -> None:
        """Free the slot of a payload."""
        if payload.segment and self.segment is not None:
            offset = payload.offset
            if offset in self.shared:
                self.shared[offset] -= 1
                if self.shared[offset]:
                    return
                del self.shared[offset]
            self.extents.free(offset)

    def _view(self) -> memoryview:
        assert self.segment is not None
        view = self.segment.buf
        assert view is not None
        return view

    def close(self) -> None:
        """Unlink the segment; backends that have mapped it keep it until they unmap it."""
        if self.segment is None:
            return
        if self._file >= 0:
            os.close(self._file)
        segment, self.segment = self.segment, None
        segment.unlink()
        # A decoder thread may still write; then the pages go with the process.
        with suppress(BufferError):
            segment.close()
