"""Backends of several kinds, counted as backends of the fastest."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import SourceContext
from fermata.router.policies.central.running_work import RunningWork
from fermata.router.policies.lookahead.values import Choice


class PoolKinds:
    """Kinds of the pool's backends, with their speed against the fastest that is there."""

    __slots__ = ("kind", "speed", "work", "worth")

    def __init__(self, under_way: RunningWork) -> None:
        self.kind = 0
        """The fastest kind."""
        self.speed: dict[int, float] = {}
        """Of each other kind that is there; 0 where nothing runs in time."""
        self.worth = 1.0
        """Backends of the fastest kind that a backend is worth, on average."""
        self.work = {0: under_way}
        """Batches under way, by kind."""

    def count(self, desk: SourceContext, variants: Sequence[int], end_in_ns: int) -> None:
        """Count the pool's backends anew."""
        there = {kind: desk.backends_of_kind(kind) for kind in range(len(desk.costs.by_kind))}
        there = {kind: count for kind, count in there.items() if count > 0}
        if len(there) < 2:
            self.kind = next(iter(there), 0)
            self.speed.clear()
            self.worth = 1.0
            return
        costs = desk.costs
        alone_ns = {kind: [costs.of(each, kind).p50_ns[1] for each in variants] for kind in there}
        self.kind = min(there, key=lambda kind: sum(alone_ns[kind]))
        fastest_ns = sum(alone_ns[self.kind])
        self.speed = {
            kind: fastest_ns / sum(alone_ns[kind]) if min(alone_ns[kind]) <= end_in_ns else 0.0
            for kind in there
            if kind != self.kind
        }
        worth = sum(count * self.speed.get(kind, 1.0) for kind, count in there.items())
        self.worth = worth / sum(there.values())

    def is_slower(self, slot: Slot) -> bool:
        """Whether a backend is of a slower kind, and otherwise as its kind is."""
        plain = slot.resident is None and slot.room is None and slot.factor == 1.0
        return plain and slot.kind in self.speed

    def work_on(self, kind: int) -> RunningWork:
        """The batches under way on a kind."""
        return self.work.setdefault(kind, RunningWork())

    def left_ns(self, now_ns: int) -> float:
        """Still to run on all backends together, in time of the fastest kind."""
        left_ns = 0.0
        for kind, work in self.work.items():
            left_ns += work.left_ns(now_ns) * self.speed.get(kind, 1.0)
        return left_ns


def occupied(table: Sequence[int], lead_ns: int, each_ns: int, ahead: int) -> tuple[int, ...]:
    """Times for which batches keep a backend from the next one, from their run times. Inputs take
    `each_ns` each beyond the lead of one; they are fetched while the batches `ahead` run."""
    if each_ns == 0 and lead_ns // (ahead + 1) <= table[1]:
        return tuple(table)
    turns_ns = [(lead_ns + each_ns * (size - 1)) // (ahead + 1) for size in range(len(table))]
    return (table[0], *map(max, table[1:], turns_ns[1:]))


def batch_on(
    slot: Slot,
    ranked: Iterable[Choice],
    variants: Sequence[int],
    queue: DeadlineQueue,
    allowance: float,
) -> tuple[int, int, int] | None:
    """The best batch that ends in time on a slower backend: its variant, the place of its first
    request in the queue's items, and its size. Requests with too little time are passed over."""
    items, start_at_ns = queue.items, slot.start_at_ns
    for _, size, variant, _, limit in ranked:
        number = variants[variant]
        size_max = slot.size_max(number)
        if size > size_max:
            continue
        need_ns = int(slot.plan_ns(number, size) * allowance)
        first = bisect_left(items, start_at_ns + need_ns, lo=queue.head, key=_deadline)
        waiting = len(items) - first
        if waiting < size:
            continue
        left_ns = (items[first].deadline_ns - start_at_ns) / allowance
        most = min(limit, waiting, size_max)
        while most > size and slot.plan_ns(number, most) > left_ns:
            most -= 1
        return variant, first, most
    return None


def _deadline(request: Request) -> int:
    return request.deadline_ns
