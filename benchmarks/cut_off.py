"""Pairs that do not reach each other, and inputs that hang: on production code in a simulated
world."""

from collections import Counter
from collections.abc import Callable, Iterator

from benchmarks.figures import Figure
from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.deployment import PLAIN
from fermata.fault_simulator.network import SimulatedNetwork
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.fault_simulator.world import VirtualLoop, World
from fermata.foundation.units import ms, seconds

EVERY_NS = ms(10)
Part = Callable[[SimulatedNetwork, VirtualLoop, VirtualLoop], None]
WAYS: dict[str, Part] = {
    "in both directions": SimulatedNetwork.part,
    "of inputs": SimulatedNetwork.part_one_way,
    "of results": lambda network, one, other: network.part_one_way(other, one),
}


def _deployment(seed: int, backends: int) -> SimulatedDeployment:
    system = SimulatedDeployment(World(seed), backends, 2, standby=False, scaled=False)
    system.world.run_until(system.world.now_ns + seconds(2))
    return system


def _send(system: SimulatedDeployment, for_ns: int) -> list[Sent]:
    """A request every few milliseconds, at each frontend in turn."""
    world, sent = system.world, list[Sent]()
    until_ns = world.now_ns + for_ns
    while world.now_ns < until_ns:
        frontend = system.frontends[len(sent) % len(system.frontends)]
        sent.append(system.clients.send(PLAIN, frontend))
        world.run_until(world.now_ns + EVERY_NS)
    return sent


def _lost(sent: list[Sent]) -> int:
    return sum(not each.outcomes or isinstance(each.outcomes[0], Refusal) for each in sent)


def partitions(quick: bool) -> Iterator[Figure]:
    """Requests lost while one backend and one frontend do not reach each other."""
    lasts_ns = seconds(10 if quick else 60)
    for way, part in WAYS.items():
        lost = total = 0
        for seed in range(3):
            system = _deployment(seed, 3)
            _send(system, seconds(1))
            busiest = max(system.backends, key=lambda each: each.process.batches)
            part(system.world.network, system.frontends[0].loop, busiest.loop)
            _send(system, seconds(1))
            sent = _send(system, lasts_ns)
            system.world.run_until(system.world.now_ns + seconds(1))
            lost, total = lost + _lost(sent), total + len(sent)
        name = f"lasting partition {way} of a pair, {total:,} requests after a second: lost"
        yield Figure(name, lost, "", 0, at_most=True)


def hanging(quick: bool) -> Iterator[Figure]:
    """Backends lost to one hanging input a second."""
    rounds = 10 if quick else 60
    system = _deployment(1, 4)
    for _ in range(rounds):
        system.hanging.add(len(system.clients.ledger) + 20)
        _send(system, seconds(1))
    met = Counter(each for machine in system.machines for each in machine.hung_on)
    name = f"{rounds} hanging inputs, one a second: backends lost to each, at most"
    yield Figure(name, max(met.values(), default=0), "", 1, at_most=True)
