"""The arena: slots never overlap, come back whole, and leave nothing behind."""

import os
import random
from itertools import pairwise
from multiprocessing.shared_memory import SharedMemory

import pytest

from fermata.deployments.frontend.memory.arena import FOLDER, PREFIX, Arena
from fermata.deployments.frontend.memory.extents import ALIGN, Extents
from fermata.router.links.messages import Payload


def test_slots_never_overlap_and_merge_when_they_come_back() -> None:
    chance = random.Random(3)
    extents = Extents(64 * ALIGN)
    held: dict[int, int] = {}
    for _ in range(500):
        if held and chance.random() < 0.5:
            offset = chance.choice(list(held))
            del held[offset]
            extents.free(offset)
        else:
            size = chance.randint(0, 10 * ALIGN)
            taken = extents.take(size)
            if taken is not None:
                held[taken] = max(size, 1)
        ends = sorted((start, start + size) for start, size in held.items())
        for (_, end), (start, _) in pairwise(ends):
            assert end <= start
    for offset in list(held):
        extents.free(offset)
    assert extents.used == 0
    assert extents.take(64 * ALIGN) == 0
    assert extents.take(1) is None


def test_a_payload_lies_in_shared_memory_until_it_is_freed() -> None:
    arena = Arena(4 * ALIGN)
    first = arena.place(1, "UINT8", (3,), b"abc")
    other = arena.place(2, "UINT8", (200,), b"x" * 200)
    assert (first.segment, first.length, first.data) == (arena.name, 3, b"")
    assert other.segment == ""
    assert other.data == b"x" * 200
    assert arena.inline(first) == Payload(1, "UINT8", (3,), b"abc")
    reader = SharedMemory(arena.name)
    assert reader.buf is not None
    assert bytes(reader.buf[first.offset : first.offset + 3]) == b"abc"
    reader.close()
    arena.free(first)
    arena.free(other)
    assert arena.extents.used == 0
    arena.close()
    with pytest.raises(FileNotFoundError):
        SharedMemory(arena.name)


def test_a_slot_that_is_held_is_freed_once_more() -> None:
    arena = Arena(4 * ALIGN)
    payload = arena.place(1, "UINT8", (3,), b"abc")
    assert bytes(arena.hold(payload)) == bytes(arena.hold(payload)) == b"abc"
    arena.free(payload)
    arena.free(payload)
    assert arena.extents.used > 0
    arena.free(payload)
    assert arena.extents.used == 0
    # Crops of one frame have one slot.
    payload = arena.place(1, "UINT8", (3,), b"abc")
    arena.share(payload, 2)
    arena.hold(payload)
    arena.free(payload)
    arena.free(payload)
    assert arena.extents.used > 0
    arena.free(payload)
    assert arena.extents.used == 0
    assert bytes(arena.hold(Payload(2, "UINT8", (3,), b"abc"))) == b"abc"
    assert not arena.shared
    arena.close()


def test_without_capacity_everything_is_inline() -> None:
    arena = Arena(0)
    payload = arena.place(1, "UINT8", (3,), b"abc")
    assert payload.data == b"abc"
    arena.free(payload)
    arena.close()


def test_what_a_killed_frontend_left_is_swept_and_what_a_living_one_holds_is_not() -> None:
    living = Arena(ALIGN)
    left, young = (FOLDER / f"{PREFIX}test-{name}" for name in ("left", "young"))
    try:
        for path in (left, young):
            path.write_bytes(b"x")
        for path in (left, FOLDER / living.name):
            os.utime(path, (0, 0))
        Arena(ALIGN).close()
        assert not left.exists()
        assert young.exists()
        assert (FOLDER / living.name).exists()
    finally:
        living.close()
        young.unlink(missing_ok=True)
