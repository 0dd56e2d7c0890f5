"""Looks that backends take for a frontend: who is asked, what is under way, what stays lent."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from router_world import FakeLink

from fermata.deployments.frontend.link_hub import LinkHub
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.requests.looks.backend_looks import (
    FORGOTTEN_NS,
    WITHIN_NS_MAX,
    BackendLooks,
)
from fermata.deployments.frontend.requests.looks.peeker import Peeker
from fermata.deployments.frontend.requests.pending_request import Release, RequestTerms
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.sneakpeek.building import build_model
from fermata.deployments.sneakpeek.look_queue import LookLimits
from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.deployments.specs.frontend import FrontendOptions, TableLimits
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import NEVER, ms
from fermata.router.links.messages import Evidence, Look, Looked, Payload, Returned

TERMS = RequestTerms("cats", ms(50), ms(50), 4)
VOTES = (0.0, 5.0)


class Asked:
    """Looks as backends would hear of them."""

    def __init__(self, waiting_max: int = 1024) -> None:
        self.sent: list[tuple[int, int]] = []
        self.within_ns: list[int] = []
        self.now_ns = 0
        self.sends = True
        self.looks = BackendLooks(self.send, LookLimits(waiting_max=waiting_max), self.clock)

    def clock(self) -> int:
        return self.now_ns

    def send(self, backend: int, rid: int, application: str, within_ns: int) -> bool:
        if self.sends:
            self.sent.append((backend, rid))
            self.within_ns.append(within_ns)
        return self.sends

    def ask(self, rid: int, application: str = "cats", within_ns: int = NEVER) -> bool:
        return self.looks.ask(rid, application, True, within_ns)


def test_only_backends_that_take_looks_are_asked() -> None:
    asked = Asked()
    assert not asked.ask(1)
    asked.looks.on_ready(3, ("dogs",), near=True)
    assert not asked.ask(2)
    asked.looks.on_ready(3, ("cats", "dogs"), near=True)
    assert asked.ask(3)
    assert asked.sent == [(3, 3)]


def test_backends_that_share_memory_come_first_then_those_with_fewest_looks() -> None:
    asked = Asked()
    asked.looks.on_ready(1, ("cats",), near=False)
    asked.looks.on_ready(2, ("cats",), near=True)
    asked.looks.on_ready(3, ("cats",), near=True)
    for rid in range(4):
        assert asked.ask(rid)
    assert asked.sent == [(2, 0), (3, 1), (2, 2), (3, 3)]
    asked.looks.on_looked(3, Looked(1, VOTES, ms(1)))
    assert asked.ask(4)
    assert asked.sent[-1] == (3, 4)


def test_looks_under_way_are_bounded() -> None:
    asked = Asked(waiting_max=2)
    asked.looks.on_ready(1, ("cats",), near=True)
    assert [asked.ask(rid) for rid in range(3)] == [True, True, False]
    # One that never comes back does not count for ever.
    asked.now_ns = FORGOTTEN_NS + 1
    assert asked.ask(3)
    assert asked.looks.lost == 2
    assert asked.looks.lookers[1].under_way == 1
    assert asked.looks.on_looked(1, Looked(0, VOTES)) is None


def test_look_that_would_come_too_late_is_not_asked_for() -> None:
    asked = Asked()
    asked.looks.on_ready(1, ("cats",), near=True)
    assert asked.ask(1)
    asked.looks.on_looked(1, Looked(1, VOTES, ms(4)))
    assert [asked.ask(rid, within_ns=ms(10)) for rid in range(2, 6)] == [True, True, True, False]


def test_look_is_begun_while_its_input_is_lent() -> None:
    asked = Asked()
    asked.looks.on_ready(1, ("cats",), near=True)
    assert asked.ask(1, within_ns=ms(70))
    assert asked.ask(2, within_ns=FORGOTTEN_NS)
    assert asked.within_ns == [ms(70), WITHIN_NS_MAX]
    assert TableLimits().lent_ns > WITHIN_NS_MAX


def test_input_that_cannot_be_sent_is_not_under_way() -> None:
    asked = Asked()
    asked.looks.on_ready(1, ("cats",), near=False)
    asked.sends = False
    assert not asked.ask(1)
    assert asked.looks.lookers[1].under_way == 0
    assert asked.looks.asked == {}


def test_looks_of_a_backend_that_is_gone_are_given_up() -> None:
    asked = Asked()
    asked.looks.on_ready(1, ("cats",), near=True)
    asked.looks.on_ready(2, ("cats",), near=True)
    assert [asked.ask(rid) for rid in range(4)] == [True] * 4
    asked.looks.on_down(1)
    assert sorted(asked.looks.asked) == [1, 3]
    assert asked.looks.lost == 2
    # A new process of the same number says nothing of them.
    asked.looks.on_ready(1, ("cats",), near=True)
    assert asked.looks.on_looked(1, Looked(0, VOTES)) is None
    assert asked.looks.on_looked(1, Looked(1, VOTES)) is None
    assert asked.looks.on_looked(2, Looked(1, VOTES)) is not None


# Memory


def shared(one: int) -> Payload:
    return Payload(one, "UINT8", (4,), b"", "segment", 64, 4)


def looked_at() -> tuple[RequestTable, int]:
    table = RequestTable(0, TableLimits(reply_ns=ms(1)))
    table.tells_places = False
    table.on_router_up(0, 1)
    one = table.admit(0, TERMS, shared)
    assert isinstance(one, int)
    table.lent.on_look(one)
    return table, one


def released(table: RequestTable) -> list[int]:
    return [each.payload.rid for each in table.take_effects() if isinstance(each, Release)]


def test_input_stays_until_the_look_is_over_though_its_request_has_ended() -> None:
    table, one = looked_at()
    table.on_cancel(ms(1), one)
    assert released(table) == []
    # A backend that got the request after its end returns it; the look goes on.
    table.on_returned(ms(2), 1, Returned((one,)))
    assert released(table) == []
    table.on_looked(one)
    assert released(table) == [one]
    table.on_looked(one)
    assert released(table) == []


def test_input_of_a_look_that_never_ends_is_free_in_the_end() -> None:
    table, one = looked_at()
    table.on_cancel(ms(1), one)
    table.on_time(ms(1) + TableLimits().lent_ns)
    assert released(table) == [one]
    assert table.lent.looked_at == set()


def test_look_that_is_over_frees_nothing_of_an_open_request() -> None:
    table, one = looked_at()
    table.on_looked(one)
    assert released(table) == []
    table.on_cancel(ms(1), one)
    assert released(table) == [one]


# Links


def model() -> SneakPeekModel:
    labels = np.arange(40) % 2
    samples = (labels[:, None] * np.ones((1, 3))).astype(np.float32)
    return replace(build_model(samples, labels, dimensions=0), on_backends=True)


@pytest.mark.parametrize("node", ["here", "there"])
def test_look_tells_a_place_or_the_input_itself(node: str) -> None:
    async def resolve() -> str:
        raise AssertionError("nobody asks")

    async def play() -> None:
        hub = LinkHub(FrontendOptions(number=1), Registry(()), resolve, "here")
        hub.arena = Arena(1 << 12)
        link = FakeLink("backend", 7, node)
        hub.backends[7] = link  # type: ignore[assignment]
        hub.table.on_router_up(0, 1)
        given = np.ones(3, np.float32)
        rid = hub.table.admit(
            0, TERMS, lambda one: hub.arena.place(one, "FP32", (3,), given.tobytes())
        )
        assert isinstance(rid, int)
        assert hub.send_look(7, rid, "cats", ms(9))
        assert not hub.send_look(8, rid, "cats", ms(9))
        assert not hub.send_look(7, rid + 1, "cats", ms(9))
        (look,) = link.take(Look)
        assert (look.application, look.payload.rid, look.within_ns) == ("cats", rid, ms(9))
        assert bool(look.payload.segment) == (node == "here")
        assert look.payload.data == (b"" if node == "here" else given.tobytes())
        assert hub.table.lent.looked_at == ({rid} if node == "here" else set())
        hub.arena.close()

    asyncio.run(play())


def test_votes_of_a_backend_are_evidence_as_those_of_a_frontend() -> None:
    async def play() -> tuple[list[Evidence], Peeker]:
        said: list[Evidence] = []
        with ThreadPoolExecutor(1) as pool:
            peeker = Peeker({"cats": model()}, pool, said.append, send_look=lambda *_: True)
            sample = np.zeros(3, np.float32)
            peeker.take(1, "cats", sample)
            peeker.backends.on_ready(4, ("cats",), near=True)
            peeker.take(2, "cats", sample, answers=False)
            peeker.take(3, "cats", None)
            peeker.take(4, "cats", np.zeros(5, np.float32))
            peeker.on_looked(4, Looked(2, VOTES, ms(1)))
            peeker.on_looked(4, Looked(3))
            peeker.on_looked(4, Looked(9, VOTES))
        return said, peeker

    said, peeker = asyncio.run(play())
    assert said == [Evidence(2, votes=VOTES, answers=False)]
    # Nobody to ask, an input of another shape, and a look that could not be taken.
    assert (peeker.peeked, peeker.skipped) == (1, 3)
    assert peeker.cpu_ns == 0
