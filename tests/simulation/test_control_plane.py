"""Control planes come and go in the simulated world; routers and backends stay with the next."""

import pytest

from fermata.fault_simulator.actors import SimulatedActor, end_actor
from fermata.fault_simulator.deployment import BACKENDS_MAX
from fermata.fault_simulator.environment.world import World
from fermata.fault_simulator.faults.schedule import FaultSchedule
from fermata.fault_simulator.invariants import YOUNG_NS, Invariants
from fermata.fault_simulator.settling import settle
from fermata.fault_simulator.system import REPLACE_NS, SimulatedDeployment
from fermata.foundation.units import ms, seconds

UP_NS = seconds(2)


class Play:
    """A system that has come up."""

    def __init__(self, seed: int, scaled: bool = False) -> None:
        self.world = world = World(seed)
        self.system = SimulatedDeployment(world, backends=2, frontends=1, scaled=scaled)
        self.invariants = Invariants(self.system)
        self.schedule = FaultSchedule(self.system, world.rng("schedule"))
        self.run(UP_NS)

    def run(self, span_ns: int) -> None:
        self.world.run_until(self.world.now_ns + span_ns)

    def routers(self) -> list[SimulatedActor]:
        return [each for each in self.system.named if each is not None]

    def terms(self) -> list[int]:
        return [each.host.term for each in self.routers() if each.host is not None]

    def finish(self) -> None:
        settle(self.system)
        self.invariants.check_clean()


@pytest.mark.parametrize("seed", range(3))
def test_the_next_one_adopts_the_routers_that_run(seed: int) -> None:
    play = Play(seed)
    before = play.terms()
    play.system.lose_control()
    play.finish()
    assert len(play.system.controls) == 2
    assert play.terms() == before


@pytest.mark.parametrize("seed", range(3))
def test_other_code_gets_routers_of_its_own(seed: int) -> None:
    play = Play(seed)
    before = play.routers()
    play.system.mark = "other"
    play.system.replace_control(linger_ns=ms(1500))
    play.finish()
    assert all(each.ended for each in before)
    assert {each.mark for each in play.routers()} == {"other"}


@pytest.mark.parametrize("seed", range(3))
def test_a_router_that_somebody_ends_is_made_anew(seed: int) -> None:
    play = Play(seed)
    end_actor(play.system.named, play.routers()[-1])
    play.finish()
    assert len(play.routers()) == len(play.system.seats)


def test_the_next_one_goes_on_with_the_backends_that_there_are() -> None:
    play = Play(1, scaled=True)
    load_ns = seconds(12)
    play.schedule.load(play.world.now_ns, play.world.now_ns + load_ns, 600.0)
    play.run(seconds(6))
    assert play.system.wanted == BACKENDS_MAX
    # With its router goes all that anybody has noted down.
    play.system.lose_control()
    play.system.lose_router()
    # Until the next one has come, and has seen too little to release any.
    for _ in range((REPLACE_NS + YOUNG_NS) // ms(100)):
        play.run(ms(100))
        assert play.system.wanted == BACKENDS_MAX
    play.finish()
    assert len(play.system.backends) == play.system.least < BACKENDS_MAX
