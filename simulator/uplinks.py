"""Emulated cameras: the production client's own decisions over an emulated uplink."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from fermata.applications.application import Application
from fermata.clients.network.emulated_link import EmulatedLink
from fermata.clients.network.uplink import Uplink
from fermata.foundation.units import NEVER, SECOND
from fermata.router.core.events import Advise, ClientReport
from fermata.simulator.scenario.network_spec import NetworkSpec

CLOCK_NS_MAX = 1000 * SECOND
"""A camera's clock is ahead of the server's, or behind, by any time up to this."""


class UplinkCamera:
    """One client with a clock of its own, and its link."""

    __slots__ = (
        "accuracy_floor",
        "clock_ns",
        "fps",
        "link",
        "pinned",
        "slo_ns",
        "uplink",
    )

    def __init__(
        self,
        uplink: Uplink,
        link: EmulatedLink,
        clock_ns: int,
        round_trip_ns: int,
        accuracy_floor: float,
        pinned: int,
    ) -> None:
        self.uplink = uplink
        self.fps = uplink.fps
        self.slo_ns = uplink.slo_ns
        self.link = link
        self.clock_ns = clock_ns
        """Time that its clock shows at the start of the run."""
        self.accuracy_floor = accuracy_floor
        self.pinned = pinned
        """The engine's number of the only variant that may serve it; -1: any."""
        uplink.estimator.on_probe(round_trip_ns)


@dataclass(slots=True)
class CameraFrame:
    """One frame on its way, or at the server."""

    rid: int
    client: int
    side: int
    left_ns: int
    """Time that the server has for it, as its client reports."""
    report: ClientReport
    arrived_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class UplinkMessage:
    """A message to a client: its frame is there, or answered; the latest advice rides along."""

    frame: CameraFrame
    server_ns: int | None
    """How long the server had the frame; None while it is not answered."""
    advice: Advise | None


class Uplinks:
    """Every client with its network; the driver asks for the next event."""

    def __init__(
        self, spec: NetworkSpec, applications: Sequence[Application], rng: random.Random
    ) -> None:
        self.spec = spec
        self.way_ns = spec.round_trip_ns // 2
        self.cameras: dict[int, UplinkCamera] = {}
        self.advice: dict[int, Advise] = {}
        """By client, each of which has one application: as a frontend keeps it, until a message
        goes out that it can ride on."""
        self.at_server: dict[int, CameraFrame] = {}
        self.agenda: list[tuple[int, int, CameraFrame | UplinkMessage]] = []
        self.sequence = 0
        first = 0
        """The engine's number of the application's first variant."""
        for application in applications:
            tops = [variant.input_size for variant in application.variants]
            names = [variant.name for variant in application.variants]
            top = max(tops)
            if spec.adaptation == "throughput":
                top = tops[names.index(application.serving) if application.serving else 0]
            sides = [side for side in spec.frame_bits if side <= top]
            for group in application.clients:
                pinned = first + names.index(group.pinned) if group.pinned else -1
                trace = spec.traces[group.trace or next(iter(spec.traces))]
                for _ in range(group.count):
                    offset_ns = rng.randrange(len(trace.bps)) * trace.step_ns
                    clock_ns = rng.randint(-CLOCK_NS_MAX, CLOCK_NS_MAX)
                    advised = spec.adaptation != "throughput"
                    uplink = Uplink(group.fps or 1.0, group.slo_ns, sides, thins=advised)
                    if not advised:
                        uplink.sizer.asked = top
                    self.cameras[len(self.cameras) + 1] = UplinkCamera(
                        uplink,
                        EmulatedLink(trace, offset_ns),
                        clock_ns,
                        spec.round_trip_ns,
                        group.accuracy_floor,
                        pinned,
                    )
            first += len(names)

    def next_ns(self) -> int:
        return self.agenda[0][0] if self.agenda else NEVER

    def pop(self) -> CameraFrame | UplinkMessage:
        """The next event: a frame that is there, or a word to a client."""
        return heappop(self.agenda)[2]

    def _enter(self, at_ns: int, subject: CameraFrame | UplinkMessage) -> None:
        self.sequence += 1
        heappush(self.agenda, (at_ns, self.sequence, subject))

    def capture(self, now_ns: int, rid: int, client: int) -> bool:
        """A frame is taken; false if its client thinks that it would come too late."""
        camera = self.cameras[client]
        uplink = camera.uplink
        local_ns = now_ns + camera.clock_ns
        if self.spec.adaptation == "throughput":
            bandwidth_bps = uplink.bandwidth_bps(local_ns)
            side = uplink.sizer.choose_for_throughput(bandwidth_bps, camera.fps)
        else:
            side = uplink.choose_side(local_ns)
        bits = int(self.spec.frame_bits[side])
        uplink.on_encoded(side, bits)
        left_ns = uplink.send(local_ns, rid, bits, camera.slo_ns)
        if left_ns <= 0:
            return False
        report = ClientReport(
            client,
            camera.slo_ns,
            uplink.rate(local_ns),
            uplink.bandwidth_bps(local_ns),
            side,
            bits,
            uplink.round_trip_ns,
            camera.accuracy_floor,
            camera.pinned,
        )
        arrives_at_ns = camera.link.carry(now_ns, bits) + self.way_ns
        self._enter(arrives_at_ns, CameraFrame(rid, client, side, left_ns, report))
        return True

    def arrived(self, now_ns: int, frame: CameraFrame) -> None:
        """The server has it and says so."""
        frame.arrived_at_ns = now_ns
        self.at_server[frame.rid] = frame
        self._say(now_ns, frame, None)

    def answered(self, now_ns: int, rid: int) -> None:
        """The server's answer or refusal is on its way."""
        frame = self.at_server.pop(rid)
        self._say(now_ns, frame, now_ns - frame.arrived_at_ns)

    def _say(self, now_ns: int, frame: CameraFrame, server_ns: int | None) -> None:
        word = UplinkMessage(frame, server_ns, self.advice.get(frame.client))
        self._enter(now_ns + self.way_ns, word)

    def heard(self, now_ns: int, word: UplinkMessage) -> None:
        """A client hears from the server."""
        camera = self.cameras[word.frame.client]
        local_ns = now_ns + camera.clock_ns
        if word.server_ns is None:
            camera.uplink.on_received(local_ns, word.frame.rid)
        else:
            camera.uplink.on_answer(local_ns, word.frame.rid, word.server_ns)
        if word.advice is not None:
            advice = word.advice
            camera.uplink.on_advice(advice.input_size, advice.network_ns, advice.served)

    def advise(self, advice: Advise) -> None:
        """The router's advice, for the next messages to that client."""
        self.advice[advice.client] = advice
