"""One seed, one story: start, load and faults, heal, then all must be well."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.deployment import ENCODED, PLAIN
from fermata.fault_simulator.faults.lasting import LastingFaults
from fermata.fault_simulator.faults.schedule import FaultSchedule
from fermata.fault_simulator.invariants import Invariants
from fermata.fault_simulator.sequences.load import SequenceClients
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.fault_simulator.world import InvariantViolationError, World
from fermata.foundation.units import ms, seconds

UP_NS = seconds(1)
TROUBLE_NS = seconds(3)
WARM_NS = ms(800)
WARM_RPS = 60.0
WARM_ROUNDS = 20
"""Several requests at once are in time only if batches are planned with what they take when all is
well. Each slow batch counts until 50 others have run, at most 256 (docs/reliability.md, "After a
backend was slow"), and of the rarer model about twelve run in one round."""
UNLEARNT = frozenset(("late", "window", "shed"))
"""Requests until then may end in any way."""
PLACED = 0.4
"""Share of deployments with sub-clusters, among those whose number of backends is fixed."""
SPARED = 0.3
"""Share of deployments whose backends have spares."""
PROBE_NS = ms(400)
REST_NS = seconds(1)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a seed went."""

    seed: int
    broken: str
    """The invariant that does not hold; empty: all do."""
    outcomes: dict[str, int]
    """Requests by their end."""
    steps: int
    said: list[str]


def run_seed(
    seed: int,
    kinds: tuple[str, ...] = (),
    plant: Callable[[object], None] | None = None,
    tell: bool = False,
    scaled: bool | None = None,
) -> RunResult:
    """Play one seed; `plant` sees each process before it runs, and may break it; `scaled`: as
    `SimulatedDeployment` has it."""
    world = World(seed)
    world.said = [] if tell else None
    rng = world.rng("schedule")
    backends, frontends = rng.randint(2, 4), rng.randint(1, 2)
    placed = world.rng("placed").random() < PLACED
    spared = world.rng("spared").random() < SPARED
    system = SimulatedDeployment(
        world, backends, frontends, plant, scaled=scaled, placed=placed, spared=spared
    )
    invariants = Invariants(system)
    schedule = FaultSchedule(system, rng, kinds)
    broken = ""
    try:
        world.run_until(world.now_ns + UP_NS)
        from_ns = world.now_ns
        if system.scaled:
            schedule.swings(from_ns, from_ns + TROUBLE_NS)
        else:
            schedule.load(from_ns, from_ns + TROUBLE_NS, rng.uniform(20.0, 150.0))
        schedule.faults(from_ns, from_ns + TROUBLE_NS, rng.randint(0, 6))
        if not kinds:
            schedule.policies(from_ns, from_ns + TROUBLE_NS)
        world.run_until(from_ns + TROUBLE_NS)
        schedule.heal()
        system.settle()
        for left in reversed(range(WARM_ROUNDS)):
            # Ordinary load unlearns the lessons of the faults.
            schedule.load(world.now_ns, world.now_ns + WARM_NS, WARM_RPS)
            world.run_until(world.now_ns + WARM_NS + REST_NS)
            if system.room:
                # A backend that was found unusable just now took the models of others along.
                system.settle(0)
            probes = _probe(system)
            refusals = [each for each in _ends(probes) if each != "served"]
            if left == 0 or not UNLEARNT.issuperset(refusals) or not refusals:
                break
        # Where backends follow the load, some have just been asked for.
        system.settle(REST_NS)
        invariants.check_served(probes)
        invariants.check_clean()
    except InvariantViolationError as error:
        broken = str(error)
    except Exception as error:
        # Nobody catches it in production either; the other seeds are played all the same.
        broken = f"{type(error).__name__}: {error}"
    outcomes = dict(Counter(_ends(system.clients.ledger)))
    return RunResult(seed, broken, outcomes, world.sequence, world.said or [])


def run_lasting(
    seed: int,
    kinds: tuple[str, ...] = (),
    plant: Callable[[object], None] | None = None,
    tell: bool = False,
) -> RunResult:
    """Play one seed whose faults never end: whatever is left must go on serving."""
    world = World(seed)
    world.said = [] if tell else None
    rng = world.rng("lasting")
    backends, frontends = rng.randint(2, 4), rng.randint(1, 2)
    system = SimulatedDeployment(world, backends, frontends, plant, scaled=False)
    Invariants(system)
    schedule = LastingFaults(system, rng, kinds)
    broken = ""
    try:
        world.run_until(world.now_ns + UP_NS)
        schedule.load(world.now_ns, world.now_ns + TROUBLE_NS, WARM_RPS)
        world.run_until(world.now_ns + TROUBLE_NS // 2)
        schedule.strike(rng.randint(1, 3))
        world.run_until(world.now_ns + TROUBLE_NS // 2)
        for left in reversed(range(WARM_ROUNDS)):
            schedule.load(world.now_ns, world.now_ns + WARM_NS, WARM_RPS)
            world.run_until(world.now_ns + WARM_NS + REST_NS)
            probes = _probe(system)
            if left == 0 or set(_ends(probes)) == {"served"}:
                break
        Invariants.check_served(probes)
    except InvariantViolationError as error:
        broken = str(error)
    except Exception as error:
        # As above.
        broken = f"{type(error).__name__}: {error}"
    outcomes = dict(Counter(_ends(system.clients.ledger)))
    return RunResult(seed, broken, outcomes, world.sequence, world.said or [])


def run_sequences(
    seed: int,
    kinds: tuple[str, ...] = (),
    plant: Callable[[object], None] | None = None,
    tell: bool = False,
) -> RunResult:
    """Play one seed with clients whose requests share a state, beside others."""
    world = World(seed)
    world.said = [] if tell else None
    rng = world.rng("sequences")
    backends, frontends = rng.randint(2, 4), rng.randint(1, 2)
    system = SimulatedDeployment(world, backends, frontends, plant, sequences=True)
    Invariants(system)
    schedule = FaultSchedule(system, rng, kinds)
    steps = SequenceClients(system.clients, world.rng("steps"), rng.randint(3, 12))
    broken = ""
    try:
        world.run_until(world.now_ns + UP_NS)
        from_ns = world.now_ns
        schedule.load(from_ns, from_ns + TROUBLE_NS, rng.uniform(20.0, 60.0))
        steps.load(system, from_ns, from_ns + TROUBLE_NS, rng.uniform(50.0, 300.0))
        schedule.faults(from_ns, from_ns + TROUBLE_NS, rng.randint(0, 6))
        world.run_until(from_ns + TROUBLE_NS)
        schedule.heal()
        system.settle()
        for left in reversed(range(WARM_ROUNDS)):
            schedule.load(world.now_ns, world.now_ns + WARM_NS, WARM_RPS)
            steps.load(system, world.now_ns, world.now_ns + WARM_NS, WARM_RPS)
            world.run_until(world.now_ns + WARM_NS + REST_NS)
            probes = steps.probe(system)
            world.run_until(world.now_ns + REST_NS)
            if left == 0 or set(_ends(probes)) == {"served"}:
                break
        steps.judge()
        Invariants.check_served(probes)
    except InvariantViolationError as error:
        broken = str(error)
    except Exception as error:
        # As above.
        broken = f"{type(error).__name__}: {error}"
    broken = broken or next(iter(world.trouble), "")
    outcomes = dict(Counter(_ends(system.clients.ledger)))
    return RunResult(seed, broken, outcomes, world.sequence, world.said or [])


def _probe(system: SimulatedDeployment) -> list[Sent]:
    probes = []
    for _ in range(5):
        for frontend in system.frontends:
            probes.append(system.clients.send(PLAIN, frontend))
            probes.append(system.clients.send(ENCODED, frontend))
        system.world.run_until(system.world.now_ns + PROBE_NS)
    return probes


def _ends(sent: list[Sent]) -> list[str]:
    """Outcomes of requests that have an answer."""
    ends = [each.outcomes[0] for each in sent if each.outcomes]
    return [each.reason if isinstance(each, Refusal) else "served" for each in ends]
