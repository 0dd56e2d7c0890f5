"""Sequences between clients and models: what frontends fill in, carry and tell."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.parameters import parameter
from fermata.clients.wire.tensors import add_input, from_array
from fermata.deployments.backend.execution.runners.sequences import SequenceRunner
from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.execution.tensors import InputError, view_rows
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import model_specs
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.outcomes import OnAnswer, Outcome, Refusal, drop_refusal
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.sequences import SequenceRequests
from fermata.deployments.specs.served_model import CONTROLS, ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER, ms, seconds
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Payload, Result


def config_of(**options: object) -> Any:
    application = {
        "name": "sums",
        "slo_ms": 100,
        "inputs": [{"name": "x", "dtype": "FP32", "shape": [2]}],
        "variants": [{"name": "sums-1", "model": "sums:load", "alpha_ms": 1, "beta_ms": 1}],
        **options,
    }
    return read_config({"name": "test", "applications": [application]})


CARRIED = {
    "inputs": [
        {"name": "x", "dtype": "FP32", "shape": [2]},
        {"name": "h", "dtype": "FP32", "shape": [2]},
    ],
    "outputs": [
        {"name": "y", "dtype": "FP32", "shape": [2]},
        {"name": "h_next", "dtype": "FP32", "shape": [2]},
    ],
    "state": {"h": "h_next"},
}


def message(value: float = 1.0, batched: bool = False, **given: Any) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="sums")
    x = np.full((1, 2) if batched else 2, value, np.float32)
    add_input(made, from_array("x", x))
    for name, each in given.items():
        made.parameters[name].CopyFrom(parameter(each))
    return made


class Frontend:
    """A frontend's sequences, with a model in place of router and backends."""

    def __init__(self, **options: object) -> None:
        self.registry = registry(config_of(**options))
        self.now_ns = 0
        self.soon: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.begun: dict[int, tuple[ParsedRequest, OnAnswer]] = {}
        self.answers: dict[int, Outcome] = {}
        self.refused: list[str] = []
        self.sequences = SequenceRequests(
            self._begin,
            self._refuse,
            lambda: self.now_ns,
            lambda call, *given: self.soon.append((call, given)),
            self.answer,
        )

    def _begin(self, now_ns: int, request: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        rid = 100 + len(self.begun)
        self.begun[rid] = (request, on_answer)
        return rid

    def _refuse(self, request: ParsedRequest, refusal: Refusal) -> Refusal:
        self.refused.append(refusal.reason)
        return refusal

    def send(self, value: float = 1.0, batched: bool = False, **given: Any) -> int | Refusal:
        parsed = parse_request(message(value, batched, **given), self.registry)
        found = self.sequences.open(self.now_ns, parsed, self.answers.__setitem__)
        self.settle()
        return found

    def settle(self) -> None:
        while self.soon:
            call, given = self.soon.pop(0)
            call(*given)

    def item(self, rid: int) -> Any:
        """The input as a backend reads it."""
        given = self.begun[rid][0].input
        payload = Payload(rid, "", (), bytes(given.data), tensors=given.packed)
        return view_rows(payload, Segments())

    def run(self, rid: int) -> None:
        """The model: y = h + x, which is the next h, too."""
        item = self.item(rid)
        total = item["x"] + item["h"]
        tensors = tuple((name, "FP32", (2,), total.tobytes()) for name in ("y", "h_next"))
        self.answer(rid, Result(rid, "sums-1", 1, 0, 0, tensors))

    def answer(self, rid: int, outcome: Outcome) -> None:
        self.begun[rid][1](rid, outcome)
        self.settle()

    def y(self, handle: int | Refusal) -> float:
        assert isinstance(handle, int)
        result = self.answers[handle]
        assert isinstance(result, Result)
        assert [each[0] for each in result.tensors] == ["y"], "the state is not the client's"
        return float(np.frombuffer(result.tensors[0][3], np.float32)[0])


def kept() -> Frontend:
    return Frontend(sequences=True)


def carried(**options: object) -> Frontend:
    return Frontend(**{**CARRIED, **options})


# Models that keep the state


@pytest.mark.parametrize("batched", [False, True])
def test_a_model_that_keeps_state_is_told_of_each_rows_sequence(batched: bool) -> None:
    frontend = kept()
    rid = frontend.send(3.0, batched, sequence_id=7, sequence_start=True)
    assert isinstance(rid, int)
    item = frontend.item(rid)
    assert item["x"].tolist() == [3.0, 3.0]
    assert (item["sequence_id"], item["sequence_start"], item["sequence_end"]) == (7, True, False)
    step = frontend.begun[rid][0].terms.sequence
    assert step is not None
    assert (step.key, step.start, step.end) == (7, True, False)


def test_ids_are_numbers_or_texts_and_those_of_tenants_are_apart() -> None:
    models = registry(config_of(sequences=True))
    keys = [
        parse_request(message(sequence_id=each), models).terms.sequence
        for each in (7, "7", "camera", "camera 2", (1 << 64) - 1)
    ]
    numbers = [each.key for each in keys if each is not None]
    assert numbers[0] == numbers[1] == 7
    assert len(set(numbers)) == 4


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "takes sequences: send parameter sequence_id"),
        ({"sequence_id": 0}, "takes sequences: send parameter sequence_id"),
        ({"sequence_id": ""}, "takes sequences: send parameter sequence_id"),
        ({"sequence_id": True}, "must be an integer or a text"),
        ({"sequence_id": 1.5}, "must be an integer or a text"),
        ({"sequence_id": "x" * 10_000}, "characters: use up to"),
        ({"sequence_id": 1, "sequence_start": 1}, "neither true nor false"),
        ({"sequence_id": 1, "sequence_end": "yes"}, "neither true nor false"),
    ],
)
def test_unsound_sequences_are_refused_in_one_line(given: dict[str, Any], error: str) -> None:
    with pytest.raises(BadRequestError, match=error) as caught:
        parse_request(message(**given), registry(config_of(sequences=True)))
    assert "\n" not in str(caught.value)


def test_rows_of_one_request_belong_to_one_step() -> None:
    made = pb.ModelInferRequest(model_name="sums")
    add_input(made, from_array("x", np.zeros((3, 2), np.float32)))
    made.parameters["sequence_id"].int64_param = 1
    with pytest.raises(BadRequestError, match="sequence 1 has 3 rows in one request"):
        parse_request(made, registry(config_of(sequences=True)))


def test_other_models_leave_sequence_ids_alone() -> None:
    parsed = parse_request(message(sequence_id=5, sequence_start=True), registry(config_of()))
    assert parsed.terms.sequence is None
    assert parsed.terms.client == 5


def test_a_lost_sequence_is_told_by_name_and_needs_a_start() -> None:
    frontend = kept()
    rid = frontend.send(sequence_id="cam", sequence_start=True)
    assert isinstance(rid, int)
    lost = Refusal("ABORTED", "sequence-lost", "sequence-lost: the state of its sequence is gone")
    frontend.answer(rid, lost)
    told = frontend.answers[rid]
    assert isinstance(told, Refusal)
    assert "the state of sequence cam is gone" in told.message
    refused = frontend.send(sequence_id="cam")
    assert isinstance(refused, Refusal)
    assert refused.reason == DropReason.NO_SEQUENCE
    assert "sequence cam has not been started" in refused.message
    assert isinstance(frontend.send(sequence_id="cam", sequence_start=True), int)
    assert isinstance(frontend.send(sequence_id="cam"), int)


@pytest.mark.parametrize("reason", ["expired", "failed", "hung", "late"])
def test_a_state_that_may_have_changed_unseen_is_not_gone_on_with(reason: str) -> None:
    frontend = kept()
    frontend.send(sequence_id=1, sequence_start=True)
    rid = frontend.send(sequence_id=1)
    assert isinstance(rid, int)
    frontend.answer(rid, Refusal("UNAVAILABLE", reason, reason))
    after = frontend.send(sequence_id=1)
    assert isinstance(after, int) == (reason == "late")


# States that are carried


def test_steps_behind_a_start_without_a_result_do_not_join_the_sequence_before() -> None:
    frontend = kept()
    lost = frontend.send(sequence_id=7, sequence_start=True)
    behind = frontend.send(sequence_id=7)
    anew = frontend.send(sequence_id=7, sequence_start=True)
    last = frontend.send(sequence_id=7)
    assert isinstance(lost, int)
    frontend.answer(lost, drop_refusal(DropReason.LATE))
    assert isinstance(behind, int)
    refused = frontend.answers[behind]
    assert isinstance(refused, Refusal)
    assert refused.reason == DropReason.NO_SEQUENCE
    # The next one has been started, and goes on.
    assert frontend.answers.keys() == {lost, behind}
    for rid in (anew, last):
        assert isinstance(rid, int)
        frontend.answer(rid, Result(rid, "sums-1", 1, 0, 0, ()))
    assert isinstance(frontend.send(sequence_id=7), int)


def test_a_carried_state_goes_from_answer_to_request() -> None:
    frontend = carried()
    first = frontend.send(1.0, sequence_id=7, sequence_start=True)
    second = frontend.send(2.0, sequence_id=7)
    other = frontend.send(10.0, True, sequence_id=8, sequence_start=True)
    assert list(frontend.begun) == [100, 101], "the second waits for the state of the first"
    assert frontend.begun[100][0].terms.sequence is None, "it runs anywhere, as any other"
    frontend.run(101)
    frontend.run(100)
    frontend.run(102)
    assert (frontend.y(first), frontend.y(second), frontend.y(other)) == (1.0, 3.0, 10.0)
    frontend.send(4.0, sequence_id=7, sequence_end=True)
    frontend.run(103)
    assert frontend.sequences.states.keys() == {("sums", 8)}
    gone = frontend.send(sequence_id=7)
    assert isinstance(gone, Refusal)
    assert gone.reason == DropReason.NO_SEQUENCE


def test_a_step_without_a_result_leaves_a_carried_state_as_it_was() -> None:
    frontend = carried()
    frontend.send(1.0, sequence_id=7, sequence_start=True)
    frontend.send(2.0, sequence_id=7)
    third = frontend.send(4.0, sequence_id=7)
    frontend.run(100)
    frontend.answer(101, Refusal("UNAVAILABLE", "backend-lost", "backend-lost"))
    frontend.run(102)
    assert frontend.y(third) == 5.0


def test_a_request_that_waited_too_long_for_its_state_is_late() -> None:
    frontend = carried()
    frontend.send(1.0, sequence_id=7, sequence_start=True)
    second = frontend.send(2.0, sequence_id=7)
    third = frontend.send(3.0, sequence_id=7)
    assert isinstance(second, int)
    assert isinstance(third, int)
    frontend.sequences.cancel(third)
    frontend.now_ns = ms(60)
    assert len(frontend.begun) == 1
    frontend.now_ns = ms(101)
    frontend.run(100)
    late = frontend.answers[second]
    assert isinstance(late, Refusal)
    assert late.reason == DropReason.LATE
    assert third not in frontend.answers


def test_time_spent_waiting_for_a_state_is_taken_off() -> None:
    frontend = carried()
    frontend.send(1.0, sequence_id=7, sequence_start=True)
    frontend.send(2.0, sequence_id=7)
    frontend.now_ns = ms(30)
    frontend.run(100)
    assert frontend.begun[101][0].terms.slo_ns == ms(70)
    assert frontend.begun[101][0].terms.left_ns == NEVER - ms(30)


def test_idle_states_are_dropped() -> None:
    frontend = carried(sequence_idle_ms=2000)
    frontend.send(1.0, sequence_id=7, sequence_start=True)
    frontend.run(100)
    frontend.now_ns = seconds(3)
    frontend.send(1.0, sequence_id=8, sequence_start=True)
    assert not frontend.sequences.states
    gone = frontend.send(sequence_id=7)
    assert isinstance(gone, Refusal)


def test_a_state_of_another_shape_is_an_error_of_the_model() -> None:
    frontend = carried()
    handle = frontend.send(1.0, sequence_id=7, sequence_start=True)
    tensors = (("y", "FP32", (2,), bytes(8)), ("h_next", "FP32", (3,), bytes(12)))
    frontend.answer(100, Result(100, "sums-1", 1, 0, 0, tensors))
    assert isinstance(handle, int)
    told = frontend.answers[handle]
    assert isinstance(told, Refusal)
    assert "its state 'h_next' is FP32[3], its input takes h FP32[2]" in told.message


# The configuration


def test_clients_see_no_state_and_models_see_all() -> None:
    config = config_of(**CARRIED)
    model = registry(config).find("sums", "")[0]
    assert [each.name for each in model.inputs] == ["x"]
    assert [each.name for each in model.outputs] == ["y"]
    profiles = {each.name: each.profile for each in config.applications[0].variants}
    (spec,) = model_specs(config, profiles)
    assert [each.name for each in spec.inputs] == ["x", "h"]
    assert not spec.keeps_state
    config = config_of(sequences=True)
    (spec,) = model_specs(config, profiles)
    assert spec.inputs == (TensorSpec("x", "FP32", (2,)), *CONTROLS)
    assert spec.keeps_state


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({**CARRIED, "sequences": True}, "carried by frontends; leave it or sequences out"),
        ({**CARRIED, "newest": True}, "would drop parts of sequences"),
        ({**CARRIED, "state": {"g": "h_next"}}, "the model takes x, h; name one of these"),
        ({**CARRIED, "state": {"h": "z"}}, "has no output 'z'; name one of h_next, y"),
        ({**CARRIED, "state": {"h": 3}}, "must name the output with the next state"),
        ({**CARRIED, "state": {"x": "y", "h": "h_next"}}, "has no input but its state"),
        ({"inputs": [{"name": "x", "dtype": "FP32", "shape": [-1]}], "state": {"x": "y"}}, "size"),
        ({"sequences": "often"}, "must be true or false"),
        ({"sequences": True, "sequence_idle_ms": 0}, "finite number above 0"),
    ],
)
def test_states_that_cannot_be_are_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        registry(config_of(**options))


# Backends


class Sums:
    """Adds up the rows of each sequence."""

    def __init__(self) -> None:
        self.totals: dict[int, float] = {}
        self.ended: list[int] = []
        self.fails = False

    def __call__(self, given: Any) -> Any:
        if self.fails:
            raise ValueError("no")
        found = []
        for key, start, end, x in zip(
            given["sequence_id"].tolist(),
            given["sequence_start"],
            given["sequence_end"],
            given["x"],
            strict=True,
        ):
            total = (0.0 if start else self.totals[key]) + float(x[0])
            self.totals[key] = total
            if end:
                del self.totals[key]
            found.append(total)
        return np.array(found, np.float32)

    def end_sequences(self, keys: list[int]) -> None:
        self.ended += keys
        for key in keys:
            self.totals.pop(key, None)


def row(key: int, value: float, start: bool = False, end: bool = False) -> dict[str, Any]:
    return {
        "x": np.full(2, value, np.float32),
        "sequence_id": np.array(key, np.uint64),
        "sequence_start": np.array(start),
        "sequence_end": np.array(end),
    }


def test_a_runner_refuses_rows_of_sequences_that_its_model_does_not_have() -> None:
    model = Sums()
    runner = SequenceRunner(model, 8, (TensorSpec("x", "FP32", (2,)), *CONTROLS))
    with pytest.raises(InputError, match="no state on this backend"):
        runner.check(row(1, 1.0))
    for each in (row(1, 1.0, start=True), row(2, 5.0, start=True)):
        runner.check(each)
    assert runner.run(runner.stage([row(1, 1.0, True), row(2, 5.0, True)])).tolist() == [1.0, 5.0]
    runner.check(row(1, 2.0))
    runner.end(2)
    assert runner.run(runner.stage([row(1, 2.0)])).tolist() == [3.0]
    assert model.ended == [2]
    with pytest.raises(InputError):
        runner.check(row(2, 1.0))
    runner.end(1)
    assert runner.run(runner.stage([row(1, 2.0)])).tolist() == [5.0], "it was ordered before"
    runner.run(runner.stage([row(3, 1.0, True)]))
    assert model.ended == [2, 1]
    runner.end(3)
    runner.run(runner.stage([row(3, 7.0, True)]))
    assert model.totals == {3: 7.0}, "a new start is another sequence"
    model.fails = True
    with pytest.raises(ValueError, match="no"):
        runner.run(runner.stage([row(1, 2.0)]))
    with pytest.raises(InputError):
        runner.check(row(1, 1.0))
    runner.check(row(4, 1.0, start=True))
    runner.end_all()
    assert not runner.open


def test_pictures_may_be_steps_of_sequences() -> None:
    options = {
        "inputs": [],
        "input": {"name": "x", "dtype": "UINT8", "shape": [2, 2, 3], "image": True},
        "sequences": True,
    }
    model: ServedModel = registry(config_of(**options)).find("sums", "")[0]
    assert model.stateful is not None
    assert not replace(model).decoded_later
