"""Messages read and answers written without protobuf say the same as with it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import TEXT_MAX, BadRequestError
from fermata.clients.wire.tensors import RawTensor, add_input, from_array
from fermata.deployments.frontend.inputs.reading import read_input
from fermata.deployments.frontend.protocol.parsing import CallContext, parse_request, read_head
from fermata.deployments.frontend.protocol.repeats import HEADS_MAX, Repeats, split_message
from fermata.deployments.frontend.protocol.replies import ReplyTemplates, stream_response_of
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.units import ms
from fermata.router.links.messages import Result
from fermata.router.links.unavailability import Unavailability, UnavailableCause

CALL = CallContext(stream=77)


def registry() -> Registry:
    pixels = TensorSpec("input", "UINT8", (3, 4))
    words = TensorSpec("text", "INT64", (-1,))
    return Registry.of(
        [
            ServedModel("resnet", pixels, ms(50), ms(80), versions=("1", "2")),
            ServedModel("words", words, ms(50), ms(50)),
            ServedModel("pair", pixels, ms(50), ms(50), more_inputs=(words,)),
        ]
    )


def message(
    request_id: str = "", fill: int = 7, shape: tuple[int, ...] = (3, 4), **parameters: int
) -> bytes:
    request = pb.ModelInferRequest(model_name="resnet", id=request_id)
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    add_input(request, from_array("input", np.full(shape, fill, np.uint8)))
    return request.SerializeToString()


def learn(repeats: Repeats, raw: bytes) -> ParsedRequest:
    request = pb.ModelInferRequest.FromString(raw)
    head = read_head(request, repeats.registry, CALL)
    read = read_input(head.model, head.form, request)
    repeats.learn(raw, head, read.tensor)
    return head.request(request.id, read)


def as_parsed(raw: bytes, known: Registry) -> ParsedRequest:
    return parse_request(pb.ModelInferRequest.FromString(raw), known, CALL)


@given(st.text(max_size=20), st.integers(0, 255), st.integers(1, 600_000_000))
def test_a_repeated_message_gives_the_request_that_parsing_gives(
    request_id: str, fill: int, timeout_us: int
) -> None:
    repeats = Repeats(registry())
    learn(repeats, message("first", timeout=timeout_us))
    raw = message(request_id, fill, timeout=timeout_us)
    found = repeats.find(raw)
    assert found is not None
    known, given_id, data = found
    request = known.request(given_id, data)
    wanted = as_parsed(raw, repeats.registry)
    assert request.request_id == wanted.request_id
    assert request.terms == wanted.terms
    assert request.input.tensor == wanted.input.tensor
    assert (request.version, request.input.batched) == (wanted.version, wanted.input.batched)


def test_fields_may_come_in_any_order() -> None:
    repeats = Repeats(registry())
    learn(repeats, message())
    found = repeats.find(message() + b"\x1a\x03abc")
    assert found is not None
    assert found[1] == "abc"


def test_other_heads_are_not_taken_for_one_that_is_known() -> None:
    repeats = Repeats(registry())
    assert repeats.find(message()) is None
    learn(repeats, message(timeout=1000))
    for raw in (message(), message(timeout=1001), message(shape=(1, 3, 4), timeout=1000)):
        assert repeats.find(raw) is None
        learn(repeats, raw)
        assert repeats.find(raw) is not None
    for timeout_us in range(2000, 2000 + 2 * HEADS_MAX):
        learn(repeats, message(timeout=timeout_us))
    assert len(repeats.known) <= HEADS_MAX


def test_data_that_do_not_fit_the_head_are_refused() -> None:
    repeats = Repeats(registry())
    raw = message()
    learn(repeats, raw)
    split = split_message(raw)
    assert split is not None
    found = repeats.find(split[0] + b"\x3a\x02ab")
    assert found is not None
    with pytest.raises(BadRequestError, match="has 2 bytes"):
        found[0].request(found[1], found[2])


def test_a_head_is_read_anew_once_another_set_of_models_is_served() -> None:
    known = registry()
    repeats = Repeats(known)
    assert learn(repeats, message()).version == "2"
    model, version = known.find("resnet")
    known.set_unavailable({model.application(version): Unavailability(UnavailableCause.UNLOADED)})
    assert repeats.find(message()) is None
    assert learn(repeats, message()).version == "1"


def test_clients_that_report_are_heard_each_time() -> None:
    repeats = Repeats(registry())
    learn(repeats, message(fps=30))
    assert repeats.find(message(fps=30)) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        message()[:-1],
        message() + b"\x08\x01",
        message() + b"\x3a\x00",
        message("a") + b"\x1a\x01b",
        message("x" * (TEXT_MAX + 1)),
        message() + b"\x1a\x01\xff",
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x1a",
        b"\x12\x00" * 40 + message(),
    ],
)
def test_messages_that_are_not_simple_are_left_to_protobuf(raw: bytes) -> None:
    assert split_message(raw) is None


@given(st.binary(max_size=60))
def test_no_message_of_strangers_is_misread(raw: bytes) -> None:
    split = split_message(raw)
    if split is None:
        return
    head, request_id, data = split
    try:
        whole = pb.ModelInferRequest.FromString(raw)
    except Exception:
        return
    assert whole.id == request_id
    assert list(whole.raw_input_contents) == [bytes(data)]
    rest = pb.ModelInferRequest.FromString(head)
    whole.id = ""
    del whole.raw_input_contents[:]
    assert rest == whole


@given(
    st.text(max_size=200),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.integers(1, 2**20),
    st.binary(max_size=300),
    st.booleans(),
)
def test_answers_from_templates_are_what_protobuf_writes(
    request_id: str, queue_ns: int, run_ns: int, batch: int, data: bytes, batched: bool
) -> None:
    raw = message(request_id, shape=(1, 3, 4) if batched else (3, 4))
    request = as_parsed(raw, registry())
    tensors = (("output", "UINT8", (len(data),), data), ("more", "FP32", (1,), b"abcd"))
    result = Result(1, "resnet-fp16", batch, 0, run_ns, tensors)
    templates = ReplyTemplates()
    for _ in range(2):
        written = templates.reply(request, result, queue_ns)
        assert written is not None
        found = pb.ModelStreamInferResponse.FromString(written)
        assert found == stream_response_of(request, result, queue_ns)


def test_an_answer_to_several_rows_keeps_their_dimension() -> None:
    request = as_parsed(message(shape=(2, 3, 4)), registry())
    result = Result(1, "v", 2, 0, 1000, (("output", "UINT8", (2, 5), bytes(10)),))
    written = ReplyTemplates().reply(request, result, 0)
    assert written is not None
    found = pb.ModelStreamInferResponse.FromString(written)
    assert found == stream_response_of(request, result, 0)
    assert list(found.infer_response.outputs[0].shape) == [2, 5]


def test_requests_of_several_rows_or_inputs_are_read_each_time() -> None:
    repeats = Repeats(registry())
    raw = message(shape=(2, 3, 4))
    assert learn(repeats, raw).terms.rows == 2
    assert repeats.find(raw) is None
    request = pb.ModelInferRequest(model_name="pair")
    add_input(request, from_array("input", np.zeros((3, 4), np.uint8)))
    add_input(request, RawTensor("text", "INT64", (1,), bytes(8)))
    assert len(learn(repeats, request.SerializeToString()).input.tensors) == 2
    assert not repeats.known


def test_answers_that_need_more_are_left_to_protobuf() -> None:
    request = as_parsed(message(), registry())
    assert ReplyTemplates().reply(request, Result(1, "v", 1, 0, 0, estimate=0.5), 0) is None
    asked = pb.ModelInferRequest.FromString(message())
    asked.outputs.add(name="output").parameters["classification"].int64_param = 3
    with_classes = parse_request(asked, registry(), CALL)
    assert ReplyTemplates().reply(with_classes, Result(1, "v", 1, 0, 0), 0) is None


def test_a_repeated_text_is_read_with_its_own_length() -> None:
    repeats = Repeats(registry())
    request = pb.ModelInferRequest(model_name="words")
    add_input(request, RawTensor("text", "INT64", (1,), bytes(8)))
    raw = request.SerializeToString()
    learn(repeats, raw)
    found = repeats.find(raw)
    assert found is not None
    assert found[0].request(found[1], found[2]).input.shape == (1,)
