"""Backends that fail or are cut off, and inputs that hang or raise: on production code in a
simulated world."""

from collections import Counter
from collections.abc import Callable, Iterator

from benchmarks.figures import Figure
from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.deployment import PLAIN
from fermata.fault_simulator.environment.network import SimulatedNetwork
from fermata.fault_simulator.environment.world import VirtualLoop, World
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds

EVERY_NS = ms(10)
BAD_EVERY = 5
HANGS_AT = 20
HANGS_MAX = 3
"""Inputs of a tenant that hang before it is refused."""
GOOD, BAD = 1, 2
"""Tenants."""
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


def _send(
    system: SimulatedDeployment,
    for_ns: int,
    every_ns: int = EVERY_NS,
    is_bad: Callable[[int], bool] = lambda number: False,
) -> list[Sent]:
    """A request every few milliseconds, at each frontend in turn. Those whose number `is_bad` are
    of another tenant."""
    world, sent = system.world, list[Sent]()
    until_ns = world.now_ns + for_ns
    while world.now_ns < until_ns:
        frontend = system.frontends[len(sent) % len(system.frontends)]
        tenant = BAD if is_bad(len(system.clients.ledger)) else GOOD
        sent.append(system.clients.send(PLAIN, frontend, tenant=tenant))
        world.run_until(world.now_ns + every_ns)
    return sent


def _settle(system: SimulatedDeployment) -> None:
    """Give every request that was sent the time to be answered."""
    system.world.run_until(system.world.now_ns + seconds(1))


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
            _settle(system)
            lost, total = lost + _lost(sent), total + len(sent)
        name = f"lasting partition {way} of a pair, {total:,} requests after a second: lost"
        yield Figure(name, lost, "", 0, at_most=True)


def broken(quick: bool) -> Iterator[Figure]:
    """Requests lost to a backend of the lowest number that fails at once, beside three good ones,
    and the time until one that is alone is replaced."""
    for rate_rps in (400, 1200):
        system = _deployment(1, 4)
        _send(system, seconds(1), seconds(1) // rate_rps)
        lowest = min(system.backends, key=lambda each: each.process.settings.number)
        number = lowest.process.settings.number
        lowest.machine.fails = lowest.machine.at_once = True
        system.harm.failed.add(number)
        sent = _send(system, seconds(1), seconds(1) // rate_rps)
        stays = not _is_ejected(system, number)
        sent += _send(system, seconds(4 if quick else 20), seconds(1) // rate_rps)
        _settle(system)
        name = f"a backend that fails beside three, {rate_rps:,} req/s, {len(sent):,} requests"
        yield Figure(f"{name}: lost", _lost(sent), "", 20, at_most=True)
        yield Figure(f"{name}: not ejected within a second", stays, "", 0, at_most=True)
    system = _deployment(1, 1)
    only = system.backends[0]
    only.machine.unusable, only.machine.at_once = "RuntimeError: an illegal memory access", True
    system.harm.failed.add(only.process.settings.number)
    _send(system, seconds(10))
    sent = _send(system, seconds(5))
    _settle(system)
    yield Figure(
        "the only device becomes unusable: lost after ten seconds", _lost(sent), "", 0, at_most=True
    )


def _is_ejected(system: SimulatedDeployment, number: int) -> bool:
    router = system.router
    assert router is not None
    assert router.live is not None
    return number in router.live.supervisor.outliers.ejected or number not in {
        each.process.settings.number for each in system.backends
    }


def raising(quick: bool) -> Iterator[Figure]:
    """Backends ejected, and other tenants' bad requests, while the inputs of one tenant raise."""
    system = _deployment(1, 4)
    system.harm.bad_inputs = BAD_EVERY
    for host in system.backends:
        host.machine.bad_inputs = BAD_EVERY
    lasts_ns = seconds(30 if quick else 300)
    sent = _send(system, lasts_ns, is_bad=lambda number: number % BAD_EVERY == 0)
    _settle(system)
    others = [each for each in sent if each.tenant == GOOD]
    router = system.router
    assert router is not None
    assert router.live is not None
    name = f"a tenant's inputs raise in one of {BAD_EVERY}, {len(sent):,} requests"
    ejected = len(router.live.supervisor.outliers.ejected)
    yield Figure(f"{name}: backends ejected", ejected, "", 0, at_most=True)
    yield Figure(
        f"{name}: other tenants' bad", 100 * _lost(others) / len(others), "%", 0.5, at_most=True
    )


def hanging(quick: bool) -> Iterator[Figure]:
    """Backends lost to one hanging input a second, all of one tenant."""
    rounds = 10 if quick else 60
    system = _deployment(1, 4)
    for _ in range(rounds):
        system.harm.hanging.add(len(system.clients.ledger) + HANGS_AT)
        _send(system, seconds(1), is_bad=system.harm.hanging.__contains__)
    _settle(system)
    met = Counter(each for machine in system.harm.machines for each in machine.hung_on)
    name = f"{rounds} hanging inputs of a tenant, one a second: backends lost"
    yield Figure(f"{name} to each, at most", max(met.values(), default=0), "", 1, at_most=True)
    yield Figure(f"{name} in all", met.total(), "", HANGS_MAX, at_most=True)
