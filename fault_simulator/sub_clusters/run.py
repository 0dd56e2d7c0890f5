"""One seed of several routers: load, moves and kills, heal, then all must be well."""

import itertools
from collections import Counter
from functools import partial
from random import Random

from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.environment.world import InvariantViolationError, World
from fermata.fault_simulator.story import RunResult, broken_by, ended
from fermata.fault_simulator.sub_clusters.pair import check_left
from fermata.fault_simulator.sub_clusters.system import (
    COUNT,
    SeveralDeployment,
    Shape,
)
from fermata.foundation.units import SECOND, ms, seconds

UP_NS = seconds(3)
TROUBLE_NS = seconds(8)
HEAL_NS = seconds(30)
FAR_NS = ms(40)
"""One way, at most."""
PROBE_NS = ms(200)
LOOK_NS = ms(50)
RECOVER_NS = seconds(6)
"""From the death of a process until its sub-cluster must serve as ever."""
TAKEOVER_NS = seconds(1)
"""The same for a router with a standby: before the cluster has started it again."""
PARTED_NS_MIN, PARTED_NS_MAX = ms(200), seconds(3)
"""Time for which a link is silent."""


class Excuses:
    """Applications that deaths have touched, and for how long."""

    def __init__(self, system: SeveralDeployment) -> None:
        self.system = system
        self.deaths: list[tuple[int, int]] = []
        """(sub-cluster, until when it may be noticed) of each."""
        self.touched: dict[tuple[str, int], int] = {}
        """When each application was first at a sub-cluster after a death, by both."""

    def on_death(self, sub_cluster: int, for_ns: int = RECOVER_NS) -> None:
        self.deaths.append((sub_cluster, self.system.world.now_ns + for_ns))
        self.look()

    def look(self) -> None:
        """Note which applications are at a sub-cluster that was hit, or on their way there."""
        now_ns = self.system.world.now_ns
        for death, (sub_cluster, until_ns) in enumerate(self.deaths):
            for name in self.system.touched_by(sub_cluster) if now_ns < until_ns else ():
                self.touched.setdefault((name, death), now_ns)

    def excuses(self, sent: Sent) -> bool:
        """Whether a death has come between a request and its answer."""
        return any(
            name == sent.model.name
            and since_ns <= sent.due_ns
            and sent.sent_at_ns <= self.deaths[death][1]
            for (name, death), since_ns in self.touched.items()
        )


def run_sub_clusters(
    seed: int, kinds: tuple[str, ...] = (), tell: bool = False, shape: Shape | None = None
) -> RunResult:
    """Play one seed; `kinds` names the faults that may come, all where it is empty. `shape` is
    drawn unless given."""
    world = World(seed)
    world.said = [] if tell else None
    rng = world.rng("schedule")
    system = SeveralDeployment(world, rng.randint(1, 2), rng.randint(1, 2), shape)
    excuses, moves = Excuses(system), set[tuple[int, ...]]()
    faults = {
        "router": lambda: _kill_router(system, excuses, rng.randrange(COUNT)),
        "backend": lambda: _kill_backend(system, excuses, rng.randrange(COUNT)),
        "control": system.lose_control,
        "link": lambda: _part_link(system, excuses, rng),
    }
    drawn = kinds or tuple(faults)
    # The pipeline first, where there is one: that is the most loaded then.
    models = system.models[::-1] if system.shape.pipeline else system.models

    def load(until_ns: int, rate: float) -> None:
        at_ns = world.now_ns
        while at_ns < until_ns:
            at_ns += int(rng.expovariate(rate) * SECOND)
            # Uneven, so that plans differ.
            chosen = rng.choice(models[: rng.randint(1, len(models))])
            frontend = rng.choice(system.frontends)
            send = partial(system.clients.send, chosen, frontend)
            world.after(at_ns - world.now_ns, send)

    def play(until_ns: int) -> None:
        while world.now_ns < until_ns:
            world.run_until(world.now_ns + LOOK_NS)
            excuses.look()
            control = system.control.control
            if control is not None and control.moves is not None:
                moves.add(tuple(control.moves.plan().home.values()))

    def story() -> None:
        play(world.now_ns + UP_NS)
        _set_apart(system, rng)
        begin_ns = world.now_ns
        load(begin_ns + TROUBLE_NS, rng.uniform(20.0, 80.0))
        for _ in range(rng.randint(0, 3)):
            world.after(rng.randrange(TROUBLE_NS), faults[rng.choice(drawn)])
        play(begin_ns + TROUBLE_NS + HEAL_NS)
        _judge(system, excuses)
        _check_held(system)
        routers = [each.router for each in system.parts if each.router is not None]
        check_left(system.frontends, routers)
        probes = [system.clients.send(each, rng.choice(system.frontends)) for each in models]
        world.run_until(world.now_ns + PROBE_NS)
        _check_served(probes)
        system.world.say("homes that were seen:", sorted(moves))

    broken = broken_by(world, story)
    outcomes = Counter(ended(each) for each in system.clients.ledger)
    outcomes["homes seen"] = len(moves)
    return RunResult(seed, broken, dict(outcomes), world.sequence, world.said or [])


def _set_apart(system: SeveralDeployment, rng: Random) -> None:
    """Some frontends are far from some routers: they hear late of new homes, and requests are on
    their way for longer."""
    for frontend in system.frontends:
        for part in system.parts:
            if part.router is not None:
                far_ns = rng.choice((0, rng.randrange(FAR_NS)))
                system.world.network.delay(frontend.loop, part.router.loop, far_ns)


def _kill_router(system: SeveralDeployment, excuses: Excuses, number: int) -> None:
    part = system.parts[number]
    router = part.router or next(filter(None, map(part.host_at, part.seats)), None)
    if router is not None:
        excuses.on_death(number, TAKEOVER_NS if part.has_standby() else RECOVER_NS)
        part.lose_router(router)


def _part_link(system: SeveralDeployment, excuses: Excuses, rng: Random) -> None:
    """Two processes of a sub-cluster do not hear of each other for a while."""
    number = rng.randrange(COUNT)
    part, frontend = system.parts[number], rng.choice(system.frontends)
    processes = [each.loop for each in (part.router, *part.backends[:1]) if each is not None]
    pairs = list(itertools.combinations((frontend.loop, *processes), 2))
    if pairs:
        pair, for_ns = rng.choice(pairs), rng.randrange(PARTED_NS_MIN, PARTED_NS_MAX)
        excuses.on_death(number, for_ns + RECOVER_NS)
        world, network = system.world, system.world.network
        world.say(pair[0].name, "and", pair[1].name, "do not reach each other")
        network.part(*pair)
        world.after(for_ns, partial(network.join, *pair))


def _kill_backend(system: SeveralDeployment, excuses: Excuses, number: int) -> None:
    backends = system.parts[number].backends
    if backends:
        excuses.on_death(number)
        system.parts[number].lose_backend(backends[0])


def _judge(system: SeveralDeployment, excuses: Excuses) -> None:
    """Every request has one answer, and only those are refused that a death has touched."""
    for sent in system.clients.ledger:
        end = ended(sent)
        if end == "unanswered":
            raise InvariantViolationError(f"request {sent.number} has no answer")
        if end != "served" and not excuses.excuses(sent):
            raise InvariantViolationError(
                f"request {sent.number} of {sent.model.name} ended as {end}, "
                "though nothing had happened to its sub-cluster"
            )


def _check_served(probes: list[Sent]) -> None:
    """All is served again."""
    refused = [f"{each.model.name}: {ended(each)}" for each in probes if ended(each) != "served"]
    if refused:
        raise InvariantViolationError(f"probes were refused: {', '.join(refused)}")


def _check_held(system: SeveralDeployment) -> None:
    """Each router has its backends hold what lives there, and no more."""
    control = system.control.control
    assert control is not None
    assert control.moves is not None
    for part in system.parts:
        wanted = sorted(f"{name}-1" for name in control.moves.served_at(part.number))
        assert part.router is not None
        assert part.router.live is not None
        availability = part.router.live.fleet.availability
        for host in part.backends:
            held = sorted(availability.names(host.process.settings.number))
            if held != wanted and wanted:
                raise InvariantViolationError(
                    f"{host.loop.name} holds {held}, and {wanted} live there"
                )
