"""Memory that is free on this machine: no more than the control groups of a container leave."""

from pathlib import Path

import pytest

from fermata.deployments.backend.host_memory import host_memory
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.specs.backend import StoreOptions

GIB = 2**30
MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {60 * GIB // 1024} kB\n"
NODE = (60 * GIB, 64 * GIB)
UNIFIED = ("memory.max", "memory.current", "inactive_file")
LEGACY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def machine(root: Path, groups: str | None = None) -> Path:
    """The root of a machine whose process is in these control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(MEMINFO)
    if groups is not None:
        (root / "proc/self/cgroup").write_text(groups)
    return root


def limit(
    folder: Path, names: tuple[str, str, str], most: object, used: int, cache: int = 0
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n")


def test_a_machine_without_control_groups_has_the_memory_of_its_node(tmp_path: Path) -> None:
    assert host_memory(machine(tmp_path)) == NODE


def test_groups_without_a_limit_change_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/pod\n")
    assert host_memory(root) == NODE, "no such files"
    limit(root / "sys/fs/cgroup/pod", UNIFIED, "max", 3 * GIB)
    assert host_memory(root) == NODE


def test_a_pod_has_what_its_limit_leaves(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n")
    limit(root / "sys/fs/cgroup", UNIFIED, 8 * GIB, 7 * GIB, cache=2 * GIB)
    assert host_memory(root) == (3 * GIB, 8 * GIB), "what was read from files can go"


def test_the_older_control_groups_limit_too(tmp_path: Path) -> None:
    root = machine(tmp_path, "4:cpu,memory:/pod\n0::/\n")
    limit(root / "sys/fs/cgroup/memory/pod", LEGACY, 8 * GIB, 7 * GIB, cache=GIB)
    assert host_memory(root) == (2 * GIB, 8 * GIB)
    limit(root / "sys/fs/cgroup/memory/pod", LEGACY, 9223372036854771712, 7 * GIB)
    assert host_memory(root) == NODE


def test_a_group_has_no_more_than_those_around_it(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/pods/pod/container\n")
    limit(root / "sys/fs/cgroup/pods/pod/container", UNIFIED, 30 * GIB, 1 * GIB)
    limit(root / "sys/fs/cgroup/pods/pod", UNIFIED, 20 * GIB, 16 * GIB)
    assert host_memory(root) == (4 * GIB, 20 * GIB)


def test_a_path_of_the_node_is_that_of_the_mount_in_a_container(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/pods/elsewhere\n")
    limit(root / "sys/fs/cgroup", UNIFIED, 8 * GIB, 1 * GIB)
    assert host_memory(root) == (7 * GIB, 8 * GIB)


def test_a_spare_in_host_memory_needs_room_in_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(tmp_path, "0::/\n")
    monkeypatch.setattr(
        "fermata.deployments.backend.models.model_store.host_memory", lambda: host_memory(root)
    )
    store = ModelStore(StoreOptions((), device="cpu"))
    assert store.has_room_on_host()
    limit(root / "sys/fs/cgroup", UNIFIED, 4 * GIB, 3 * GIB)
    assert not store.has_room_on_host()
