"""Links between backends and frontends that are cut again and again: nobody waits in vain."""

from collections import Counter
from functools import partial

import pytest

from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.environment.world import World
from fermata.fault_simulator.faults.schedule import FaultSchedule
from fermata.fault_simulator.invariants import Invariants
from fermata.fault_simulator.settling import settle
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds

CUT_EACH_NS = ms(15)
UP_NS = seconds(2)
LOAD_NS = seconds(2)


@pytest.mark.parametrize("seed", range(3))
def test_whoever_met_a_cut_link_runs_elsewhere(seed: int) -> None:
    world = World(seed)
    system = SimulatedDeployment(world, backends=3, frontends=1, standby=False, scaled=False)
    invariants = Invariants(system)
    world.run_until(world.now_ns + UP_NS)
    rng = world.rng("cuts")
    FaultSchedule(system, rng).load(world.now_ns, world.now_ns + LOAD_NS, 150.0)
    [frontend] = system.frontends
    for at_ns in range(0, LOAD_NS, CUT_EACH_NS):
        host = rng.choice(system.backends)
        world.after(at_ns, partial(world.network.cut, frontend.loop, host.loop))
    world.run_until(world.now_ns + LOAD_NS)
    settle(system)
    invariants.check_clean()
    outcomes = [each.outcomes[0] for each in system.clients.ledger]
    ends = Counter(each.reason if isinstance(each, Refusal) else "served" for each in outcomes)
    assert ends["served"] > 200
    # Time was up for nobody: a router that knows of a request refuses it sooner.
    assert not ends["expired"]
