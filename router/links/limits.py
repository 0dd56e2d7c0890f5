"""Limits of a link, which both of its ends are given."""

from dataclasses import dataclass

from fermata.foundation.units import ms


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one link."""

    silence_ns: int = ms(300)
    """A peer that has sent nothing for so long is dead."""
    checks: int = 4
    """Checks within a peer's allowed silence."""
    frame_bytes_max: int = 64 << 20
    head_bytes: int = 64 << 10
    """Part of a frame that is kept for what a message holds beside its data."""
    handshake_ns: int = ms(3000)
    """Time for a peer that connects to prove itself, however much it sends meanwhile."""
    handshake_bytes_max: int = 4 << 10
    """Limit of a frame before the peer has proven itself: strangers get no memory."""

    @property
    def data_bytes_max(self) -> int:
        """The most data that one message may hold."""
        return max(self.frame_bytes_max - self.head_bytes, self.frame_bytes_max // 2)

    @property
    def beat_ns(self) -> int:
        """Interval between two checks, and between two heartbeats."""
        return self.silence_ns // self.checks


LIMITS = SessionLimits()
