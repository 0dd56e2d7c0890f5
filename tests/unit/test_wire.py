"""The generated protocol: up to date, alone in its pool, and the same as Triton's where shared."""

import importlib.util
import pickle
import subprocess
import sys

import pytest

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.parameters import integer, parameter, text, value_of

COMPARE = """
from tritonclient.grpc import model_config_pb2, service_pb2
from fermata.clients.wire import open_inference_pb2 as ours

def fields(message):
    # A message is compared by name, since the two pools have classes of their own.
    return {
        (f.name, f.number, f.type, f.is_repeated,
         f.message_type.full_name if f.message_type else None,
         f.containing_oneof.name if f.containing_oneof else None)
        for f in message.fields
    }

def compare(mine, theirs):
    missing = fields(mine) - fields(theirs)
    assert not missing, (mine.full_name, missing)
    for nested in mine.nested_types:
        compare(nested, theirs.nested_types_by_name[nested.name])
    return 1

count = 0
for name, mine in ours.DESCRIPTOR.message_types_by_name.items():
    for module in (service_pb2, model_config_pb2):
        theirs = module.DESCRIPTOR.message_types_by_name.get(name)
        if theirs is not None:
            count += compare(mine, theirs)
            break
    else:
        raise AssertionError(f"Triton has no message {name}")
mine = ours.DESCRIPTOR.enum_types_by_name["DataType"]
theirs = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"]
assert {(v.name, v.number) for v in mine.values} == {(v.name, v.number) for v in theirs.values}
service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
for method in ours.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
    other = service.methods_by_name[method.name]
    assert method.input_type.full_name == other.input_type.full_name
    assert method.output_type.full_name == other.output_type.full_name
    assert method.client_streaming == other.client_streaming
print(count)
"""


def test_classes_are_pickled_by_where_they_live() -> None:
    for message in (pb.ModelInferRequest, pb.ModelInferRequest.InferInputTensor):
        assert message.__module__ == pb.__name__
        sent = pickle.dumps(message)
        assert len(sent) < 200
        assert pickle.loads(sent) is message
    again = pickle.loads(pickle.dumps(pb.ModelInferRequest(model_name="m")))
    assert again.model_name == "m"


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not importlib.util.find_spec("grpc_tools"), reason="needs grpcio-tools")
def test_committed_stubs_are_what_the_proto_gives() -> None:
    assert run("-m", "fermata.clients.wire.generate", "--check") == "up to date"


@pytest.mark.skipif(not importlib.util.find_spec("tritonclient"), reason="needs tritonclient")
def test_names_numbers_and_types_are_tritons_in_one_process_with_it() -> None:
    assert int(run("-c", COMPARE)) == len(pb.DESCRIPTOR.message_types_by_name)


def test_a_message_survives_the_wire() -> None:
    sent = pb.ModelInferRequest(model_name="resnet", id="7", raw_input_contents=[b"\x00\xff"])
    sent.inputs.add(name="x", datatype="UINT8", shape=[2])
    assert pb.ModelInferRequest.FromString(sent.SerializeToString()) == sent


def test_parameters_keep_their_python_values() -> None:
    for value in (True, -3, "eight", 0.5):
        assert value_of(parameter(value)) == value
        assert type(value_of(parameter(value))) is type(value)
    assert value_of(pb.InferParameter()) is None


def test_an_integer_parameter_may_come_in_either_integer_field() -> None:
    given = {
        "timeout": pb.InferParameter(int64_param=50_000),
        "priority": pb.InferParameter(uint64_param=1),
        "client": pb.InferParameter(string_param="cam-3"),
    }
    assert integer(given, "timeout") == 50_000
    assert integer(given, "priority") == 1
    assert integer(given, "absent") is None
    assert text(given, "client") == "cam-3"
    assert text(given, "absent") == ""
    with pytest.raises(BadRequestError, match="client='cam-3' is no integer"):
        integer(given, "client")
