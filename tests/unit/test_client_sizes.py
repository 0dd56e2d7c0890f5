"""Sizes that cameras send: what is asked, of the side that counts, no more than the source has."""

import io
import random

import numpy as np
import pytest
from PIL import Image

from fermata.clients.network.adaptation import SIDES, Adaptation, Sized, shrunk_jpeg
from fermata.clients.network.jpeg_quality import cost, steps
from fermata.clients.wire import parameters as names
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.deployments.models.pictures.picture import CROP_MARGIN, centre_square
from fermata.foundation.units import ms
from fermata.router.policies.jellyfish.decision import Decider, SearchEffort
from fermata.router.policies.jellyfish.known_clients import ClientNeeds
from fermata.router.policies.jellyfish.mapping_problem import MappingProblem, answer


def sent(asked: int, height: int, width: int, fit: str = "whole") -> tuple[int, tuple[int, int]]:
    """Side claimed, and (height, width) of the picture, on a fast network."""
    adaptation = Adaptation(10, ms(200), SIDES, 80, fit)
    adaptation.uplink.on_advice(asked, ms(100), served=True)
    adaptation.uplink.estimator.on_probe(ms(1))
    for frame in range(3):
        now_ns = ms(100 * frame)
        adaptation.uplink.estimator.on_sent(now_ns, frame, 1_000_000)
        adaptation.uplink.on_received(now_ns + ms(2), frame)
    sized = adaptation.encode(ms(210), np.zeros((height, width, 3), np.uint8))
    picture = Image.open(io.BytesIO(sized.data))
    request = ModelInferRequest()
    adaptation.report(ms(210), sized.side, request.parameters)
    assert request.parameters[names.INPUT_SIZE].int64_param == sized.side
    return sized.side, (picture.height, picture.width)


@pytest.mark.parametrize("asked", [64, 100, 224, 240, 260, 300, 352, 417])
def test_exactly_what_is_asked_is_sent(asked: int) -> None:
    side, shape = sent(asked, 720, 1280)
    assert side == max(shape) == asked


@pytest.mark.parametrize(("height", "width"), [(720, 1280), (1280, 720), (600, 600)])
def test_model_that_sees_the_middle_gets_all_its_pixels(height: int, width: int) -> None:
    side, shape = sent(224, height, width, fit="centre")
    assert side == 224
    assert min(shape) in (256, 257)
    kept = min(shape) * 224 // (224 + CROP_MARGIN)
    assert kept >= 224
    assert centre_square(np.zeros((*shape, 3), np.uint8), 224).shape == (3, 224, 224)


@pytest.mark.parametrize(("asked", "height", "width"), [(640, 288, 352), (64, 48, 40)])
def test_camera_claims_no_more_than_its_source_has(asked: int, height: int, width: int) -> None:
    side, shape = sent(asked, height, width)
    assert side == max(height, width)
    assert shape == (height, width)


def sized_on(mbps: float) -> tuple[Sized, Adaptation]:
    """A frame of noise, of which 320 pixels are asked for within 50 ms, after two more."""
    adaptation = Adaptation(10, ms(200), SIDES, 80, quality_min=40)
    adaptation.uplink.on_advice(320, ms(50), served=True)
    frame = np.random.default_rng(1).integers(0, 256, (320, 320, 3)).astype(np.uint8)
    for number in range(3):
        now_ns = ms(100 * number)
        bits = int(mbps * 20_000)
        adaptation.uplink.estimator.on_sent(now_ns, number, bits)
        adaptation.uplink.on_received(now_ns + ms(20), number)
        sized = adaptation.encode(now_ns + ms(30), frame)
    return sized, adaptation


def test_quality_gives_way_before_size() -> None:
    full, few = shrunk_bits(80), shrunk_bits(40)
    assert few < 0.7 * full
    plenty, _ = sized_on(100)
    assert (plenty.side, 8 * len(plenty.data)) == (320, full)
    # In 50 ms go three quarters of the bits at quality 80.
    slow, _ = sized_on(0.75 * full / 50_000)
    assert slow.side == 320
    assert few <= 8 * len(slow.data) <= 0.75 * full
    slower, _ = sized_on(0.5 * few / 50_000)
    assert slower.side < 320


def shrunk_bits(quality: int) -> int:
    frame = np.random.default_rng(1).integers(0, 256, (320, 320, 3)).astype(np.uint8)
    return 8 * len(shrunk_jpeg(frame, 320, quality)[0])


def test_server_is_told_what_the_lowest_quality_would_take() -> None:
    sized, adaptation = sized_on(100)
    request = ModelInferRequest()
    adaptation.report(ms(300), sized.side, request.parameters, sized.least_bits)
    told = request.parameters[names.FRAME_BITS].int64_param
    assert told == round(8 * len(sized.data) * cost(40) / cost(80))
    assert told == pytest.approx(shrunk_bits(40), rel=0.15)


def test_one_quality_alone_is_sent_where_the_lowest_is_the_best() -> None:
    assert steps(40, 80) == (40, 50, 65, 80)
    assert steps(50, 80) == (50, 65, 80)
    assert steps(80, 80) == steps(90, 80) == (80,)
    assert steps(30, 45) == (30, 40, 45)
    adaptation = Adaptation(10, ms(200), SIDES, 80)
    request = ModelInferRequest()
    adaptation.report(0, 64, request.parameters, 1000)
    assert names.FRAME_BITS not in request.parameters


def test_source_is_told_to_the_server() -> None:
    adaptation = Adaptation(10, ms(200), SIDES, 80)
    adaptation.encode(0, np.zeros((288, 352, 3), np.uint8))
    request = ModelInferRequest()
    adaptation.report(0, 64, request.parameters)
    assert request.parameters[names.SOURCE_SIZE].int64_param == 352


@pytest.mark.parametrize(("source", "dnn"), [(352, 1), (100, 0), (700, 2), (0, 2)])
def test_small_source_is_given_no_larger_model(source: int, dnn: int) -> None:
    needs = ClientNeeds(1, ms(100), 10.0, 50e6, 0, 0.0, -1, {160: 1e5}, source)
    tables = tuple(tuple(ms(run * size) for size in (1, 2)) for run in (2, 4, 8))
    sizes = (160, 320, 640)
    problem = MappingProblem(
        (0.4, 0.6, 0.8), tables, sizes, (0, 1, 2), (needs,), 0.0, 0, 0.0, workers=1
    )
    decider = Decider(problem.zoo(), SearchEffort("resplit", 100), 4, random.Random(0))
    assert answer(decider, problem).posts[0].dnn == dnn
