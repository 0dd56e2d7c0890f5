"""Plans by the memory of devices as backends tell it, where a file says no less."""

from dataclasses import replace
from typing import Any

import pytest
import snapshots
from control_loop_world import EPOCHS, offered, read, reading, started, the
from sub_cluster_world import FakeClusters, play
from test_groups_apart import FAST, SLOW, given, measured
from test_sub_cluster_homes import application, config

from fermata.autoscaler.placer import UNLIMITED_BYTES, SolvePlacement
from fermata.autoscaler.readings import ClusterReading
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.control.device_memory import USABLE, reported_rooms, room_bytes
from fermata.deployments.control.scaling import reading_of
from fermata.deployments.control.sub_clusters.homes import starting_problem
from fermata.deployments.control.sub_clusters.moving_routers import moving_loop
from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters
from fermata.partitioner.solver.solve import solve
from fermata.profiles.store import BYTES_PER_MB
from fermata.router.telemetry.snapshot import (
    BackendProcessSnapshot,
    BackendSnapshot,
    ProcessesSnapshot,
    RouterSnapshot,
)

GB = 1 << 30


def told(*devices: tuple[int, int]) -> RouterSnapshot:
    """A router with two sub-clusters, and a backend for each (sub-cluster, memory)."""
    backends = {
        number: BackendSnapshot(at, "gpu", [], False, False, False, 1.0)
        for number, (at, _) in enumerate(devices)
    }
    processes = {
        number: BackendProcessSnapshot("n", 0, 0, 0, size, -1.0)
        for number, (_, size) in enumerate(devices)
    }
    return snapshots.router(
        {},
        backends=backends,
        processes=ProcessesSnapshot({}, processes),
        ranks=[snapshots.sub_cluster(), snapshots.sub_cluster()],
    )


def test_the_smallest_device_of_each_sub_cluster_counts() -> None:
    rooms = reported_rooms(told((0, 80 * GB), (0, 24 * GB), (1, 141 * GB), (0, -1)))
    assert rooms == [int(USABLE * 24 * GB), int(USABLE * 141 * GB)]
    # Emulated ones have none, and are not limited.
    assert reported_rooms(told((0, -1), (1, -1))) == [0, 0]
    seen = reading_of(told((0, 24 * GB)))
    assert [each.memory_bytes for each in seen.sub_clusters] == [room_bytes(24 * GB), 0]


def with_memory(seen: ClusterReading, *memory_bytes: int) -> ClusterReading:
    pairs = zip(seen.sub_clusters, memory_bytes, strict=True)
    return replace(seen, sub_clusters=tuple(replace(a, memory_bytes=b) for a, b in pairs))


def asked(loop: Any, seen: ClusterReading) -> list[int]:
    """Memory of each sub-cluster in the problem that an epoch asks about."""
    found = the(SolvePlacement, read(loop, seen))
    assert isinstance(found, SolvePlacement)
    return [each.memory_bytes for each in found.problem.sub_clusters]


def test_each_epoch_plans_by_what_backends_tell() -> None:
    loop = started(None, replace(EPOCHS, memory_bytes=50))
    busy = reading(60, received=offered(a=6000))
    # The file's limit wins where it is smaller.
    assert asked(loop, with_memory(busy, 30, 70)) == [30, 50]


def test_what_was_told_holds_while_no_backend_is_there() -> None:
    loop = started(None, EPOCHS)
    placer = loop.placer
    assert placer is not None
    read(loop, with_memory(reading(60), 30, 70))
    assert placer.rooms == (30, 70)
    assert asked(loop, with_memory(reading(120, received=offered(a=6000)), 0, 60)) == [30, 60]


def test_memory_is_unlimited_where_nobody_knows_any() -> None:
    assert asked(started(None, EPOCHS), reading(60, received=offered(a=6000))) == [
        UNLIMITED_BYTES,
        UNLIMITED_BYTES,
    ]


def test_what_lives_everywhere_takes_its_part_of_what_was_told() -> None:
    loop = started(None, replace(EPOCHS, settled_bytes=(5, 100)))
    seen = with_memory(reading(60, received=offered(a=6000)), 30, 70)
    assert asked(loop, seen) == [25, 1]


@pytest.mark.parametrize(
    ("memory_mb", "rooms", "found"),
    [
        (None, (), UNLIMITED_BYTES),
        (None, (0, 0), UNLIMITED_BYTES),
        (None, (7 * BYTES_PER_MB, 0), 7 * BYTES_PER_MB),
        (5, (7 * BYTES_PER_MB, 0), 5 * BYTES_PER_MB),
        (9, (7 * BYTES_PER_MB, 0), 7 * BYTES_PER_MB),
    ],
)
def test_a_start_plans_by_the_lesser_of_file_and_device(
    memory_mb: float | None, rooms: tuple[int, ...], found: int
) -> None:
    backend = {"count": 4, "device": "emulated"} | (
        {} if memory_mb is None else {"memory_mb": memory_mb}
    )
    serving = config(epochs={})
    serving = serving.model_copy(update={"backend": type(serving.backend)(**backend)})
    problem = starting_problem(serving, known_profiles(serving), rooms=rooms)
    assert problem.sub_clusters[0].memory_bytes == found
    loop = moving_loop(serving, known_profiles(serving), rooms=rooms)
    assert loop is not None
    assert loop.placer is not None
    assert loop.placer.options.memory_bytes_by[0] == found


def test_devices_are_asked_for_their_memory_at_the_start() -> None:
    async def one_kind(clusters: FakeClusters, control: SeveralRouters) -> None:
        (problem,) = clusters.problems
        assert [each.memory_bytes for each in problem.sub_clusters] == [room_bytes(20 * GB)] * 2

    play(one_kind, config("abcd"), [20 * GB, 20 * GB])

    async def by_group(clusters: FakeClusters, control: SeveralRouters) -> None:
        (problem,) = clusters.problems
        rooms = [each.memory_bytes for each in problem.sub_clusters]
        assert rooms == [room_bytes(20 * GB), 8000 * BYTES_PER_MB]

    limited = given(FAST, {**SLOW, "memory_mb": 8000})
    play(by_group, limited, [20 * GB, 40 * GB])


def test_models_that_one_kind_has_no_room_for_live_on_the_other() -> None:
    big = {"name": "big-1", "model": "emulated", "profile": "h200-eager/resnet101"}
    apps = [application("a"), {"name": "big", "slo_ms": 1000, "variants": [big]}]
    serving = given(FAST, SLOW, applications=apps)
    problem = starting_problem(
        serving, {}, by_group=measured(serving), rooms=(1 * BYTES_PER_MB, 1 * GB)
    )
    assert solve(problem, 1.0).plan.home["big"] == 1
