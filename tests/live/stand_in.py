"""The stand-in of a router and a backend, and the models and requests of frontend tests."""

import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import (
    RawTensor,
    add_input,
    from_array,
    join_bytes,
    response_tensors,
    to_array,
)
from fermata.deployments.specs.frontend import FrontendOptions, ServerOptions
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ImageSpec, ServedModel, TensorSpec
from fermata.fault_simulator.fuzzing.stand_in import LINKS, RunningFrontend, StandIn
from fermata.foundation.units import ms

__all__ = ["LINKS", "StandIn"]

MODELS = (
    ServedModel(
        "sum",
        TensorSpec("input", "FP32", (4,)),
        ms(2000),
        ms(2000),
        (TensorSpec("output", "FP32", (3,)),),
        versions=("1", "2"),
        labels=("sum", "least", "most"),
    ),
    ServedModel("bytes", TensorSpec("input", "UINT8", (20_000,)), ms(2000), ms(2000)),
    ServedModel("large", TensorSpec("input", "FP32", (-1,)), ms(2000), ms(2000)),
    ServedModel(
        "picture",
        TensorSpec("input", "FP32", (3, 32, 32)),
        ms(2000),
        ms(2000),
        image=ImageSpec(32, 32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ),
    ServedModel(
        "letters",
        TensorSpec("input", "FP32", (2,)),
        ms(2000),
        ms(2000),
        read=lambda data: np.array([len(data), int(data.decode())], np.float32),
    ),
    ServedModel("silent", TensorSpec("input", "FP32", (4,)), ms(100), ms(100)),
    ServedModel("shed", TensorSpec("input", "FP32", (4,)), ms(2000), ms(2000)),
)


class Running(RunningFrontend):
    """The same with the models of these tests."""

    def __init__(self, make: Callable[[], FrontendOptions], delay_s: float = 0.0) -> None:
        super().__init__(make, Registry.of(MODELS), delay_s)


NUMBERS = from_array("input", np.arange(4, dtype=np.float32))


def options(**changes: Any) -> FrontendOptions:
    server = ServerOptions(grpc_port=0, http_port=0, message_bytes_max=1 << 20, drain_ns=ms(500))
    given = {"number": 1, "node": "here", "server": server, "links": LINKS}
    return FrontendOptions(**(given | changes))


def ask(model: str, tensor: RawTensor = NUMBERS, **given: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id="7")
    for name, value in given.items():
        request.parameters[name].int64_param = value
    add_input(request, tensor)
    return request


def jpeg(width: int = 64, height: int = 48) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (255, 0, 0)).save(out, "JPEG", quality=95)
    return out.getvalue()


def picture(data: bytes) -> RawTensor:
    return RawTensor("input", "BYTES", (1,), join_bytes([data]))


def numbers(response: pb.ModelInferResponse) -> list[float]:
    return [float(each) for each in to_array(response_tensors(response)[0]).reshape(-1)]


def wait_for(condition: Any, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)
