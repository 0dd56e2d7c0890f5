"""Named tensors: from messages to payloads, from payloads to models, and back by name."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import add_input, from_array
from fermata.deployments.backend.execution.runners.named import NamedRunner, sample_items
from fermata.deployments.backend.execution.runners.runner import PlainRunner
from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.execution.tensors import InputError, view
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import model_specs
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.protocol.json_tensors import (
    read_request,
    wants_binary,
    write_body,
)
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.protocol.replies import response_of, stream_response_of
from fermata.deployments.frontend.protocol.server_metadata import model_config, model_metadata
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.links.messages import Payload, Result

IDS = TensorSpec("ids", "INT64", (-1,), size_max=512)
MASK = TensorSpec("mask", "INT64", (-1,), optional=True, size_max=512)
IMAGE = TensorSpec("image", "FP32", (3, 2))
NOTE = TensorSpec("note", "BYTES", (1,))
REGISTRY = Registry.of(
    [
        ServedModel(
            "fusion",
            IDS,
            ms(50),
            ms(50),
            more_inputs=(MASK, IMAGE, NOTE),
            outputs=(TensorSpec("scores", "FP32", (2,)), TensorSpec("text", "BYTES", (1,))),
        ),
        ServedModel("words", NOTE, ms(50), ms(50)),
    ]
)
Arrays = dict[str, Any]


def arrays(**changed: Any) -> Arrays:
    found: Arrays = {
        "ids": np.arange(4),
        "mask": np.ones(4, np.int64),
        "image": np.ones((3, 2), np.float32),
        "note": np.array([b"hello"], object),
    }
    return {name: each for name, each in {**found, **changed}.items() if each is not None}


def message(given: Arrays, *outputs: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="fusion")
    for name, array in given.items():
        add_input(request, from_array(name, array))
    for name in outputs:
        request.outputs.add(name=name)
    return request


def parse(given: Arrays, *outputs: str) -> ParsedRequest:
    return parse_request(message(given, *outputs), REGISTRY)


def payload(parsed: ParsedRequest, arena: Arena | None = None) -> Payload:
    given = parsed.input
    arena = arena or Arena(0)
    return arena.place(7, given.tensor.datatype, given.shape, given.tensor.data, given.packed)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("capacity", [0, 1 << 20])
def test_a_backend_sees_what_the_client_sent_by_name(batched: bool, capacity: int) -> None:
    sent = arrays()
    given = {name: each[None] for name, each in sent.items()} if batched else sent
    arena = Arena(capacity)
    try:
        # Whatever order they come in, they go in the order of the signature.
        parsed = parse(dict(reversed(given.items())))
        found = view(payload(parsed, arena), Segments())
        assert list(found) == list(sent)
        for name, array in sent.items():
            assert np.array_equal(found[name], array), name
        del found
        inline = arena.inline(payload(parsed, arena))
        assert inline.data
        assert np.array_equal(view(inline, Segments())["image"], sent["image"])
    finally:
        arena.close()


def test_an_optional_input_may_be_left_out() -> None:
    found = view(payload(parse(arrays(mask=None))), Segments())
    assert set(found) == {"ids", "image", "note"}


BAD = {
    "input 'ids' is missing: model 'fusion' needs": arrays(ids=None),
    "has no input 'other': it takes 'ids', 'mask' \\(optional\\), 'image'": arrays(
        mask=None, other=np.ones(1)
    ),
    "5 inputs: model 'fusion' takes": arrays(other=np.ones(1)),
    "'ids' is 'INT32' \\[4\\]: model 'fusion' takes INT64\\[-1\\]": arrays(
        ids=np.arange(4, dtype=np.int32)
    ),
    "'image' is 'FP32' \\[2, 3\\]": arrays(image=np.ones((2, 3), np.float32)),
    "'image' is 'FP32' \\[1, 1, 3, 2\\]": arrays(image=np.ones((1, 1, 3, 2), np.float32)),
    "inputs differ in their rows: 'ids' no, 'mask' no, 'image' 1": arrays(
        image=np.ones((1, 3, 2), np.float32)
    ),
    "'ids' has shape \\[600\\]: send at most 512": arrays(ids=np.arange(600)),
    "input 'ids' of shape \\[0\\] is empty": arrays(ids=np.arange(0)),
}


@pytest.mark.parametrize("said", BAD)
def test_what_does_not_fit_the_signature_is_refused_by_name(said: str) -> None:
    with pytest.raises(BadRequestError, match=said) as caught:
        parse(BAD[said])
    assert "\n" not in str(caught.value)


def test_an_input_that_comes_twice_is_refused() -> None:
    request = message(arrays(mask=None))
    add_input(request, from_array("ids", np.arange(4)))
    with pytest.raises(BadRequestError, match="an input is there twice"):
        parse_request(request, REGISTRY)


def test_numbers_that_are_not_finite_are_found_in_every_input() -> None:
    parsed = parse(arrays(image=np.full((3, 2), np.nan, np.float32)))
    with pytest.raises(BadRequestError, match="'image' has 6 values that are not finite"):
        parsed.input.check_finite()


def test_texts_are_an_input_like_others() -> None:
    request = pb.ModelInferRequest(model_name="words")
    add_input(request, from_array("note", np.array([b"a text"], object)))
    given = parse_request(request, REGISTRY).input
    found = view(Payload(1, given.tensor.datatype, given.shape, given.tensor.data), Segments())
    assert found.tolist() == [b"a text"]


# Answers

TENSORS = (
    ("scores", "FP32", (2,), np.array([1, 2], np.float32).tobytes()),
    ("text", "BYTES", (1,), b"\x02\0\0\0hi"),
)


def test_only_outputs_that_were_asked_for_come() -> None:
    for outputs in ((), ("text",), ("scores", "text")):
        response = response_of(parse(arrays(), *outputs), Result(7, "v", 1, 0, 0, TENSORS), 0)
        assert [each.name for each in response.outputs] == list(outputs or ("scores", "text"))


def test_an_output_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadRequestError, match="no output 'x': ask for one of scores, text"):
        parse(arrays(), "x")
    # Where nobody knows the outputs before, the refusal comes with the answer.
    parsed = parse(arrays(), "scores")
    result = Result(7, "v", 1, 0, 0, TENSORS[1:])
    with pytest.raises(BadRequestError, match="gave no output 'scores': ask for one of text"):
        response_of(parsed, result, 0)
    assert "INVALID_ARGUMENT" in stream_response_of(parsed, result, 0).error_message


def test_metadata_and_configuration_tell_the_signature() -> None:
    model, _ = REGISTRY.find("fusion")
    told = model_metadata(model)
    assert [(each.name, each.datatype) for each in told.inputs] == [
        ("ids", "INT64"),
        ("mask", "INT64"),
        ("image", "FP32"),
        ("note", "BYTES"),
    ]
    assert [tuple(each.shape)[1:] for each in told.inputs] == [(-1,), (-1,), (3, 2), (1,)]
    config = model_config(model).config
    assert [each.name for each in config.input if each.optional] == ["mask"]
    assert [each.name for each in config.output] == ["scores", "text"]


# REST


def rest_body(given: Arrays, binary: bool, **more: Any) -> tuple[bytes, int]:
    inputs: list[dict[str, Any]] = []
    data = b""
    for name, array in given.items():
        tensor = from_array(name, array)
        told: dict[str, Any] = {
            "name": name,
            "datatype": tensor.datatype,
            "shape": list(array.shape),
        }
        if binary:
            told["parameters"] = {"binary_data_size": len(tensor.data)}
            data += tensor.data
        else:
            values = array.reshape(-1).tolist()
            told["data"] = [each.decode() if isinstance(each, bytes) else each for each in values]
        inputs.append(told)
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + data, len(head)


@pytest.mark.parametrize("binary", [False, True])
def test_rest_carries_the_same_tensors(binary: bool) -> None:
    body, head = rest_body(arrays(), binary)
    found = view(
        payload(parse_request(read_request("fusion", "", body, head), REGISTRY)), Segments()
    )
    for name, array in arrays().items():
        assert np.array_equal(found[name], array), name


def one_tensor(datatype: str, data: list[Any]) -> bytes:
    told = {"name": "x", "datatype": datatype, "shape": [len(data)], "data": data}
    body = json.dumps({"inputs": [told]}).encode()
    return bytes(read_request("fusion", "", body, len(body)).raw_input_contents[0])


@pytest.mark.parametrize("datatype", ["UINT8", "UINT64", "INT8", "INT64"])
def test_json_carries_every_value_of_an_integer_type(datatype: str) -> None:
    dtype = np.dtype(datatype.lower())
    limits = [int(np.iinfo(dtype).min), 1, int(np.iinfo(dtype).max)]
    assert one_tensor(datatype, limits) == np.array(limits, dtype).tobytes()


@pytest.mark.parametrize(
    ("datatype", "data", "said"),
    [
        ("UINT64", [0, 1 << 64], "'x' has values that UINT64 cannot hold"),
        ("UINT64", [-1, (1 << 64) - 1], "'x' has values that UINT64 cannot hold"),
        ("INT64", [0, 1 << 63], "'x' has values that INT64 cannot hold"),
        ("INT64", [0, 1.5], "'x' is INT64, its data are float64"),
        ("FP16", [1.0], "'x' is FP16, which JSON does not carry: send it with binary_data_size"),
        ("BF16", [1.0], "'x' is BF16, which JSON does not carry: send it with binary_data_size"),
    ],
)
def test_numbers_that_json_or_their_type_does_not_carry_are_refused(
    datatype: str, data: list[Any], said: str
) -> None:
    with pytest.raises(BadRequestError) as refusal:
        one_tensor(datatype, data)
    assert str(refusal.value) == f"input {said}"


def test_outputs_come_in_binary_where_they_are_asked_for_so() -> None:
    body, head = rest_body(
        arrays(),
        False,
        outputs=[{"name": "scores", "parameters": {"binary_data": True}}, {"name": "text"}],
    )
    request = read_request("fusion", "", body, head)
    response = response_of(parse_request(request, REGISTRY), Result(7, "v", 1, 0, 0, TENSORS), 0)
    written, size = write_body(response, wants_binary(request))
    told = json.loads(written[:size])
    assert told["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert "data" not in told["outputs"][0]
    assert told["outputs"][1]["data"] == ["hi"]
    assert written[size:] == TENSORS[0][3]
    # One parameter asks for all of them.
    body, head = rest_body(arrays(), False, parameters={"binary_data_output": True})
    written, size = write_body(response, wants_binary(read_request("fusion", "", body, head)))
    assert written[size:] == TENSORS[0][3] + TENSORS[1][3]


def test_a_wish_for_binary_that_is_no_truth_is_refused() -> None:
    body, head = rest_body(arrays(), False, parameters={"binary_data_output": 3})
    with pytest.raises(BadRequestError, match="binary_data_output=3 is neither true nor false"):
        wants_binary(read_request("fusion", "", body, head))


# Backends


def double(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {"sum": batch["a"].sum(1) + batch.get("b", np.zeros((len(batch["a"]), 1)))[:, 0]}


A = TensorSpec("a", "FP32", (-1,))
B = TensorSpec("b", "INT64", (1,), optional=True)


def test_requests_with_the_same_inputs_and_shapes_run_together() -> None:
    runner = NamedRunner(double, 8, (A, B))
    one = {"a": np.ones(3, np.float32)}
    other = {"a": np.ones(3, np.float32), "b": np.ones(1, np.int64)}
    for item in (one, other, np.ones(2, np.float32)):
        runner.check(item)
    assert runner.alike(one) == runner.alike({"a": np.zeros(3, np.float32)})
    assert len({runner.alike(one), runner.alike(other), runner.alike(np.ones(2))}) == 3
    assert runner.run(runner.stage([other, other]))["sum"].tolist() == [4.0, 4.0]
    for item in sample_items((A, B, NOTE), 2):
        assert set(item) == {"a", "b", "note"}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"b": np.ones(1, np.int64)}, "input 'a' is missing"),
        ({"a": np.ones(1, np.float64)}, "'a' is float64\\[1\\], the model takes FP32\\[-1\\]"),
        ({"a": np.ones((1, 1), np.float32)}, "takes FP32\\[-1\\]"),
        ({"a": np.ones(1, np.float32), "c": np.ones(1)}, "no input 'c'"),
    ],
)
def test_a_backend_refuses_what_its_model_does_not_take(item: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        NamedRunner(double, 8, (A, B)).check(item)


def test_a_model_of_one_array_refuses_several() -> None:
    with pytest.raises(InputError, match="inputs a, b came, the model takes one"):
        PlainRunner(double, 8, (4,)).check({"a": np.ones(1), "b": np.ones(1)})


def test_a_payload_that_does_not_add_up_is_refused() -> None:
    table = (("a", "FP32", (1,), 4),)
    with pytest.raises(InputError, match="inputs a take 4 bytes, not 8"):
        view(Payload(1, "", (), bytes(8), tensors=table), Segments())
    with pytest.raises(InputError, match="takes 4 bytes, not 2"):
        view(Payload(1, "", (), bytes(2), tensors=table), Segments())


# Configuration


def entry(**more: Any) -> dict[str, Any]:
    variant = {"name": "v", "model": "own:load", "latency_ms": [1, 2]}
    return {"name": "own", "slo_ms": 100, "variants": [variant], **more}


def test_an_entry_gives_its_signature_by_name() -> None:
    inputs = [{"name": "a", "shape": [-1]}, {"name": "b", "dtype": "BYTES", "optional": True}]
    given = read_config(
        {"applications": [entry(inputs=inputs, outputs=[{"name": "sum", "shape": [-1]}])]}
    )
    model, _ = registry(given).find("own")
    assert model.inputs == (
        TensorSpec("a", "FP32", (-1,)),
        TensorSpec("b", "BYTES", (1,), optional=True),
    )
    assert model.outputs == (TensorSpec("sum", "FP32", (-1,)),)
    (spec,) = model_specs(given, {})
    assert spec.inputs == model.inputs


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"input": {"shape": [4]}, "inputs": [{"name": "a"}]}, "goes without input"),
        ({"inputs": [{"name": "a"}, {"name": "a"}]}, "'a': is there twice"),
        ({"inputs": [{"name": "a", "optional": True}]}, "must hold one that is not optional"),
        ({"inputs": [{"name": "a", "shape": [0]}]}, "sizes of 1 or more, or -1"),
        ({"inputs": [{"name": "a", "shape": [-2]}]}, "at least -1"),
        ({"inputs": [{"name": "a", "dtype": "FP8"}]}, "must be one of FP32"),
        ({"inputs": [{"shape": [1]}]}, "name"),
        ({"outputs": [{"name": "a"}, {"name": "a"}]}, "is there twice"),
        ({"input": {"shape": [3, -1, -1], "image": True}}, "must be channels, height, width"),
    ],
)
def test_a_signature_that_no_request_could_have_is_refused(more: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        registry(read_config({"applications": [entry(**more)]}))
    assert "\n" not in str(caught.value)
