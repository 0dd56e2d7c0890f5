"""The stories of a seed: how each differs from the others."""

from fermata.fault_simulator.clients import Sent
from fermata.fault_simulator.faults.lasting import LastingFaults
from fermata.fault_simulator.pipelines.load import QueryClients
from fermata.fault_simulator.pipelines.stages import PIPELINES
from fermata.fault_simulator.sequences.load import SequenceClients
from fermata.fault_simulator.sequences.steps import SEQUENCES
from fermata.fault_simulator.settling import settle
from fermata.fault_simulator.story import REST_NS, WARM_RPS, Plant, RunResult, Story
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.fault_simulator.trials.load import TrialClients
from fermata.fault_simulator.trials.models import TRIALS

UNLEARNT = frozenset(("late", "window", "shed"))
"""Requests may end in any of these ways until what faults taught is unlearnt."""
PLACED = 0.4
"""Share of deployments with sub-clusters, among those whose number of backends is fixed."""
SPARED = 0.3
"""Share of deployments whose backends have spares."""


class EndingFaults(Story):
    """Faults that end, under requests of one model each."""

    stream = "schedule"

    def __init__(
        self,
        seed: int,
        kinds: tuple[str, ...] = (),
        plant: Plant | None = None,
        tell: bool = False,
        scaled: bool | None = None,
    ) -> None:
        self.scaled = scaled
        super().__init__(seed, kinds, plant, tell)

    def deploy(self, backends: int, frontends: int, plant: Plant | None) -> SimulatedDeployment:
        placed = self.world.rng("placed").random() < PLACED
        spared = self.world.rng("spared").random() < SPARED
        return SimulatedDeployment(
            *(self.world, backends, frontends, plant),
            scaled=self.scaled,
            placed=placed,
            spared=spared,
        )

    def load(self, from_ns: int, to_ns: int) -> None:
        if self.system.scaled:
            self.schedule.swings(from_ns, to_ns)
        else:
            self.schedule.load(from_ns, to_ns, self.rng.uniform(20.0, 150.0))
        if not self.kinds:
            self.schedule.policies(from_ns, to_ns)

    def is_decided(self, ends: list[str]) -> bool:
        refusals = {each for each in ends if each != "served"}
        return not refusals or not refusals <= UNLEARNT

    def check(self, probes: list[Sent]) -> None:
        # Where backends follow the load, some have just been asked for.
        settle(self.system, REST_NS)
        super().check(probes)
        self.invariants.check_clean()


class NeverEndingFaults(Story):
    """Faults that never end: whatever is left must go on serving."""

    stream = "lasting"

    def deploy(self, backends: int, frontends: int, plant: Plant | None) -> SimulatedDeployment:
        system = SimulatedDeployment(self.world, backends, frontends, plant, scaled=False)
        self.faults = LastingFaults(system, self.rng, self.kinds)
        return system

    def load(self, from_ns: int, to_ns: int) -> None:
        self.ordinary_load(from_ns, to_ns)

    def trouble(self, from_ns: int, to_ns: int) -> None:
        self.load(from_ns, to_ns)
        self.world.run_until((from_ns + to_ns) // 2)
        self.faults.strike(self.rng.randint(1, 3))
        self.world.run_until(to_ns)

    def settle(self) -> None:
        """Wait for nothing: a backend that was struck does not come back."""


class Sequences(Story):
    """Clients whose requests share a state, beside others."""

    stream = "sequences"

    def deploy(self, backends: int, frontends: int, plant: Plant | None) -> SimulatedDeployment:
        system = SimulatedDeployment(self.world, backends, frontends, plant, more=SEQUENCES)
        steps = self.world.rng("steps")
        self.steps = SequenceClients(system, steps, self.rng.randint(3, 12))
        return system

    def load(self, from_ns: int, to_ns: int) -> None:
        self.schedule.load(from_ns, to_ns, self.rng.uniform(20.0, 60.0))
        self.steps.load(from_ns, to_ns, self.rng.uniform(50.0, 300.0))

    def ordinary_load(self, from_ns: int, to_ns: int) -> None:
        super().ordinary_load(from_ns, to_ns)
        self.steps.load(from_ns, to_ns, WARM_RPS)

    def probe(self) -> list[Sent]:
        probes = self.steps.probe()
        self.world.run_until(self.world.now_ns + REST_NS)
        return probes

    def check(self, probes: list[Sent]) -> None:
        self.steps.judge()
        super().check(probes)


class Pipelines(Story):
    """Queries of several stages, beside requests of one."""

    stream = "pipelines"

    def deploy(self, backends: int, frontends: int, plant: Plant | None) -> SimulatedDeployment:
        system = SimulatedDeployment(
            *(self.world, backends, frontends, plant),
            scaled=False,
            spared=self.rng.random() < SPARED,
            more=PIPELINES,
        )
        self.queries = QueryClients(system, self.world.rng("queries"))
        return system

    def load(self, from_ns: int, to_ns: int) -> None:
        self.schedule.load(from_ns, to_ns, self.rng.uniform(5.0, 40.0))
        self.queries.load(from_ns, to_ns, self.rng.uniform(20.0, 100.0))

    def ordinary_load(self, from_ns: int, to_ns: int) -> None:
        self.schedule.load(from_ns, to_ns, WARM_RPS / 3)
        self.queries.load(from_ns, to_ns, WARM_RPS / 3)

    def probe(self) -> list[Sent]:
        probes = self.queries.probe()
        self.world.run_until(self.world.now_ns + REST_NS)
        return probes

    def check(self, probes: list[Sent]) -> None:
        settle(self.system, REST_NS)
        super().check(probes)
        self.invariants.check_clean()
        self.queries.check_clean()


class Trials(Story):
    """Cameras whose frames are mapped to variants, and a version on trial that may be bad."""

    stream = "trials"

    def deploy(self, backends: int, frontends: int, plant: Plant | None) -> SimulatedDeployment:
        system = SimulatedDeployment(
            *(self.world, backends, frontends, plant),
            scaled=False,
            spared=self.rng.random() < SPARED,
            more=TRIALS,
        )
        self.clients = TrialClients(system, self.world.rng("trial clients"))
        return system

    def load(self, from_ns: int, to_ns: int) -> None:
        self.schedule.load(from_ns, to_ns, self.rng.uniform(5.0, 40.0))
        self.clients.load(from_ns, to_ns, self.rng.uniform(10.0, 60.0))
        self.world.enter(from_ns + self.rng.randrange(to_ns - from_ns), self.clients.spoil)

    def ordinary_load(self, from_ns: int, to_ns: int) -> None:
        self.schedule.load(from_ns, to_ns, WARM_RPS / 3)
        self.clients.load(from_ns, to_ns, WARM_RPS / 3)

    def probe(self) -> list[Sent]:
        return [*self.clients.probe(), *super().probe()]

    def check(self, probes: list[Sent]) -> None:
        self.clients.check()
        super().check(probes)
        self.invariants.check_clean()


def run_seed(
    seed: int,
    kinds: tuple[str, ...] = (),
    plant: Plant | None = None,
    tell: bool = False,
    scaled: bool | None = None,
) -> RunResult:
    """Play one seed whose faults end; `scaled`: as `SimulatedDeployment` has it."""
    return EndingFaults(seed, kinds, plant, tell, scaled).run()


def run_lasting(
    seed: int, kinds: tuple[str, ...] = (), plant: Plant | None = None, tell: bool = False
) -> RunResult:
    """Play one seed whose faults never end: whatever is left must go on serving."""
    return NeverEndingFaults(seed, kinds, plant, tell).run()


def run_sequences(
    seed: int, kinds: tuple[str, ...] = (), plant: Plant | None = None, tell: bool = False
) -> RunResult:
    """Play one seed with clients whose requests share a state, beside others."""
    return Sequences(seed, kinds, plant, tell).run()


def run_pipelines(
    seed: int, kinds: tuple[str, ...] = (), plant: Plant | None = None, tell: bool = False
) -> RunResult:
    """Play one seed with queries of several stages, beside requests of one."""
    return Pipelines(seed, kinds, plant, tell).run()


def run_trials(
    seed: int, kinds: tuple[str, ...] = (), plant: Plant | None = None, tell: bool = False
) -> RunResult:
    """Play one seed with mapped cameras and a version on trial, beside other requests."""
    return Trials(seed, kinds, plant, tell).run()
