"""Timeout batching: what Ray Serve's `@serve.batch` and Triton's dynamic batcher do."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from fermata.foundation.units import NEVER
from fermata.router.core.events import Batch, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, own_lane
from fermata.router.policies.baselines.routed_on_arrival import RoutedOnArrival
from fermata.router.policies.family import Family
from fermata.router.policies.sizing import learn_slo_ns, size_for_half


@dataclass(frozen=True, slots=True)
class TimeoutOptions:
    """The two knobs of a dynamic batcher."""

    wait_ns: int = 5_000_000
    """A batch leaves at the latest when its first request has waited this long."""
    max_batch_size: int = 0
    """A batch leaves as soon as it has this many requests; 0: for each model the largest that
    takes at most half its SLO, so that a request may wait for one batch and run in the next."""


class Replica:
    """One backend's queues, one for each application that has requests there."""

    __slots__ = ("bid", "lane", "load", "queues")

    def __init__(self, backend: int) -> None:
        self.lane = (own_lane(backend),)
        self.queues: dict[int, deque[Request]] = {}
        """By application; empty ones are taken out."""
        self.load = 0
        """Requests queued and running."""
        self.bid = Bid()


class TimeoutBatching(RoutedOnArrival):
    """Requests are routed on arrival to the less loaded of two random backends, and leave in
    batches that are full or have waited long enough. It orders nothing by deadline; it only drops
    what would end too late, when its turn comes."""

    def __init__(self, families: Sequence[Family], options: TimeoutOptions, rng: Random) -> None:
        super().__init__(families)
        self.options = options
        self.rng = rng
        self.replicas: dict[int, Replica] = {}
        self.up: list[Replica] = []
        self.size_max = dict.fromkeys(self.variants, 1)

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        application = request.application
        slo_ns = request.deadline_ns - request.arrived_at_ns
        if slo_ns != self.slo_ns[application]:
            self._learn_size_max(application, slo_ns)
        if not self.up:
            self.stranded.add(request, self.alone_ns(application))
            return NO_LANES
        return self._enqueue(self._less_loaded(), request)

    def _enqueue(self, replica: Replica, request: Request) -> Sequence[int]:
        replica.load += 1
        application = request.application
        queue = replica.queues.get(application)
        if queue is None:
            replica.queues[application] = deque((request,))
            return replica.lane
        queue.append(request)
        # Only a new first request or a full batch changes when the next batch leaves.
        return replica.lane if len(queue) >= self.size_max[application] else NO_LANES

    def _less_loaded(self) -> Replica:
        up = self.up
        count = len(up)
        if count == 1:
            return up[0]
        draw = self.rng.random
        first = int(draw() * count)
        second = int(draw() * (count - 1))
        if second >= first:
            second += 1
        one, other = up[first], up[second]
        return one if one.load <= other.load else other

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        application = request.application
        for replica in self.up:
            queue = replica.queues.get(application)
            if queue is not None and request in queue:
                queue.remove(request)
                replica.load -= 1
                if not queue:
                    del replica.queues[application]
                return replica.lane
        return NO_LANES

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        replica = self.replicas.get(backend)
        if replica is not None:
            replica.load -= len(batch.requests)
        return NO_LANES

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        homeless: list[Request] = []
        if up and backend not in self.replicas:
            self.replicas[backend] = Replica(backend)
            homeless = self.stranded.take_all()
        elif not up and backend in self.replicas:
            for queue in self.replicas.pop(backend).queues.values():
                homeless.extend(queue)
        self.up = list(self.replicas.values())
        lanes: list[int] = []
        for request in homeless:
            # In a new queue it would wait its turn again, perhaps for nothing.
            if request.expires_at_ns < now_ns + self.alone_ns(request.application):
                self._drop_late(request)
            else:
                lanes.extend(self.on_request(now_ns, request))
        return lanes

    def _learn_size_max(self, application: int, slo_ns: int) -> None:
        self.slo_ns[application] = learn_slo_ns(self.slo_ns[application], slo_ns)
        table = self.tables[application]
        size_max = self.options.max_batch_size
        if size_max == 0:
            size_max = size_for_half(table, self.slo_ns[application])
        self.size_max[application] = min(size_max, len(table) - 1)

    # Bid and grant

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        replica = self.replicas.get(lane - own_lane(0))
        if replica is None:
            return None
        hopeless_at_ns = self._drop_hopeless(now_ns, replica)
        if not replica.queues:
            return None
        application, ripe_at_ns = self._next_turn(now_ns, replica)
        bid = replica.bid
        bid.application = application
        bid.size = min(len(replica.queues[application]), self.size_max[application])
        # The lane has one source, so the key decides nothing.
        bid.key = bid.expires_at_ns = hopeless_at_ns
        bid.ripe_at_ns = min(ripe_at_ns, hopeless_at_ns + 1)
        return bid

    def _drop_late(self, request: Request) -> None:
        application = request.application
        # A lone request waits for others first: a margin that leaves no time for that lets nobody
        # run, either.
        held_ns = self.options.wait_ns if self.size_max[application] > 1 else 0
        self.drop_late(request, self.variants[application], request.expires_at_ns - held_ns)

    def _drop_hopeless(self, now_ns: int, replica: Replica) -> int:
        """Drop the first requests that could not even run alone; returns when the next one goes."""
        next_at_ns = NEVER
        for application, queue in list(replica.queues.items()):
            alone_ns = self.alone_ns(application)
            while queue and queue[0].expires_at_ns < now_ns + alone_ns:
                self._drop_late(queue.popleft())
                replica.load -= 1
            if queue:
                next_at_ns = min(next_at_ns, queue[0].expires_at_ns - alone_ns)
            else:
                del replica.queues[application]
        return next_at_ns

    def _next_turn(self, now_ns: int, replica: Replica) -> tuple[int, int]:
        """The application whose batch leaves next, and when: the ripe one that waits longest."""
        wait_ns = self.options.wait_ns
        best, best_ripe_ns, best_since_ns = -1, NEVER, NEVER
        for application, queue in replica.queues.items():
            since_ns = queue[0].arrived_at_ns
            full = len(queue) >= self.size_max[application]
            ripe_at_ns = now_ns if full else max(now_ns, since_ns + wait_ns)
            if ripe_at_ns < best_ripe_ns or (
                ripe_at_ns == best_ripe_ns and since_ns < best_since_ns
            ):
                best, best_ripe_ns, best_since_ns = application, ripe_at_ns, since_ns
        return best, best_ripe_ns

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        replica = self.replicas[slot.backend]
        while replica.queues:
            application, ripe_at_ns = self._next_turn(now_ns, replica)
            if ripe_at_ns > now_ns:
                return None
            taken = self._take(now_ns, replica, application, slot)
            if taken:
                return Batch(self.variants[application], taken)
        return None

    def _take(self, now_ns: int, replica: Replica, application: int, slot: Slot) -> list[Request]:
        """The first requests of a queue that can run together without ending too late."""
        queue = replica.queues[application]
        variant = self.variants[application]
        size_max = min(self.size_max[application], slot.size_max(variant))
        taken: list[Request] = []
        while queue and not taken:
            size = min(len(queue), size_max)
            end_at_ns = slot.start_at_ns + slot.plan_ns(variant, size)
            late_at_ns = slot.start_at_ns + slot.plan_ns(variant, 1)
            for _ in range(size):
                request = queue.popleft()
                if request.expires_at_ns >= end_at_ns:
                    taken.append(request)
                    continue
                replica.load -= 1
                if request.expires_at_ns < late_at_ns:
                    self._drop_late(request)
                else:
                    self.outbox.drop(request, DropReason.WINDOW)
                if not taken:
                    # The batch is still to begin: let others move up.
                    break
        if not queue:
            del replica.queues[application]
        return taken
