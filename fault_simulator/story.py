"""How a seed is played: start, load and faults, heal, then all must be well."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.deployment import ENCODED, PLAIN
from fermata.fault_simulator.environment.world import InvariantViolationError, World
from fermata.fault_simulator.faults.schedule import FaultSchedule
from fermata.fault_simulator.invariants import Invariants
from fermata.fault_simulator.settling import settle
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds

UP_NS = seconds(1)
TROUBLE_NS = seconds(3)
WARM_NS = ms(800)
WARM_RPS = 60.0
WARM_ROUNDS = 20
"""Several requests at once are in time only if batches are planned with what they take when all is
well. Each slow batch counts until 50 others have run, at most 256 (docs/reliability.md, "After a
backend was slow"), and of the rarer model about twelve run in one round."""
PROBE_NS = ms(400)
REST_NS = seconds(1)

Plant = Callable[[object], None]
"""Sees each process before it runs, and may break it."""


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


class Story(ABC):
    """One seed of a deployment, from its start to the checks at its end."""

    stream: str
    """Name of the random numbers that the story draws."""

    def __init__(
        self, seed: int, kinds: tuple[str, ...] = (), plant: Plant | None = None, tell: bool = False
    ) -> None:
        self.world = World(seed)
        self.world.said = [] if tell else None
        self.rng = self.world.rng(self.stream)
        self.kinds = kinds
        backends, frontends = self.rng.randint(2, 4), self.rng.randint(1, 2)
        self.system = self.deploy(backends, frontends, plant)
        self.invariants = Invariants(self.system)
        self.schedule = FaultSchedule(self.system, self.rng, kinds)

    @abstractmethod
    def deploy(self, backends: int, frontends: int, plant: Plant | None) -> SimulatedDeployment:
        """Make the deployment of the story, and what else the story needs from the start."""

    @abstractmethod
    def load(self, from_ns: int, to_ns: int) -> None:
        """Draw the load that faults meet."""

    def trouble(self, from_ns: int, to_ns: int) -> None:
        """Play load and faults, and end what still goes on."""
        self.load(from_ns, to_ns)
        self.schedule.faults(from_ns, to_ns, self.rng.randint(0, 6))
        self.world.run_until(to_ns)
        self.schedule.heal()
        settle(self.system)

    def ordinary_load(self, from_ns: int, to_ns: int) -> None:
        """Draw a load that unlearns the lessons of the faults."""
        self.schedule.load(from_ns, to_ns, WARM_RPS)

    def settle(self) -> None:
        """Wait for a backend that was found unusable just now: it is being replaced."""
        settle(self.system, 0)

    def probe(self) -> list[Sent]:
        """Send requests that a deployment in order serves, and wait for the answers."""
        probes = []
        for _ in range(5):
            for frontend in self.system.frontends:
                probes.append(self.system.clients.send(PLAIN, frontend))
                probes.append(self.system.clients.send(ENCODED, frontend))
            self.world.run_until(self.world.now_ns + PROBE_NS)
        return probes

    def is_decided(self, ends: list[str]) -> bool:
        """Whether more ordinary load would change nothing."""
        return set(ends) == {"served"}

    def check(self, probes: list[Sent]) -> None:
        """Judge what the story has come to."""
        self.invariants.check_served(probes)

    def _play(self) -> None:
        world = self.world
        world.run_until(world.now_ns + UP_NS)
        self.trouble(world.now_ns, world.now_ns + TROUBLE_NS)
        for _ in range(WARM_ROUNDS):
            self.ordinary_load(world.now_ns, world.now_ns + WARM_NS)
            world.run_until(world.now_ns + WARM_NS + REST_NS)
            self.settle()
            probes = self.probe()
            if self.is_decided(_ends(probes)):
                break
        self.check(probes)

    def run(self) -> RunResult:
        broken = broken_by(self.world, self._play)
        outcomes = dict(Counter(_ends(self.system.clients.ledger)))
        world = self.world
        return RunResult(world.seed, broken, outcomes, world.sequence, world.said or [])


def broken_by(world: World, play: Callable[[], None]) -> str:
    """Play, and return the invariant that does not hold; empty: all do."""
    broken = ""
    try:
        play()
    except InvariantViolationError as error:
        broken = str(error)
    except Exception as error:
        # Nobody catches it in production either; the other seeds are played all the same.
        broken = f"{type(error).__name__}: {error}"
    return broken or next(iter(world.trouble), "")


def ended(sent: Sent) -> str:
    """How a request ended."""
    if not sent.outcomes:
        return "unanswered"
    outcome = sent.outcomes[0]
    return outcome.reason if isinstance(outcome, Refusal) else "served"


def _ends(sent: list[Sent]) -> list[str]:
    """Outcomes of requests that have an answer."""
    return [ended(each) for each in sent if each.outcomes]
