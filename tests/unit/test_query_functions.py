"""Functions that call stages: their calls are parts of one query, which is answered once."""

import asyncio
import gc
import random
from typing import Any
from weakref import ref

import numpy as np
import pytest
from function_world import NOW, Function, known, opened
from query_requests_world import World

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import add_input, from_array, to_array
from fermata.deployments.frontend.outcomes import Refusal, drop_refusal
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.requests.queries import function_run
from fermata.deployments.frontend.requests.tracing.traces import Tracer
from fermata.deployments.specs.registry import Registry
from fermata.foundation.stage_calls import StageLostError
from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Cancel, HandedOn, QueryPart


@pytest.fixture(scope="module")
def models() -> Registry:
    return known()


async def cascade(inputs: Any, stage: Any) -> Any:
    first = await stage("first", inputs)
    score = first.outputs["output"][0]
    if score > 0.8:
        return {"by": "first", "score": score}
    more = await asyncio.gather(*[stage("each", [each]) for each in first.outputs["output"]])
    return {"by": "each", "scores": [each.outputs["output"] for each in more]}


def test_calls_are_parts_of_one_query(models: Registry) -> None:
    world = opened(models, cascade)
    # The query is 1, and no request.
    assert world.take() == [QueryPart("own", 0, -1, 1)]
    world.found(2, 0.5, 0.7)
    assert world.take() == [QueryPart("own", 1, 1, 1), QueryPart("own", 1, 1, 1)]
    given = [to_array(world.parts[rid][0].input.tensor).tolist() for rid in (3, 4)]
    assert given == [[0.5], pytest.approx([0.7])]
    world.found(4, 4.0)
    assert world.answers == {}
    world.found(3, 3.0)
    assert world.take() == [HandedOn(1)]
    assert world.answer() == {
        "pipeline": "own",
        "partial": False,
        "answer": {"by": "each", "scores": [[3.0], [4.0]]},
        "stages": {"first": [{"variant": "v"}], "each": [{"variant": "v"}, {"variant": "v"}]},
    }
    assert world.counts.of("own").good == 1
    assert world.queries.queries == {}


def test_a_batch_of_one_is_given_without_its_dimension(models: Registry) -> None:
    async def shapes(inputs: Any, stage: Any) -> Any:
        return [inputs["input"].shape, (await stage("first", inputs)).inputs["input"].shape]

    NOW["run"] = shapes
    world = World(models)
    request = pb.ModelInferRequest(model_name="own")
    add_input(request, from_array("input", np.zeros((1, 2), np.float32)))
    world.queries.open(world.clock_ns, parse_request(request, models), world.note)
    world.settle()
    world.found(2, 1.0)
    # A result tells what its stage was given, which is as it came.
    assert world.answer()["answer"] == [[2], [1, 2]]


async def careful(inputs: Any, stage: Any) -> Any:
    inputs["input"].sum()
    try:
        return await asyncio.gather(stage("first"), stage("each", [1.0]))
    except stage.Lost as lost:
        return lost.reason


@pytest.mark.parametrize("function", [cascade, careful])
@pytest.mark.parametrize("end", ["found", "lost", "left"])
def test_nothing_of_a_query_outlives_it(models: Registry, function: Function, end: str) -> None:
    """Not even until cycles are collected, which frontends do rarely: inputs may be large."""
    gc.collect()
    gc.disable()
    try:
        world = opened(models, function)
        query = world.queries.queries[1]
        assert query.function is not None
        assert query.function.run is not None
        kept = [ref(each) for each in (query, query.function.run, query.function.run.inputs)]
        del query
        if end == "left":
            world.queries.cancel(1)
            world.settle()
        elif end == "found":
            for rid in (2, 3):
                world.found(rid, 0.9)
        else:
            world.lost(2, DropReason.FAILED)
        assert len(world.answers) == 1
        world.timers.clear()
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()


def test_a_condition_ends_a_query_early(models: Registry) -> None:
    world = opened(models, cascade)
    world.found(2, 0.875, 0.7)
    assert world.answer()["answer"] == {"by": "first", "score": 0.875}
    assert world.answer()["stages"]["each"] == []


def test_stages_may_be_called_in_any_order_and_again(models: Registry) -> None:
    async def loop(inputs: Any, stage: Any) -> Any:
        value = inputs["input"][:1]
        while value[0] < 3:
            value = (await stage("each", value)).outputs["output"]
        return (await stage("first", np.repeat(value, 2))).outputs

    world = opened(models, loop)
    for rid in (2, 3, 4):
        world.found(rid, rid - 1.0)
    assert to_array(world.parts[5][0].input.tensor).tolist() == [3.0, 3.0]
    world.found(5, 9.0)
    assert world.answer()["answer"] == {"output": [9.0]}
    assert [len(each) for each in world.answer()["stages"].values()] == [1, 3]


def test_a_function_that_calls_nothing_answers(models: Registry) -> None:
    async def alone(inputs: Any, stage: Any) -> Any:
        world.clock_ns += ms(30)
        return {"seen": list(inputs), "sum": float(inputs["input"].sum())}

    NOW["run"] = alone
    world = World(models)
    world.open("own")
    world.settle()
    assert world.answer()["answer"] == {"seen": ["input"], "sum": 0.0}
    # There was no last result, behind which time would have to be left.
    assert world.queries.answer_time("own").planned_ns == 0
    # The router has never heard of it.
    assert world.take() == []


def test_calls_have_what_is_left_of_the_querys_time(models: Registry) -> None:
    world = opened(models, cascade)
    world.clock_ns += ms(60)
    world.found(2, 0.5)
    assert world.parts[3][0].terms.slo_ns == ms(40)
    assert world.parts[3][0].terms.application == "each"


def test_a_result_may_be_given_to_the_next_stage(models: Registry) -> None:
    async def chain(inputs: Any, stage: Any) -> Any:
        return (await stage("each", await stage("first"))).classes(1)

    world = opened(models, chain)
    world.found(2, 7.0)
    assert to_array(world.parts[3][0].input.tensor).tolist() == [7.0]
    world.found(3, 0.25, 0.75)
    assert world.answer()["answer"] == [{"class": "1", "score": 0.75}]


def test_a_lost_part_ends_the_query_with_its_reason(models: Registry) -> None:
    world = opened(models, cascade)
    world.found(2, 0.5, 0.7)
    world.take()
    world.lost(3, DropReason.WINDOW)
    assert world.refusal().reason == DropReason.WINDOW
    assert world.refusal().status == "RESOURCE_EXHAUSTED"
    assert "stage 'each'" in world.refusal().message
    # The router hears why, and its door learns from it.
    assert world.take() == [HandedOn(1, DropReason.WINDOW)]
    assert world.parts == {}
    assert world.counts.of("own").refused == {DropReason.WINDOW: 1}


def test_a_function_may_go_on_without_a_lost_part(models: Registry) -> None:
    async def careful(inputs: Any, stage: Any) -> Any:
        try:
            await stage("first")
        except stage.Lost as lost:
            return {"lost": [lost.stage, lost.reason], "instead": await stage("each", [1.0])}

    assert issubclass(function_run.LostCallError, StageLostError)
    world = opened(models, careful)
    world.lost(2, DropReason.LATE)
    world.found(3, 5.0)
    answer = world.answer()
    assert answer["partial"] is True
    assert answer["answer"]["lost"] == ["first", "late"]
    assert answer["answer"]["instead"] == {"variant": "v", "outputs": {"output": [5.0]}}
    assert answer["stages"]["first"] == [{"missing": "late"}]
    assert world.counts.of("own").good == 1


def test_a_part_that_is_lost_in_a_task_group_is_found(models: Registry) -> None:
    async def grouped(inputs: Any, stage: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(stage("each", [1.0]))

    world = opened(models, grouped)
    world.lost(3, DropReason.FAILED)
    assert world.refusal().reason == DropReason.FAILED
    assert world.parts == {}


def test_what_the_door_refuses_no_function_can_catch(models: Registry) -> None:
    async def stubborn(inputs: Any, stage: Any) -> Any:
        while True:
            try:
                return await stage("each", [1.0])
            except stage.Lost:
                pass

    world = opened(models, stubborn)
    world.lost(2, DropReason.SHED)
    assert world.refusal().message == "shed: overload: it could not have ended in time"
    assert world.parts == {}
    world.settle()
    assert world.begun == 2


def test_calls_behind_one_that_the_door_refused_end_with_it(models: Registry) -> None:
    async def hasty(inputs: Any, stage: Any) -> Any:
        first = asyncio.ensure_future(stage("each", [1.0]))
        await asyncio.sleep(0)
        first.cancel()
        await stage("first")

    world = opened(models, hasty)
    assert sorted(world.parts) == [3]
    world.lost(3, DropReason.CANCELLED)
    assert world.refusal().reason == DropReason.SHED


def test_a_call_that_is_refused_here_never_began_the_query(models: Registry) -> None:
    async def careful(inputs: Any, stage: Any) -> Any:
        try:
            await stage("first")
        except stage.Lost:
            await stage("each", [1.0])

    world = opened(models, careful, refuses="first")
    # The second call is the first that a router hears of.
    assert world.take() == [QueryPart("own", 1, -1, 1)]


def test_a_client_that_leaves_cancels_the_function(models: Registry) -> None:
    seen: list[str] = []

    async def noted(inputs: Any, stage: Any) -> Any:
        try:
            await asyncio.gather(stage("first"), stage("each", [1.0]))
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    world = opened(models, noted)
    world.take()
    assert world.queries.cancel(1)
    world.settle()
    assert world.refusal().reason == DropReason.CANCELLED
    assert seen == ["cancelled"]
    assert world.take() == [Cancel(1)]
    assert (world.parts, world.queries.queries) == ({}, {})


def test_a_deadline_cancels_the_function_and_says_what_it_waited_for(models: Registry) -> None:
    world = opened(models, cascade)
    world.clock_ns += ms(111)
    (timer,) = world.timers
    assert timer.call is not None
    timer.call()
    world.settle()
    assert world.refusal().message == (
        "expired: function function_world:run still waited for first after 111 ms"
    )
    assert world.parts == {}


def test_a_function_whose_task_was_made_but_not_run_had_not_begun(models: Registry) -> None:
    world = World(models)
    assert world.open("own") == 1
    assert world.loop is not None
    # One round makes the task, and whatever came before it holds the thread from then on.
    world.loop.call_soon(world.loop.stop)
    world.loop.run_forever()
    world.clock_ns += ms(111)
    (timer,) = world.timers
    assert timer.call is not None
    timer.call()
    world.settle()
    assert world.refusal().message.startswith(
        "expired: function function_world:run had not begun: other runs of it hold its thread"
    )


def test_calls_past_the_deadline_are_lost(models: Registry) -> None:
    world = opened(models, cascade)
    world.clock_ns += ms(101)
    world.found(2, 0.1)
    assert world.refusal().reason == DropReason.LATE


def test_a_function_may_give_up_one_call(models: Registry) -> None:
    async def patient(inputs: Any, stage: Any) -> Any:
        slow = asyncio.ensure_future(stage("first"))
        quick = await stage("each", [1.0])
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return quick.outputs["output"]

    world = opened(models, patient)
    # The other one began after it.
    world.found(2, 6.0)
    assert world.parts == {}
    assert world.answer()["answer"] == [6.0]
    assert world.answer()["partial"] is True
    assert world.take()[-1] == HandedOn(1)


def test_calls_that_nobody_waits_for_are_withdrawn(models: Registry) -> None:
    async def careless(inputs: Any, stage: Any) -> Any:
        asyncio.ensure_future(stage("first"))  # noqa: RUF006
        return (await stage("each", [1.0])).outputs["output"]

    world = opened(models, careless)
    world.found(2, 6.0)
    assert world.parts == {}
    assert world.answer()["answer"] == [6.0]
    assert world.answer()["stages"]["first"] == [{"missing": "cancelled"}]


def test_arrays_and_numbers_of_any_kind_can_be_returned(models: Registry) -> None:
    async def various(inputs: Any, stage: Any) -> Any:
        return {
            1: np.float32(0.5),
            "many": (np.arange(2), b"\xffa", None, True),
            "words": np.array([b"one"], object),
        }

    world = opened(models, various)
    assert world.answer()["answer"] == {
        "1": 0.5,
        "many": [[0, 1], "\ufffda", None, True],
        "words": ["one"],
    }


def test_queries_outlive_their_router(models: Registry) -> None:
    world = opened(models, cascade)
    world.queries.loosen(True)
    world.take()
    world.found(2, 0.5)
    # The new router knows nothing of the query: its calls stand alone.
    assert world.take() == [None]
    world.found(3, 6.0)
    assert world.take() == []
    assert world.answer()["answer"]["scores"] == [[6.0]]


def test_calls_of_a_router_that_is_gone_may_be_shed_and_caught(models: Registry) -> None:
    async def careful(inputs: Any, stage: Any) -> Any:
        try:
            await stage("first")
        except stage.Lost as lost:
            return lost.reason

    NOW["run"] = careful
    world = World(models)
    world.queries.loosen(False)
    world.open("own")
    world.settle()
    assert world.take() == [None]
    world.lost(2, DropReason.SHED)
    assert world.answer()["answer"] == "shed"


def test_the_answers_time_is_learnt_and_kept_for_it(models: Registry) -> None:
    async def slow_end(inputs: Any, stage: Any) -> Any:
        await stage("first")
        world.clock_ns += ms(20)

    world = opened(models, slow_end)
    world.found(2, 1.0)
    assert world.queries.answer_time("own").planned_ns >= ms(20)
    world.open("own")
    world.settle()
    ((part, _),) = world.parts.values()
    assert part.terms.slo_ns <= ms(80)
    world.found(4, 1.0)


def test_traces_follow_a_function(models: Registry) -> None:
    tracer = Tracer(1.0, random.Random(1))
    world = opened(models, cascade, observer=tracer)
    parent = world.parts[2][0].traceparent
    world.clock_ns += ms(5)
    world.found(2, 0.9)
    answer, query = tracer.take()
    assert (answer.name, query.name) == ("answer", "query")
    assert query.span_id in parent


def test_an_input_that_is_broken_is_its_clients_mistake(models: Registry) -> None:
    world = opened(models, cascade)
    bad = Refusal("INVALID_ARGUMENT", "bad-input", "input holds numbers that are not finite")
    world.end(2, bad)
    world.settle()
    assert world.refusal() == bad


def test_a_dropped_part_keeps_its_status(models: Registry) -> None:
    world = opened(models, cascade)
    world.end(2, drop_refusal(DropReason.NO_BACKEND))
    world.settle()
    assert world.refusal().status == "UNAVAILABLE"
    assert world.refusal().message.startswith("stage 'first': no-backend: ")
