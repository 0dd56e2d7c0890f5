"""Seats of backends and their spares: a lock that only a death releases, and what keeps both up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fermata.fault_simulator.environment.world import InvariantViolationError
from fermata.foundation.units import ms, seconds

if TYPE_CHECKING:
    from fermata.fault_simulator.processes import BackendHost
    from fermata.fault_simulator.system import SimulatedDeployment

LOOK_NS = ms(5)
WAKE_NS = ms(20)
"""From the death of one process until the other knows that the lock is its own, at most."""
SPARE_NS = ms(1500)
"""Until a replica has a spare, at most."""
ALONE_NS = seconds(8)
"""A spare without a replica ends by itself; longer than a replacement takes."""


class SimulatedSeat:
    """The place of one replica, and of its spare."""

    def __init__(self, owner: BackendHost) -> None:
        self.owner = owner
        self.holder = owner
        """The process that serves, alive or not."""
        self.spare: BackendHost | None = None
        self.coming = False
        """A spare is about to start."""
        self.alone_ns = 0
        """How long there has been no replica."""

    def hosts(self) -> list[BackendHost]:
        """The processes that live."""
        here = (self.owner, self.spare)
        return [each for each in here if each is not None and each.loop.alive]


class SimulatedSpares:
    """Spares of all backends of a deployment."""

    def __init__(self, system: SimulatedDeployment) -> None:
        self.system = system
        self.world = system.world
        self.rng = system.world.rng("seats")
        self.seats: list[SimulatedSeat] = []
        self.takeovers = 0
        self._watch()

    def seat(self, host: BackendHost) -> None:
        """Give a replica the seat of one that has died, or one of its own."""
        for seat in self.seats:
            if not seat.owner.loop.alive and seat.hosts():
                seat.owner = host
                host.process.first = seat.holder.process.settings.number
                return
        self.seats.append(SimulatedSeat(host))

    def hosts(self) -> list[BackendHost]:
        """Spares that live, whether they wait or serve."""
        found = [seat.spare for seat in self.seats]
        return [each for each in found if each is not None and each.loop.alive]

    def holders(self) -> list[BackendHost]:
        """Processes that may be given batches."""
        found = [seat.holder for seat in self.seats]
        return [each for each in found if each.loop.alive and not each.leaving]

    def whole(self) -> bool:
        """Every seat has both of its processes, and the router that leads knows which one waits."""
        router = self.system.router
        live = None if router is None else router.live
        waiting = [
            each.process.settings.number
            for seat in self.seats
            for each in seat.hosts()
            if each is not seat.holder and each.process._is_understood()
        ]
        full = all(len(seat.hosts()) == 2 and not seat.holder.leaving for seat in self.seats)
        return full and live is not None and sorted(live.fleet.spares.waiting) == sorted(waiting)

    def on_drain(self, host: BackendHost) -> None:
        """A replica ends its spare before itself, once it hears that it is to go."""
        for seat in self.seats:
            if seat.owner is host and seat.spare is not None:
                end = partial(self._end, seat)
                self.world.enter(self.world.now_ns, end, host.loop)

    def _end(self, seat: SimulatedSeat) -> None:
        spare = seat.spare
        if spare is None or not spare.loop.alive:
            return
        if seat.holder is spare:
            spare.leaving = True
            spare.loop.start(spare.leave)
            self.world.after(seconds(20), spare.loop.die)
        else:
            spare.loop.die()

    def _watch(self) -> None:
        self.seats = [seat for seat in self.seats if seat.hosts() or seat.coming]
        for seat in self.seats:
            self._hand_over(seat)
            owned = seat.owner.loop.alive
            seat.alone_ns = 0 if owned else seat.alone_ns + LOOK_NS
            if seat.alone_ns == ALONE_NS:
                self._end(seat)
            alone = seat.spare is None or not seat.spare.loop.alive
            if owned and alone and not seat.owner.leaving and not seat.coming:
                seat.coming = True
                wait_ns = self.rng.randrange(SPARE_NS)
                self.world.after(wait_ns, partial(self._start, seat))
        self.world.after(LOOK_NS, self._watch)

    def _hand_over(self, seat: SimulatedSeat) -> None:
        """Give the lock of a dead process to the one that waits for it."""
        waiting = [each for each in seat.hosts() if not each.leaving]
        if seat.holder.loop.alive or not waiting:
            return
        host = seat.holder = waiting[0]
        self.takeovers += 1
        self.world.say(host.loop.name, "takes over")
        at_ns = self.world.now_ns + self.rng.randrange(WAKE_NS)
        self.world.enter(at_ns, host.process.take_over, host.loop)

    def _start(self, seat: SimulatedSeat) -> None:
        seat.coming = False
        if seat.owner.loop.alive and not seat.owner.leaving and seat.holder is seat.owner:
            seat.spare = self.system.new_backend()
            seat.spare.process.first = seat.holder.process.settings.number
            seat.spare.loop.start(seat.spare.run)

    def check(self, host: BackendHost) -> None:
        """Only the process that holds the lock has batches."""
        for seat in self.seats:
            if host in seat.hosts() and host is not seat.holder and host.process.pipeline.jobs:
                raise InvariantViolationError(
                    f"{host.loop.name} has batches beside {seat.holder.loop.name}"
                )
