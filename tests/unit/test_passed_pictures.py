"""JPEGs that a frontend passes on as they are, and the configuration that has it do so."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import RawTensor, add_input, join_bytes
from fermata.deployments.config.deployment import (
    DeploymentConfig,
    FrontendConfig,
    read_config,
)
from fermata.deployments.config.processes.frontend_options import decoders_of
from fermata.deployments.config.resolve import model_specs
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.inputs.request_input import DEVICE_PIXELS_MAX, RequestInput
from fermata.deployments.frontend.protocol.parsing import CallContext, parse_request
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ImageSpec, ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms

MODEL = ServedModel(
    "resnet",
    TensorSpec("input", "UINT8", (3, 8, 8)),
    ms(50),
    ms(80),
    image=ImageSpec(8, 8),
    decoded_later=True,
)


def jpeg(width: int = 20, height: int = 10, **options: Any) -> bytes:
    out = io.BytesIO()
    pixels = np.zeros((height, width, 3), np.uint8)
    Image.fromarray(pixels).save(out, options.pop("kind", "JPEG"), **options)
    return out.getvalue()


def parsed(model: ServedModel, shape: tuple[int, ...], *data: bytes) -> ParsedRequest:
    request = pb.ModelInferRequest(model_name="resnet")
    add_input(request, RawTensor("input", "BYTES", shape, join_bytes(data)))
    return parse_request(request, Registry.of([model]), CallContext(stream=1))


def read(data: bytes, model: ServedModel = MODEL, shape: tuple[int, ...] = (1,)) -> RequestInput:
    return parsed(model, shape, data).input


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_plain_jpeg_is_passed_on_as_it_is(shape: tuple[int, ...]) -> None:
    data = jpeg()
    given = read(data, shape=shape)
    assert not given.encoded
    # Its size is checked before it is queued.
    assert given.frame == (10, 20)
    spec = given.payload_spec()
    assert (spec.datatype, spec.shape) == ("BYTES", (1,))
    assert given.payload_bytes() == given.memory_bytes() == len(data) + 4
    view = memoryview(bytearray(given.payload_bytes()))
    given.write_payload(view, 1)
    assert bytes(view) == join_bytes([data])


@pytest.mark.parametrize(
    "data",
    [jpeg(progressive=True), jpeg(kind="PNG"), jpeg()[:-9], jpeg(3000, 1500)],
    ids=["progressive", "PNG", "cut off", "large"],
)
def test_other_pictures_are_decoded_in_the_frontend(data: bytes) -> None:
    assert DEVICE_PIXELS_MAX < 3000 * 1500
    given = read(data)
    assert given.encoded
    assert given.payload_spec() == MODEL.input


def test_pictures_that_come_as_rows_are_passed_on_each_by_itself() -> None:
    whole = parsed(MODEL, (3, 1), jpeg(), jpeg(kind="PNG"), jpeg(30, 10))
    assert whole.is_split
    parts = [part.input for part in whole.split()]
    assert [part.encoded for part in parts] == [False, True, False]
    assert [part.frame for part in parts] == [(10, 20), (0, 0), (10, 30)]
    spec = parts[2].payload_spec()
    assert (spec.datatype, spec.shape) == ("BYTES", (1,))


def test_nothing_is_passed_on_unless_backends_decode() -> None:
    assert read(jpeg(), replace(MODEL, decoded_later=False)).encoded


def deployment(device: str = "cuda", swap: bool = False, **more: Any) -> DeploymentConfig:
    given = {"dtype": "UINT8", "shape": [3, 224, 224], "image": True, **more}
    variant = {"name": "v", "model": "torchvision:resnet50", "alpha_ms": 1, "beta_ms": 1}
    application = {"name": "a", "slo_ms": 50, "input": given, "variants": [variant]}
    backend = {"device": device, "swap": swap}
    return read_config({"applications": [application], "backend": backend})


def decoded_later(config: DeploymentConfig) -> bool:
    model, _ = registry(config).known("a")
    (spec,) = model_specs(config, {})
    assert (spec.picture is not None) == model.decoded_later
    return model.decoded_later


def test_pictures_are_decoded_on_the_gpu_where_there_is_one() -> None:
    assert decoded_later(deployment())
    assert decoded_later(deployment("auto", decode="gpu"))
    assert not decoded_later(deployment(decode="cpu"))
    # Which device that is, is settled when the deployment is built.
    assert not decoded_later(deployment("auto"))
    assert not decoded_later(deployment("cpu"))
    assert not decoded_later(deployment(image=False))
    assert not decoded_later(deployment(swap=True))


def test_a_gpu_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs backend\.device: cuda"):
        registry(deployment("cpu", decode="gpu"))


def test_decoders_share_the_cores_of_a_machine() -> None:
    assert decoders_of(FrontendConfig(), 16) == 16
    assert decoders_of(FrontendConfig(processes=5), 16) == 3
    assert decoders_of(FrontendConfig(processes=40, per_node=4), 16) == 4
    # One picture that takes long does not hold up all others.
    assert decoders_of(FrontendConfig(processes=9), 4) == 2


def test_the_backends_copy_has_the_pictures_options() -> None:
    (spec,) = model_specs(deployment(fit="crop"), {})
    assert spec.picture == ImageSpec(224, 224, fit="crop")
