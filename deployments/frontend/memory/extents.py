"""Allocation of the bytes of a segment. Pure; the memory itself is in `arena.py`."""

ALIGN = 64
"""A cache line, so that neighbours do not share one."""
KEPT_MAX = 64
"""Freed extents that are kept as they are. Those of odd sizes would have the rest reach further."""


class Extents:
    """Free extents of `capacity` bytes.

    Payloads of one model are of one size. So a freed extent is kept for the next payload of its
    size, and merged with its neighbours only when many are kept, or another size finds no room.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity - capacity % ALIGN
        self.used = 0
        self.reached = 0
        """No byte from here on has ever been allocated."""
        self._taken: dict[int, int] = {}
        self._kept: dict[int, list[int]] = {}
        """Starts of freed extents by their size, in the order of their release."""
        self._kept_count = 0
        self._free_by_start: dict[int, int] = {}
        self._free_by_end: dict[int, int] = {}
        self._free_by_size: dict[int, dict[int, None]] = {}
        if self.capacity:
            self._add(0, self.capacity)

    def take(self, size: int) -> int | None:
        """Allocate `size` bytes: their offset, or None if no extent is large enough."""
        needed = max(ALIGN, -(-size // ALIGN) * ALIGN)
        kept = self._kept.get(needed)
        if kept:
            # The one freed last: its pages are still in a cache.
            start = kept.pop()
            self._kept_count -= 1
        else:
            found = self._cut(needed)
            if found is None and self._kept_count:
                self._merge_kept()
                found = self._cut(needed)
            if found is None:
                return None
            start = found
        self._taken[start] = needed
        self.used += needed
        return start

    def free(self, offset: int) -> None:
        """Free the bytes allocated at this offset."""
        length = self._taken.pop(offset)
        self.used -= length
        self._kept.setdefault(length, []).append(offset)
        self._kept_count += 1
        if self._kept_count > KEPT_MAX:
            self._merge_kept()

    def _cut(self, needed: int) -> int | None:
        """Cut so many bytes off a free extent: their start, or None if none is large enough."""
        starts = self._free_by_size.get(needed)
        if starts is None:
            larger = [each for each in self._free_by_size if each > needed]
            if not larger:
                return None
            # The smallest that fits, so that the large ones last.
            starts = self._free_by_size[min(larger)]
        start = next(reversed(starts))
        length = self._free_by_start[start]
        self._drop(start, length)
        if length > needed:
            self._add(start + needed, length - needed)
        self.reached = max(self.reached, start + needed)
        return start

    def _merge_kept(self) -> None:
        """Have all that is kept be one with its free neighbours."""
        kept, self._kept, self._kept_count = self._kept, {}, 0
        for length, starts in kept.items():
            for start in starts:
                self._merge(start, length)

    def _merge(self, start: int, length: int) -> None:
        end = start + length
        before = self._free_by_end.get(start)
        if before is not None:
            self._drop(before, start - before)
            start = before
        after = self._free_by_start.get(end)
        if after is not None:
            self._drop(end, after)
            end += after
        self._add(start, end - start)

    def _add(self, start: int, length: int) -> None:
        self._free_by_start[start] = length
        self._free_by_end[start + length] = start
        self._free_by_size.setdefault(length, {})[start] = None

    def _drop(self, start: int, length: int) -> None:
        del self._free_by_start[start], self._free_by_end[start + length]
        starts = self._free_by_size[length]
        del starts[start]
        if not starts:
            del self._free_by_size[length]
