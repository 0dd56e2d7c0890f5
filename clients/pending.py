"""Frames under way: which to send again, when to give one up, and results in order.

Pure: time is passed in. Every frame added comes out of `take_ready` exactly once, in order.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fermata.clients.frames import Frame

RETRIED = frozenset(("RESOURCE_EXHAUSTED", "UNAVAILABLE"))
"""Refusals that may not be repeated a moment later."""
NEVER = 1 << 62


@dataclass(slots=True)
class FrameResult:
    """The outcome of one frame."""

    index: int
    captured_at_ns: int
    """On this process's monotonic clock."""
    status: str = ""
    """`OK`, or the name of a gRPC status."""
    message: str = ""
    latency_ns: int = 0
    """From capture to answer; for a frame given up, to that."""
    attempts: int = 0
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Tensors by name."""
    variant: str = ""
    batch_size: int = 0
    queue_ns: int = 0
    side: int = 0
    """Longer side of the frame as it was sent; 0: as it came."""
    frame: Frame | None = None
    """The frame as its source gave it, for streams that keep them."""

    @property
    def ok(self) -> bool:
        return self.status == "OK"


class Pending:
    """Frames from capture to result."""

    def __init__(self, slo_ns: int, grace_ns: int = 250_000_000, attempts_max: int = 3) -> None:
        self.slo_ns = slo_ns
        self.grace_ns = grace_ns
        """How long after its deadline a frame is waited for."""
        self.attempts_max = attempts_max
        self.order: deque[FrameResult] = deque()
        self.open: dict[int, FrameResult] = {}
        self.retry_at_ns: dict[int, int] = {}

    def add(self, now_ns: int, index: int) -> None:
        """A frame has been captured and wants to be sent."""
        frame = FrameResult(index, now_ns)
        self.order.append(frame)
        self.open[index] = frame

    def left_ns(self, now_ns: int, index: int) -> int:
        """Time until its deadline; 0 or less when sending it is pointless."""
        frame = self.open.get(index)
        return frame.captured_at_ns + self.slo_ns - now_ns if frame is not None else 0

    def on_sent(self, index: int) -> None:
        frame = self.open.get(index)
        if frame is not None:
            frame.attempts += 1

    def on_result(self, now_ns: int, index: int) -> FrameResult | None:
        """The frame that has its result, to be filled in; None when it is long over."""
        return self._end(now_ns, index, "OK", "")

    def on_refusal(
        self, now_ns: int, index: int, status: str, message: str, retry_after_ns: int
    ) -> None:
        """The server said no: try again if that is before the deadline, else it is over."""
        frame = self.open.get(index)
        if frame is None:
            return
        again_at_ns = now_ns + retry_after_ns
        in_time = again_at_ns < frame.captured_at_ns + self.slo_ns
        if status in RETRIED and in_time and frame.attempts < self.attempts_max:
            self.retry_at_ns[index] = again_at_ns
        else:
            self._end(now_ns, index, status, message)

    def on_disconnect(self, now_ns: int, message: str, status: str = "UNAVAILABLE") -> None:
        """The stream has ended: whatever was under way is sent again or given up."""
        for index, frame in list(self.open.items()):
            if frame.attempts and index not in self.retry_at_ns:
                self.on_refusal(now_ns, index, status, message, 0)

    def give_up(self, now_ns: int, index: int, message: str) -> None:
        """It was never sent, and there is no point in it now."""
        self._end(now_ns, index, "DEADLINE_EXCEEDED", message)

    def due(self, now_ns: int) -> list[int]:
        """Frames to send again now."""
        found = [index for index, at_ns in self.retry_at_ns.items() if at_ns <= now_ns]
        for index in found:
            del self.retry_at_ns[index]
        return found

    def on_time(self, now_ns: int) -> None:
        """Give up what has had no answer for too long. Frames are in order of capture."""
        limit_ns = self.slo_ns + self.grace_ns
        for frame in self.order:
            if frame.captured_at_ns + limit_ns > now_ns:
                return
            self._end(now_ns, frame.index, "DEADLINE_EXCEEDED", "no answer came in time")

    def wake_at_ns(self) -> int:
        """When `due` or `on_time` will have something to do."""
        wake_at_ns = min(self.retry_at_ns.values(), default=NEVER)
        for frame in self.order:
            if not frame.status:
                return min(wake_at_ns, frame.captured_at_ns + self.slo_ns + self.grace_ns)
        return wake_at_ns

    def take_ready(self) -> list[FrameResult]:
        """Frames that are over and have none before them that is not."""
        ready: list[FrameResult] = []
        while self.order and self.order[0].status:
            ready.append(self.order.popleft())
        return ready

    def _end(self, now_ns: int, index: int, status: str, message: str) -> FrameResult | None:
        frame = self.open.pop(index, None)
        if frame is None:
            return None
        self.retry_at_ns.pop(index, None)
        frame.status, frame.message = status, message
        frame.latency_ns = now_ns - frame.captured_at_ns
        return frame
