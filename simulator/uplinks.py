"""Emulated clients: the production client's own decisions over an emulated uplink."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from clients.bandwidth import BandwidthEstimator
from clients.frame_size import FrameSizer
from router.core.events import Advise, ClientReport
from router.core.units import NEVER
from simulator.network_spec import NetworkSpec, Trace
from simulator.scenario import Application

ARRIVAL = 0
ACKNOWLEDGEMENT = 1
ADVICE = 2
FRAME_AT_ONCE = 4
"""Frames that a client lets wait in its uplink; the next is not sent at all."""


class Camera:
    """One client: a camera, its estimator and sizer, and its uplink, which sends in order."""

    __slots__ = ("estimator", "fps", "offset_ns", "sizer", "slo_ns", "trace", "uplink_free_ns")

    def __init__(
        self, fps: float, slo_ns: int, trace: Trace, offset_ns: int, sides: Sequence[int]
    ) -> None:
        self.fps = fps
        self.slo_ns = slo_ns
        self.trace = trace
        self.offset_ns = offset_ns
        """Where in the trace it starts."""
        self.estimator = BandwidthEstimator()
        self.sizer = FrameSizer(sides)
        self.uplink_free_ns = 0


@dataclass(slots=True)
class Frame:
    """One frame on its way."""

    rid: int
    client: int
    side: int
    report: ClientReport


class Uplinks:
    """Every client with its network; the driver asks for the next event."""

    def __init__(
        self, spec: NetworkSpec, applications: Sequence[Application], rng: random.Random
    ) -> None:
        self.spec = spec
        self.cameras: dict[int, Camera] = {}
        self.agenda: list[tuple[int, int, int, Frame | Advise]] = []
        self.sequence = 0
        for application in applications:
            tops = [profile.input_size or 0 for profile in application.variants]
            serving = [profile.name for profile in application.variants]
            top = max(tops)
            if spec.adaptation == "throughput":
                top = tops[serving.index(application.serving) if application.serving else 0]
            sides = [side for side in spec.frame_bits if side <= top]
            for group in application.clients:
                trace = spec.traces[group.trace or next(iter(spec.traces))]
                for _ in range(group.count):
                    offset_ns = rng.randrange(len(trace.bps)) * trace.step_ns
                    camera = Camera(group.fps or 1.0, group.slo_ns, trace, offset_ns, sides)
                    camera.estimator.on_probe(spec.round_trip_ns)
                    if spec.adaptation == "throughput":
                        camera.sizer.asked = top
                    self.cameras[len(self.cameras) + 1] = camera

    def next_ns(self) -> int:
        return self.agenda[0][0] if self.agenda else NEVER

    def pop(self) -> tuple[int, Frame | Advise]:
        """The next event: what it is, and whose."""
        _, kind, _, subject = heappop(self.agenda)
        return kind, subject

    def _enter(self, at_ns: int, kind: int, subject: Frame | Advise) -> None:
        self.sequence += 1
        heappush(self.agenda, (at_ns, kind, self.sequence, subject))

    def capture(self, now_ns: int, rid: int, client: int) -> bool:
        """A frame is taken; false if the uplink is so far behind that it is not sent."""
        camera = self.cameras[client]
        estimator, sizer = camera.estimator, camera.sizer
        if len(estimator.in_flight) >= FRAME_AT_ONCE:
            return False
        bandwidth_bps = estimator.bandwidth_bps(now_ns)
        if self.spec.adaptation == "throughput":
            side = sizer.choose_for_throughput(bandwidth_bps, camera.fps)
        else:
            backlog_bits = estimator.backlog_bits(now_ns, bandwidth_bps)
            side = sizer.choose(bandwidth_bps, backlog_bits, self.spec.round_trip_ns)
        bits = int(self.spec.frame_bits[side])
        sizer.on_encoded(side, bits)
        estimator.on_sent(now_ns, rid, bits)
        start_ns = max(now_ns, camera.uplink_free_ns)
        shifted_ns = camera.trace.arrival_ns(start_ns + camera.offset_ns, bits)
        camera.uplink_free_ns = shifted_ns - camera.offset_ns
        report = ClientReport(
            client,
            camera.slo_ns,
            camera.fps,
            bandwidth_bps,
            side,
            bits,
            self.spec.round_trip_ns,
        )
        arrives_at_ns = camera.uplink_free_ns + self.spec.round_trip_ns // 2
        self._enter(arrives_at_ns, ARRIVAL, Frame(rid, client, side, report))
        return True

    def arrived(self, now_ns: int, frame: Frame) -> None:
        """The server has it and says so."""
        self._enter(now_ns + self.spec.round_trip_ns // 2, ACKNOWLEDGEMENT, frame)

    def acknowledged(self, now_ns: int, frame: Frame) -> None:
        self.cameras[frame.client].estimator.on_acknowledged(now_ns, frame.rid)

    def advise(self, now_ns: int, advice: Advise) -> None:
        """The server's advice is on its way."""
        self._enter(now_ns + self.spec.round_trip_ns // 2, ADVICE, advice)

    def advised(self, advice: Advise) -> None:
        sizer = self.cameras[advice.client].sizer
        sizer.on_advice(advice.input_size, advice.network_ns)
