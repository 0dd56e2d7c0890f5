"""Memory of the machine that this process may use: a pod's is less than its node's."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")


def host_memory(root: Path = ROOT) -> tuple[int, int]:
    """(bytes that are free, bytes in all), by the tightest of the limits that hold here."""
    text = (root / "proc/meminfo").read_text()
    node = {key: 1024 * size for key, size in _sizes(text.replace(":", "")).items()}
    found = [(node["MemAvailable"], node["MemTotal"]), *_groups(root)]
    return min(free for free, _ in found), min(total for _, total in found)


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """(free, limit) of each control group of this process that has a limit."""
    mount = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                names = "memory.max", "memory.current", "inactive_file"
                yield from _limits(mount, path, *names)
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                yield from _limits(mount / "memory", path, *names)


def _limits(
    mount: Path, path: str, limit: str, usage: str, cache: str
) -> Iterator[tuple[int, int]]:
    """Limits of the group and of those around it. Where a container sees its own group alone, that
    is the mount itself, whatever the path says."""
    group = mount / path.lstrip("/")
    for folder in (group, *group.parents):
        if folder.is_relative_to(mount):
            # A group without a limit has no such file, or "max" in it.
            with suppress(OSError, ValueError):
                total = int((folder / limit).read_text())
                used = int((folder / usage).read_text())
                # Files that were read count as used, until somebody needs the memory.
                used -= _sizes((folder / "memory.stat").read_text()).get(cache, 0)
                yield total - used, total


def _sizes(text: str) -> dict[str, int]:
    return {line.split()[0]: int(line.split()[1]) for line in text.splitlines()}
