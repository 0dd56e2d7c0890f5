"""Thousands of instances side by side: what a buffer, a server and its batches do with arrivals.

The engine decides for one system at a time, at some ten microseconds a request: a training run of
a hundred million requests would take an hour. Routing itself is not repeated here: shares, batch
limits and observations come from `fermata.router.policies.rl`, array-wise. Here is the
world that these meet, a bounded queue in order of arrival, and a test holds it equal, request
by request, to the engine's.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.foundation.units import NEVER
from fermata.router.policies.rl.batching import batch_size
from fermata.router.policies.rl.observation import InstanceStates

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """Outcomes of a slot's requests, by lane."""

    good: Ints
    late: Ints
    refused: Ints


class Lanes:
    """So many instances, each of which serves one request at a time. Whether a request will be
    late is known when it arrives, so it is counted there."""

    def __init__(self, service_ns: Ints, buffer: int, slo_ns: int) -> None:
        lanes = len(service_ns)
        self.service_ns = service_ns
        self.buffer = buffer
        self.slo_ns = slo_ns
        self.ends_ns = np.zeros((lanes, buffer), np.int64)
        """When the last requests taken in end, as a ring: the oldest is the next to be replaced,
        and a new one finds room if that one has ended."""
        self.came_ns = np.zeros((lanes, buffer), np.int64)
        self.next = np.zeros(lanes, np.int64)
        self.free_ns = np.zeros(lanes, np.int64)

    def play(self, arrivals_ns: Ints, counts: Ints) -> LaneCounts:
        """Take arrivals in; a row for each lane, in order of time, the first `counts` of it."""
        order = np.argsort(-counts, kind="stable")
        arrivals_ns, service_ns = arrivals_ns[order], self.service_ns[order]
        ends_ns, came_ns = self.ends_ns[order], self.came_ns[order]
        following, free_ns = self.next[order], self.free_ns[order]
        good, late = np.zeros_like(counts), np.zeros_like(counts)
        rows = np.arange(len(counts))
        # Lanes with many arrivals come first, so each step works on a shorter front.
        fronts = len(counts) - np.searchsorted(np.sort(counts), np.arange(counts.max()), "right")
        for step, front in enumerate(fronts.tolist()):
            now_ns = arrivals_ns[:front, step]
            place = following[:front]
            row = rows[:front]
            room = ends_ns[row, place] <= now_ns
            row, place, now_ns = row[room], place[room], now_ns[room]
            end_ns = np.maximum(free_ns[row], now_ns) + service_ns[row]
            ends_ns[row, place] = end_ns
            came_ns[row, place] = now_ns
            free_ns[row] = end_ns
            following[row] = (place + 1) % self.buffer
            in_time = end_ns <= now_ns + self.slo_ns
            good[row] += in_time
            late[row] += ~in_time
        self.ends_ns[order], self.came_ns[order] = ends_ns, came_ns
        self.next[order], self.free_ns[order] = following, free_ns
        back = np.empty_like(order)
        back[order] = rows
        return LaneCounts(good[back], late[back], counts - good[back] - late[back])

    def states(self, now_ns: int) -> InstanceStates:
        """The lanes' states; nothing must have arrived after that time."""
        there = self.ends_ns > now_ns
        length = there.sum(axis=1)
        ends_ns = np.where(there, self.ends_ns, NEVER).min(axis=1)
        oldest_ns = np.where(there, self.came_ns, NEVER).min(axis=1)
        youngest_ns = np.where(there, self.came_ns, 0).max(axis=1)
        return states(now_ns, length, ends_ns - self.service_ns, oldest_ns, youngest_ns)


def states(
    now_ns: int, length: Ints, started_ns: Ints, oldest_ns: Ints, youngest_ns: Ints
) -> InstanceStates:
    """States from points in time; those of empty lanes mean nothing."""
    busy = length > 0
    return InstanceStates(
        length.astype(np.float64),
        np.where(busy, np.maximum(0, now_ns - started_ns), 0).astype(np.float64),
        np.where(busy, now_ns - oldest_ns, 0).astype(np.float64),
        np.where(busy, now_ns - youngest_ns, 0).astype(np.float64),
    )


class BatchingLanes:
    """Instances that serve in batches. Whether a request is late depends on who joins its batch,
    so it is counted when that batch starts."""

    def __init__(self, batch_ns: Ints, buffer: int, slo_ns: int) -> None:
        lanes = len(batch_ns)
        self.batch_ns = batch_ns
        """Run time by lane and size, 0 beyond the largest batch; column 0 is unused."""
        self.size_max = np.count_nonzero(batch_ns[:, 1:], axis=1)
        self.buffer = buffer
        self.slo_ns = slo_ns
        self.limits = np.ones((lanes, 2), np.int64)
        self.changed_ns = 0
        """When the limits were last set: what they set free starts then."""
        self.came_ns = np.full((lanes, buffer), NEVER, np.int64)
        """Arrivals of those who wait, in order; `NEVER` behind the last."""
        self.waiting = np.zeros(lanes, np.int64)
        self.free_ns = np.zeros(lanes, np.int64)
        self.serving = np.zeros(lanes, np.int64)
        self.started_ns = np.zeros(lanes, np.int64)
        self.oldest_ns = np.zeros(lanes, np.int64)
        """Arrival of the oldest, and of the youngest, in service."""
        self.youngest_ns = np.zeros(lanes, np.int64)

    def set_limits(self, now_ns: int, limits: Ints) -> None:
        """Smallest and largest batch, by lane, from now on."""
        self.advance(np.full(len(limits), now_ns, np.int64), np.arange(len(limits)))
        self.limits = limits
        self.changed_ns = now_ns

    def play(self, arrivals_ns: Ints, counts: Ints, until_ns: int) -> LaneCounts:
        """Take arrivals in, as `Lanes` does, and go on until the end of the slot."""
        self.good, self.late = np.zeros_like(counts), np.zeros_like(counts)
        refused = np.zeros_like(counts)
        for step in range(int(counts.max(initial=0))):
            rows = np.flatnonzero(counts > step)
            now_ns = arrivals_ns[rows, step]
            self.advance(now_ns, rows)
            held = self.waiting[rows] + np.where(self.free_ns[rows] > now_ns, self.serving[rows], 0)
            room = held < self.buffer
            refused[rows[~room]] += 1
            rows = rows[room]
            self.came_ns[rows, self.waiting[rows]] = now_ns[room]
            self.waiting[rows] += 1
        everyone = np.arange(len(counts))
        self.advance(np.full(len(counts), until_ns, np.int64), everyone)
        return LaneCounts(self.good, self.late, refused)

    def advance(self, now_ns: Ints, rows: Ints) -> None:
        """Start every batch that these lanes can start by now."""
        while len(rows):
            limits = self.limits[rows]
            size = batch_size(self.waiting[rows], (limits[:, 0], limits[:, 1]))
            size = np.minimum(size, self.size_max[rows])
            completed_ns = self.came_ns[rows, np.minimum(limits[:, 0], self.buffer) - 1]
            # Batches that new limits release start with them; earlier ones have started already.
            earliest_ns = np.maximum(self.free_ns[rows], self.changed_ns)
            start_ns = np.maximum(earliest_ns, completed_ns)
            begin = (size > 0) & (start_ns <= now_ns)
            rows, size, start_ns, now_ns = rows[begin], size[begin], start_ns[begin], now_ns[begin]
            if len(rows):
                self._start(rows, size, start_ns)

    def _start(self, rows: Ints, size: Ints, start_ns: Ints) -> None:
        end_ns = start_ns + self.batch_ns[rows, size]
        came_ns = self.came_ns[rows]
        columns = np.arange(self.buffer)
        taken = columns < size[:, None]
        in_time = (taken & (came_ns >= end_ns[:, None] - self.slo_ns)).sum(axis=1)
        self.good[rows] += in_time
        self.late[rows] += size - in_time
        self.oldest_ns[rows] = came_ns[:, 0]
        self.youngest_ns[rows] = came_ns[np.arange(len(rows)), size - 1]
        shifted = np.minimum(columns + size[:, None], self.buffer - 1)
        moved = np.take_along_axis(came_ns, shifted, axis=1)
        self.came_ns[rows] = np.where(columns + size[:, None] < self.buffer, moved, NEVER)
        self.waiting[rows] -= size
        self.serving[rows] = size
        self.started_ns[rows] = start_ns
        self.free_ns[rows] = end_ns

    def states(self, now_ns: int) -> InstanceStates:
        serving = np.where(self.free_ns > now_ns, self.serving, 0)
        rows = np.arange(len(serving))
        last_ns = self.came_ns[rows, np.maximum(0, self.waiting - 1)]
        oldest_ns = np.where(serving > 0, self.oldest_ns, self.came_ns[:, 0])
        youngest_ns = np.where(self.waiting > 0, last_ns, self.youngest_ns)
        # An idle lane that waits for a full batch has not started anything.
        started_ns = np.where(serving > 0, self.started_ns, now_ns)
        return states(now_ns, serving + self.waiting, started_ns, oldest_ns, youngest_ns)
