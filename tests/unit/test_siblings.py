"""Parts of one result: submitted in one message, and requests of their own from then on."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from pipeline_world import GAPS, PipelineWorld
from query_requests_world import World, application, pipelines_of_three, result_of
from router_world import rid
from test_query_cuts import BOXES, found_boxes, jpeg, models, request

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.memory.extents import ALIGN
from fermata.deployments.frontend.protocol.parsing import CallContext, parse_request
from fermata.deployments.frontend.requests.pending_request import (
    PartTicket,
    QueryBond,
    RequestTerms,
    ToRouter,
)
from fermata.deployments.frontend.requests.request_driver import RequestDriver
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import ms
from fermata.router.links.messages import (
    Cancel,
    Done,
    HandedOn,
    Message,
    Payload,
    QueryPart,
    Submit,
)
from fermata.router.live.requests.siblings import each_of

TERMS = RequestTerms("each", ms(50), ms(50), 4)
PART = QueryPart("objects", 1, 7)


def shared(one: int) -> Payload:
    return Payload(one, "UINT8", (4,), b"", "segment", 64 * one, 4)


def table(**limits: Any) -> RequestTable:
    made = RequestTable(0, TableLimits(reply_ns=ms(1), **limits))
    made.on_router_up(0, 1)
    return made


def tickets(count: int, bond: QueryBond | None = None) -> list[PartTicket]:
    bond = QueryBond("objects") if bond is None else bond
    return [PartTicket(bond, 1, 7) for _ in range(count)]


def places(rids: Sequence[int]) -> list[Payload]:
    return [shared(each) for each in rids]


def said(found: RequestTable) -> list[Submit]:
    told = [each.message for each in found.take_effects() if isinstance(each, ToRouter)]
    return [each for each in told if isinstance(each, Submit)]


# The frontend's table


def test_parts_of_one_result_are_one_message() -> None:
    found = table()
    assert found.admit_together(0, TERMS, [4, 5, 6], tickets(3), places) == [0, 1, 2]
    (submit,) = said(found)
    assert (submit.rid, submit.application, submit.part) == (0, "each", PART)
    assert submit.payload == shared(0)
    assert submit.beside == (shared(1), shared(2))
    assert [each.size_bytes for each in found.entries.values()] == [4, 5, 6]
    assert found.payload_bytes == 15
    # As if each had come by itself.
    alone = table()
    for each in tickets(3):
        alone.admit(0, replace(TERMS, part=each), shared)
    assert each_of(submit) == said(alone)


def test_without_places_parts_are_told_by_their_ids() -> None:
    found = table()
    found.tells_places = False
    found.admit_together(0, TERMS, [4, 4], tickets(2), places)
    (submit,) = said(found)
    assert (submit.payload, submit.beside) == (None, (1,))
    assert [each.readers for each in found.entries.values()] == [0, 0]


def test_a_part_that_comes_again_comes_alone() -> None:
    found = table()
    found.admit_together(0, TERMS, [4, 4], tickets(2), places)
    found.take_effects()
    found.on_router_up(ms(1), 2)
    again = said(found)
    assert [each.rid for each in again] == [0, 1]
    assert [(each.part, each.payload, each.beside) for each in again] == [(None, None, ())] * 2


def test_parts_of_which_not_all_fit_are_admitted_one_by_one() -> None:
    for found in (table(payload_bytes_max=15), table(requests_max=3)):
        assert found.admit_together(0, TERMS, [4] * 4, tickets(4), places) is None
        assert not found.entries
        assert found.payload_bytes == 0
        assert said(found) == []
        assert found.admit_together(0, TERMS, [4] * 3, tickets(3), places) == [0, 1, 2]


def test_parts_that_no_router_knows_are_admitted_one_by_one() -> None:
    found = table()
    unknown = QueryBond("objects", is_known=False)
    assert found.admit_together(0, TERMS, [4] * 2, tickets(2, unknown), places) is None
    found.on_router_down(0)
    assert found.admit_together(0, TERMS, [4] * 2, tickets(2), places) is None
    several = RequestTable(0, TableLimits(reply_ns=ms(1)), sub_clusters=2)
    several.on_router_up(0, 1)
    assert several.admit_together(0, TERMS, [4] * 2, tickets(2), places) is None


# Memory


def test_a_slot_that_several_have_is_free_with_the_last() -> None:
    arena = Arena(4 * ALIGN)
    try:
        first = arena.place(1, "BYTES", (1,), b"abc")
        arena.share(first, 3)
        for number in (2, 1):
            arena.free(msgspec.structs.replace(first, rid=number))
            assert arena.extents.used == ALIGN
        arena.free(msgspec.structs.replace(first, rid=3))
        assert arena.extents.used == 0
        assert not arena.shared
        alone = arena.place(4, "BYTES", (1,), b"abc")
        arena.free(alone)
        assert arena.extents.used == 0
    finally:
        arena.close()


# Queries of a frontend


def test_parts_of_a_stage_are_submitted_together() -> None:
    world = World(pipelines_of_three())
    world.open("chain")
    world.found(1, 3.0, 4.0, 5.0)
    assert world.together == [[2, 3, 4]]
    assert world.take()[-1] == HandedOn(1)
    for each in (2, 3, 4):
        world.found(each, 0.5)
    assert [part["of"] for part in world.answer()["stages"]["each"]] == [["first", 0]] * 3


def test_a_part_alone_is_submitted_as_any_request() -> None:
    world = World(pipelines_of_three())
    world.open("chain")
    world.found(1, 3.0)
    assert (world.together, list(world.parts)) == ([], [2])


class HastyWorld(World):
    """Parts that were submitted before end while others are being submitted."""

    def begin_together(self, *given: Any) -> list[int] | None:
        before = [rid for rid in self.parts if rid != 1]
        found = super().begin_together(*given)
        for each in before:
            self.end(each, result_of(each, 0.5))
        return found


def test_parts_that_end_while_others_are_submitted_do_not_end_their_query() -> None:
    after = {"application": "each", "after": "first", "transform": "query_requests_world:split"}
    stages = [{"application": "first"}, {**after, "name": "a"}, {**after, "name": "b"}]
    applications = [application("first", 2), application("each", 1)]
    pipelines = [{"name": "fork", "slo_ms": 100, "stages": stages}]
    known = registry(read_config({"applications": applications, "pipelines": pipelines}))
    world = HastyWorld(known)
    world.open("fork")
    world.found(1, 3.0, 4.0)
    assert world.together == [[2, 3], [4, 5]]
    assert not world.answers
    for each in (4, 5):
        world.found(each, 0.5)
    found = world.answer()["stages"]
    assert [len(found[each]) for each in ("first", "a", "b")] == [1, 2, 2]
    assert not world.answer()["partial"]


class Said:
    """Messages of a driver to its router."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def to_router(self, message: Any, home: int | None = None) -> None:
        self.messages.append(message)

    def to_backend(self, backend: int, payload: Payload) -> None:
        raise AssertionError("nobody has asked for it")


@pytest.mark.parametrize("capacity", [1 << 20, 0], ids=["shared memory", "none"])
def test_crops_of_a_frame_have_its_picture_in_one_place(capacity: int) -> None:
    known, data, out = models(), jpeg(), Said()
    answers: list[object] = []

    async def play() -> None:
        with ThreadPoolExecutor(1) as pool:
            driver = RequestDriver(table(), arena, pool, out)
            driver.on_router_up(1)
            parsed = parse_request(request(data), known, CallContext(stream=1))
            terms = replace(parsed.terms, slo_ns=ms(5000), hard_limit_ns=ms(5000))
            driver.open(replace(parsed, terms=terms), lambda _, outcome: answers.append(outcome))
            (first,) = out.messages
            assert isinstance(first, Submit)
            driver.on_result(1, found_boxes(first.rid, *BOXES))
            driver.pump()
            while len(out.messages) < 3:
                await asyncio.sleep(0.001)
            _, submit, _ = out.messages
            assert isinstance(submit, Submit)
            one, other = each_of(submit)
            boxes = [driver.table.entries[each.rid].payload for each in (one, other)]
            assert [each and each.cut for each in boxes] == [(10, 10, 40, 30), (2, 4, 60, 40)]
            assert [each and each.frame for each in boxes] == [first.rid, first.rid]
            assert {each and (each.segment, each.offset) for each in boxes} == {(arena.name, 0)}
            assert [one.payload, other.payload] == (boxes if capacity else [None, None])
            driver.on_result(1, found_boxes(one.rid))
            driver.pump()
            assert (arena.extents.used > 0) == (capacity > 0)
            driver.on_result(1, found_boxes(other.rid))
            driver.pump()
            assert arena.extents.used == 0
            while not answers:
                await asyncio.sleep(0.001)
            driver.close()

    arena = Arena(capacity)
    try:
        asyncio.run(play())
    finally:
        arena.close()


# The router


def together(world: PipelineWorld, parent: int, *counters: int) -> Submit:
    """Parts as their frontend submits them."""
    first, *others = [world.part(each, 1, parent) for each in counters]
    beside = tuple(each.payload for each in others if each.payload is not None)
    return msgspec.structs.replace(first, beside=beside)


def test_a_router_takes_parts_of_one_message_as_requests() -> None:
    world = PipelineWorld()
    world.query(0)
    world.run()
    world.hear(world.frontend, together(world, 0, 1, 2, 3), HandedOn(rid(0)))
    ((link, order),) = world.runs()
    assert order.rids == (rid(1), rid(2), rid(3))
    assert [each.rid for each in order.inputs] == list(order.rids)
    received = [each.received for each in world.router.meters.applications]
    assert received == [1, 3]
    world.hear(link, Done(order.batch, ms(5), 0))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_parts_that_are_here_already_are_not_taken_twice() -> None:
    world = PipelineWorld()
    world.query(0)
    world.run()
    parts = together(world, 0, 1, 2)
    twice = msgspec.structs.replace(parts, beside=(*parts.beside, *parts.beside))
    world.hear(world.frontend, twice, world.part(2, 1, 0), parts, HandedOn(rid(0)))
    assert world.run() == [1, 2]
    assert world.ended() == {"good": 1}
    assert world.router.strays == 0


def test_a_part_of_one_message_is_given_up_alone_where_answers_may_have_gaps() -> None:
    world = PipelineWorld(GAPS)
    world.query(0)
    world.run()
    world.hear(world.frontend, together(world, 0, 1, 2), Cancel(rid(2)), HandedOn(rid(0)))
    assert world.run() == [1]
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_parts_of_a_pipeline_that_is_not_known_stand_alone() -> None:
    world = PipelineWorld()
    unknown = QueryPart("others", 1, rid(0))
    parts = msgspec.structs.replace(together(world, 0, 1, 2), part=unknown)
    world.hear(world.frontend, parts)
    assert world.run() + world.run() == [1, 2]
    assert world.ended() == {}
    world.nothing_is_left()


def test_parts_of_an_application_that_lives_nowhere_are_all_refused() -> None:
    world = PipelineWorld()
    parts = msgspec.structs.replace(together(world, 0, 1, 2), application="gone")
    world.hear(world.frontend, parts)
    assert world.dropped() == {1: "unknown-application", 2: "unknown-application"}
