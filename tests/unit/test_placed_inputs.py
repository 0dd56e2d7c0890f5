"""Inputs whose place is known at submission: who reads them, and when their memory is free."""

import msgspec
from router_world import FakeLink, World, rid

from fermata.deployments.backend.batch_pipeline import (
    BatchPipeline,
    FetchInputs,
    StartBatch,
)
from fermata.deployments.frontend.requests.pending_request import (
    Release,
    RequestTerms,
    ToRouter,
)
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import ms
from fermata.router.links.messages import (
    PLACES_FROM,
    RID_BITS,
    Cancel,
    Dropped,
    Fetch,
    Payload,
    Ready,
    Result,
    Returned,
    Run,
    Submit,
    Unread,
)

TERMS = RequestTerms("resnet", ms(50), ms(50), 4)
FAR = 1 << RID_BITS


def shared(one: int) -> Payload:
    return Payload(one, "UINT8", (4,), b"", "segment", 64, 4)


def table() -> RequestTable:
    made = RequestTable(0, TableLimits(reply_ns=ms(1)))
    made.on_router_up(0, 1)
    return made


def submitted(found: RequestTable) -> list[Payload | None]:
    said = [each.message for each in found.take_effects() if isinstance(each, ToRouter)]
    return [each.payload for each in said if isinstance(each, Submit)]


def released(found: RequestTable) -> list[int]:
    return [each.payload.rid for each in found.take_effects() if isinstance(each, Release)]


def placed(found: RequestTable) -> int:
    one = found.admit(0, TERMS, shared)
    assert isinstance(one, int)
    assert submitted(found) == [shared(one)]
    return one


def answer(one: int) -> Result:
    return Result(one, "r50", 8, 0, ms(5))


def test_an_input_is_free_once_the_backend_that_was_given_it_has_answered() -> None:
    found = table()
    one = placed(found)
    found.on_result(ms(5), 1, answer(one))
    assert released(found) == [one]


def test_an_input_stays_while_a_backend_may_read_it_though_its_client_has_left() -> None:
    found = table()
    one, other = placed(found), placed(found)
    found.on_cancel(ms(1), one)
    found.on_cancel(ms(1), other)
    said = [each.message for each in found.take_effects() if isinstance(each, ToRouter)]
    assert said == [Cancel(one), Cancel(other)]
    assert released(found) == []
    # The router has given one to nobody; a backend has the other.
    found.on_dropped(ms(2), Dropped(one, "cancelled", unread=True))
    assert released(found) == [one]
    found.on_returned(ms(3), 1, Returned((other,)))
    assert released(found) == [other]


def test_a_drop_frees_an_input_only_where_no_backend_was_given_it() -> None:
    found = table()
    queued, lost = placed(found), placed(found)
    found.on_dropped(ms(2), Dropped(queued, "late", unread=True))
    assert released(found) == [queued]
    found.on_dropped(ms(2), Dropped(lost, "lost"))
    assert released(found) == []
    found.on_time(ms(2) + TableLimits().lent_ns)
    assert released(found) == [lost]


def test_an_input_that_is_fetched_elsewhere_is_free_with_its_answer() -> None:
    found = table()
    one, other = placed(found), placed(found)
    found.on_unread(Unread((one,)))
    found.on_fetch(ms(1), 1, Fetch(1, (one, other)))
    found.on_result(ms(5), 1, answer(one))
    found.on_result(ms(5), 1, answer(other))
    assert released(found) == [one]
    # The word may come last, and counts once.
    found.on_unread(Unread((one, other)))
    found.on_unread(Unread((other,)))
    assert released(found) == [other]


def test_a_place_is_not_told_again_though_nobody_has_read_it() -> None:
    found = table()
    one = placed(found)
    found.on_unread(Unread((one,)))
    found.on_fetch(ms(1), 1, Fetch(1, (one,)))
    found.on_backend_down(ms(2), 1)
    assert submitted(found) == [None]


def test_a_router_of_the_version_before_is_told_no_place() -> None:
    found = table()
    found.tells_places = False
    found.admit(0, TERMS, shared)
    assert submitted(found) == [None]
    # Its successor speaks this version.
    found.tells_places = True
    found.on_router_up(ms(1), 2)
    (told,) = submitted(found)
    assert told is not None


def test_a_second_router_is_not_told_the_place_and_both_readers_are_waited_for() -> None:
    found = table()
    one = placed(found)
    found.on_router_down(ms(1))
    found.on_router_up(ms(2), 2)
    assert submitted(found) == [None]
    found.on_fetch(ms(3), 2, Fetch(1, (one,)))
    found.on_result(ms(4), 2, answer(one))
    assert released(found) == []
    found.on_result(ms(5), 1, answer(one))
    assert released(found) == [one]


def test_a_request_is_submitted_again_where_its_backend_may_be_the_one_that_was_lost() -> None:
    found = table()
    placed(found)
    found.on_backend_down(ms(1), 1)
    assert submitted(found) == [None]


def test_inputs_in_no_shared_memory_are_fetched() -> None:
    found = table()
    found.admit(0, TERMS, lambda one: Payload(one, "UINT8", (4,), b"abcd"))
    assert submitted(found) == [None]


def test_a_batch_whose_inputs_are_known_starts_without_a_fetch() -> None:
    pipeline = BatchPipeline()
    pipeline.on_router_up(1)
    pipeline.take_effects()
    assert pipeline.on_run(0, 1, Run(1, "v", (1, 2), 0, ms(5), (shared(1), shared(2)))) is None
    (begun,) = pipeline.take_effects()
    assert isinstance(begun, StartBatch)
    assert begun.job.payloads() == [shared(1), shared(2)]


def test_what_is_not_known_is_fetched_beside_it() -> None:
    pipeline = BatchPipeline()
    pipeline.on_router_up(1)
    pipeline.take_effects()
    pipeline.unreachable = frozenset((2,))
    cut_off = 2 * FAR + 1
    run = Run(1, "v", (1, FAR, cut_off), 0, ms(5), (shared(1), shared(cut_off), shared(99)))
    assert pipeline.on_run(0, 1, run) is None
    assert pipeline.take_effects() == [FetchInputs(1, Fetch(1, (FAR,)))]
    pipeline.on_payload(0, shared(FAR))
    (begun,) = pipeline.take_effects()
    assert isinstance(begun, StartBatch)
    assert begun.job.payloads() == [shared(1), shared(FAR)]
    assert begun.job.left_out == (cut_off,)


def submit(world: World, link: FakeLink, one: int) -> None:
    world.hear(link, Submit(one, "cats", ms(20), ms(20), payload=shared(one)))


def test_a_router_hands_the_place_to_one_backend_of_that_node() -> None:
    world = World()
    far = FakeLink("frontend", 3, "elsewhere")
    world.router.on_up(far)
    submit(world, world.frontend, rid(1))
    submit(world, far, rid(1, 3))
    world.advance(ms(20))
    orders = world.backend.take(Run)
    assert sorted(one for order in orders for one in order.rids) == [rid(1), rid(1, 3)]
    assert [given for order in orders for given in order.inputs] == [shared(rid(1))]
    assert far.take(Unread) == [Unread((rid(1, 3),))]
    assert world.frontend.take(Unread) == []


def test_a_backend_of_the_version_before_is_given_no_place() -> None:
    world = World()
    older = msgspec.structs.replace(world.backend.peer, protocol=PLACES_FROM - 1)
    world.backend.peer = older
    submit(world, world.frontend, rid(1))
    world.advance(ms(20))
    (order,) = world.backend.take(Run)
    assert (order.rids, order.inputs) == ((rid(1),), ())
    assert world.frontend.take(Unread) == [Unread((rid(1),))]


def test_a_backend_of_the_version_before_takes_one_batch_ahead_until_it_is_renewed() -> None:
    world = World()
    assert world.router.fleet.state_of(world.backend.peer.number).queued_max == 2
    for protocol, ahead in ((PLACES_FROM - 1, 1), (PLACES_FROM, 2)):
        link = FakeLink("backend", world.backend.peer.number)
        link.peer = msgspec.structs.replace(link.peer, protocol=protocol)
        world.router.on_up(link)
        world.hear(link, Ready("emulated", ("v",)))
        assert world.router.fleet.state_of(link.peer.number).queued_max == ahead


def test_a_router_tells_that_nobody_was_given_the_place_of_a_cancelled_request() -> None:
    world = World()
    submit(world, world.frontend, rid(1))
    world.hear(world.frontend, Cancel(rid(1)))
    (dropped,) = world.frontend.take(Dropped)
    assert (dropped.rid, dropped.unread) == (rid(1), True)
