"""Jellyfish's worker side: a queue for each backend, fed by the clients mapped to it."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar

from fermata.foundation.units import NEVER, SECOND
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Advise, Batch, ClientReport, DropReason, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, Source, SourceTimer, own_lane
from fermata.router.policies.content_upgrade import suited
from fermata.router.policies.family import Family
from fermata.router.policies.jellyfish.backlog import FRAMES_MAX, dnn_in_time, first_of
from fermata.router.policies.jellyfish.decision import Decider
from fermata.router.policies.jellyfish.dominance import accurate_order
from fermata.router.policies.jellyfish.known_clients import KnownClient
from fermata.router.policies.jellyfish.mapping_problem import (
    Assignment,
    MappingProblem,
    Post,
    answer,
)
from fermata.router.policies.jellyfish.options import (
    JellyfishOptions,
    JellyfishRules,
    make_decider,
)
from fermata.router.policies.jellyfish.placement import HitCount, assign, neighbours
from fermata.router.policies.unassigned import Unassigned


class MappedWorker:
    """One backend: the DNN it runs, and the requests of the clients mapped to it."""

    __slots__ = ("at_hand", "batch", "bid", "dnn", "kind", "lane", "queue", "spare")

    def __init__(self, backend: int, kind: int, dnn: int, at_hand: frozenset[int]) -> None:
        self.lane = own_lane(backend)
        self.kind = kind
        self.dnn = dnn
        self.batch = 1
        self.at_hand = at_hand
        self.queue = DeadlineQueue()
        self.spare = DeadlineQueue()
        """Requests of clients that are left out: they fill batches, and run where nobody waits."""
        self.bid = Bid()


class Jellyfish(Source):
    """Maps each client to a DNN of the right input size, tells it that size, and serves every
    backend's queue by deadline. It owns the backends of one application."""

    owns_backends = True
    respects_client_limits = True
    rules: ClassVar[JellyfishRules] = JellyfishRules()
    maps_clients = True

    def __init__(self, family: Family, options: JellyfishOptions, rng: Random) -> None:
        self.options = options
        self.family = family
        self.application = family.application
        self.floor = family.accuracy_floor
        order = accurate_order(family)
        self.variants = tuple(family.variants[index] for index in order)
        """The zoo's, the least accurate first."""
        self.unused_variants = tuple(each for each in family.variants if each not in self.variants)
        self.input_sizes = tuple(family.input_sizes[index] for index in order)
        self.accuracy = tuple(family.accuracy[index] for index in order)
        self.rng = rng
        self.decider: Decider | None = None
        self.clients: dict[int, KnownClient] = {}
        """In the order of their last reports."""
        self.planned_bps: dict[int, float] = {}
        self.mapped: dict[int, int] = {}
        """The backend of each client that is served."""
        self.advised: dict[int, tuple[int, int, bool]] = {}
        self.workers: dict[int, MappedWorker] = {}
        self.hits = HitCount()
        self.idle_for = [0] * len(self.variants)
        """Decisions since each DNN was last chosen."""
        self.asked_kinds: tuple[int, ...] = ()
        """Kinds of the backends that the last question was about."""
        self.decided_at_ns = -NEVER
        self.due_at_ns = NEVER
        self.urgent = False
        """The last decision holds no more: a decider elsewhere should decide soon."""
        self.timer = SourceTimer(self)
        self.stranded = Unassigned(self)

    def plan_elsewhere(self) -> None:
        """From now on somebody else asks `question` and answers with `take_plan`."""
        self.options = replace(self.options, replan_here=False)

    # Clients

    def on_report(self, now_ns: int, report: ClientReport) -> Sequence[int]:
        self._forget_silent(now_ns)
        known = self.clients.pop(report.client, None)
        if known is None:
            self.clients[report.client] = KnownClient(now_ns, report)
            self._decide_by(now_ns, 0)
        else:
            known.hear(now_ns, report)
            self.clients[report.client] = known
            planned_bps = self.planned_bps.get(report.client, 0.0)
            first = report.bandwidth_bps > 0.0 >= planned_bps
            if first or report.bandwidth_bps < self.rules.collapsed * planned_bps:
                self._decide_by(now_ns, self.rules.soon_ns)
        return NO_LANES

    def _forget_silent(self, now_ns: int) -> None:
        """Clients come and go for months, also while there is no backend to plan for."""
        while self.clients:
            number, known = next(iter(self.clients.items()))
            if known.heard_at_ns + self.rules.gone_after_ns >= now_ns:
                return
            del self.clients[number]
            self.advised.pop(number, None)

    def _decide_by(self, now_ns: int, gap_ns: int) -> None:
        self.urgent = self.urgent or gap_ns <= self.rules.soon_ns
        due_at_ns = max(now_ns, self.decided_at_ns + gap_ns)
        if self.options.replan_here and self.workers and due_at_ns < self.due_at_ns:
            self.due_at_ns = due_at_ns
            self.timers.arm(self.timer, max(due_at_ns, now_ns + 1))

    # Requests

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        known = self.clients.get(request.client)
        if known is not None:
            known.count(now_ns)
        return self._enqueue(now_ns, request)

    def _enqueue(self, now_ns: int, request: Request) -> Sequence[int]:
        if not self.workers:
            self.stranded.add(request, self._alone_ns(0) + self.lead.ns(1))
            return NO_LANES
        backend = self.mapped.get(request.client)
        if backend is not None and self._allows(request, self.workers[backend].dnn):
            worker = self.workers[backend]
            known = self.clients.get(request.client)
            # What a client sends beyond its rate is served like frames of those left out.
            within = known is None or known.admit(now_ns)
            (worker.queue if within else worker.spare).push(request)
            return (worker.lane,)
        idlest = self._idlest(request)
        if idlest is None:
            self.outbox.drop(request, DropReason.FLOOR)
            return NO_LANES
        idlest.spare.push(request)
        return (idlest.lane,)

    def _allows(self, request: Request, dnn: int) -> bool:
        """Whether the client's floor, the application's and the client's pin admit this DNN."""
        if request.allowed is not None and self.variants[dnn] not in request.allowed:
            return False
        known = self.clients.get(request.client)
        if known is None:
            return self.accuracy[dnn] >= self.floor
        if known.last.pinned >= 0:
            return self.variants[dnn] == known.last.pinned
        return self.accuracy[dnn] >= max(self.floor, known.last.accuracy_floor)

    def _idlest(self, request: Request) -> MappedWorker | None:
        """Where a client that is left out has the best chance; None where nobody may serve it."""
        return min(
            (worker for worker in self.workers.values() if self._allows(request, worker.dnn)),
            key=lambda worker: (len(worker.queue) + len(worker.spare), worker.dnn, worker.lane),
            default=None,
        )

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        for worker in self.workers.values():
            if worker.queue.remove(request) or worker.spare.remove(request):
                return (worker.lane,)
        return NO_LANES

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        homeless: list[Request] = []
        if up and backend not in self.workers:
            first = next((dnn for dnn, each in enumerate(self.accuracy) if each >= self.floor), 0)
            at_hand = neighbours(first, self.options.prefetch, len(self.variants))
            kind = self.desk.kind(backend)
            self.workers[backend] = MappedWorker(backend, kind, first, at_hand)
            homeless = self.stranded.take_all()
        elif not up and backend in self.workers:
            gone = self.workers.pop(backend)
            homeless = _empty(gone)
            self.mapped = {who: where for who, where in self.mapped.items() if where != backend}
        self._decide_by(now_ns, 0)
        return self._enqueue_again(now_ns, homeless)

    def _enqueue_again(self, now_ns: int, requests: Sequence[Request]) -> list[int]:
        return [lane for request in requests for lane in self._enqueue(now_ns, request)]

    def on_time(self, now_ns: int) -> Sequence[int]:
        self.stranded.drop_hopeless(now_ns)
        if now_ns < self.due_at_ns or not self.options.replan_here:
            return NO_LANES
        self.due_at_ns = NEVER
        if self.decider is None:
            self.decider = make_decider(self.options, self.rng)
        lanes = self.take_plan(now_ns, answer(self.decider, self.question(now_ns)))
        if self.clients:
            self._decide_by(now_ns, self.options.replan_ns)
        return lanes

    # The decision

    @property
    def plan_due_at_ns(self) -> int:
        """When its clients should be mapped anew, for whoever decides elsewhere."""
        if not self.clients:
            return NEVER
        return self.decided_at_ns + (0 if self.urgent else self.options.replan_ns)

    def question(self, now_ns: int) -> MappingProblem:
        """Zoo, clients and workers as they are now."""
        self._forget_silent(now_ns)
        self._doubt_the_idle()
        self.decided_at_ns = now_ns
        self.urgent = False
        self.planned_bps = {
            number: known.last.bandwidth_bps for number, known in self.clients.items()
        }
        for known in self.clients.values():
            known.planned_fps = max(known.fps, 1.0)
        kinds = [self.workers[backend].kind for backend in sorted(self.workers)]
        first, *others = sorted(set(kinds)) or [0]
        self.asked_kinds = tuple(kinds)
        return MappingProblem(
            self.accuracy,
            self._planned_ns(first),
            self.input_sizes,
            self.variants,
            tuple(known.wish() for _, known in sorted(self.clients.items())),
            self.options.headroom,
            self.lead.ns(1),
            self.floor,
            len(self.workers),
            tuple([first, *others].index(kind) for kind in kinds) if others else (),
            tuple(self._planned_ns(kind) for kind in others),
        )

    def _planned_ns(self, kind: int) -> tuple[tuple[int, ...], ...]:
        """Run times by DNN, from size 1 on, over its share of a backend's time."""
        tables = [self.costs.of(variant, kind).plan_ns[1:] for variant in self.variants]
        if self.share == 1.0:
            return tuple(map(tuple, tables))
        return tuple(tuple(int(each / self.share) for each in table) for table in tables)

    def _doubt_the_idle(self) -> None:
        """A DNN that once ran slowly is not chosen, and then has no chance to show better."""
        running = {worker.dnn for worker in self.workers.values()}
        for dnn, variant in enumerate(self.variants):
            self.idle_for[dnn] = 0 if dnn in running else self.idle_for[dnn] + 1
            if self.idle_for[dnn] >= self.rules.relax_after:
                self.idle_for[dnn] = 0
                self.costs.relax_margin(variant)

    def take_plan(self, now_ns: int, plan: Assignment) -> Sequence[int]:
        """Map the clients as planned, and tell those whose input size changes."""
        backends = sorted(self.workers)
        kinds = tuple(self.workers[backend].kind for backend in backends)
        if len(plan.posts) != len(backends) or kinds != self.asked_kinds:
            # Backends have come or gone meanwhile; the next plan will be for those there are.
            return NO_LANES
        posts = assign([self.workers[backend].dnn for backend in backends], plan.posts, kinds)
        self.mapped = {}
        homeless: list[Request] = []
        for backend, post in zip(backends, posts, strict=True):
            worker = self.workers[backend]
            self._readmit(worker.queue)
            homeless.extend(_empty(worker))
            if post.clients:
                self._switch(worker, post.dnn)
                worker.batch = post.batch
            for client in post.clients:
                self.mapped[client] = backend
                self._advise(client, post, worker.kind, served=True)
        for client, dnn in plan.left_out:
            self._advise(client, Post(dnn, 1, ()), kinds[0] if kinds else 0, served=False)
        homeless.sort(key=lambda request: (request.deadline_ns, request.rid))
        lanes = set(self._enqueue_again(now_ns, homeless))
        return [worker.lane for worker in self.workers.values() if worker.lane in lanes]

    def _readmit(self, queue: DeadlineQueue) -> None:
        """Frames that are queued anew were within their clients' rates once already."""
        for request in queue.items[queue.head :]:
            known = self.clients.get(request.client)
            if known is not None:
                known.allowance += 1.0

    def _switch(self, worker: MappedWorker, dnn: int) -> None:
        if dnn != worker.dnn:
            self.hits.note(dnn in worker.at_hand)
            worker.dnn = dnn
            worker.at_hand = neighbours(dnn, self.options.prefetch, len(self.variants))

    def _advise(self, client: int, post: Post, kind: int, served: bool) -> None:
        known = self.clients.get(client)
        if known is None:
            return
        run_ns = self.costs.of(self.variants[post.dnn], kind).plan_ns[post.batch]
        network_ns = known.last.slo_ns - self.lead.ns(1) - 2 * run_ns
        if post.network_share < 1.0:
            # The way there and back is not the client's to fill. A frame that is longer on its way
            # than the next takes to come would hold that up.
            room_ns = post.network_share * (network_ns - known.last.round_trip_ns)
            room_ns = min(room_ns, SECOND / max(known.fps, 1.0))
            network_ns = known.last.round_trip_ns + max(0, int(room_ns))
        advice = (self.input_sizes[post.dnn], network_ns, served)
        if self.advised.get(client) != advice:
            self.advised[client] = advice
            self.outbox.effects.append(Advise(self.application, client, *advice))

    def advise_again(self, client: int) -> None:
        """An earlier advice may not have reached this client."""
        if client in self.advised:
            self.outbox.effects.append(Advise(self.application, client, *self.advised[client]))

    def figures(self) -> dict[str, float]:
        return {
            "clients": len(self.clients),
            "clients_served": len(self.mapped),
            "switches": self.hits.switches,
            "prefetch_hit_ratio": self.hits.ratio,
        }

    # Bid and grant

    def _alone_ns(self, dnn: int, kind: int = 0) -> int:
        return self.costs.of(self.variants[dnn], kind).plan_ns[1]

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        worker = self.workers.get(lane - own_lane(0))
        if worker is None:
            return None
        alone_ns = self._alone_ns(worker.dnn, worker.kind) + self.lead.ns(1)
        hopeless_at_ns = NEVER
        for queue in (worker.queue, worker.spare):
            while len(queue) > 0 and queue.first().deadline_ns < now_ns + alone_ns:
                self._drop_late(queue, self.variants[worker.dnn], worker.kind)
            if len(queue) > 0:
                hopeless_at_ns = min(hopeless_at_ns, queue.first().deadline_ns - alone_ns)
        waiting = len(worker.queue) + len(worker.spare)
        if waiting == 0:
            return None
        bid = worker.bid
        bid.size = min(waiting, worker.batch)
        bid.ripe_at_ns = now_ns
        # The lane has one source, so the key decides nothing.
        bid.key = bid.expires_at_ns = hopeless_at_ns
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        """The first requests by deadline, as many as end in time together: more than the planned
        batch where a burst asks for it and every deadline allows."""
        worker = self.workers[slot.backend]
        dnn = worker.dnn
        worker.bid.again = False
        if not slot.runs(self.variants[dnn]):
            batch = self._stand_in(worker, slot)
            worker.bid.again = batch is None
            return batch
        if len(worker.queue) > 1:
            dnn = dnn_in_time(slot, self.variants, dnn, first_of(worker.queue), self._allows)
        # Of a smaller one, nobody asked those further back whether they allow it.
        size_max = FRAMES_MAX if dnn != worker.dnn else len(worker.queue)
        variant = self.variants[dnn]
        for queue in (worker.queue, worker.spare):
            while len(queue) > 0:
                budget_ns = queue.first().deadline_ns - slot.start_at_ns
                size = min(len(queue), slot.size_that_fits(variant, budget_ns))
                # Nobody who is mapped may wait longer than planned for those who are not.
                size = min(size, worker.batch if queue is worker.spare else size_max)
                if size > 0:
                    taken = queue.pop_many(size)
                    if queue is worker.queue:
                        taken.extend(self._fill(worker, slot, dnn, taken))
                    return Batch(self._suited(slot, variant, taken), taken)
                self._drop_late(queue, variant, worker.kind)
                size_max -= queue is worker.queue
        return None

    def _stand_in(self, worker: MappedWorker, slot: Slot) -> Batch | None:
        """Until its DNN is loaded: the nearest one that is there, for those who allow it. Whoever
        does not waits for the load."""
        there = [dnn for dnn, variant in enumerate(self.variants) if slot.runs(variant)]
        there.sort(key=lambda dnn: (abs(dnn - worker.dnn), dnn))
        for queue in (worker.queue, worker.spare):
            waiting = first_of(queue)
            for first in waiting:
                budget_ns = first.deadline_ns - slot.start_at_ns
                for dnn in there:
                    size = slot.size_that_fits(self.variants[dnn], budget_ns)
                    if size == 0 or not self._allows(first, dnn):
                        continue
                    if queue is worker.spare:
                        size = min(size, worker.batch)
                    taken = [each for each in waiting if self._allows(each, dnn)][:size]
                    queue.take(taken)
                    if queue is worker.queue:
                        taken.extend(self._fill(worker, slot, dnn, taken))
                    return Batch(self._suited(slot, self.variants[dnn], taken), taken)
        return None

    def _suited(self, slot: Slot, variant: int, taken: Sequence[Request]) -> int:
        """The variant itself, or another of its input size that these requests suit better."""
        found = suited(self.family, slot, variant, taken)
        if found == variant or found not in self.variants:
            return variant
        dnn = self.variants.index(found)
        return found if all(self._allows(request, dnn) for request in taken) else variant

    def _drop_late(self, queue: DeadlineQueue, variant: int, kind: int) -> None:
        """Drop the first; where only the learnt margin is in its way, trust that a little less,
        or nothing would ever run again to teach a better one."""
        first = queue.pop()
        left_ns = first.deadline_ns - first.arrived_at_ns - self.lead.ns(1)
        cost = self.costs.of(variant, kind)
        if cost.p50_ns[1] <= left_ns < cost.plan_ns[1]:
            self.costs.relax_margin(variant)
        self.outbox.drop(first, DropReason.LATE)

    def _fill(
        self, worker: MappedWorker, slot: Slot, dnn: int, taken: Sequence[Request]
    ) -> list[Request]:
        """Requests of clients left out, where the planned batch has room and all stay in time."""
        filling: list[Request] = []
        spare = worker.spare
        variant = self.variants[dnn]
        until_ns = taken[0].deadline_ns
        planned = min(worker.batch, slot.size_max(variant))
        while len(spare) > 0 and len(taken) + len(filling) < planned:
            if not self._allows(spare.first(), dnn):
                break
            until_ns = min(until_ns, spare.first().deadline_ns)
            size = len(taken) + len(filling) + 1
            if slot.start_at_ns + slot.plan_ns(variant, size) > until_ns:
                break
            filling.append(spare.pop())
        return filling


def _empty(worker: MappedWorker) -> list[Request]:
    taken = worker.queue.pop_many(len(worker.queue))
    return taken + worker.spare.pop_many(len(worker.spare))
