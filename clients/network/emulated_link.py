"""An uplink whose bandwidth follows a trace: of the simulator's cameras, and of emulated ones that
send to a real server. Pure: time is passed in."""

from dataclasses import dataclass

from fermata.foundation.units import SECOND


@dataclass(frozen=True, slots=True)
class BandwidthTrace:
    """Bandwidth step by step, wrapping at the end."""

    bps: tuple[float, ...]
    step_ns: int

    def arrival_ns(self, start_ns: int, bits: float) -> int:
        """When so many bits have passed that started then."""
        at_ns = start_ns
        while True:
            step = at_ns // self.step_ns
            bps = self.bps[step % len(self.bps)]
            ends_at_ns = (step + 1) * self.step_ns
            takes_ns = int(bits / bps * SECOND)
            if at_ns + takes_ns <= ends_at_ns:
                return at_ns + takes_ns
            bits -= bps * (ends_at_ns - at_ns) / SECOND
            at_ns = ends_at_ns

    def at(self, now_ns: int) -> float:
        return self.bps[now_ns // self.step_ns % len(self.bps)]


class EmulatedLink:
    """Sends in order, at the bandwidth of its trace."""

    __slots__ = ("free_at_ns", "offset_ns", "trace")

    def __init__(self, trace: BandwidthTrace, offset_ns: int = 0) -> None:
        self.trace = trace
        self.offset_ns = offset_ns
        """Time of the trace at time 0."""
        self.free_at_ns = 0
        """When the last frame has left it."""

    def carry(self, now_ns: int, bits: int) -> int:
        """When a frame that enters now has left it."""
        start_ns = max(now_ns, self.free_at_ns)
        self.free_at_ns = self.trace.arrival_ns(start_ns + self.offset_ns, bits) - self.offset_ns
        return self.free_at_ns

    def bandwidth_bps(self, now_ns: int) -> float:
        """The true one."""
        return self.trace.at(now_ns + self.offset_ns)
