"""What the server knows of its clients, from their reports."""

from collections.abc import Sequence

from clients.frame_bits import FrameBits
from router.core.events import ClientReport
from router.core.units import SECOND
from router.policies.jellyfish.problem import Client, Zoo, make_client

GONE_AFTER_NS = 2 * SECOND
"""A client that has said nothing for so long asks for nothing."""


class KnownClient:
    """One client: what it asks for, its network, and how large its frames are."""

    __slots__ = ("bits", "heard_at_ns", "last")

    def __init__(self, now_ns: int, report: ClientReport) -> None:
        self.bits = FrameBits()
        self.last = report
        self.hear(now_ns, report)

    def hear(self, now_ns: int, report: ClientReport) -> None:
        self.heard_at_ns = now_ns
        self.last = report
        if report.input_size > 0 and report.frame_bits > 0:
            self.bits.add(report.input_size, report.frame_bits)

    def network_ns(self, input_size: int) -> float:
        """s / W, and the way there and back of an empty message (section IV-A)."""
        bandwidth_bps = self.last.bandwidth_bps
        if bandwidth_bps <= 0:
            return float(self.last.round_trip_ns)
        sending_ns = self.bits.of(input_size) / bandwidth_bps * SECOND
        return sending_ns + self.last.round_trip_ns

    def _budget_ns(self, input_size: int, left_ns: int) -> float:
        """What the network leaves for waiting and running; nothing where it could not even carry
        the frames as fast as they come, for then each would be later than the last."""
        last = self.last
        if self.bits.of(input_size) * last.fps > last.bandwidth_bps:
            return 0.0
        return left_ns - self.network_ns(input_size)

    def demand(
        self,
        zoo: Zoo,
        input_sizes: Sequence[int],
        variants: Sequence[int],
        headroom: float,
        spent_ns: int,
        floor: float,
    ) -> Client:
        """The client as the mapping sees it; `spent_ns` goes on neither network nor run."""
        last = self.last
        pinned = None
        if last.pinned >= 0:
            pinned = variants.index(last.pinned) if last.pinned in variants else len(variants)
        budgets = [self._budget_ns(side, last.slo_ns - spent_ns) for side in input_sizes]
        if last.bandwidth_bps <= 0:
            # Until it has measured its network it is given the smallest input.
            budgets = [float(last.slo_ns - spent_ns), *[0.0] * (len(budgets) - 1)]
        fps = max(last.fps, 1.0) * (1.0 + headroom)
        return make_client(zoo, last.client, fps, budgets, max(floor, last.accuracy_floor), pinned)
