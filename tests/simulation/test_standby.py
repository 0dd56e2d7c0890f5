"""A router that waits takes the place of one that is gone, in the simulated world."""

import pytest

from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.deployment import ENCODED
from fermata.fault_simulator.environment.world import World
from fermata.fault_simulator.faults.schedule import FaultSchedule
from fermata.fault_simulator.invariants import Invariants
from fermata.fault_simulator.processes import RouterHost
from fermata.fault_simulator.settling import settle
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds
from fermata.router.leadership.terms import next_term

UP_NS = seconds(2)
LOAD_NS = seconds(2)
STRIKE_NS = seconds(1)
TAKEN_NS = ms(100)
"""From the end of a router to the lead of the other one."""


class Play:
    """A system under load; something happens to the router that leads."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.system = SimulatedDeployment(
            world, backends=3, frontends=1, standby=True, scaled=False
        )
        self.invariants = Invariants(self.system)
        world.run_until(world.now_ns + UP_NS)
        self.schedule = FaultSchedule(self.system, world.rng("schedule"))
        self.schedule.load(world.now_ns, world.now_ns + LOAD_NS, 120.0)
        world.run_until(world.now_ns + STRIKE_NS)
        self.struck_at_ns = world.now_ns

    def leader(self) -> RouterHost:
        router = self.system.router
        assert router is not None
        return router

    def taken_over(self, old: RouterHost) -> int:
        """How long it takes until another one leads."""
        while self.world.now_ns < self.struck_at_ns + seconds(1):
            self.world.run_until(self.world.now_ns + ms(1))
            if self.system.router not in (None, old):
                break
        return self.world.now_ns - self.struck_at_ns

    def finish(self) -> None:
        self.schedule.heal()
        self.world.run_until(self.world.now_ns + LOAD_NS)
        settle(self.system)
        self.invariants.check_clean()

    def unserved(self) -> list[str]:
        """Why requests were not served that had the time to wait."""
        return [
            str(sent.outcomes[0])
            for sent in self.system.clients.ledger
            if sent.model is ENCODED
            and not sent.cancelled
            and isinstance(sent.outcomes[0], Refusal)
        ]


@pytest.mark.parametrize("seed", range(6))
def test_router_that_dies_is_not_missed(seed: int) -> None:
    play = Play(seed)
    old = play.leader()
    play.system.lose_router()
    assert play.taken_over(old) <= TAKEN_NS
    play.finish()
    assert play.unserved() == []
    # The one that was started again waits now, and has the higher term.
    leader = play.leader()
    (waits,) = (each for each in play.system.seats if each is not leader)
    assert waits is not None
    assert waits.live is not None
    assert leader.live is not None
    assert waits.live.term > leader.live.term


@pytest.mark.parametrize("seed", range(3))
def test_router_that_is_stopped_is_given_up_and_ends_itself_when_it_comes_back(seed: int) -> None:
    play = Play(seed)
    old = play.leader()
    old.loop.hold(stopped=True)
    assert play.taken_over(old) <= TAKEN_NS + ms(60)
    play.world.run_until(play.world.now_ns + ms(500))
    old.loop.go_on()
    play.world.run_until(play.world.now_ns + ms(100))
    assert not old.loop.alive
    play.finish()


def test_router_that_waits_may_die_unnoticed() -> None:
    play = Play(1)
    (waits,) = (each for each in play.system.seats if each is not play.leader())
    play.system.lose_router(waits)
    play.finish()
    assert {
        type(sent.outcomes[0]) for sent in play.system.clients.ledger if not sent.cancelled
    } != {Refusal}
    assert play.unserved() == []


def test_routers_that_lose_sight_of_one_another_are_one_again_soon() -> None:
    play = Play(2)
    one, other = play.system.seats
    assert one is not None
    assert other is not None
    play.world.network.cut(one.loop, other.loop)
    play.world.run_until(play.world.now_ns + ms(200))
    leading = [each for each in play.system.seats if each is not None and each.leads]
    assert len(leading) == 1
    play.finish()


def test_terms_of_two_seats_are_never_the_same() -> None:
    for last in range(5):
        first, second = next_term(0, 3, last, seat=0), next_term(0, 3, last, seat=1)
        assert first > last < second
        assert (first % 2, second % 2) == (0, 1)
