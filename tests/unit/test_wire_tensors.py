"""Tensors there and back, and every way in which they can be wrong."""

import numpy as np
import pytest

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.dtypes import NUMPY
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import (
    DTYPES,
    RawTensor,
    add_input,
    add_output,
    check_finite,
    from_array,
    join_bytes,
    request_tensors,
    response_tensors,
    split_bytes,
    to_array,
)
from fermata.deployments.backend.execution.tensors import tensor


def raw(datatype: str, shape: list[int], data: bytes) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(raw_input_contents=[data])
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    return request


def typed(datatype: str, shape: list[int], **contents: object) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest()
    request.inputs.add(
        name="x",
        datatype=datatype,
        shape=shape,
        contents=pb.InferTensorContents(**contents),  # type: ignore[arg-type]
    )
    return request


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BF16"])
def test_every_dtype_survives_a_request_and_a_response(datatype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(DTYPES[datatype])
    tensor = from_array("x", array)
    request, response = pb.ModelInferRequest(), pb.ModelInferResponse()
    add_input(request, tensor)
    add_output(response, tensor)
    for (back,) in (request_tensors(request), response_tensors(response)):
        assert back.datatype == datatype
        assert np.array_equal(to_array(back), array)


@pytest.mark.parametrize("datatype", NUMPY)
def test_every_output_of_a_model_travels_as_clients_read_it(datatype: str) -> None:
    given = np.array([0, 1, 3]).astype(NUMPY[datatype])
    for array in (given, given.astype(given.dtype.newbyteorder(">"))):
        sent = RawTensor(*tensor("output", array))
        assert sent.datatype == datatype
        assert to_array(sent).tolist() == given.tolist()


def test_bf16_is_rounded_to_even_and_widened() -> None:
    # 1 + 2^-8 lies half way between two bfloat16 numbers; the even one is 1.
    array = np.array([1.0, 1.0 + 2**-8, -2.5, np.inf, np.nan], np.float32)
    back = to_array(from_array("x", array, "BF16"))
    assert back[:4].tolist() == [1.0, 1.0, -2.5, np.inf]
    assert np.isnan(back[4])


def test_typed_and_raw_contents_give_the_same_tensor() -> None:
    (one,) = request_tensors(typed("INT8", [2], int_contents=[-1, 2]))
    (other,) = request_tensors(raw("INT8", [2], b"\xff\x02"))
    assert one == other
    (words,) = request_tensors(typed("BYTES", [2], bytes_contents=[b"a", b""]))
    assert split_bytes(words.data) == [b"a", b""]


def test_bytes_elements_survive_numpy() -> None:
    tensor = from_array("x", np.array([[b"\x00\x01"], [b""]], dtype=object))
    assert tensor.shape == (2, 1)
    assert to_array(tensor).tolist() == [[b"\x00\x01"], [b""]]
    assert from_array("x", np.array(["é"])).data == join_bytes(["é".encode()])


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (raw("FP32", [2], b"\x00" * 7), "7 bytes, FP32[2] takes 8"),
        (raw("FP31", [1], b"\x00" * 4), "datatype 'FP31': use one of BOOL"),
        (raw("FP32", [-1, 2], b""), "no dimension may be below 0"),
        (raw("FP32", [1 << 62, 1 << 62], b"\x00" * 4), "4 bytes"),
        (raw("UINT8", [1] * 17, b"\x00"), "17 dimensions: use at most 16"),
        (raw("BYTES", [1], b"\x00\x00"), "ends before element 0 of 1"),
        (raw("BYTES", [1], b"\xff\xff\xff\xff1"), "element 0 4294967295 bytes, 1 are left"),
        (raw("BYTES", [2], join_bytes([b"a"])), "ends before element 1 of 2"),
        (raw("BYTES", [1], join_bytes([b"a", b"b"])), "5 bytes after its 1 elements"),
        (raw("BYTES", [1 << 60], b"\x00" * 8), "ends before element 2"),
        (typed("FP32", [2], fp32_contents=[1.0]), "1 elements in fp32_contents, its shape 2"),
        (typed("FP32", [1], fp64_contents=[1.0]), "0 elements in fp32_contents"),
        (typed("INT8", [1], int_contents=[300]), "has 300 at 0: send values that INT8 can hold"),
        (typed("FP16", [1], fp32_contents=[1.0]), "no typed contents: send it raw"),
    ],
)
def test_a_bad_tensor_is_refused_by_name(request_: pb.ModelInferRequest, says: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        request_tensors(request_)
    assert says in str(caught.value)
    assert "'x'" in str(caught.value)
    assert caught.value.grpc_status == "INVALID_ARGUMENT"


def test_raw_contents_must_match_the_inputs_in_number_and_exclude_typed_ones() -> None:
    request = raw("UINT8", [1], b"\x00")
    request.raw_input_contents.append(b"\x00")
    with pytest.raises(BadRequestError, match="2 entries for 1 tensors"):
        request_tensors(request)
    both = typed("UINT8", [1], uint_contents=[1])
    both.raw_input_contents.append(b"\x01")
    with pytest.raises(BadRequestError, match="send one of the two"):
        request_tensors(both)


def test_values_that_are_not_finite_are_named() -> None:
    good = from_array("x", np.array([1e38, 1e38, -1e38], np.float32))
    check_finite(good)
    check_finite(from_array("x", np.array([65504.0] * 9, np.float16)))
    check_finite(RawTensor("x", "UINT8", (1,), b"\xff"))
    for value in (np.nan, -np.inf):
        bad = from_array("x", np.array([0.0, value, value], np.float32))
        with pytest.raises(BadRequestError, match=r"2 values that are not finite.* at 1"):
            check_finite(bad)


def test_an_array_without_a_datatype_is_refused() -> None:
    with pytest.raises(BadRequestError, match="complex64"):
        from_array("x", np.zeros(1, np.complex64))
