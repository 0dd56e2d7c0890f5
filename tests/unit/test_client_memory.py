"""Shared memory of clients: what may be registered, and tensors that lie there."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.frontend.memory.client_memory import ClientMemory

FOLDER = Path("/dev/shm")
HOME = "127.0.0.1"


@pytest.fixture
def key() -> Iterator[str]:
    """A file of a client, of 64 bytes."""
    name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    (FOLDER / name).write_bytes(bytes(range(64)))
    yield name
    (FOLDER / name).unlink(missing_ok=True)


@pytest.fixture
def memory() -> Iterator[ClientMemory]:
    made = ClientMemory(is_open=True)
    yield made
    made.close()


def request_of(region: str, size: int, offset: int = 0) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    given = request.inputs.add(name="x", datatype="UINT8", shape=[size]).parameters
    given["shared_memory_region"].string_param = region
    given["shared_memory_byte_size"].int64_param = size
    given["shared_memory_offset"].int64_param = offset
    request.inputs.add(name="y", datatype="UINT8", shape=[2])
    request.raw_input_contents.append(b"yy")
    return request


def test_inputs_are_read_from_their_region(memory: ClientMemory, key: str) -> None:
    memory.register("", HOME, "in", f"/{key}", 8, 32)
    request = request_of("in", 4, 2)
    assert memory.fill("", request) == []
    assert list(request.raw_input_contents) == [bytes((10, 11, 12, 13)), b"yy"]
    assert not request.inputs[0].parameters


def test_outputs_are_written_to_their_region(memory: ClientMemory, key: str) -> None:
    memory.register("", HOME, "out", key, 0, 64)
    request = pb.ModelInferRequest()
    given = request.outputs.add(name="z").parameters
    given["shared_memory_region"].string_param = "out"
    given["shared_memory_byte_size"].int64_param = 8
    given["shared_memory_offset"].int64_param = 16
    wanted = memory.fill("", request)
    assert not request.outputs[0].parameters
    response = pb.ModelInferResponse()
    response.outputs.add(name="z", datatype="FP32", shape=[2])
    data = np.array([1.0, 2.0], np.float32).tobytes()
    response.raw_output_contents.append(data)
    memory.deliver(wanted, response)
    assert (FOLDER / key).read_bytes()[16:24] == data
    assert list(response.raw_output_contents) == [b""]
    assert response.outputs[0].parameters["shared_memory_region"].string_param == "out"
    response.raw_output_contents[0] = bytes(9)
    with pytest.raises(BadRequestError, match="has 9 bytes, its region 8"):
        memory.deliver(wanted, response)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"key": "../etc/passwd"}, "use a name of your own"),
        ({"key": "/a/b"}, "use a name of your own"),
        ({"key": ""}, "use a name of your own"),
        ({"key": "fermata-1-abc"}, "use a name of your own"),
        ({"key": "no-such-file"}, "cannot be opened"),
        ({"offset": 60, "byte_size": 8}, "has 64 bytes: 8 from 60 on do not fit"),
        ({"byte_size": 0}, "has 64 bytes: 0 from 0 on do not fit"),
        ({"byte_size": 2**63}, "do not fit"),
        ({"name": ""}, "needs a name of 1 to 200"),
        ({"name": "x" * 300}, "needs a name of 1 to 200"),
        ({"name": "taken"}, "'taken' is registered: unregister it first"),
        ({"peer": "10.0.0.7"}, "10.0.0.7 is another machine"),
    ],
)
def test_unsound_regions_are_refused(
    memory: ClientMemory, key: str, change: dict[str, object], error: str
) -> None:
    memory.register("", HOME, "taken", key, 0, 8)
    given: dict[str, object] = {"name": "n", "key": key, "offset": 0, "byte_size": 8}
    given = {"tenant": "", "peer": HOME, **given, **change}
    with pytest.raises(BadRequestError, match=error):
        memory.register(**given)  # type: ignore[arg-type]
    assert len(memory.regions) == 1


def test_a_link_to_elsewhere_is_no_region(memory: ClientMemory, tmp_path: Path) -> None:
    target = tmp_path / "secret"
    target.write_bytes(bytes(64))
    link = FOLDER / f"test-{os.getpid()}-{secrets.token_hex(4)}"
    link.symlink_to(target)
    try:
        with pytest.raises(BadRequestError, match="cannot be opened"):
            memory.register("", HOME, "n", link.name, 0, 8)
    finally:
        link.unlink()


def test_requests_stay_within_their_regions(memory: ClientMemory, key: str) -> None:
    memory.register("", HOME, "in", key, 0, 16)
    with pytest.raises(BadRequestError, match="has 16 bytes: 20 from 0 on do not fit"):
        memory.fill("", request_of("in", 20))
    with pytest.raises(BadRequestError, match="4 from -1 on do not fit"):
        memory.fill("", request_of("in", 4, -1))
    with pytest.raises(BadRequestError, match="'other' is not registered"):
        memory.fill("", request_of("other", 4))
    with pytest.raises(BadRequestError, match="not registered"):
        memory.fill("another tenant", request_of("in", 4))
    os.truncate(FOLDER / key, 2)
    with pytest.raises(BadRequestError, match="has been truncated"):
        memory.fill("", request_of("in", 4))


def test_regions_are_told_and_forgotten_by_tenant(memory: ClientMemory, key: str) -> None:
    memory.register("a", HOME, "in", key, 0, 8)
    memory.register("b", HOME, "in", key, 8, 8)
    assert [each.offset for each in memory.status("b")] == [8]
    with pytest.raises(BadRequestError, match="not registered"):
        memory.status("b", "out")
    memory.unregister("b", "unknown")
    memory.unregister("b")
    assert memory.status("b") == []
    assert len(memory.status("a", "in")) == 1


def test_memory_is_off_unless_configured(key: str) -> None:
    memory = ClientMemory()
    with pytest.raises(BadRequestError, match=r"set frontend\.client_memory to true") as caught:
        memory.register("", HOME, "in", key, 0, 8)
    assert caught.value.grpc_status == "FAILED_PRECONDITION"
    assert memory.status("") == []
    memory.unregister("")
