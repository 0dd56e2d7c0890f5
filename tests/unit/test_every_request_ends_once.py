"""The request table under any order of events: one answer each, and no memory left."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from request_tables import make, payload, result

from fermata.deployments.frontend.requests.pending_request import (
    Release,
    RequestTerms,
    SendAnswer,
    ToRouter,
)
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import ms
from fermata.router.links.messages import Dropped, Fetch, Returned


class EveryRequestEndsOnce(RuleBasedStateMachine):
    """Events in any order, duplicates and strangers included."""

    @initialize()
    def start(self) -> None:
        self.now_ns = 0
        self.term = 1
        self.table = make(limits=TableLimits(payload_bytes_max=500, grace_ns=ms(20)))
        self.due_ns: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.released: list[int] = []

    def pick(self, index: int) -> int:
        """Some request that ever was, or a stranger."""
        known = list(self.due_ns)
        return known[index % len(known)] if known else 99

    def absorb(self) -> None:
        for effect in self.table.take_effects():
            if isinstance(effect, SendAnswer):
                assert effect.rid not in self.ended, "answered twice"
                self.ended[effect.rid] = self.now_ns
            elif isinstance(effect, Release):
                self.released.append(effect.payload.rid)
            elif isinstance(effect, ToRouter):
                assert self.table.term >= 0, "nobody listens"

    @rule(slo=st.integers(-1, 200), left=st.integers(-1, 200), size=st.integers(0, 300))
    def arrive(self, slo: int, left: int, size: int) -> None:
        given = RequestTerms("a", ms(slo), ms(2 * slo), size, left_ns=ms(left))
        rid = self.table.admit(self.now_ns, given)
        if isinstance(rid, int):
            self.due_ns[rid] = self.now_ns + min(ms(2 * slo), ms(left))
        self.absorb()

    @rule(index=st.integers(0, 50))
    def decode(self, index: int) -> None:
        rid = self.pick(index)
        entry = self.table.entries.get(rid)
        if entry is None or entry.payload is None:
            self.table.on_payload(self.now_ns, rid, payload(rid))
        self.absorb()

    @rule(index=st.integers(0, 50), backend=st.integers(1, 3))
    def fetch(self, index: int, backend: int) -> None:
        self.table.on_fetch(self.now_ns, backend, Fetch(1, (self.pick(index), 12345)))
        self.absorb()

    @rule(index=st.integers(0, 50), error=st.sampled_from(["", "broken"]))
    def answer(self, index: int, error: str) -> None:
        self.table.on_result(self.now_ns, 1, result(self.pick(index), error))
        self.absorb()

    @rule(index=st.integers(0, 50), backend=st.integers(1, 3), term=st.integers(0, 2))
    def give_back(self, index: int, backend: int, term: int) -> None:
        self.table.on_returned(self.now_ns, backend, Returned((self.pick(index),), term))
        self.absorb()

    @rule(index=st.integers(0, 50), reason=st.sampled_from(["late", "shed", "odd"]))
    def drop(self, index: int, reason: str) -> None:
        self.table.on_dropped(self.now_ns, Dropped(self.pick(index), reason))
        self.absorb()

    @rule(index=st.integers(0, 50), bad=st.booleans())
    def leave(self, index: int, bad: bool) -> None:
        if bad:
            self.table.on_bad_payload(self.now_ns, self.pick(index), "no image")
        else:
            self.table.on_cancel(self.now_ns, self.pick(index))
        self.absorb()

    @rule(up=st.booleans())
    def move_router(self, up: bool) -> None:
        if up:
            self.term += 1
            self.table.on_router_up(self.now_ns, self.term)
        else:
            self.table.on_router_down(self.now_ns)
        self.absorb()

    @rule(backend=st.integers(1, 3))
    def lose_backend(self, backend: int) -> None:
        self.table.on_backend_down(self.now_ns, backend)
        self.absorb()

    @rule(step=st.integers(0, 60))
    def pass_time(self, step: int) -> None:
        until_ns = self.now_ns + ms(step)
        while (wake_at_ns := self.table.wake_at_ns()) <= until_ns:
            self.now_ns = max(self.now_ns, wake_at_ns)
            self.table.on_time(self.now_ns)
            self.absorb()
        self.now_ns = until_ns

    @invariant()
    def all_is_accounted_for(self) -> None:
        if not hasattr(self, "table"):
            return
        table = self.table
        assert set(table.entries) | set(self.ended) == set(self.due_ns)
        assert not set(table.entries) & set(self.ended)
        assert table.payload_bytes == sum(each.size_bytes for each in table.entries.values())
        assert table.payload_bytes <= 500
        for rid, due_ns in self.due_ns.items():
            assert self.ended.get(rid, self.now_ns) <= due_ns + ms(50)
        # A payload is released when, and only when, its request has ended.
        for rid in self.released:
            assert rid not in table.entries

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.pass_time(10_000)
            assert not self.table.entries
            assert set(self.ended) == set(self.due_ns)


TestEveryRequestEndsOnce = EveryRequestEndsOnce.TestCase
TestEveryRequestEndsOnce.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
