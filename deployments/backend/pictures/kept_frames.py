"""Decoded pictures that a backend keeps for a while, for the parts that are cut out of them."""

import threading
from dataclasses import dataclass
from typing import Any

Frame = Any
"""Pixels on the host [rows, columns, 3], or a tensor on a device [3, rows, columns]."""
BYTES_MAX = 256 << 20
"""A few hundred frames: what queries of a second or so need."""


@dataclass(frozen=True, slots=True)
class _Kept:
    frame: Frame
    size: int
    there: Any
    """Event after which it may be read; None on the host."""


class KeptFrames:
    """Frames by the request that they came with; those used longest ago go first.

    A frame that has gone is decoded again, so nothing depends on what is here. Called by the
    threads that stage inputs.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._frames: dict[int, _Kept] = {}
        self._lock = threading.Lock()

    def get(self, key: int) -> tuple[Frame, Any] | None:
        """A frame and the event after which it may be read; None where it is not here."""
        with self._lock:
            kept = self._frames.pop(key, None)
            if kept is None:
                return None
            self._frames[key] = kept
            return kept.frame, kept.there

    def put(self, key: int, frame: Frame, there: Any = None) -> None:
        size = int(frame.nbytes)
        with self._lock:
            self._drop(key)
            while self._frames and self.bytes + size > self.bytes_max:
                self._drop(next(iter(self._frames)))
            if size <= self.bytes_max:
                self._frames[key] = _Kept(frame, size, there)
                self.bytes += size

    def _drop(self, key: int) -> None:
        kept = self._frames.pop(key, None)
        if kept is not None:
            self.bytes -= kept.size

    def clear(self) -> None:
        """Drop all of them: memory is needed."""
        with self._lock:
            self._frames.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._frames)
