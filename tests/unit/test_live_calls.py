"""Calls of functions at a live router: each query is let in once, and ends once."""

from pipeline_world import CALLED, QID, PipelineWorld
from router_world import LOST, rid

from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Cancel, Done, Dropped, HandedOn, QueryPart, Submit


def begun() -> PipelineWorld:
    """A query whose function has called the first stage."""
    world = PipelineWorld(CALLED)
    world.call((1, 0), begins=True)
    return world


def test_calls_run_as_they_come_and_the_function_says_when_all_has_ended() -> None:
    world = begun()
    assert world.run() == [1]
    assert world.ended() == {}
    world.call((2, 1), (3, 1))
    assert world.run() == [2, 3]
    # The same stage again, which no graph could have.
    world.call((4, 0))
    assert world.run() == [4]
    assert world.ended() == {}
    world.hear(world.frontend, HandedOn(rid(QID)))
    assert world.ended() == {"good": 1}
    assert world.dropped() == {}
    assert [each.results for each in world.queries.ran[0]] == [2, 2]
    world.nothing_is_left()


def test_a_query_without_time_is_refused_at_the_door_with_all_of_its_calls() -> None:
    world = PipelineWorld(CALLED)
    world.call((1, 1), slo_ns=ms(4), begins=True)
    # Its function did not wait for the first one.
    world.call((2, 1), slo_ns=ms(4))
    assert {each.rid: (each.reason, each.unread) for each in world.frontend.take(Dropped)} == {
        rid(1): (DropReason.SHED, True),
        rid(2): (DropReason.CANCELLED, True),
    }
    assert world.ended() == {"shed": 1}
    world.hear(world.frontend, HandedOn(rid(QID), DropReason.SHED))
    assert world.ended() == {"shed": 1}
    world.nothing_is_left()


def test_a_lost_call_does_not_end_its_query() -> None:
    world = begun()
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0, failed="it broke"))
    assert world.dropped() == {1: "failed"}
    assert world.ended() == {}
    world.call((2, 1))
    assert world.run() == [2]
    world.hear(world.frontend, HandedOn(rid(QID)))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_the_reason_of_a_query_is_the_one_that_its_frontend_tells() -> None:
    world = begun()
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0, failed="it broke"))
    world.hear(world.frontend, HandedOn(rid(QID), "failed"))
    assert world.ended() == {"failed": 1}
    world.nothing_is_left()


def test_one_call_is_given_up_alone_be_it_the_first() -> None:
    world = begun()
    world.call((2, 1), (3, 1))
    # The first one runs already.
    world.hear(world.frontend, Cancel(rid(1)), Cancel(rid(2)))
    assert world.dropped() == {2: DropReason.CANCELLED}
    assert world.run() == [1]
    assert world.run() == [3]
    assert world.ended() == {}
    world.hear(world.frontend, HandedOn(rid(QID)))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_client_that_leaves_frees_all_calls() -> None:
    world = begun()
    # All in one message: the calls come first.
    late = [world.a_call(each, 1, ms(200)) for each in (2, 3)]
    world.hear(world.frontend, *late, Cancel(rid(QID)), world.a_call(4, 0, ms(200)))
    assert world.ended() == {"cancelled": 1}
    assert world.dropped() == {2: "cancelled", 3: "cancelled", 4: "cancelled"}
    world.call((5, 0))
    assert world.dropped() == {5: "cancelled"}
    assert world.run() == [1]
    world.nothing_is_left()


def test_a_frontend_takes_its_functions_with_it() -> None:
    world = begun()
    world.run()
    world.router.on_down(world.frontend, LOST)
    world.settle()
    assert world.ended() == {"cancelled": 1}
    world.nothing_is_left()


def test_calls_of_a_dead_backend_run_again() -> None:
    world = PipelineWorld(CALLED, backends=2)
    world.call((1, 0), begins=True)
    ((link, _),) = world.runs()
    world.router.on_down(link, LOST)
    world.backends.remove(link)
    world.settle()
    ran: list[int] = []
    while not ran:
        ran = world.run()
    assert ran == [1]
    world.hear(world.frontend, HandedOn(rid(QID)))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_time_between_calls_is_learnt() -> None:
    world = begun()
    world.run()
    world.advance(ms(30))
    world.call((2, 1))
    assert world.queries.hand_on[0].mean_ns >= ms(30)
    assert world.queries.table.budgets[0].lead_ns >= ms(30)


def test_parts_that_no_function_could_have_made_stand_alone() -> None:
    world = begun()
    for counter, part in (
        (5, QueryPart("objects", 7, rid(QID), rid(QID))),
        (6, QueryPart("objects", 0)),
        (7, QueryPart("objects", 1, 3)),
    ):
        world.hear(world.frontend, Submit(rid(counter), "detect", ms(200), ms(200), part=part))
    assert world.run() == [1]
    assert sorted(world.run()) == [5, 6, 7]
    world.hear(world.frontend, HandedOn(rid(QID)))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()
