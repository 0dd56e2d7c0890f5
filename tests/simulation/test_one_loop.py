"""The simulator and the control plane decide alike: one run, played through both drivers.

The simulator runs a scenario, and every reading and plan of it is recorded. The control plane's
own shell then meets the same readings on a virtual clock, by way of a router that plays them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydantic")
from snapshots import application, router, sub_cluster

from fermata.autoscaler.control_loop import ControlEffect, ControlLoop, SetTargets
from fermata.autoscaler.placer import ApplyPlan, LeaveInPlace, SolvePlacement
from fermata.autoscaler.readings import ClusterReading
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.control.scaling import ScalingLoop
from fermata.fault_simulator.environment.world import World, new_process
from fermata.foundation.units import SECOND, ms, seconds
from fermata.partitioner.plan import Plan, Problem
from fermata.router.telemetry.snapshot import PlacementSnapshot, RouterSnapshot
from fermata.simulator.run import Driver, RunLog
from fermata.simulator.scenario.scenario import Scenario, read_scenario

TABLE = "h200-eager"
NAMES = ("densenet201", "efficientnet_v2_m", "densenet169", "resnet152")
SPARE = {"densenet169": ["shufflenet_v2_x1_0"]}
"""Second variants: they live with the first."""
TRACE = {
    NAMES[0]: [600, 600, 600, 600],
    NAMES[1]: [440, 440, 40, 200],
    NAMES[2]: [200, 40, 440, 440],
    NAMES[3]: [40, 200, 200, 40],
}
"""The first has most load and should live with the one that has least: another in each hour."""


def applications() -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "slo_ms": 36,
            "variants": [
                {"name": each, "profile": f"{TABLE}/{each}"}
                for each in (name, *SPARE.get(name, ()))
            ],
        }
        for name in NAMES
    ]


def simulated(sections: dict[str, object]) -> Scenario:
    return read_scenario(
        {
            "seed": 5,
            "backends": 9,
            "warmup_s": 0,
            "duration_s": 24,
            "arrivals": {"process": "trace", "step_s": 6, "applications": TRACE},
            "applications": applications(),
            **sections,
        }
    )


def deployed(sections: dict[str, object]) -> DeploymentConfig:
    return read_config(
        {"applications": applications(), "backend": {"count": 9, "device": "emulated"}, **sections}
    )


@dataclass
class Record:
    """A run of the simulator, as its control loop has seen it."""

    backends: int = 0
    readings: list[ClusterReading] = field(default_factory=list)
    effects: list[ControlEffect] = field(default_factory=list)
    solutions: list[Plan] = field(default_factory=list)

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.effects if isinstance(each, kind)]


class RecordedLoop(ControlLoop):
    """The loop that decides, with a record of all that goes in and out."""

    record: Record

    def on_start(
        self, now_ns: int, reading: ClusterReading, backends: int, kept: Plan | None = None
    ) -> None:
        self.record.readings.append(reading)
        self.record.backends = backends
        super().on_start(now_ns, reading, backends, kept)

    def on_reading(self, now_ns: int, reading: ClusterReading) -> None:
        self.record.readings.append(reading)
        super().on_reading(now_ns, reading)

    def on_solved(self, plan: Plan) -> None:
        self.record.solutions.append(plan)
        super().on_solved(plan)

    def take_effects(self) -> list[ControlEffect]:
        effects = super().take_effects()
        self.record.effects += effects
        return effects


def run_simulator(scenario: Scenario) -> tuple[Record, RunLog]:
    driver = Driver(scenario)
    control = driver.control
    assert control is not None
    models = () if control.loop.placer is None else control.loop.placer.models
    control.loop = loop = RecordedLoop(scenario.autoscaler, scenario.epochs, models)
    loop.record = Record()
    log = driver.run()
    up_or_coming = [
        len(members) + list(control.backends.starting.values()).count(rank)
        for rank, members in enumerate(control.backends.members)
    ]
    if loop.scaler is not None:
        # Whatever was decided has been carried out.
        assert up_or_coming == list(control.targets or loop.targets)
    return loop.record, log


class PlayedRouter:
    """A router whose counters are those of the record: `LeaderClient`, as far as it is asked."""

    term = 1

    def __init__(self, record: Record) -> None:
        self.record = record
        self.loop = asyncio.get_running_loop()
        self.began_s = self.loop.time()
        self.plans = [record.readings[0].plan]
        self.targets: list[tuple[int, ...]] = []

    async def snapshot(self) -> RouterSnapshot:
        elapsed_ns = round((self.loop.time() - self.began_s) * SECOND)
        shown = [
            each
            for each in self.record.readings
            if each.at_ns <= elapsed_ns and each.plan in self.plans
        ][-1]
        return snapshot_of(shown, self.plans[-1].away(shown.plan))

    async def place(self, plan: Plan) -> list[str]:
        self.plans.append(plan)
        return []

    async def set_target(self, wanted: list[int]) -> None:
        self.targets.append(tuple(wanted))


def snapshot_of(reading: ClusterReading, on_their_way: Sequence[str]) -> RouterSnapshot:
    """The reading as a router shows it."""
    return router(
        {
            name: application(
                requests=each.received, good=each.good, late=each.bad, dropped={"cancelled": 3}
            )
            for name, each in reading.applications.items()
        },
        up_ns=reading.at_ns,
        term=reading.term,
        wanted=list(reading.targets),
        placement=PlacementSnapshot(dict(reading.plan.home), {}, list(on_their_way)),
        ranks=[
            sub_cluster(
                backends=each.backends,
                backend_up_ns=each.uptime_ns,
                backend_busy_ns=each.busy_ns,
                least=each.backends_min,
            )
            for each in reading.sub_clusters
        ],
    )


class PlayedCluster:
    """Finds the plans of the record: `Cluster`, as far as it is asked."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.problems: list[Problem] = []

    async def solve(self, problem: Problem, seconds: float) -> Plan:
        self.problems.append(problem)
        return self.record.solutions[len(self.problems) - 1]

    async def backends_there(self) -> int:
        return self.record.backends

    async def device_bytes(self) -> int:
        return 0


def run_control_plane(
    config: DeploymentConfig, record: Record, span_ns: int
) -> tuple[PlayedRouter, PlayedCluster]:
    world = World(1)
    process = new_process(world, "control")
    made: list[tuple[PlayedRouter, PlayedCluster, ScalingLoop]] = []

    async def run() -> None:
        router, cluster = PlayedRouter(record), PlayedCluster(record)
        scaling = ScalingLoop(config, known_profiles(config), router, cluster)  # type: ignore[arg-type]
        made.append((router, cluster, scaling))
        await scaling.start()

    process.start(run)
    world.run_until(world.now_ns + span_ns + ms(1))
    assert not world.trouble
    ((router, cluster, scaling),) = made
    scaling.check()
    return router, cluster


AUTOSCALER = {"window_s": 1, "startup_s": 0.5, "minimum": 3, "maximum": 30}
EPOCHS = {"every_s": 6, "sub_clusters": 2, "solve_s": 3, "memory_weight": 0.1}
TIGHT = {**EPOCHS, "memory_mb": 478}
"""Room for two models, but not for a third while two change places."""


@pytest.mark.parametrize(
    "sections",
    [
        {"autoscaler": AUTOSCALER},
        {"autoscaler": AUTOSCALER, "epochs": EPOCHS},
        {"autoscaler": {**AUTOSCALER, "dry_run": True}, "epochs": EPOCHS},
        {"autoscaler": {**AUTOSCALER, "minimum": 8, "idle": 0.2, "lead": 1}, "epochs": EPOCHS},
        {"autoscaler": AUTOSCALER, "epochs": {**EPOCHS, "sub_clusters": 3, "imbalance": 0.9}},
        {"epochs": {**EPOCHS, "imbalance": 1, "memory_weight": 0}},
        {"epochs": TIGHT},
    ],
)
def test_one_run_is_decided_alike_by_both_drivers(sections: dict[str, object]) -> None:
    scenario = simulated(sections)
    record, _ = run_simulator(scenario)
    router, cluster = run_control_plane(deployed(sections), record, seconds(24))
    assert router.targets == [each.targets for each in record.of(SetTargets)]
    assert router.plans[1:] == [each.plan for each in record.of(ApplyPlan)]
    assert cluster.problems == [each.problem for each in record.of(SolvePlacement)]


def test_what_was_played_has_something_of_everything() -> None:
    record, log = run_simulator(simulated({"autoscaler": AUTOSCALER, "epochs": EPOCHS}))
    targets = [each.targets for each in record.of(SetTargets)]
    assert len(set(targets)) > 4
    assert len({*(frozenset(each.plan.home.items()) for each in record.of(ApplyPlan))}) > 2
    assert any(plan.moved for plan in log.plans)


def test_simulated_readings_count_what_was_offered() -> None:
    record, log = run_simulator(simulated({"autoscaler": AUTOSCALER, "epochs": EPOCHS}))
    for each in record.readings:
        there = log.arrivals.application[log.arrivals.at_ns < each.at_ns]
        counts = np.bincount(there, minlength=len(NAMES)).tolist()
        assert [each.applications[name].received for name in NAMES] == counts


def test_a_simulated_move_with_a_gap_is_left_out() -> None:
    record, _ = run_simulator(simulated({"epochs": TIGHT}))
    assert record.of(LeaveInPlace)
