"""Memory of devices as backends read it, for plans. Pure."""

from collections.abc import Iterable

from fermata.router.telemetry.snapshot import RouterSnapshot

USABLE = 0.9
"""Share of a device's memory for models: contexts, libraries and fragments take the rest."""


def room_bytes(device_bytes: int) -> int:
    """Memory for models on a device of this size; 0 where that is not known."""
    return int(USABLE * max(0, device_bytes))


def reported_rooms(snapshot: RouterSnapshot) -> list[int]:
    """By sub-cluster: the room for models on the smallest device there; 0 where none is known."""
    found: list[list[int]] = [[] for _ in snapshot.ranks]
    for number, process in snapshot.processes.backends.items():
        backend = snapshot.backends.get(number)
        # Counters of several routers name sub-clusters that have not answered.
        if backend is not None and backend.sub_cluster < len(found):
            found[backend.sub_cluster].append(room_bytes(process.gpu_memory_bytes_max))
    return [least(each) for each in found]


def least(rooms: Iterable[int]) -> int:
    """The smallest of the rooms that are known; 0 where none is."""
    return min((each for each in rooms if each > 0), default=0)
