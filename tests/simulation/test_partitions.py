"""A backend and a frontend that do not reach each other, for good: others serve in its place."""

import pytest

from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.deployment import PLAIN
from fermata.fault_simulator.environment.network import SimulatedNetwork
from fermata.fault_simulator.environment.world import World
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds

WAYS = {
    "both ways": lambda network, one, other: network.part(one, other),
    "no inputs": lambda network, one, other: network.part_one_way(one, other),
    "no results": lambda network, one, other: network.part_one_way(other, one),
}


def ends(system: SimulatedDeployment, count: int, every_ns: int) -> list[str]:
    """Requests at each frontend in turn, and how they ended."""
    sent = []
    for number in range(count):
        frontend = system.frontends[number % len(system.frontends)]
        sent.append(system.clients.send(PLAIN, frontend))
        system.world.run_until(system.world.now_ns + every_ns)
    system.world.run_until(system.world.now_ns + seconds(1))
    outcomes = [each.outcomes[0] for each in sent]
    return [each.reason if isinstance(each, Refusal) else "served" for each in outcomes]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_pair_is_avoided_within_a_second_and_used_again_when_it_heals(
    way: str, seed: int
) -> None:
    world = World(seed)
    system = SimulatedDeployment(world, 3, 2, standby=False, scaled=False)
    world.run_until(world.now_ns + seconds(2))
    assert set(ends(system, 40, ms(10))) == {"served"}
    busiest = max(system.backends, key=lambda each: each.process.batches)
    frontend, backend = system.frontends[0].loop, busiest.loop
    network: SimulatedNetwork = world.network
    WAYS[way](network, frontend, backend)
    ends(system, 100, ms(10))
    lasting = ends(system, 400, ms(10))
    assert lasting.count("served") == len(lasting), sorted(set(lasting))
    live = system.router.live if system.router is not None else None
    assert live is not None
    number = busiest.process.settings.number
    assert live.fleet.separation.cuts == {system.frontends[0].hub.options.number: {number}}
    # The pair alone is avoided: the other frontend still uses that backend.
    assert number in live.fleet.serving()
    network.join(frontend, backend)
    world.run_until(world.now_ns + seconds(5))
    assert live.fleet.separation.cuts == {}
    assert set(ends(system, 100, ms(10))) == {"served"}


def test_a_frontend_that_no_backend_reaches_hears_that_there_is_none() -> None:
    world = World(4)
    system = SimulatedDeployment(world, 2, 2, standby=False, scaled=False)
    world.run_until(world.now_ns + seconds(2))
    ends(system, 40, ms(10))
    cut, well = system.frontends
    for backend in system.backends:
        world.network.part(cut.loop, backend.loop)
    ends(system, 200, ms(10))
    sent = [system.clients.send(PLAIN, cut) for _ in range(3)]
    others = [system.clients.send(PLAIN, well) for _ in range(3)]
    world.run_until(world.now_ns + seconds(1))
    reasons = [each.outcomes[0] for each in sent]
    assert all(isinstance(each, Refusal) and each.reason == "no-backend" for each in reasons)
    assert not any(isinstance(each.outcomes[0], Refusal) for each in others)
