"""Requests of several rows: places in the core's batches, parts and their join in a frontend."""

import random
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import add_input, from_array, to_array
from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.execution.tensors import (
    InputError,
    OutputError,
    RowItems,
    each_row,
    split,
    view_rows,
)
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.outcomes import OnAnswer, Outcome, Refusal
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.protocol.replies import response_of
from fermata.deployments.frontend.requests.joined_parts import SplitRequests
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ImageSpec, ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.links.messages import Payload, Result
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

SIZE_MAX = 8


def request(rid: int, rows: int, deadline_ns: int, now_ns: int = 0) -> Request:
    made = Request(rid, 0, now_ns, deadline_ns)
    made.rows = rows
    return made


# The core


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=40), st.integers(0, 99))
def test_a_queue_knows_the_places_of_all_that_wait(drawn: list[tuple[int, int]], seed: int) -> None:
    rng = random.Random(seed)
    queue = DeadlineQueue()
    waiting: list[Request] = []
    for rid, (rows, deadline_ns) in enumerate(drawn):
        waiting.append(request(rid, rows, deadline_ns))
        queue.push(waiting[-1])
        what = rng.randrange(5)
        if what == 0:
            gone = [queue.pop()]
        elif what == 1:
            gone = [rng.choice(waiting)]
            queue.remove(gone[0])
        elif what == 2:
            room = rng.randrange(12)
            filled = queue.fill(room, queue.head)
            gone = queue.pop_rows(queue.head, filled)
            assert sum(each.rows for each in gone) == filled <= room
        else:
            gone = []
        waiting = [each for each in waiting if each not in gone]
        assert queue.rows == sum(each.rows for each in waiting)
        assert len(queue) == len(waiting)


def engine_of(backends: int) -> Engine:
    costs = Costs()
    costs.add(0, [ms(4 + size) for size in range(1, SIZE_MAX + 1)])
    engine = Engine(costs)
    engine.add_application(ModelThread(0, DeferredOptions()))
    for backend in range(backends):
        engine.on_backend_up(0, backend)
    return engine


class World:
    """Two backends that run as planned, and the ends of all requests."""

    def __init__(self) -> None:
        self.engine = engine_of(2)
        self.agenda: list[tuple[int, int]] = []
        self.ended: list[int] = []
        self.refused = 0

    def carry_out(self, now_ns: int) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Drop):
                self.ended.append(effect.request.rid)
                self.refused += 1
                continue
            assert isinstance(effect, Dispatch)
            batch = effect.batch
            assert batch.size == sum(each.rows for each in batch.requests) <= SIZE_MAX
            first_ns = min(each.deadline_ns for each in batch.requests)
            assert batch.start_at_ns + batch.plan_ns <= first_ns
            self.ended += [each.rid for each in batch.requests]
            end_ns = max(now_ns, batch.start_at_ns) + ms(4 + batch.size)
            heappush(self.agenda, (end_ns, effect.backend))

    def play(self, arrivals: list[Request]) -> None:
        todo = sorted(arrivals, key=lambda each: each.arrived_at_ns, reverse=True)
        while todo or self.agenda or self.engine.outbox.queued:
            coming_ns = todo[-1].arrived_at_ns if todo else NEVER
            done_ns = self.agenda[0][0] if self.agenda else NEVER
            now_ns = min(coming_ns, done_ns, self.engine.wake_at_ns())
            assert now_ns < NEVER, "somebody waits, and nobody will wake the engine"
            if now_ns == done_ns:
                backend = heappop(self.agenda)[1]
                batch = self.engine.backend(backend).running
                assert batch is not None
                self.engine.on_done(now_ns, backend, ms(4 + batch.size))
            elif now_ns == coming_ns:
                self.engine.on_request(now_ns, todo.pop())
            else:
                self.engine.on_time(now_ns)
            self.carry_out(now_ns)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from((1, 1, 2, 5, 8)), st.integers(6, 60)),
        min_size=1,
        max_size=60,
    )
)
def test_rows_of_a_request_stay_together_and_fit_the_batch(
    drawn: list[tuple[int, int, int]],
) -> None:
    """Any draw: each request ends once, and no batch has more places or ends later than planned."""
    world = World()
    world.play(
        [
            request(rid, rows, ms(at_ms + slo_ms), ms(at_ms))
            for rid, (at_ms, rows, slo_ms) in enumerate(drawn)
        ]
    )
    assert sorted(world.ended) == list(range(len(drawn)))


def test_a_request_waits_for_no_other_that_does_not_fit_beside_it() -> None:
    world = World()
    world.play([request(0, 5, ms(100)), request(1, 5, ms(100)), request(2, 2, ms(100))])
    assert not world.refused


def test_a_request_that_no_batch_takes_is_dropped() -> None:
    engine = engine_of(1)
    engine.on_request(0, request(1, SIZE_MAX + 1, ms(100)))
    (drop,) = engine.take_effects()
    assert isinstance(drop, Drop)
    assert drop.reason == DropReason.LATE


SCENARIO = {
    "backends": 4,
    "rate_rps": 400,
    "duration_s": 4,
    "warmup_s": 1,
    "seed": 3,
    "applications": [
        {
            "name": "m",
            "slo_ms": 100,
            "rows": [1, 2, 4, 8],
            "variants": [{"name": "v", "alpha_ms": 1, "beta_ms": 5, "batch_size_max": 32}],
        }
    ],
}


def test_a_simulation_draws_rows_and_counts_them_in_batches() -> None:
    log = simulate(read_scenario(SCENARIO))
    sizes = [size for *_, size in log.batches]
    assert max(sizes) <= 32
    requests = int((log.end_ns > 0).sum())
    assert sum(sizes) > 3 * requests
    # 400/s of 3.75 rows are 1,500 rows/s, half of what four backends do.
    assert requests > 0.97 * len(log.end_ns)
    assert simulate(read_scenario(SCENARIO)).batches == log.batches


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [([64], {}, "above its largest batch, 32"), ([2], {"policy": "timeout"}, "must be 1 with")],
)
def test_rows_that_a_simulation_cannot_hold_are_refused(rows: Any, more: Any, said: str) -> None:
    application = {**SCENARIO["applications"][0], "rows": rows}  # type: ignore[index]
    with pytest.raises(ConfigError, match=said):
        simulate(read_scenario({**SCENARIO, **more, "applications": [application]}))


# Frontends

NUMBERS = TensorSpec("x", "FP32", (2,))
REGISTRY = Registry.of(
    [
        ServedModel("numbers", NUMBERS, ms(50), ms(50), rows_max=4, labels=("no", "yes")),
        ServedModel(
            "both",
            NUMBERS,
            ms(50),
            ms(50),
            more_inputs=(TensorSpec("note", "BYTES", (1,)),),
            rows_max=4,
        ),
        ServedModel(
            "pictures", TensorSpec("x", "FP32", (3, 2, 2)), ms(50), ms(50), image=ImageSpec(2, 2)
        ),
    ]
)


def parse(model: str, *outputs: str, **arrays: Any) -> ParsedRequest:
    message = pb.ModelInferRequest(model_name=model)
    for name, array in arrays.items():
        add_input(message, from_array(name, array))
    for name in outputs:
        message.outputs.add(name=name).parameters["classification"].int64_param = 1
    return parse_request(message, REGISTRY)


def payload(parsed: ParsedRequest) -> Payload:
    made = parsed.input
    data = made.tensor.data
    told = "", 0, 0, False, made.packed, made.payload_rows
    return Payload(1, made.tensor.datatype, made.shape, data, *told)


def rows(count: int) -> Any:
    return np.arange(2 * count, dtype=np.float32).reshape(count, 2)


def test_rows_travel_in_one_payload() -> None:
    parsed = parse("numbers", x=rows(3))
    assert (parsed.terms.rows, parsed.input.rows, parsed.is_split) == (3, 3, False)
    item = view_rows(payload(parsed), Segments())
    assert isinstance(item, RowItems)
    assert [each.tolist() for each in each_row([item])] == rows(3).tolist()
    # One row has no dimension of its own there.
    assert view_rows(payload(parse("numbers", x=rows(1))), Segments()).tolist() == [0.0, 1.0]


@given(st.integers(2, 30))
def test_more_rows_than_a_batch_takes_are_split_and_none_is_lost(count: int) -> None:
    notes = np.array([[str(each).encode()] for each in range(count)], object)
    parts = parse("both", x=rows(count), note=notes).split()
    assert sum(part.terms.rows for part in parts) == count
    assert max(part.input.rows for part in parts) <= 4
    found = each_row([view_rows(payload(part), Segments()) for part in parts])
    assert [each["x"].tolist() for each in found] == rows(count).tolist()
    assert [each["note"].tolist() for each in found] == notes.tolist()


def test_pictures_are_decoded_row_by_row() -> None:
    parsed = parse("pictures", x=np.zeros((3, 9, 9, 3), np.uint8))
    assert parsed.is_split
    assert [part.input.rows for part in parsed.split()] == [1, 1, 1]
    encoded = np.array([[b"one"], [b"two"]], object)
    parts = parse("pictures", x=encoded).split()
    assert [part.input.tensor.data for part in parts] == [b"\x03\0\0\0one", b"\x03\0\0\0two"]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((0, 2), np.float32)}, "'x' has 0 rows: send 1 to 1024"),
        ({"x": np.zeros((1025, 2), np.float32)}, "'x' has 1025 rows: send 1 to 1024"),
        (
            {"x": rows(3), "note": np.array([[b"a"], [b"b"]], object)},
            "inputs differ in their rows: 'x' 3, 'note' 2",
        ),
    ],
)
def test_rows_that_do_not_go_together_are_refused(arrays: Any, said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        parse("both" if len(arrays) > 1 else "numbers", **arrays)


class Requests:
    """A driver that admits up to a number of parts, and whose test answers them."""

    def __init__(self, room: int = 99) -> None:
        self.room = room
        self.waiting: dict[int, OnAnswer] = {}
        self.answers: list[tuple[int, Outcome]] = []
        self.cancelled: list[int] = []
        self.parts = SplitRequests(self.begin, self.cancelled.append)

    def begin(self, now_ns: int, part: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        if len(self.waiting) >= self.room:
            return Refusal("RESOURCE_EXHAUSTED", "too-many", "too-many")
        rid = 10 + len(self.waiting)
        self.waiting[rid] = on_answer
        return rid

    def open(self, count: int) -> int | Refusal:
        request = parse("numbers", x=rows(count))
        return self.parts.open(0, request, lambda rid, outcome: self.answers.append((rid, outcome)))

    def answer(self, rid: int, outcome: Outcome) -> None:
        self.waiting[rid](rid, outcome)


def result(rid: int, array: Any) -> Result:
    tensor = from_array("y", array)
    return Result(rid, "v", 4, rid, 2, (("y", tensor.datatype, tensor.shape, tensor.data),))


def test_parts_are_joined_in_order_whatever_order_they_end_in() -> None:
    driver = Requests()
    assert driver.open(9) == 10
    driver.answer(12, result(12, rows(9)[8]))
    driver.answer(10, result(10, rows(9)[:4]))
    assert not driver.answers
    driver.answer(11, result(11, rows(9)[4:8]))
    ((rid, joined),) = driver.answers
    assert rid == 10
    assert isinstance(joined, Result)
    name, dtype, shape, data = joined.tensors[0]
    assert (name, dtype, shape) == ("y", "FP32", (9, 2))
    assert data == rows(9).tobytes()
    assert joined.queue_ns == 12
    assert not driver.parts.open_parts
    # The client gets the batch dimension that it sent.
    response = response_of(parse("numbers", x=rows(9)), joined, 0)
    assert tuple(response.outputs[0].shape) == (9, 2)


def test_one_refusal_is_the_refusal_of_all() -> None:
    driver = Requests()
    driver.open(9)
    driver.answer(10, result(10, rows(4)))
    late = Refusal("DEADLINE_EXCEEDED", "late", "late")
    driver.answer(12, late)
    assert driver.answers == [(10, late)]
    assert driver.cancelled == [10, 11]
    driver.answer(11, Refusal("CANCELLED", "cancelled", "cancelled"))
    assert len(driver.answers) == 1


def test_parts_are_admitted_all_or_none() -> None:
    driver = Requests(room=2)
    assert isinstance(driver.open(9), Refusal)
    assert driver.cancelled == [10, 11]
    driver.answer(10, Refusal("CANCELLED", "cancelled", "cancelled"))
    assert not driver.answers


def test_answers_that_differ_in_shape_are_refused_by_name() -> None:
    driver = Requests()
    driver.open(5)
    driver.answer(10, result(10, np.zeros((4, 2), np.float32)))
    driver.answer(11, result(11, np.zeros(3, np.float32)))
    ((_, outcome),) = driver.answers
    assert isinstance(outcome, Refusal)
    assert "y is FP32[4, 2], FP32[3]" in outcome.message


def test_each_row_gets_its_own_best_classes() -> None:
    scores = np.array([[0.1, 0.9], [0.8, 0.2]], np.float32)
    response = response_of(parse("numbers", "y", x=rows(2)), result(1, scores), 0)
    assert tuple(response.outputs[0].shape) == (2, 1)
    assert b"0.900000:1:yes" in response.raw_output_contents[0]
    assert b"0.800000:0:no" in response.raw_output_contents[0]


@pytest.mark.parametrize(
    ("policy", "batch", "most"),
    [("deferred", 16, 16), ("deferred", 64, 45), ("eager", 16, 16), ("timeout", 16, 1)],
)
def test_a_frontend_knows_how_many_rows_one_batch_takes(policy: str, batch: int, most: int) -> None:
    variant = {"name": "v", "alpha_ms": 1, "beta_ms": 5, "batch_size_max": batch}
    application = {"name": "m", "slo_ms": 100, "variants": [variant], "policy": policy}
    model, _ = registry(read_config({"applications": [application]})).find("m")
    assert model.rows_max == most


# Backends


def test_outputs_of_rows_go_to_their_requests() -> None:
    whole = rows(6)
    first, second, third = split({"y": whole}, [0, 3, 2])
    assert first[0][2:] == ((2,), whole[0].tobytes())
    assert second[0][2:] == ((3, 2), whole[1:4].tobytes())
    assert third[0][2:] == ((2, 2), whole[4:].tobytes())
    assert to_array(from_array("y", whole)).shape == (6, 2)
    with pytest.raises(OutputError, match="has 6 items for 5 requests"):
        split(whole, [0, 2, 2])
    with pytest.raises(OutputError, match="differs in shape from row to row"):
        split([np.zeros(1), np.zeros(2)], [2])


def test_a_payload_without_the_rows_that_it_claims_is_refused() -> None:
    with pytest.raises(InputError, match="is to hold 3 rows"):
        view_rows(Payload(1, "FP32", (2, 2), bytes(16), rows=3), Segments())
