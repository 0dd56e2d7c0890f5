"""The request table: every request that came in and has no answer yet.

Pure: events and a time in, effects out, so that faults can be simulated with the production code.
Every admitted request gets exactly one `SendAnswer`, at the latest a grace after it expires.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

import msgspec

from fermata.deployments.frontend.outcomes import (
    RETRY_AFTER_NS,
    Outcome,
    Refusal,
    drop_refusal,
    error_refusal,
)
from fermata.deployments.frontend.requests.lent_payloads import LentPayloads
from fermata.deployments.frontend.requests.looks.look_answers import LookAnswers
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.payload_memory import PayloadMemory
from fermata.deployments.frontend.requests.pending_request import (
    Effect,
    PartTicket,
    PendingRequest,
    Release,
    RequestTerms,
    SendAnswer,
    ToBackend,
    ToRouter,
    submit_together,
)
from fermata.deployments.frontend.requests.router_homes import NOWHERE, RouterHomes
from fermata.deployments.frontend.requests.table_door import refusal_at_door
from fermata.deployments.specs.frontend import TableLimits
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.foundation.units import NEVER
from fermata.router.core.events import DropReason
from fermata.router.links.directory import Directory
from fermata.router.links.messages import (
    RID_BITS,
    Cancel,
    Dropped,
    Estimated,
    Fetch,
    Payload,
    Result,
    Returned,
    ShortCircuit,
    Unread,
)


class RequestTable:
    """Requests of one frontend."""

    def __init__(
        self, number: int, limits: TableLimits | None = None, sub_clusters: int = 1
    ) -> None:
        self.limits = limits or TableLimits()
        self.counts = OutcomeCounts()
        self.reply_ns = self.limits.reply_ns
        """As configured at first; the driver may set a measured value."""
        self.entries: dict[int, PendingRequest] = {}
        self.memory = PayloadMemory(self.limits)
        self.draining = False
        self.tells_places = True
        """The router is told where payloads lie, so that backends need not ask for them."""
        self.homes = RouterHomes(sub_clusters)
        self.lent = LentPayloads(self.limits.lent_ns)
        self.looks = LookAnswers()
        """Forms of answers that looks give."""
        self._next_rid = number << RID_BITS
        self._timers: list[tuple[int, int]] = []
        self._effects: list[Effect] = []

    @property
    def payload_bytes(self) -> int:
        """Memory of the inputs of open requests."""
        return self.memory.total

    @property
    def term(self) -> int:
        """The highest term of a linked router; -1 while there is none."""
        return max(self.homes.terms)

    # Clients

    def admit(
        self, now_ns: int, terms: RequestTerms, place: Callable[[int], Payload] | None = None
    ) -> int | Refusal:
        """Admit a request: its id, or the refusal that is its answer.

        `place` makes the payload of the request with that id, where this can be done at once.
        """
        refusal = refusal_at_door(self, now_ns, terms)
        if refusal is not None:
            self.counts.refuse(terms.application, refusal.reason, terms.tenant)
            return refusal
        entry = self._enter(now_ns, terms, terms.size_bytes)
        rid = entry.rid
        if place is not None:
            entry.payload = place(rid)
        if self.homes.several:
            entry.home = self._home_for(entry)
        if self.homes.terms[entry.home] >= 0:
            self._submit(now_ns, entry)
        return rid

    def admit_together(
        self,
        now_ns: int,
        terms: RequestTerms,
        sizes: Sequence[int],
        tickets: Sequence[PartTicket],
        place: Callable[[Sequence[int]], Sequence[Payload]],
    ) -> list[int] | None:
        """Admit parts of a query that are made of one result, on these terms but for their sizes,
        and submit them in one message: their ids. None where each has to be admitted by itself:
        no router is to hear of all of them, or there is no room for all.
        """
        homes, bond, home = self.homes, tickets[0].bond, tickets[0].bond.home
        if homes.terms[home] < 0 or not bond.is_known:
            return None
        total = replace(terms, size_bytes=sum(sizes))
        if refusal_at_door(self, now_ns, total, len(sizes)) is not None:
            return None
        entries = [self._enter(now_ns, terms, size) for size in sizes]
        rids = [entry.rid for entry in entries]
        payloads = place(rids)
        for entry, ticket, payload in zip(entries, tickets, payloads, strict=True):
            entry.part, entry.payload = ticket, payload
            entry.home, entry.term = home, homes.terms[home]
        submit = submit_together(now_ns, entries, self.reply_ns, self.tells_places)
        self._effects.append(ToRouter(submit, home))
        return rids

    def _home_for(self, entry: PendingRequest) -> int:
        """The sub-cluster for a request: that of its query, where a router has heard of it."""
        bond = None if entry.part is None else entry.part.bond
        if bond is None or not bond.is_known:
            return self.homes.pick(entry.application, entry.client)
        return bond.home if bond.told else self.homes.pick(bond.pipeline, entry.client)

    def _enter(self, now_ns: int, terms: RequestTerms, size_bytes: int) -> PendingRequest:
        """Open a request of that size, which is not submitted yet."""
        rid = self._next_rid
        self._next_rid += 1
        slo_ns = min(terms.slo_ns, terms.left_ns)
        hard_ns = min(max(terms.hard_limit_ns, slo_ns), terms.left_ns)
        entry = PendingRequest(rid, terms, now_ns, now_ns + slo_ns, now_ns + hard_ns)
        self.entries[rid] = entry
        entry.size_bytes = size_bytes
        self.memory.take(size_bytes, terms.tenant)
        hold_ns = max(self.limits.hold_ns_max, terms.usual_slo_ns)
        entry.plan_by_ns = min(entry.deadline_ns, now_ns + hold_ns)
        # The refusal has to be sent before the client hangs up, or it never learns the reason.
        gone_at_ns = now_ns + terms.left_ns - self.reply_ns // 2
        give_up_at_ns = min(entry.expires_at_ns + self.limits.grace_ns, gone_at_ns)
        heappush(self._timers, (give_up_at_ns, rid))
        return entry

    def new_rid(self) -> int:
        """An id for something that is no request, and that no request will have."""
        self._next_rid += 1
        return self._next_rid - 1

    def on_payload(self, now_ns: int, rid: int, payload: Payload) -> None:
        """The input is decoded."""
        entry = self.entries.get(rid)
        if entry is None:
            self._effects.append(Release(payload))
            return
        entry.payload = payload
        for backend in entry.waiting:
            self._effects.append(ToBackend(backend, payload))
        entry.readers += len(entry.waiting)
        entry.waiting.clear()

    def on_bad_payload(
        self, now_ns: int, rid: int, message: str, status: str = "INVALID_ARGUMENT"
    ) -> None:
        """The input cannot be decoded."""
        entry = self.entries.get(rid)
        if entry is not None:
            self._give_up(now_ns, entry, Refusal(status, RefusalReason.BAD_INPUT, message))

    def on_too_large(self, now_ns: int, rid: int, message: str) -> None:
        """The input cannot be sent to the backend that fetches it."""
        entry = self.entries.get(rid)
        if entry is not None:
            self._release(self.lent.on_read(rid, entry))
            refusal = Refusal("INVALID_ARGUMENT", RefusalReason.TOO_LARGE, message)
            self._give_up(now_ns, entry, refusal)

    def on_cancel(self, now_ns: int, rid: int) -> None:
        """The client has left, or cancelled the request."""
        self.refuse(now_ns, rid, drop_refusal(DropReason.CANCELLED))

    def refuse(self, now_ns: int, rid: int, refusal: Refusal) -> None:
        """End a request that is not to run any more, unless it has ended."""
        entry = self.entries.get(rid)
        if entry is not None:
            self._give_up(now_ns, entry, refusal)

    def on_drain(self) -> None:
        """Admit no more requests; open ones are served."""
        self.draining = True

    # Routers

    def on_router_up(self, now_ns: int, term: int, home: int = 0) -> None:
        """Submit to a new router every request of its sub-cluster that no backend has, if time is
        left; and those that wait for another router, where both serve their application."""
        self.homes.on_up(home, term)
        for entry in list(self.entries.values()):
            if entry.home == home or self._may_move(entry, home):
                entry.home = home
                entry.term = -1
                if entry.fetched_by < 0:
                    self._resubmit(now_ns, entry)

    def on_router_down(self, now_ns: int, home: int = 0) -> None:
        """Keep all requests: backends answer without a router, and it may be back in time. What
        another sub-cluster serves too is submitted there."""
        self.homes.on_down(now_ns, home)
        for entry in list(self.entries.values()) if self.homes.several else ():
            if entry.home == home:
                other = self._home_for(entry)
                if self._may_move(entry, other):
                    self._move(now_ns, entry, other)

    def on_directory(self, now_ns: int, directory: Directory) -> bool:
        """Submit by another directory; what waits for a home that it has no more goes to its new
        one. Returns whether it was news."""
        if not self.homes.on_directory(directory):
            return False
        for entry in list(self.entries.values()):
            if self.homes.terms[entry.home] < 0 and entry.fetched_by < 0:
                other = self._home_for(entry)
                if other != entry.home:
                    self._move(now_ns, entry, other)
        return True

    def _may_move(self, entry: PendingRequest, home: int) -> bool:
        """Whether a request whose own router is away may go to another sub-cluster."""
        homes = self.homes
        return (
            homes.terms[entry.home] < 0 <= homes.terms[home]
            and entry.fetched_by < 0
            and home in homes.of(entry.application)
        )

    def _move(self, now_ns: int, entry: PendingRequest, home: int) -> None:
        entry.home = home
        entry.term = -1
        if self.homes.terms[home] >= 0:
            self._resubmit(now_ns, entry)

    def on_dropped(self, now_ns: int, dropped: Dropped, home: int = 0) -> None:
        """The router of a sub-cluster has ended a request; one that was submitted elsewhere since
        goes on there."""
        entry = self.entries.get(dropped.rid)
        if dropped.unread:
            self._release(self.lent.on_unread(dropped.rid, entry))
        if entry is None or entry.home != home:
            return
        if dropped.reason == DropReason.MOVED:
            entry.retried |= dropped.retried
            self._on_moved(now_ns, entry)
        else:
            refusal = drop_refusal(dropped.reason, dropped.retry_after_ns, dropped.detail)
            self._end(now_ns, entry, refusal)

    def _on_moved(self, now_ns: int, entry: PendingRequest) -> None:
        """Ask at its new home. A router that knows more than this frontend does is believed: until
        a newer directory comes, the request waits."""
        if entry.part is not None:
            entry.part.on_moved(entry.home, entry.retried)
        entry.fetched_by = -1
        known = entry.home not in self.homes.of(entry.application)
        home = self._home_for(entry) if known else NOWHERE
        self._move(now_ns, entry, home)

    def on_unread(self, unread: Unread) -> None:
        """Backends fetch these, and were not told where they lie."""
        for rid in unread.rids:
            self._release(self.lent.on_unread(rid, self.entries.get(rid)))

    def on_estimated(self, estimated: Estimated) -> None:
        entry = self.entries.get(estimated.rid)
        if entry is not None:
            entry.estimate = estimated.estimate

    def on_short_circuit(self, now_ns: int, answer: ShortCircuit) -> None:
        """Answer from evidence, with the probability of each class in place of scores."""
        entry = self.entries.get(answer.rid)
        if answer.unread:
            self._release(self.lent.on_unread(answer.rid, entry))
        if entry is None:
            self.counts.stale_results += 1
            return
        self._end(now_ns, entry, self.looks.result(entry.application, answer))

    # Backends

    def on_fetch(self, now_ns: int, backend: int, fetch: Fetch) -> None:
        for rid in fetch.rids:
            entry = self.entries.get(rid)
            if entry is None:
                self._effects.append(ToBackend(backend, Payload(rid, "", (), missing=True)))
                continue
            entry.fetched_by = backend
            if entry.payload is None:
                # It may ask again: by its link, for what was to come by a data connection.
                if backend not in entry.waiting:
                    entry.waiting.append(backend)
            else:
                entry.readers += 1
                self._effects.append(ToBackend(backend, entry.payload))

    def on_returned(self, now_ns: int, backend: int, returned: Returned) -> None:
        """Release requests that a backend returns without a result. A router that came since their
        own does not know of them: submit them again."""
        for rid in returned.rids:
            entry = self.entries.get(rid)
            self._release(self.lent.on_read(rid, entry))
            if entry is None:
                continue
            entry.returned_by = backend
            if entry.fetched_by == backend:
                self._take_back(now_ns, entry, backend, returned.term)

    def on_result(self, now_ns: int, backend: int, result: Result) -> None:
        entry = self.entries.get(result.rid)
        self._release(self.lent.on_read(result.rid, entry))
        # An error of a backend that had to give the request up is ignored: another one runs it.
        if entry is None or (result.error and entry.fetched_by not in (backend, -1)):
            self.counts.stale_results += 1
        elif result.error:
            self._end(now_ns, entry, error_refusal(result.error, result.input_late))
        else:
            if entry.estimate >= 0.0:
                self.looks.learn(entry.application, result.tensors)
                result = msgspec.structs.replace(result, estimate=entry.estimate)
            self._end(now_ns, entry, result)

    def on_looked(self, rid: int) -> None:
        """The backend that was asked to look at its input does not read that any more."""
        self._release(self.lent.on_looked(rid))

    def on_backend_down(self, now_ns: int, backend: int) -> None:
        """Submit its requests again, as their results may be lost or the router may be new.

        A router that knows where a request runs ignores the second submission.
        """
        for entry in list(self.entries.values()):
            if backend in entry.waiting or entry.fetched_by == backend:
                self._take_back(now_ns, entry, backend)
            elif self._may_be_at(entry, backend) and self.homes.terms[entry.home] >= 0:
                self._resubmit(now_ns, entry)

    def _may_be_at(self, entry: PendingRequest, backend: int) -> bool:
        """Whether a backend may have a request that it has not fetched: it was told the place of
        its payload, and has not returned it."""
        return entry.is_told and entry.fetched_by < 0 and entry.returned_by != backend

    def _take_back(self, now_ns: int, entry: PendingRequest, backend: int, term: int = 0) -> None:
        """`term` is that of a router which knows that the backend has it no more; 0: none."""
        if backend in entry.waiting:
            entry.waiting.remove(backend)
        if entry.fetched_by == backend:
            entry.fetched_by = -1
            if self.homes.terms[entry.home] >= 0 and entry.term != term:
                self._resubmit(now_ns, entry)

    # Time

    def on_time(self, now_ns: int) -> None:
        """Refuse requests that have expired, and release payloads that were lent for too long."""
        timers = self._timers
        while timers and timers[0][0] <= now_ns:
            entry = self.entries.get(heappop(timers)[1])
            if entry is not None:
                self._give_up(now_ns, entry, self._expired(now_ns, entry))
        for payload in self.lent.take_due(now_ns):
            self._release(payload)

    def wake_at_ns(self) -> int:
        """The time of the next call to `on_time`; `NEVER` if nothing is open."""
        timers = self._timers
        while timers and timers[0][1] not in self.entries:
            heappop(timers)
        if len(timers) > self.limits.stale_timers_min + 2 * len(self.entries):
            self._timers = timers = [each for each in timers if each[1] in self.entries]
            heapify(timers)
        wake_at_ns = timers[0][0] if timers else NEVER
        return min(wake_at_ns, self.lent.wake_at_ns())

    def take_effects(self) -> list[Effect]:
        """Effects for the driver to carry out, in order."""
        effects = self._effects
        self._effects = []
        return effects

    # Internals

    def _submit(self, now_ns: int, entry: PendingRequest) -> None:
        entry.term = self.homes.terms[entry.home]
        submit = entry.submit(now_ns, self.reply_ns, self.tells_places)
        self._effects.append(ToRouter(submit, entry.home))

    def _resubmit(self, now_ns: int, entry: PendingRequest) -> None:
        if entry.sequence is not None and entry.term == self.homes.terms[entry.home]:
            # Its router knows what became of it; run twice it would change its state twice.
            return
        if entry.expires_at_ns - now_ns > self.reply_ns:
            self._submit(now_ns, entry)
        elif entry.sequence is not None:
            # Steps behind it must not run as if it had.
            self._give_up(now_ns, entry, self._expired(now_ns, entry))

    def _expired(self, now_ns: int, entry: PendingRequest) -> Refusal:
        waited_ms = (now_ns - entry.arrived_at_ns) / 1e6
        if self.homes.terms[entry.home] < 0 and entry.fetched_by < 0:
            message = f"no-router: no router was linked for the {waited_ms:.0f} ms it could wait"
            return Refusal("UNAVAILABLE", RefusalReason.NO_ROUTER, message, RETRY_AFTER_NS)
        message = f"expired: {entry.progress} after {waited_ms:.0f} ms"
        return Refusal("DEADLINE_EXCEEDED", RefusalReason.EXPIRED, message)

    def _release(self, payload: Payload | None) -> None:
        if payload is not None:
            self._effects.append(Release(payload))

    def _give_up(self, now_ns: int, entry: PendingRequest, refusal: Refusal) -> None:
        """End a request that the router may still have."""
        if 0 <= entry.term == self.homes.terms[entry.home]:
            self._effects.append(ToRouter(Cancel(entry.rid), entry.home))
        self._end(now_ns, entry, refusal)

    def _end(self, now_ns: int, entry: PendingRequest, outcome: Outcome) -> None:
        del self.entries[entry.rid]
        self.memory.free(entry.size_bytes, entry.tenant)
        # Backends that wait for the input hear of the end, or they would hold their batch for it.
        for backend in entry.waiting:
            self._effects.append(ToBackend(backend, Payload(entry.rid, "", (), missing=True)))
        self._effects.append(SendAnswer(entry.rid, outcome))
        self._release(self.lent.lend(now_ns, entry))
        if isinstance(outcome, Refusal):
            self.counts.refuse(entry.application, outcome.reason, entry.tenant)
        else:
            self.counts.serve(now_ns, entry, outcome, entry.rows)
