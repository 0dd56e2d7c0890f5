"""One seed, one story: start, load and faults, heal, then all must be well."""

from collections.abc import Callable
from dataclasses import dataclass

from deployments.frontend.outcomes import Refusal
from faults.deployment import ENCODED, PLAIN
from faults.invariants import Invariants
from faults.schedule import Schedule
from faults.system import System
from faults.world import BrokenError, World
from router.core.units import ms, seconds

UP_NS = seconds(1)
TROUBLE_NS = seconds(3)
WARM_NS = ms(800)
WARM_RPS = 60.0
PROBE_NS = ms(400)
REST_NS = seconds(1)


@dataclass(frozen=True, slots=True)
class Story:
    """How a seed went."""

    seed: int
    broken: str
    """The invariant that does not hold; empty: all do."""
    outcomes: dict[str, int]
    """Requests by their end."""
    steps: int
    said: list[str]


def play(
    seed: int,
    kinds: tuple[str, ...] = (),
    plant: Callable[[object], None] | None = None,
    tell: bool = False,
) -> Story:
    """Play one seed; `plant` sees each process before it runs, and may break it."""
    world = World(seed)
    world.said = [] if tell else None
    rng = world.rng("schedule")
    system = System(world, backends=rng.randint(2, 4), frontends=rng.randint(1, 2), plant=plant)
    invariants = Invariants(system)
    schedule = Schedule(system, rng, kinds)
    broken = ""
    try:
        world.run_until(world.now_ns + UP_NS)
        from_ns = world.now_ns
        if system.scaled:
            schedule.swings(from_ns, from_ns + TROUBLE_NS)
        else:
            schedule.load(from_ns, from_ns + TROUBLE_NS, rng.uniform(20.0, 150.0))
        schedule.faults(from_ns, from_ns + TROUBLE_NS, rng.randint(0, 6))
        world.run_until(from_ns + TROUBLE_NS)
        schedule.heal()
        system.settle()
        # What was learnt from the faults is unlearnt by ordinary load.
        schedule.load(world.now_ns, world.now_ns + WARM_NS, WARM_RPS)
        world.run_until(world.now_ns + WARM_NS + REST_NS)
        for _ in range(5):
            for frontend in system.frontends:
                system.clients.send(PLAIN, frontend, probe=True)
                system.clients.send(ENCODED, frontend, probe=True)
            world.run_until(world.now_ns + PROBE_NS)
        # Where backends follow the load, some have just been asked for.
        system.settle(REST_NS)
        invariants.check_served()
        invariants.check_clean()
    except BrokenError as error:
        broken = str(error)
    except Exception as error:
        # Nobody catches it in production either; the other seeds are played all the same.
        broken = f"{type(error).__name__}: {error}"
    outcomes: dict[str, int] = {}
    for sent in system.clients.ledger:
        for outcome in sent.outcomes[:1]:
            name = outcome.reason if isinstance(outcome, Refusal) else "served"
            outcomes[name] = outcomes.get(name, 0) + 1
    return Story(seed, broken, outcomes, world.sequence, world.said or [])
