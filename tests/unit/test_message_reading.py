"""Messages of any size: read as protobuf reads them, or refused before they hold anybody up."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import DTYPES, from_array, request_tensors
from fermata.deployments.frontend.protocol.messages import SMALL_BYTES, MessageReader, cut_out

LARGE = 16 << 20
STALL_S = 0.05
"""On a loop that others use too. What these messages took before is ten times as much."""


def read(raw: bytes, bytes_max: int = LARGE) -> pb.ModelInferRequest:
    with ThreadPoolExecutor(1) as pool:
        return asyncio.run(MessageReader(pool, bytes_max).read(raw))


def typed(datatype: str, field: str, values: Any, shape: tuple[int, ...]) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m", id="7")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=shape)
    getattr(tensor.contents, field).extend(values)
    request.parameters["timeout"].int64_param = 5
    request.outputs.add(name="y")
    return request


RNG = np.random.default_rng(1)
TYPED = [
    ("FP32", "fp32_contents", RNG.normal(size=50_000).astype(np.float32)),
    ("FP64", "fp64_contents", RNG.normal(size=50_000)),
    ("INT8", "int_contents", RNG.integers(-128, 128, 80_000)),
    ("INT16", "int_contents", RNG.integers(-(2**15), 2**15, 80_000)),
    ("INT32", "int_contents", RNG.integers(-(2**31), 2**31, 80_000)),
    ("INT64", "int64_contents", RNG.integers(-(2**63), 2**63 - 1, 300_000)),
    ("UINT8", "uint_contents", RNG.integers(0, 256, 80_000)),
    ("UINT32", "uint_contents", RNG.integers(0, 2**32, 80_000)),
    ("UINT64", "uint64_contents", RNG.integers(0, 2**64, 80_000, dtype=np.uint64)),
    ("BOOL", "bool_contents", RNG.integers(0, 2, 80_000).astype(bool)),
]


@pytest.mark.parametrize(("datatype", "field", "values"), TYPED, ids=[each[0] for each in TYPED])
def test_large_typed_contents_mean_what_they_mean_to_protobuf(
    datatype: str, field: str, values: Any
) -> None:
    request = typed(datatype, field, values.tolist(), (len(values),))
    raw = request.SerializeToString()
    assert len(raw) > SMALL_BYTES
    found = read(raw)
    (tensor,) = request_tensors(found)
    assert tensor.data == values.astype(DTYPES[datatype]).tobytes()
    assert (found.model_name, found.id, found.outputs[0].name) == ("m", "7", "y")
    assert found.parameters["timeout"].int64_param == 5


def test_large_raw_contents_and_texts_come_through() -> None:
    request = pb.ModelInferRequest(model_name="m")
    data = from_array("x", RNG.integers(0, 256, 200_000).astype(np.uint8))
    request.inputs.add(name="x", datatype="UINT8", shape=data.shape)
    request.raw_input_contents.append(data.data)
    assert read(request.SerializeToString()) == request
    text = typed("BYTES", "bytes_contents", [b"\xff" * 100_000], (1,))
    (tensor,) = request_tensors(read(text.SerializeToString()))
    assert tensor.data[4:] == b"\xff" * 100_000


def field(number: int, body: bytes) -> bytes:
    size, head = len(body), [number << 3 | 2]
    while size >= 128:
        head.append(size % 128 + 128)
        size //= 128
    return bytes((*head, size)) + body


STALLS = {
    "empty inputs": field(5, b"") * (LARGE // 2),
    "empty outputs": field(6, b"") * (LARGE // 2),
    "empty raw contents": field(7, b"") * (LARGE // 2),
    "parameters": field(4, field(1, b"ab")) * (LARGE // 6),
    "parameters of the input": field(5, field(4, b"") * (LARGE // 2)),
    "dimensions": field(5, field(3, b"\x01" * LARGE)),
    "numbers that are not packed": field(5, field(5, b"\x10\x01" * (LARGE // 2))),
    "empty texts": field(5, field(5, field(8, b"") * (LARGE // 2))),
    "unknown fields": b"\x78\x01" * (LARGE // 2),
    "unknown groups": b"\x7b\x7c" * (LARGE // 2),
    "a number without an end": b"\xff" * LARGE,
    "a name of megabytes": field(1, b"a" * LARGE),
    "packed numbers": field(5, field(2, b"INT8") + field(5, field(2, b"\x01" * LARGE))),
    "long numbers": field(5, field(2, b"INT64") + field(5, field(3, b"\x80" * LARGE + b"\x01"))),
}


@pytest.mark.parametrize("case", STALLS)
def test_no_message_holds_the_loop_up(case: str) -> None:
    """It is refused; meanwhile the loop goes on."""
    raw = STALLS[case]

    async def late_s(reader: MessageReader) -> float:
        task = asyncio.ensure_future(reader.read(raw))
        worst_s = 0.0
        while not task.done():
            began_s = time.thread_time()
            await asyncio.sleep(0)
            worst_s = max(worst_s, time.thread_time() - began_s)
        with pytest.raises(BadRequestError):
            task.result()
        return worst_s

    with ThreadPoolExecutor(1) as pool:
        assert asyncio.run(late_s(MessageReader(pool, LARGE))) < STALL_S


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_what_is_cut_out_is_read_or_refused_by_name(before: bytes, after: bytes) -> None:
    """Whatever stands beside a large tensor."""
    raw = before + field(7, bytes(SMALL_BYTES)) + after
    try:
        request, contents = cut_out(raw)
    except BadRequestError:
        return
    if contents is None:
        assert request == pb.ModelInferRequest.FromString(raw)


def test_numbers_do_not_grow_beyond_the_limit_of_a_message() -> None:
    raw = typed("INT64", "int64_contents", [1] * 100_000, (100_000,)).SerializeToString()
    assert len(read(raw).raw_input_contents[0]) == 800_000
    with pytest.raises(BadRequestError, match="takes 800000 bytes: send at most 500000"):
        read(raw, 500_000)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (typed("INT8", "int_contents", [1000] * 60_000, (60_000,)), "INT8 cannot hold"),
        (typed("FP16", "fp32_contents", [1.0] * 60_000, (60_000,)), "no typed contents"),
        (typed("FP32", "fp32_contents", [1.0] * 60_000, (5,)), "60000 elements .* shape 5"),
        (typed("INT32", "fp32_contents", [1.0] * 60_000, (60_000,)), "other contents"),
    ],
)
def test_typed_contents_that_do_not_fit_are_refused(
    request_: pb.ModelInferRequest, said: str
) -> None:
    with pytest.raises(BadRequestError, match=said):
        read(request_.SerializeToString())
