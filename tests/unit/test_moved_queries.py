"""Queries whose pipeline has moved: one router knows each, and none is lost on the way."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from pipeline_world import CHAIN, PipelineWorld
from router_world import rid
from test_router_homes import HOMES, admit, make, terms

from fermata.deployments.frontend.requests.pending_request import (
    CallTicket,
    PartTicket,
    QueryBond,
    RequestTerms,
    ToRouter,
)
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.foundation.units import ms
from fermata.partitioner.plan import Plan
from fermata.router.core.events import DropReason, is_bad
from fermata.router.links.directory import Directory
from fermata.router.links.messages import (
    Done,
    Dropped,
    HandedOn,
    Payload,
    QueryPart,
    Submit,
)

ROW = ((0, 0.5), (1, 0.5))
SPREAD = Directory(1, HOMES, dict.fromkeys(("detect", "classify", "objects"), ROW))
HERE = Directory(1, HOMES, dict.fromkeys(("detect", "classify", "objects"), ((0, 1.0),)))
THERE = Directory(2, HOMES, dict.fromkeys(("detect", "classify", "objects"), ((1, 1.0),)))


def part(application: str, ticket: PartTicket) -> RequestTerms:
    return replace(terms(application), part=ticket)


def placed(rids: Sequence[int]) -> list[Payload]:
    return [Payload(each, "UINT8", (1,), b"a") for each in rids]


def told(table: RequestTable) -> list[tuple[int, int, QueryPart | None]]:
    """(rid, sub-cluster, part) of what was submitted since the last look."""
    return [
        (each.message.rid, each.home, each.message.part)
        for each in table.take_effects()
        if isinstance(each, ToRouter) and isinstance(each.message, Submit)
    ]


def test_all_parts_of_a_query_go_to_the_router_that_knows_it() -> None:
    table = make(SPREAD)
    for _ in range(4):
        bond = QueryBond("objects")
        root = admit(table, 0, part("detect", PartTicket(bond)))
        ((_, home, said),) = told(table)
        assert said == QueryPart("objects", 0, -1)
        assert bond.home == home
        child = admit(table, 1, part("classify", PartTicket(bond, 1, root)))
        assert told(table) == [(child, home, QueryPart("objects", 1, root))]
        tickets = [PartTicket(bond, 1, root) for _ in range(2)]
        assert table.admit_together(2, terms("classify"), [10, 10], tickets, placed) is not None
        ((_, beside, said),) = told(table)
        assert (beside, said) == (home, QueryPart("objects", 1, root))


def test_a_query_that_nothing_has_run_of_begins_anew_at_its_new_home() -> None:
    table = make(HERE)
    bond = QueryBond("objects")
    root = admit(table, 0, part("detect", PartTicket(bond)))
    told(table)
    table.on_directory(1, THERE)
    assert told(table) == []
    table.on_dropped(2, Dropped(root, DropReason.MOVED))
    assert told(table) == [(root, 1, QueryPart("objects", 0, -1))]
    assert bond.home == 1
    child = admit(table, 3, part("classify", PartTicket(bond, 1, root)))
    assert told(table) == [(child, 1, QueryPart("objects", 1, root))]


def test_later_parts_that_are_handed_back_stand_alone_at_the_new_home() -> None:
    table = make(HERE)
    bond = QueryBond("objects")
    tickets = [PartTicket(bond, 1, 77) for _ in range(2)]
    bond.told, bond.home = True, 0
    first, second = (admit(table, 0, part("classify", each)) for each in tickets)
    told(table)
    table.on_directory(1, THERE)
    table.on_dropped(2, Dropped(first, DropReason.MOVED))
    table.on_dropped(2, Dropped(second, DropReason.MOVED))
    assert told(table) == [(first, 1, None), (second, 1, None)]
    assert not bond.is_known
    third = admit(table, 3, part("classify", PartTicket(bond, 1, 77)))
    assert told(table) == [(third, 1, None)]


def test_a_part_that_has_cost_a_backend_stands_alone_wherever_it_goes() -> None:
    table = make(HERE)
    bond = QueryBond("objects")
    root = admit(table, 0, part("detect", PartTicket(bond)))
    table.on_directory(1, THERE)
    told(table)
    table.on_dropped(2, Dropped(root, DropReason.MOVED, retried=True))
    assert told(table) == [(root, 1, None)]


def test_calls_of_a_function_stand_alone_once_one_is_handed_back() -> None:
    table = make(HERE)
    bond = QueryBond("objects")
    call = admit(table, 0, part("detect", CallTicket(bond, 0, 99)))
    assert told(table) == [(call, 0, QueryPart("objects", 0, -1, 99))]
    table.on_directory(1, THERE)
    table.on_dropped(2, Dropped(call, DropReason.MOVED))
    assert told(table) == [(call, 1, None)]


def away(world: PipelineWorld) -> None:
    world.router.set_directory(THERE)
    world.router.place(Plan({}))
    world.settle()


def moving() -> PipelineWorld:
    world = PipelineWorld(CHAIN, moves=True)
    world.router.place(Plan({"detect": 0, "classify": 0}))
    return world


def test_a_router_hands_queries_back_that_wait_when_they_leave() -> None:
    world = moving()
    for each in range(3):
        world.query(each)
    ((_, order),) = world.runs()
    running = {each.rid for each in order.inputs}
    waiting = {rid(each) for each in range(3)} - running
    away(world)
    found = {each.rid: each for each in world.frontend.take(Dropped)}
    assert found.keys() == waiting
    assert all(each.reason == DropReason.MOVED and each.unread for each in found.values())
    assert world.ended() == {DropReason.MOVED: 3}
    assert not is_bad(DropReason.MOVED)
    world.nothing_is_left()


def test_a_query_that_runs_as_it_leaves_goes_on_elsewhere() -> None:
    world = moving()
    world.query(0)
    ((link, order),) = world.runs()
    away(world)
    assert world.frontend.take(Dropped) == []
    world.hear(link, Done(order.batch, ms(5), 0))
    # Its frontend hears of the move with the parts that it submits.
    world.hand_on(0, 1, 2)
    assert world.dropped() == {1: DropReason.MOVED, 2: DropReason.MOVED}
    assert world.run() == []
    world.nothing_is_left()


def test_parts_whose_result_was_not_handed_on_are_handed_back() -> None:
    world = moving()
    world.query(0)
    world.run()
    world.hear(world.frontend, world.part(1, 1, 0))
    away(world)
    assert world.dropped() == {1: DropReason.MOVED}
    world.hear(world.frontend, HandedOn(rid(0)))
    assert world.run() == []
    world.nothing_is_left()


def test_a_query_of_a_pipeline_that_has_left_is_handed_back() -> None:
    world = moving()
    away(world)
    world.query(0)
    assert world.dropped() == {0: DropReason.MOVED}
    world.router.place(Plan({"detect": 0, "classify": 0}))
    world.router.set_directory(msgspec.structs.replace(HERE, version=9))
    world.query(1, slo_ns=ms(200))
    assert world.run() == [1]
