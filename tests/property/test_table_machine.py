"""The frontend's request table under any order of events: one answer each, and nothing left."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.pending_request import (
    Release,
    RequestTerms,
    SendAnswer,
    ToBackend,
    ToRouter,
)
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import NEVER, ms
from fermata.router.links.messages import (
    Cancel,
    Dropped,
    Fetch,
    Payload,
    Result,
    ShortCircuit,
    Submit,
    Unread,
)

LIMITS = TableLimits(payload_bytes_max=1000, requests_max=6, router_wait_ns=ms(30))
GRACE_NS = LIMITS.grace_ns
PLACED = -1
"""Stands for the one backend that a router may tell where an input lies."""
LOOKER = -2
"""Stands for the one backend that is asked to look at an input."""
BACKENDS = st.integers(1, 3)


class TableMachine(RuleBasedStateMachine):
    """Client, router, backends and clock around one table; they keep books of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RequestTable(3, LIMITS)
        self.now_ns = 0
        self.expires: dict[int, int] = {}
        """Of what was admitted and has no answer yet, by rid."""
        self.ended: set[int] = set()
        self.sizes: dict[int, int] = {}
        self.made: set[int] = set()
        """Requests whose payload was handed to the table."""
        self.released: set[int] = set()
        self.placed: set[int] = set()
        self.shared: set[int] = set()
        """Those whose payload lies in shared memory."""
        self.reading: dict[tuple[int, int], int] = {}
        """By (backend, rid): until when it may read a shared payload that it has."""
        self.owed: set[tuple[int, int]] = set()
        """(backend, rid) that were fetched and have got neither payload nor `missing`."""
        self.submitted: dict[int, int] = {}
        """Term that each request was last submitted to."""

        self.router_comes()

    def rids(self) -> list[int]:
        """The last ones that wait or have ended, and one of nobody's."""
        return [*sorted(self.expires)[-3:], *sorted(self.ended)[-1:], 99]

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.rids()))

    def carry_out(self) -> None:
        for effect in self.table.take_effects():
            if isinstance(effect, SendAnswer):
                assert effect.rid in self.expires, "answered twice, or unasked"
                assert self.now_ns <= self.expires.pop(effect.rid) + GRACE_NS
                self.ended.add(effect.rid)
                for backend, rid in self.reading:
                    if rid == effect.rid:
                        self.reading[backend, rid] = self.now_ns + TableLimits().lent_ns
            elif isinstance(effect, Release):
                rid = effect.payload.rid
                assert rid not in self.released, "released twice"
                assert rid not in self.expires, "released while it is wanted"
                assert not self.is_read(rid), "released while a backend reads it"
                self.released.add(rid)
            elif isinstance(effect, ToBackend):
                payload = effect.payload
                self.owed.discard((effect.backend, payload.rid))
                over = payload.rid not in self.expires
                assert payload.missing == (over or payload.rid not in self.made)
                if payload.segment:
                    self.reading[effect.backend, payload.rid] = NEVER
            elif isinstance(effect, ToRouter):
                assert self.table.term >= 0, "said to nobody"
                if isinstance(effect.message, Submit):
                    assert effect.message.slo_ns > 0
                    if effect.message.payload is not None:
                        assert effect.message.rid not in self.placed, "a place is told twice"
                        self.placed.add(effect.message.rid)
                        self.reading[PLACED, effect.message.rid] = NEVER
                    self.submitted[effect.message.rid] = self.table.term
                elif isinstance(effect.message, Cancel):
                    assert self.submitted[effect.message.rid] == self.table.term

    def is_read(self, rid: int) -> bool:
        ends = (until_ns for (_, each), until_ns in self.reading.items() if each == rid)
        return any(until_ns > self.now_ns for until_ns in ends)

    # Clients

    @rule(
        slo_ms=st.sampled_from([100, 20, 5, 1]),
        hard_ms=st.sampled_from([0, 50, 200]),
        size=st.sampled_from([0, 10, 400]),
        left_ms=st.sampled_from([None, 50, 2]),
        ready=st.booleans(),
    )
    def arrive(
        self, slo_ms: int, hard_ms: int, size: int, left_ms: int | None, ready: bool
    ) -> None:
        left_ns = NEVER if left_ms is None else ms(left_ms)
        arrival = RequestTerms("camera", ms(slo_ms), ms(hard_ms), size, left_ns=left_ns)
        place = (lambda rid: Payload(rid, "UINT8", (1,), b"x", "shared")) if ready else None
        rid = self.table.admit(self.now_ns, arrival, place)
        if not isinstance(rid, Refusal):
            if ready:
                self.made.add(rid)
                self.shared.add(rid)
            assert rid not in self.ended
            assert rid not in self.expires
            slo_ns = min(arrival.slo_ns, left_ns)
            hard_ns = min(max(arrival.hard_limit_ns, slo_ns), left_ns)
            self.expires[rid] = self.now_ns + hard_ns
            self.sizes[rid] = size
        self.carry_out()

    @rule(data=st.data(), segment=st.sampled_from(["", "shared"]))
    def decode(self, data: st.DataObject, segment: str) -> None:
        rid = self.some(data)
        if rid in self.sizes and rid not in self.made:
            if segment:
                self.shared.add(rid)
            self.made.add(rid)
            payload = Payload(rid, "UINT8", (1,), b"x", segment)
            self.table.on_payload(self.now_ns, rid, payload)
            self.carry_out()

    @rule(data=st.data(), bad=st.booleans())
    def leave(self, data: st.DataObject, bad: bool) -> None:
        rid = self.some(data)
        if bad and rid not in self.made:
            self.table.on_bad_payload(self.now_ns, rid, "no picture")
        else:
            self.table.on_cancel(self.now_ns, rid)
        self.carry_out()

    # The router

    @rule()
    def router_comes(self) -> None:
        self.table.on_router_up(self.now_ns, self.now_ns + 1)
        self.carry_out()

    @rule()
    def router_goes(self) -> None:
        self.table.on_router_down(self.now_ns)
        self.carry_out()

    @rule(data=st.data(), short=st.booleans(), queued=st.booleans())
    def router_ends_one(self, data: st.DataObject, short: bool, queued: bool) -> None:
        rid = self.some(data)
        unread = queued and self.reading.pop((PLACED, rid), None) is not None
        if short:
            answer = ShortCircuit(rid, 1, 0.9, (0.1, 0.9), unread)
            self.table.on_short_circuit(self.now_ns, answer)
        else:
            self.table.on_dropped(self.now_ns, Dropped(rid, "late", unread=unread))
        self.carry_out()

    @rule(data=st.data())
    def router_gives_it_to_one_that_fetches(self, data: st.DataObject) -> None:
        rid = self.some(data)
        if self.reading.pop((PLACED, rid), None) is not None:
            self.table.on_unread(Unread((rid,)))
            self.carry_out()

    # Backends

    @rule(data=st.data(), backend=BACKENDS)
    def fetch(self, data: st.DataObject, backend: int) -> None:
        rids = data.draw(st.lists(st.sampled_from(self.rids()), min_size=1, unique=True))
        rids = [rid for rid in rids if (backend, rid) not in self.reading]
        self.owed |= {(backend, rid) for rid in rids}
        self.table.on_fetch(self.now_ns, backend, Fetch(1, tuple(rids)))
        self.carry_out()

    @rule(data=st.data(), backend=BACKENDS, failed=st.booleans())
    def answer(self, data: st.DataObject, backend: int, failed: bool) -> None:
        error = "out of memory" if failed else ""
        rid = self.some(data)
        if rid in self.shared:
            # Any backend may be the one that was told the place.
            reader = backend if (backend, rid) in self.reading else PLACED
            if self.reading.pop((reader, rid), None) is None:
                return
        result = Result(rid, "large", 1, 0, ms(1), error=error)
        self.table.on_result(self.now_ns, backend, result)
        self.carry_out()

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        rid = self.some(data)
        if rid in self.expires and rid in self.shared and (LOOKER, rid) not in self.reading:
            self.reading[LOOKER, rid] = NEVER
            self.table.lent.on_look(rid)

    @rule(data=st.data())
    def end_look(self, data: st.DataObject) -> None:
        rid = self.some(data)
        self.reading.pop((LOOKER, rid), None)
        self.table.on_looked(rid)
        self.carry_out()

    @rule(backend=BACKENDS)
    def backend_goes(self, backend: int) -> None:
        self.owed = {each for each in self.owed if each[0] != backend}
        self.table.on_backend_down(self.now_ns, backend)
        self.carry_out()

    # Time

    @rule(step_ms=st.sampled_from([1, 7, 40]))
    def pass_time(self, step_ms: int) -> None:
        """On to the table's own wish, or to then, whichever is first."""
        self.now_ns = min(self.now_ns + ms(step_ms), max(self.now_ns, self.table.wake_at_ns()))
        self.table.on_time(self.now_ns)
        self.carry_out()

    @precondition(lambda self: len(self.ended) > 8 and not self.table.draining)
    @rule()
    def drain(self) -> None:
        self.table.on_drain()
        self.carry_out()

    @invariant()
    def books_agree(self) -> None:
        assert set(self.table.entries) == set(self.expires)
        assert self.table.payload_bytes == sum(self.sizes[rid] for rid in self.expires)
        assert self.table.payload_bytes <= LIMITS.payload_bytes_max
        assert len(self.table.entries) <= LIMITS.requests_max
        if self.expires:
            assert self.table.wake_at_ns() <= min(self.expires.values()) + GRACE_NS

    @invariant()
    def nobody_waits_for_what_will_not_come(self) -> None:
        for _, rid in self.owed:
            assert rid in self.expires, "a backend holds its batch for a request that has ended"
            assert rid not in self.made

    @invariant()
    def payloads_of_ended_requests_are_given_back(self) -> None:
        over = {rid for rid in self.made if rid not in self.expires and not self.is_read(rid)}
        assert self.released == over

    def teardown(self) -> None:
        """Time alone ends everything."""
        while self.expires:
            left = len(self.expires)
            self.now_ns = max(self.now_ns, self.table.wake_at_ns())
            self.table.on_time(self.now_ns)
            self.carry_out()
            assert len(self.expires) < left, "the table woke, and nothing came of it"
        assert self.table.payload_bytes == 0
        while (wake_at_ns := self.table.wake_at_ns()) < NEVER:
            self.now_ns = max(self.now_ns, wake_at_ns)
            self.table.on_time(self.now_ns)
            self.carry_out()
        assert self.released == self.made


TestTable = TableMachine.TestCase
TestTable.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
