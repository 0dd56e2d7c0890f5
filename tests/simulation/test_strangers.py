"""Processes of somebody else talk to ours in the simulated world: nothing comes of it."""

import pytest

from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.deployment import ENCODED
from fermata.fault_simulator.environment.world import World
from fermata.fault_simulator.faults.schedule import FaultSchedule
from fermata.fault_simulator.invariants import Invariants
from fermata.fault_simulator.run import run_seed
from fermata.fault_simulator.settling import settle
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds

UP_NS = seconds(2)
LOAD_NS = seconds(3)
CROWDS_EACH_NS = ms(100)


@pytest.mark.parametrize("seed", range(6))
def test_no_crowd_of_strangers_ends_or_misleads_a_process(seed: int) -> None:
    world = World(seed)
    system = SimulatedDeployment(
        world, backends=2, frontends=2, standby=seed % 2 == 0, scaled=False
    )
    invariants = Invariants(system)
    world.run_until(world.now_ns + UP_NS)
    before = list(system.seats)
    leader = system.router
    assert leader is not None
    assert leader.live is not None
    term = leader.live.term
    schedule = FaultSchedule(system, world.rng("schedule"), ("strangers",))
    schedule.load(world.now_ns, world.now_ns + LOAD_NS, 60.0)
    for at_ns in range(0, LOAD_NS, CROWDS_EACH_NS):
        world.after(at_ns, lambda: schedule._play("strangers"))
    world.run_until(world.now_ns + LOAD_NS)
    assert all(each is not None and each.loop.alive for each in before)
    assert list(system.seats) == before
    assert leader.live.term == term
    assert not leader.live.stale
    assert leader.process.server.lobby.refused > 20
    for frontend in system.frontends:
        assert frontend.hub.term == term
        assert sorted(frontend.hub.backends) == system.backend_numbers()
    assert {each.process.pipeline.term for each in system.backends} == {term}
    schedule.heal()
    settle(system)
    invariants.check_clean()
    waited = [each for each in system.clients.ledger if each.model is ENCODED]
    assert len(waited) > 20
    refused = [each for each in waited if isinstance(each.outcomes[0], Refusal)]
    assert [each for each in refused if not each.cancelled] == []
    # Each had a few seconds to prove itself.
    world.run_until(world.now_ns + seconds(5))
    assert not leader.process.server.lobby.addresses


@pytest.mark.parametrize("seed", range(8))
def test_strangers_make_nothing_else_worse(seed: int) -> None:
    """Some of them answer where a router was."""
    story = run_seed(seed, ("strangers", "kill", "usurp", "clock-step", "deaf-cluster"))
    assert story.broken == ""
