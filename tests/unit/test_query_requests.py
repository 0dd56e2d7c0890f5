"""Queries at a frontend: parts that are begun, handed on and ended; one answer each."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import RawTensor, add_input, from_array, split_bytes, to_array
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.outcomes import OnAnswer, Outcome, Refusal, drop_refusal
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.queries.query_requests import QueryRequests
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Cancel, HandedOn, QueryPart, Result


def split(result: Any) -> list[Any]:
    """One input for each number of the output."""
    return [np.array([each], np.float32) for each in result.outputs["output"]]


def gather(results: Any) -> Any:
    """The sum of all that was found."""
    return np.array([sum(float(each.outputs["output"][0]) for each in results["each"])])


def fail(result: Any) -> list[Any]:
    raise ValueError("spilt milk")


def misfit(result: Any) -> list[Any]:
    return [np.zeros(7, np.float32)]


def application(name: str, shape: int) -> dict[str, object]:
    variant = {"name": f"{name}-v", "model": "emulated", "latency_ms": [1.0] * 8}
    return {"name": name, "slo_ms": 100, "input": {"shape": [shape]}, "variants": [variant]}


def pipeline(name: str, function: str, *more: object, **options: object) -> dict[str, object]:
    each = {"application": "each", "transform": f"{__name__}:{function}"}
    stages = [{"application": "first"}, each, *more]
    return {"name": name, "slo_ms": 100, "stages": stages, **options}


JOIN = {"application": "all", "join": True, "transform": f"{__name__}:gather"}


@pytest.fixture(scope="module")
def models() -> Registry:
    applications = [application("first", 2), application("each", 1), application("all", 1)]
    pipelines = [
        pipeline("chain", "split"),
        pipeline("gaps", "split", partial=True),
        pipeline("joined", "split", JOIN),
        pipeline("joined-gaps", "split", JOIN, partial=True),
        pipeline("failing", "fail"),
        pipeline("misfit", "misfit"),
    ]
    return registry(read_config({"applications": applications, "pipelines": pipelines}))


class Timer:
    """A call that is to come."""

    def __init__(self, at_ns: int, call: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


@dataclass
class World:
    """Means of a frontend on a clock of the test's own (`QueryMeans`)."""

    models: Registry
    counts: OutcomeCounts = field(default_factory=OutcomeCounts)
    pixels_max: int = 1 << 20
    grace_ns: int = ms(10)
    clock_ns: int = ms(1000)
    refuses: str = ""
    parts: dict[int, tuple[ParsedRequest, OnAnswer]] = field(default_factory=dict)
    told: list[object] = field(default_factory=list)
    work: list[Callable[[], None]] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    answers: dict[int, list[Outcome]] = field(default_factory=dict)
    begun: int = 0

    def __post_init__(self) -> None:
        self.queries = QueryRequests(self)

    def begin(self, now_ns: int, part: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        if self.refuses == part.terms.application:
            return drop_refusal("memory")
        self.begun += 1
        self.parts[self.begun] = part, on_answer
        ticket = part.terms.part
        assert ticket is not None
        self.told.append(ticket.tell())
        return self.begun

    def cancel_soon(self, rid: int) -> None:
        self.work.append(lambda: self.end(rid, drop_refusal(DropReason.CANCELLED)))

    def to_router(self, message: Cancel | HandedOn) -> None:
        self.told.append(message)

    def run_aside(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def run() -> None:
            try:
                found = work()
            except Exception as error:
                found = error
            then(found)

        self.work.append(run)

    def call_later(self, delay_ns: int, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.clock_ns + delay_ns, call))
        return self.timers[-1]

    def now_ns(self) -> int:
        return self.clock_ns

    def open(self, model: str) -> int | Refusal:
        request = pb.ModelInferRequest(model_name=model)
        add_input(request, from_array("input", np.zeros(2, np.float32)))
        parsed = parse_request(request, self.models)
        return self.queries.open(self.clock_ns, parsed, self._answer)

    def _answer(self, rid: int, outcome: Outcome) -> None:
        self.answers.setdefault(rid, []).append(outcome)

    def settle(self) -> None:
        while self.work:
            self.work.pop(0)()

    def end(self, rid: int, outcome: Outcome) -> None:
        if rid in self.parts:
            self.parts.pop(rid)[1](rid, outcome)

    def found(self, rid: int, *numbers: float) -> None:
        """A part ends with these numbers."""
        tensor = from_array("output", np.array(numbers, np.float32))
        told = tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)
        self.end(rid, Result(rid, "v", 1, 0, ms(1), (told,)))
        self.settle()

    def lost(self, rid: int, reason: str) -> None:
        self.end(rid, drop_refusal(reason))
        self.settle()

    def take(self) -> list[object]:
        told, self.told = self.told, []
        return told

    def answer(self) -> Any:
        """The document of the only query."""
        ((outcome,),) = self.answers.values()
        assert isinstance(outcome, Result), outcome
        (tensor,) = outcome.tensors
        return json.loads(split_bytes(tensor[3])[0])

    def refusal(self) -> Refusal:
        ((outcome,),) = self.answers.values()
        assert isinstance(outcome, Refusal)
        return outcome


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
