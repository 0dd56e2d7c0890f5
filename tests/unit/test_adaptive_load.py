"""Cameras of `fermata load --adapt`."""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

from fermata.clients.describe import ModelDescription
from fermata.clients.load.adaptive import (
    AdaptiveOptions,
    AdaptiveSender,
    cached_encoder,
    from_step,
)
from fermata.clients.load.arrivals import SendTimes
from fermata.clients.load.ledger import LoadLedger, merge
from fermata.clients.load.sender import SenderOptions, Target
from fermata.clients.network.emulated_link import BandwidthTrace
from fermata.clients.stream import StreamOptions
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire import parameters as names
from fermata.clients.wire.service import SERVICE, STREAM
from fermata.clients.wire.tensors import RawTensor, split_bytes
from fermata.commands.streaming.adaptive_load import FRAMES_MAX, adaptive
from fermata.commands.streaming.camera import Camera
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import seconds

PICTURES = ModelDescription("m", "input", "BYTES", (1,), "output", seconds(1), 0, "pictures")
ASKED = 96
FRAMES, CAMERAS = 6, 3


def film(count: int = 4) -> list[Any]:
    return [np.full((240, 320, 3), 20 * number, np.uint8) for number in range(count)]


def test_each_camera_begins_at_another_step_of_the_same_trace() -> None:
    trace = BandwidthTrace(tuple(float(mbps) for mbps in range(1, 101)), seconds(1))
    begun = [from_step(trace, camera) for camera in range(10)]
    assert len({each.bps[0] for each in begun if each is not None}) == 10
    assert all(each is not None and sorted(each.bps) == list(trace.bps) for each in begun)
    assert from_step(None, 3) is None


def test_each_jpeg_is_made_once() -> None:
    frames = film()
    encode = cached_encoder(frames)
    data, scale = encode(frames[1], 160, 80)
    assert encode(frames[1], 160, 80)[0] is data
    assert encode(frames[1], 160, 40)[0] is not data
    assert encode(frames[2], 160, 80)[0] != data
    assert scale == 2.0


def test_beginning_of_a_film_is_kept_and_nothing_but_a_film_is_taken(tmp_path: Path) -> None:
    options = SenderOptions("127.0.0.1:1")
    found = adaptive(options, Camera("", "carphone_pristine", "m", 8.0, adapt=True), PICTURES, 2)
    assert len(found.film) == FRAMES_MAX
    assert (found.stream.adapt, found.stream.fps, found.stream.priority) == (True, 8.0, 2)
    with pytest.raises(ConfigError, match="give a video that is a file"):
        adaptive(options, Camera("", "rtsp://host/1", "m", 8.0, adapt=True), PICTURES)
    tensors = ModelDescription("m", "input", "FP32", (4,), "output", 0, 0)
    with pytest.raises(ConfigError, match="takes FP32 tensors, not pictures"):
        adaptive(options, Camera("", "carphone_pristine", "m", 8.0, adapt=True), tensors)


async def serve(
    requests: AsyncIterator[pb.ModelInferRequest], context: Any
) -> AsyncIterator[pb.ModelStreamInferResponse]:
    """Asks for frames of one side; an answer's batch size is the side of the frame that came."""
    async for request in requests:
        (data,) = split_bytes(request.raw_input_contents[0])
        with Image.open(io.BytesIO(data)) as picture:
            side = max(picture.size)
        response = pb.ModelInferResponse(id=request.id)
        given = response.parameters
        given[names.INPUT_SIZE].int64_param = ASKED
        given[names.NETWORK_US].int64_param = 500_000
        given[names.SERVER_US].int64_param = 0
        given[names.BATCH_SIZE].int64_param = side
        yield pb.ModelStreamInferResponse(infer_response=response)


@asynccontextmanager
async def cameras() -> AsyncIterator[AdaptiveSender]:
    """CAMERAS cameras, each with FRAMES frames 50 ms apart, and a server that answers them."""
    live = grpc.unary_unary_rpc_method_handler(
        _alive,
        request_deserializer=pb.ServerLiveRequest.FromString,
        response_serializer=pb.ServerLiveResponse.SerializeToString,
    )
    stream = grpc.stream_stream_rpc_method_handler(
        serve,
        request_deserializer=pb.ModelInferRequest.FromString,
        response_serializer=pb.ModelStreamInferResponse.SerializeToString,
    )
    server = grpc.aio.server()
    handlers = {"ServerLive": live, STREAM: stream}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    how = StreamOptions(slo_ns=seconds(20), fps=1.0, client="camera", adapt=True)
    options = AdaptiveOptions(f"127.0.0.1:{port}", stream=how, film=film())
    at_ns = np.repeat(np.arange(FRAMES) * 50_000_000, CAMERAS)
    client = np.tile(np.arange(1, CAMERAS + 1), FRAMES)
    arrivals = SendTimes(at_ns, np.zeros_like(at_ns), client)
    target = Target("m", RawTensor("input", "BYTES", (1,), b""), seconds(20))
    sender = AdaptiveSender(options, [target], arrivals)
    await sender.connect()
    yield sender
    await server.stop(None)


def outcomes(ledger: LoadLedger) -> set[str]:
    return {ledger.outcomes[each] for each in ledger.outcome.tolist()}


def test_cameras_send_what_they_are_asked_for() -> None:
    async def test() -> None:
        async with cameras() as sender:
            ledger = await sender.run(time.monotonic_ns())
        assert outcomes(ledger) == {"OK"}
        assert (ledger.answered_ns >= ledger.sent_ns).all()
        for camera in range(1, CAMERAS + 1):
            sides = ledger.batch[ledger.client == camera].tolist()
            # Nothing is known before the first answer, and from then on what was asked for.
            assert sides[0] == 64
            assert sides[-1] == ASKED

    asyncio.run(test())


def test_cameras_that_are_stopped_have_their_last_frames_answered() -> None:
    async def test() -> None:
        async with cameras() as sender:
            asyncio.get_running_loop().call_later(0.12, sender.stop)
            ledger = await sender.run(time.monotonic_ns())
        assert outcomes(ledger) == {"OK", "UNSENT"}
        # The ledger tells only of what was due while they sent.
        told = merge([ledger])
        assert outcomes(told) == {"OK"}
        assert 0 < len(told.sent_ns) < CAMERAS * FRAMES

    asyncio.run(test())


async def _alive(request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
    return pb.ServerLiveResponse(live=True)
