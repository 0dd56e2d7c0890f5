"""Seeded bugs of queries and of requests that come together, beside those of `core_bugs`."""

from core_bugs import breaks
from query_world import QueryWorld
from told import Told, make

from fermata.foundation.units import ms
from fermata.router.core.events import Request
from fermata.router.core.queries.pipeline import Pipeline, Stage

LINE = Pipeline((Stage(0, (1,)), Stage(1)), ms(100))


def request(rid: int, application: int = 0) -> Request:
    return Request(rid, application, 0, ms(50))


@breaks("Intake.on_requests", "request.application == application")
def requests_of_two_applications_come_together() -> None:
    make(Told()).on_requests(0, [request(0), request(1, application=1)])


@breaks("Intake.on_requests", "request.rid not in self.outbox.queued")
def one_request_comes_twice_at_once() -> None:
    again = request(0)
    engine = make(Told())
    engine.outbox.queued[0] = again
    engine.on_requests(0, [again])


@breaks("Intake.on_requests", "request.allowed is None")
def one_that_asks_for_variants_comes_with_others() -> None:
    choosy = request(0)
    choosy.allowed = frozenset({0})
    make(Told()).on_requests(0, [choosy])


@breaks("Pipeline.__post_init__", "all((place < child")
def a_stage_leads_back() -> None:
    Pipeline((Stage(0, (1,)), Stage(1, (0,))), ms(100))


@breaks("Pipeline.__post_init__", "all(found[1:])")
def no_stage_leads_to_the_last() -> None:
    Pipeline((Stage(0), Stage(1)), ms(100))


@breaks("Pipeline.__post_init__", "0 not in joins")
def the_first_stage_joins() -> None:
    Pipeline((Stage(0, (1,), join=True), Stage(1)), ms(100))


@breaks("Pipeline.__post_init__", "not (self.called and joins)")
def a_function_has_a_join() -> None:
    Pipeline((Stage(0, (1,)), Stage(1, join=True)), ms(100), called=True)


@breaks("QueryTable.on_calls", "query.called")
def a_function_calls_a_stage_of_a_graph() -> None:
    world = QueryWorld([LINE])
    world.send(0, ms(100))
    world.table.on_calls(world.now_ns, [(0, 1)])


@breaks("QueryTable.on_return", "query.called")
def a_function_ends_a_graph() -> None:
    world = QueryWorld([LINE])
    world.send(0, ms(100))
    world.table.on_return(world.now_ns, 0, "good")


@breaks("QueryTable.on_query", "query.qid not in self.queries")
def a_query_comes_twice() -> None:
    world = QueryWorld([LINE])
    world.send(0, ms(100))
    world.send(0, ms(100))


@breaks("QueryTable.on_query", "not query.outcome")
def a_query_that_has_ended_comes_again() -> None:
    world = QueryWorld([LINE])
    query = world.send(0, ms(100))
    world.cancel(0)
    world.table.on_query(world.now_ns, query)


@breaks("QueryTable._end", "not query.outcome")
def a_query_ends_twice() -> None:
    world = QueryWorld([LINE])
    query = world.send(0, ms(100))
    world.cancel(0)
    world.table._end(world.now_ns, query, "good")
