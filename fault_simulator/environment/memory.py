"""Memory that the processes of a world share: a reader sees what the owner has made of it since."""

from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.memory.extents import Extents
from fermata.fault_simulator.environment.world import VirtualLoop, World

ARENA_BYTES = 4096
"""Little: it is full now and then, and places are soon taken again."""


class VirtualMemory:
    """A segment, as far as `Arena` looks at it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.buf = memoryview(bytearray(ARENA_BYTES))
        world.memory[name] = self.buf

    def unlink(self) -> None:
        self.world.memory.pop(self.name, None)

    def close(self) -> None:
        pass


class VirtualArena(Arena):
    """Shared memory of one frontend."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(0)
        self.extents = Extents(ARENA_BYTES)
        self.name = loop.name
        self.segment = VirtualMemory(loop.world, loop.name)  # type: ignore[assignment]


class VirtualSegments(Segments):
    """As a backend reads them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def read(self, name: str) -> memoryview:
        found = self.world.memory.get(name)
        if found is None:
            raise FileNotFoundError(f"no segment {name!r}")
        return found.toreadonly()
