"""The control plane speaks to the router that leads, whichever seat that is in and whatever has
become of the other, in the simulated world."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from fermata.deployments.specs.status import DeploymentStatus
from fermata.fault_simulator.deployment import ENCODED
from fermata.fault_simulator.environment.world import World
from fermata.fault_simulator.invariants import Invariants
from fermata.fault_simulator.processes import LINKS, RouterHost
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.errors import NoAnswerError
from fermata.foundation.units import ms, seconds
from fermata.partitioner.plan import Plan
from fermata.router.links.messages import PROTOCOLS, Result
from fermata.router.links.transport import LinkOptions

UP_NS = seconds(5)
"""Until the autoscaler has told what it wants."""
NOTICED_NS = seconds(3)
"""From a takeover until the control plane's view is whole again."""


class Play:
    """A system that has come up, with a router in each seat and the first of them in the lead."""

    def __init__(self, seed: int, links: LinkOptions = LINKS) -> None:
        """`links` of all processes that start meanwhile."""
        self.world = world = World(seed)
        self.system = SimulatedDeployment(
            world, backends=2, frontends=1, standby=True, scaled=True, links=links
        )
        self.invariants = Invariants(self.system)
        self.run(UP_NS)
        assert self.router(0).leads

    def run(self, span_ns: int) -> None:
        self.world.run_until(self.world.now_ns + span_ns)

    def router(self, seat: int) -> RouterHost:
        router = self.system.seats[seat]
        assert router is not None
        return router

    def ask(self) -> DeploymentStatus:
        """What an operator who asks now is told within three seconds."""
        control = self.system.control
        assert control is not None
        assert control.control is not None
        told: list[DeploymentStatus] = []

        async def ask() -> None:
            assert control.control is not None
            told.append(await control.control.status())

        control.loop.start(ask)
        self.run(seconds(3))
        assert told, "nobody answers"
        return told[0]

    def check_whole(self) -> None:
        """The one that leads has all that the control plane wants it to know."""
        control, leader = self.system.control, self.system.router
        assert control is not None
        assert leader is not None
        assert leader.live is not None
        scaling = control.control.scaling if control.control is not None else None
        assert scaling is not None
        assert leader.live.fleet.placement.wanted == scaling.targets
        assert self.ask().router.term == leader.live.term


def stop(play: Play) -> None:
    play.router(0).loop.hold(stopped=True)


def kill(play: Play) -> None:
    """Its node is gone, and nowhere else is there room for it."""
    play.system.lose_router(play.router(0), back_in_ns=seconds(1000))


def restart(play: Play) -> None:
    play.system.lose_router(play.router(0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strike", [stop, kill, restart])
def test_it_follows_the_lead_to_the_other_seat(strike: Callable[[Play], None], seed: int) -> None:
    play = Play(seed)
    strike(play)
    play.run(NOTICED_NS)
    assert play.system.router is play.router(1)
    play.check_whole()


def test_a_router_that_waits_does_not_answer_for_an_empty_one() -> None:
    play = Play(1)
    refused: list[str] = []

    async def ask() -> None:
        for told in (process.snapshot(), process.set_target([1]), process.place(Plan())):
            with pytest.raises(NoAnswerError, match="is the standby") as error:
                await told
            refused.append(str(error.value))

    process = play.router(1).process
    play.router(1).loop.start(ask)
    play.run(ms(100))
    assert len(refused) == 3


def leave(play: Play) -> None:
    """Nothing happens to it."""


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("strike", [leave, restart, kill])
@pytest.mark.parametrize("seed", range(3))
def test_an_upgrade_with_a_standby_refuses_nothing(
    seed: int, strike: Callable[[Play], None], older: bool
) -> None:
    """Its routers are replaced in turn, the leader last, whichever seat that is in; they may be of
    the version before."""
    play = Play(seed, LINKS if not older else replace(LINKS, speaks=PROTOCOLS[1:]))
    strike(play)
    play.run(NOTICED_NS)
    system, world = play.system, play.world
    system.links, system.begin_ns = LINKS, seconds(2)
    old = set(system.seats)
    for number in range(600):
        (frontend,) = system.frontends
        world.after(number * ms(20), partial(system.clients.send, ENCODED, frontend))
    system.mark += "+"
    system.replace_control(linger_ns=seconds(1))
    play.run(seconds(20))
    assert not (old - {None}) & {play.router(0), play.router(1)}
    outcomes = [sent.outcomes for sent in system.clients.ledger]
    assert len(outcomes) == 600
    assert [each for each in outcomes if not isinstance(each[0], Result)] == []
