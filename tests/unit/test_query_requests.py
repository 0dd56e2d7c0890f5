"""Queries at a frontend: parts that are begun, handed on and ended; one answer each."""

import random

import numpy as np
import pytest
from query_requests_world import World, pipelines_of_three, result_of

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import RawTensor, add_input, from_array, to_array
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.outcomes import Outcome, Refusal, drop_refusal
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.requests.queries.parts import Origin
from fermata.deployments.frontend.requests.tracing.traces import Tracer
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Cancel, HandedOn, QueryPart, Result


@pytest.fixture(scope="module")
def models() -> Registry:
    return pipelines_of_three()


def test_parts_are_submitted_before_their_result_is_handed_on(models: Registry) -> None:
    world = World(models)
    assert world.open("chain") == 1
    assert world.take() == [QueryPart("chain")]
    world.found(1, 5.0, 7.0)
    assert world.take() == [QueryPart("chain", 1, 1), QueryPart("chain", 1, 1), HandedOn(1)]
    given = [to_array(world.parts[rid][0].input.tensor).tolist() for rid in (2, 3)]
    assert given == [[5.0], [7.0]]
    world.found(3, 70.0)
    assert world.answers == {}
    world.found(2, 50.0)
    # Stages that nothing follows have ended for the router already.
    assert world.take() == []
    assert world.answer() == {
        "pipeline": "chain",
        "partial": False,
        "stages": {
            "first": [{"variant": "v", "outputs": {"output": [5.0, 7.0]}}],
            "each": [
                {"of": ["first", 0], "variant": "v", "outputs": {"output": [50.0]}},
                {"of": ["first", 0], "variant": "v", "outputs": {"output": [70.0]}},
            ],
        },
    }
    assert world.counts.of("chain").good == 1
    assert world.queries.queries == {}


def test_a_result_that_makes_nothing_is_the_answer(models: Registry) -> None:
    world = World(models)
    world.open("chain")
    world.found(1)
    assert world.take()[-1] == HandedOn(1)
    assert world.answer()["stages"]["each"] == []


def test_parts_have_what_is_left_of_the_querys_time(models: Registry) -> None:
    world = World(models)
    world.open("chain")
    world.clock_ns += ms(60)
    world.found(1, 1.0)
    assert world.parts[2][0].terms.slo_ns == ms(40)
    assert world.parts[2][0].terms.application == "each"


def test_a_part_that_is_lost_ends_the_query_and_its_siblings(models: Registry) -> None:
    world = World(models)
    world.open("chain")
    world.found(1, 1.0, 2.0, 3.0)
    world.take()
    world.lost(3, DropReason.LOST)
    assert world.refusal().reason == DropReason.LOST
    assert "stage 'each'" in world.refusal().message
    assert world.take() == [Cancel(1)]
    assert world.parts == {}
    assert world.counts.of("chain").refused == {DropReason.LOST: 1}


def test_a_partial_answer_names_what_is_missing(models: Registry) -> None:
    world = World(models)
    world.open("gaps")
    world.found(1, 1.0, 2.0)
    world.lost(2, DropReason.WINDOW)
    world.found(3, 4.0)
    answer = world.answer()
    assert answer["partial"]
    assert answer["stages"]["each"][0] == {"of": ["first", 0], "missing": "window"}


def test_the_first_stage_cannot_be_missing(models: Registry) -> None:
    world = World(models)
    world.open("gaps")
    world.lost(1, DropReason.SHED)
    assert world.refusal().message == "shed: overload: it could not have ended in time"


def test_a_join_gets_everything_and_comes_with_the_last_part(models: Registry) -> None:
    world = World(models)
    world.open("joined")
    world.found(1, 1.0, 2.0)
    world.take()
    world.found(3, 20.0)
    assert world.take() == [HandedOn(3)]
    world.found(2, 10.0)
    assert world.take() == [QueryPart("joined", 2, 2), HandedOn(2)]
    assert to_array(world.parts[4][0].input.tensor).tolist() == [30.0]
    world.found(4, 60.0)
    assert world.answer()["stages"]["all"] == [{"variant": "v", "outputs": {"output": [60.0]}}]


def test_a_join_runs_without_what_was_lost(models: Registry) -> None:
    world = World(models)
    world.open("joined-gaps")
    world.found(1, 1.0, 2.0)
    world.found(2, 10.0)
    world.take()
    world.lost(3, DropReason.FAILED)
    assert world.take() == [QueryPart("joined-gaps", 2, 3), HandedOn(3, "failed")]
    assert to_array(world.parts[4][0].input.tensor).tolist() == [10.0]


def test_a_join_that_is_lost_is_a_gap_of_the_answer(models: Registry) -> None:
    world = World(models)
    world.open("joined-gaps")
    world.found(1, 1.0)
    world.found(2, 10.0)
    world.take()
    world.lost(3, DropReason.LATE)
    assert world.take() == []
    answer = world.answer()
    assert answer["partial"]
    assert answer["stages"]["all"] == [{"missing": "late"}]


def test_an_answer_that_cannot_be_encoded_is_refused(models: Registry) -> None:
    world = World(models)
    outcomes: list[Outcome] = []

    def encode(_: int, outcome: Outcome) -> None:
        if isinstance(outcome, Result):
            raise ValueError("no classes in it")
        outcomes.append(outcome)

    request = pb.ModelInferRequest(model_name="chain")
    add_input(request, from_array("input", np.zeros(2, np.float32)))
    world.queries.open(world.clock_ns, parse_request(request, models), encode)
    world.found(1)
    (outcome,) = outcomes
    assert isinstance(outcome, Refusal)
    assert outcome.status == "INTERNAL"


def test_a_join_runs_where_nothing_was_found(models: Registry) -> None:
    world = World(models)
    world.open("joined")
    world.found(1)
    assert world.take()[-2:] == [QueryPart("joined", 2, 1), HandedOn(1)]
    world.found(2, 0.0)
    assert len(world.answers[1]) == 1


@pytest.mark.parametrize(("model", "message"), [("failing", "spilt milk"), ("misfit", "shape [7]")])
def test_a_transform_that_fails_is_the_servers_fault(
    models: Registry, model: str, message: str
) -> None:
    world = World(models)
    world.open(model)
    world.found(1, 1.0)
    assert world.refusal().status == "INTERNAL"
    assert message in world.refusal().message
    assert world.take()[-1] == Cancel(1)


def test_a_part_without_room_ends_the_query_and_the_router_hears_of_the_result(
    models: Registry,
) -> None:
    world = World(models, refuses="each")
    world.open("chain")
    world.found(1, 1.0, 2.0)
    assert world.refusal().reason == "memory"
    assert world.take() == [QueryPart("chain"), Cancel(1), HandedOn(1)]


@pytest.mark.parametrize("model", ["joined", "joined-gaps"])
def test_a_join_without_room_is_refused_for_that_reason(models: Registry, model: str) -> None:
    world = World(models, refuses="all")
    world.open(model)
    world.found(1, 1.0)
    world.found(2, 10.0)
    refusal = world.refusal()
    assert (refusal.status, refusal.reason) == ("RESOURCE_EXHAUSTED", "memory")
    assert refusal.message == "stage 'all': memory: 9 of 8 bytes are held"
    assert refusal.retry_after_ns == ms(7)
    assert world.take()[-2:] == [Cancel(1), HandedOn(2)]
    assert world.counts.of(model).refused == {"memory": 1}


def test_a_part_that_ends_while_a_join_is_made_is_told_after_it(models: Registry) -> None:
    world = World(models)
    world.open("side-join")
    tensor = from_array("output", np.array([5.0], np.float32))
    told = tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)
    world.end(1, Result(1, "v", 1, 0, ms(1), (told,)))
    world.work.pop(0)()
    # The part of the next stage has ended, and the join is still being made.
    world.end(2, Result(2, "v", 1, 0, ms(1), (told,)))
    assert world.answers == {}
    world.settle()
    assert world.take()[-2:] == [QueryPart("side-join", 2, 1), HandedOn(1)]
    world.found(3, 1.0)
    assert [len(each) for each in world.answer()["stages"].values()] == [1, 1, 1]


def test_a_join_waits_for_one_that_is_being_made_of_the_same_parts(models: Registry) -> None:
    world = World(models)
    world.open("two-joins")
    world.found(1, 5.0)
    world.take()
    # What follows the second part is being made when the first one makes a join due.
    world.end(3, result_of(3, 7.0))
    world.end(2, result_of(2, 6.0))
    world.work.pop(0)()
    # Whichever thread is faster.
    world.work.reverse()
    world.settle()
    assert world.take() == [
        QueryPart("two-joins", 4, 2),
        HandedOn(2),
        QueryPart("two-joins", 5, 3),
        HandedOn(3),
    ]


def test_a_part_that_nobody_here_cancelled_waits_for_the_reason(models: Registry) -> None:
    world = World(models)
    world.open("chain")
    world.found(1, 1.0, 2.0)
    # The router has ended the query for the sake of the other part.
    world.lost(2, DropReason.CANCELLED)
    assert world.answers == {}
    world.lost(3, DropReason.LATE)
    assert world.refusal().reason == DropReason.LATE


def test_a_client_that_leaves_takes_all_parts_along(models: Registry) -> None:
    world = World(models)
    world.open("chain")
    world.found(1, 1.0, 2.0)
    assert world.queries.cancel(1)
    world.settle()
    assert world.refusal().reason == DropReason.CANCELLED
    assert world.parts == {}
    assert not world.queries.cancel(1)


def test_a_query_expires_though_nothing_runs(models: Registry) -> None:
    world = World(models)
    world.open("chain")
    # Its transform never ends.
    tensor = ("output", "FP32", (0,), b"")
    world.end(1, Result(1, "v", 1, 0, ms(1), (tensor,)))
    (timer,) = world.timers
    assert timer.at_ns == ms(1000 + 100 + 10)
    assert timer.call is not None
    timer.call()
    assert world.refusal().reason == "expired"
    world.settle()
    assert len(world.answers[1]) == 1


def test_parts_stand_alone_once_their_router_is_gone(models: Registry) -> None:
    world = World(models)
    world.open("chain")
    world.queries.loosen(router_takes=True)
    world.take()
    world.found(1, 1.0)
    assert world.take() == [None]
    world.found(2, 1.0)
    assert world.answer()["stages"]["each"][0]["outputs"] == {"output": [1.0]}
    # The next one is the new router's.
    assert world.open("chain") == 3
    assert world.take() == [QueryPart("chain")]


def test_a_router_of_an_earlier_version_hears_of_requests_alone(models: Registry) -> None:
    world = World(models)
    world.queries.loosen(router_takes=False)
    world.open("chain")
    world.found(1, 1.0)
    assert world.take() == [None, None]


def test_what_queries_cannot_have_is_refused(models: Registry) -> None:
    world = World(models)
    request = pb.ModelInferRequest(model_name="chain")
    add_input(request, from_array("input", np.zeros((3, 2), np.float32)))
    found = world.queries.open(0, parse_request(request, models), lambda rid, outcome: None)
    assert isinstance(found, Refusal)
    assert found.status == "INVALID_ARGUMENT"
    assert world.begun == 0


def test_raw_tensors_are_what_the_next_stage_reads(models: Registry) -> None:
    # An output that is one input goes on as it is, under the other's name.
    world = World(models)
    world.open("chain")
    world.found(1, 3.0)
    tensor = world.parts[2][0].input.tensor
    assert tensor == RawTensor("input", "FP32", (1,), np.float32(3.0).tobytes())


def test_parts_end_so_early_that_the_answer_is_made_in_time(models: Registry) -> None:
    world = World(models)
    # The first answer takes 4 ms. It is planned with twice the mean deviation on top: 2 ms, which
    # shrinks as they go on taking as long.
    for first, planned_ns in ((1, 0), (3, 7_800_000), (5, 7_610_000)):
        assert world.open("chain") == first
        assert world.parts[first][0].terms.slo_ns == ms(100) - planned_ns
        world.found(first, 5.0)
        world.clock_ns += ms(30)
        world.end(first + 1, result_of(first + 1, 1.0))
        world.clock_ns += ms(4)
        world.settle()
        assert len(world.answers[first]) == 1


def test_a_slow_answer_is_forgotten_where_it_leaves_no_time_for_any_other(models: Registry) -> None:
    world = World(models)
    world.open("chain")
    world.end(1, result_of(1))
    world.work.pop(0)()
    # The making of the answer was held up.
    world.clock_ns += ms(80)
    world.settle()
    assert isinstance(world.answers[1][0], Result)
    given: list[int] = []
    for rid in range(2, 32):
        world.clock_ns += ms(100)
        world.open("chain")
        given.append(world.parts[rid][0].terms.slo_ns)
        world.lost(rid, DropReason.LATE)
    assert given[0] <= ms(2)
    assert min(given[20:]) > ms(60)


def test_what_is_learnt_of_answers_outlasts_refusals_beside_them(models: Registry) -> None:
    world = World(models)
    for rid in range(1, 64, 2):
        world.open("chain")
        world.end(rid, result_of(rid))
        world.work.pop(0)()
        world.clock_ns += ms(20)
        world.settle()
        world.open("chain")
        world.lost(rid + 1, DropReason.SHED)
        world.clock_ns += ms(400)
    assert ms(20) <= world.queries.answer_time("chain").planned_ns <= ms(40)


def test_work_on_much_data_is_not_taken_for_work_on_little(models: Registry) -> None:
    world = World(models)
    for rid, numbers in ((1, 1), (2, 1), (3, 10_000)):
        world.open("twice")
        world.end(rid, result_of(rid, *[0.0] * numbers))
        world.end(rid, drop_refusal(DropReason.CANCELLED))
    little, again, much = world.costs
    assert little is again
    assert much is not little


def test_a_query_that_is_refused_at_once_leaves_its_span(models: Registry) -> None:
    tracer = Tracer(1.0, random.Random(1))
    world = World(models, observer=tracer, refuses="first")
    assert isinstance(world.open("chain"), Refusal)
    (span,) = tracer.take()
    assert (span.name, span.failed) == ("query", "memory")
    assert span.attributes == {"fermata.application": "chain"}


def test_a_function_of_the_users_never_runs_on_the_loop(models: Registry) -> None:
    # However short it was so far, it may wait for something the next time.
    world = World(models)
    world.open("joined")
    world.found(1, 1.0, 2.0)
    assert world.costs == [None]
    world.found(2, 1.0)
    world.found(3, 1.0)
    assert world.costs == [None, None]


def test_a_picture_that_is_still_to_be_decoded_is_never_decoded_on_the_loop() -> None:
    detector = {"name": "d", "model": "emulated", "latency_ms": [1.0] * 8}
    given = {"shape": [3, 8, 8], "image": True}
    row = {"name": "look", "slo_ms": 100, "input": given, "variants": [detector]}
    second = {**row, "name": "again", "variants": [{**detector, "name": "e"}]}
    first = {**row, "labels": ["0", "180"]}
    stages = [{"application": "look"}, {"application": "again", "transform": {"turn": {}}}]
    pictures = {"name": "pictures", "slo_ms": 100, "stages": stages}
    config = read_config({"applications": [first, second], "pipelines": [pictures]})
    world = World(registry(config))
    request = pb.ModelInferRequest(model_name="pictures")
    add_input(request, from_array("input", np.array([b"a picture"], object)))
    world.queries.open(world.clock_ns, parse_request(request, world.models), world.note)
    world.end(1, result_of(1, 1.0))
    assert world.costs == [None]


def test_what_looks_at_a_crop_again_knows_where_it_lies(models: Registry) -> None:
    world = World(models)
    world.open("twice")
    (query,) = world.queries.queries.values()
    (first,) = query.parts[0]
    # As where the first stage were given a crop.
    first.origin = Origin((10.0, 20.0, 30.0, 40.0), "car")
    world.found(1, 1.0)
    (again,) = query.parts[1]
    assert again.origin == first.origin
    world.found(2, 1.0)
    assert world.answer()["stages"]["again"][0]["box"] == [10.0, 20.0, 30.0, 40.0]
