"""The vectorised instances of training do what the engine does, request by request."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.workloads import HEAVY_BATCHES, LIGHT_BATCHES, edge, eq12
from fermata.foundation.units import SECOND
from fermata.router.policies.rl.batching import LIMITS
from fermata.router.policies.rl.checkpoint import Checkpoint, save_checkpoint
from fermata.router.policies.rl.network import PolicyNetwork
from fermata.router.policies.rl.observation import Floats, InstanceStates, Memory, encode, width
from fermata.router.policies.rl.sampling import even_draw
from fermata.router.policies.rl.slot_routing import SlotRouting
from fermata.simulator.learning.lanes import BatchingLanes, LaneCounts, Lanes
from fermata.simulator.learning.system import TrainingSystem, read_system
from fermata.simulator.run import DROPPED, Driver, RunLog
from fermata.simulator.scenario.scenario import Scenario

SHARES = np.array([0.13, 0.17, 0.31, 0.39])
SECONDS = 60


@dataclass(frozen=True)
class Listening:
    """A network that keeps what it is shown."""

    network: PolicyNetwork
    seen: list[Floats] = field(default_factory=list)

    def __call__(self, observation: Floats) -> Floats:
        self.seen.append(observation)
        return self.network(observation)


def constant_policy(system: TrainingSystem, limits: tuple[int, int] | None) -> Checkpoint:
    outputs = np.log(SHARES).tolist()
    if limits is not None:
        outputs.extend(1.0 if each == limits else 0.0 for _ in range(2) for each in LIMITS)
    scales = system.scales(with_arrivals=True, memory=2)
    inputs = width(4, scales)
    return Checkpoint(
        PolicyNetwork((np.zeros((inputs, len(outputs))),), (np.array(outputs),)),
        system.tiers,
        scales,
        SECOND,
        np.zeros(inputs),
        np.full(inputs, 100.0),
        batching=limits is not None,
    )


def by_engine(
    scenario: Scenario, checkpoint: Checkpoint, path: Path
) -> tuple[RunLog, list[Floats]]:
    save_checkpoint(checkpoint, path)
    options = {"checkpoint": str(path), "mix": "2/2"}
    driver = Driver(replace(scenario, policy="rl", policy_options=options))
    source = driver.engine.sources[0]
    assert isinstance(source, SlotRouting)
    listening = Listening(checkpoint.network)
    source.checkpoint = replace(checkpoint, network=listening)  # type: ignore[arg-type]
    return driver.run(), listening.seen


def slots_of(log: RunLog, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Arrivals of each slot by lane, drawn as the router draws."""
    at_ns = log.arrivals.at_ns
    draws = even_draw(random.Random(seed).random(), np.arange(len(at_ns)))
    instance = np.searchsorted(np.cumsum(SHARES), draws, side="right")
    slots: list[tuple[np.ndarray, np.ndarray]] = []
    for slot in range(SECONDS):
        inside = at_ns // SECOND == slot
        counts = np.bincount(instance[inside], minlength=4)
        lanes_ns = np.zeros((4, max(1, counts.max())), np.int64)
        for lane in range(4):
            lanes_ns[lane, : counts[lane]] = at_ns[inside][instance[inside] == lane]
        slots.append((lanes_ns, counts))
    return slots


def workload(
    variants: Sequence[Mapping[str, object]] = (HEAVY_BATCHES, LIGHT_BATCHES), **values: object
) -> Scenario:
    application = {
        "name": "vision",
        "slo_ms": 300,
        "hard_limit_ms": 60_000,
        "variants": list(variants),
    }
    return edge(
        arrivals=eq12("text"), duration_s=SECONDS, warmup_s=0, applications=[application], **values
    )


def outcome(log: RunLog) -> tuple[int, int, int]:
    refused = log.end_ns == DROPPED
    late = ~refused & (log.end_ns > log.arrivals.at_ns + log.arrivals.slo_ns)
    return int((~refused & ~late).sum()), int(late.sum()), int(refused.sum())


def totals(tallies: list[LaneCounts]) -> tuple[int, int, int]:
    return (
        sum(int(tally.good.sum()) for tally in tallies),
        sum(int(tally.late.sum()) for tally in tallies),
        sum(int(tally.refused.sum()) for tally in tallies),
    )


def observation(states: InstanceStates, arrivals: int, checkpoint: Checkpoint) -> Floats:
    return encode(states, np.array(float(arrivals)), checkpoint.scales)


@pytest.mark.parametrize("seed", [1, 2])
def test_lanes_are_the_engine_s_instances(seed: int, tmp_path: Path) -> None:
    scenario = workload(seed=seed)
    system = read_system(scenario)
    checkpoint = constant_policy(system, None)
    log, seen = by_engine(scenario, checkpoint, tmp_path / "policy.json")
    lanes = Lanes(np.array([system.batch_ns[tier][1] for tier in system.tiers]), 15, system.slo_ns)
    memory = Memory(checkpoint.scales.memory)
    tallies: list[LaneCounts] = []
    arrivals = 0
    for slot, (lanes_ns, counts) in enumerate(slots_of(log, seed)):
        expected = observation(lanes.states(slot * SECOND), arrivals, checkpoint)
        assert seen[slot] == pytest.approx(memory.recall(expected))
        memory.keep(expected)
        tallies.append(lanes.play(lanes_ns, counts))
        arrivals = int(counts.sum())
    assert totals(tallies) == outcome(log)
    assert min(outcome(log)) > 0


def up_to(size: int, variant: Mapping[str, object]) -> dict[str, object]:
    return {**variant, "batch_size_max": size}


SHORT = [
    (up_to(1, HEAVY_BATCHES), up_to(1, LIGHT_BATCHES)),
    (up_to(2, HEAVY_BATCHES), LIGHT_BATCHES),
    (up_to(4, HEAVY_BATCHES), up_to(1, LIGHT_BATCHES)),
    ({**HEAVY_BATCHES, "latency_ms": [42.9]}, {**LIGHT_BATCHES, "latency_ms": [11.0, 12.0, 13.0]}),
]
"""Variants whose largest batch is below what a policy may choose."""


@pytest.mark.parametrize("variants", [(HEAVY_BATCHES, LIGHT_BATCHES), *SHORT])
@pytest.mark.parametrize("limits", [(1, 5), (3, 5), (1, 3)])
def test_batching_lanes_are_the_engine_s_instances(
    limits: tuple[int, int], variants: Sequence[Mapping[str, object]], tmp_path: Path
) -> None:
    scenario = workload(variants, seed=3)
    system = read_system(scenario)
    checkpoint = constant_policy(system, limits)
    log, seen = by_engine(scenario, checkpoint, tmp_path / "policy.json")
    lanes = BatchingLanes(system.lane_tables(), 15, system.slo_ns)
    memory = Memory(checkpoint.scales.memory)
    tallies: list[LaneCounts] = []
    arrivals = 0
    for slot, (lanes_ns, counts) in enumerate(slots_of(log, 3)):
        lanes.set_limits(slot * SECOND, np.tile(limits, (4, 1)))
        if slot < len(seen):
            expected = observation(lanes.states(slot * SECOND), arrivals, checkpoint)
            assert seen[slot] == pytest.approx(memory.recall(expected))
            memory.keep(expected)
        tallies.append(lanes.play(lanes_ns, counts, (slot + 1) * SECOND))
        arrivals = int(counts.sum())
    nothing = np.zeros((4, 1), np.int64), np.zeros(4, np.int64)
    for slot in range(SECONDS, SECONDS + 2):
        tallies.append(lanes.play(*nothing, (slot + 1) * SECOND))
    good, late, refused = outcome(log)
    # The last few wait in vain for a batch, until their hard limit.
    stuck = int(lanes.waiting.sum())
    assert totals(tallies) == (good, late, refused - stuck)
    assert late > 0
