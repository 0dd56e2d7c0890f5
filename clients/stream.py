"""`FrameStream`: frames in, results out in order, each with a deadline."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from queue import SimpleQueue
from typing import Any

import grpc

from fermata.clients.access import OPEN, Access
from fermata.clients.call_status import CallStatus
from fermata.clients.frames import Frame, Source, encode_jpeg, open_captures
from fermata.clients.network.adaptation import (
    SIDES,
    Adaptation,
    Encoder,
    Sized,
    original_boxes,
    shrunk_jpeg,
)
from fermata.clients.network.emulated_link import BandwidthTrace, EmulatedLink
from fermata.clients.network.jpeg_quality import LADDER
from fermata.clients.pending import NEVER, FrameResult, Pending
from fermata.clients.pipeline_answers import BoxForm, original_answer
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire import parameters as names
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.parameters import integer, parameter, text
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import (
    RawTensor,
    add_input,
    join_bytes,
    response_tensors,
    to_array,
)

Write = Callable[[pb.ModelInferRequest], Awaitable[None]]
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 1.0
PROBES, PROBE_S = 3, 1.0
"""Empty messages before a stream that follows its network, and how long each may take."""
IN_HAND_MAX = 8
"""Results with their frames that wait for a caller without a loop."""
LOOK_S = 0.005
DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""To come again would not help."""
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How frames are sent."""

    slo_ns: int = 100_000_000
    """From capture to result."""
    fps: float | None = None
    """None: the source's own pace; 0: as fast as answers come."""
    client: str = ""
    """Names the stream to the server; needed to keep its place across reconnects."""
    priority: int = 0
    quality: int = 80
    """Quality of the JPEGs."""
    quality_min: int = LADDER[0]
    """The lowest quality of a stream that adapts; from `quality` on, that alone is sent."""
    in_flight_max: int = 32
    """Frames without a result; further ones wait, or are left out where the source is live."""
    attempts_max: int = 3
    classes: int = 0
    """Ask for the best classes by name, of `output`, in place of the tensor."""
    input: str = "input"
    output: str = "output"
    adapt: bool = False
    """Follow the network: send the size that the server asks for, or the largest that the uplink
    carries in time. Needs `fps`, `client` and frames that are arrays."""
    sides: tuple[int, ...] = SIDES
    """Sides that frames may be sent at; the default allows the very side that is asked for too."""
    fit: str = "whole"
    """The model's: `whole`, where the longer side counts, or `centre`, where the shorter does."""
    boxes: str = ""
    """The output with boxes, which are given back in pixels of the frame as it was before it was
    made smaller."""
    boxes_axis: str = "last"
    """Dimension of that output that holds the numbers of a box: `last` or `first`."""
    boxes_format: str = "xyxy"
    """`quad` where eight numbers place a box."""
    answer: str = ""
    """The output with the document of a pipeline, whose boxes are given back so as well."""
    stage_boxes: Mapping[str, BoxForm] = field(default_factory=dict)
    """Stages of a pipeline that find boxes."""
    accuracy_floor: float = 0.0
    """No less accurate variant may answer."""
    variant: str = ""
    """The only variant that may answer."""
    access: Access = OPEN
    """Token and TLS, for servers that ask for them."""
    uplink: BandwidthTrace | None = None
    """Emulate an uplink of this bandwidth, from its beginning on; None: the real one alone."""
    keep_frames: bool = False
    """Results have their frames, as the source gave them."""
    encoder: Encoder = shrunk_jpeg
    """Makes the JPEGs of a stream that adapts."""


async def _write_each(call: Any, carried: "asyncio.Queue[pb.ModelInferRequest]") -> None:
    # The reading side sees the end too.
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(await carried.get())


@cache
def _shared_loop() -> asyncio.AbstractEventLoop:
    """The loop of every stream that is used without one: grpc.aio wants one for a process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="streams", daemon=True).start()
    return loop


class FrameStream:
    """Sends the frames of a source; iterate over it, with `async for` or `for`, for the results.

    Survives the loss of its server: what was under way is sent again as long as time allows, and
    every frame ends in one result, an error where there is no better.
    """

    def __init__(
        self, server: str, model: str, source: Source, options: StreamOptions | None = None
    ) -> None:
        self.server = server
        self.model = model
        self.source = source
        self.options = options or StreamOptions()
        self.pending = Pending(self.options.slo_ns, attempts_max=self.options.attempts_max)
        self.connects = 0
        """How often a stream was opened."""
        self.adaptation: Adaptation | None = None
        if self.options.adapt:
            if not self.options.fps or not self.options.client:
                raise BadRequestError("adapt needs fps above 0 and a client's name: give both")
            self.adaptation = Adaptation(
                self.options.fps,
                self.options.slo_ns,
                self.options.sides,
                self.options.quality,
                self.options.fit,
                self.options.encoder,
                self.options.quality_min,
            )
        self.link: EmulatedLink | None = None
        if self.options.uplink is not None:
            self.link = EmulatedLink(self.options.uplink, -time.monotonic_ns())
        self._data: dict[int, Sized] = {}
        self._frames: dict[int, Frame] = {}
        self._outbox: asyncio.Queue[int] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._exhausted = False
        self._stopped = threading.Event()
        self._closing = False
        self._trouble: Exception | None = None

    # Results

    async def __aiter__(self) -> AsyncGenerator[FrameResult, None]:
        self._loop = asyncio.get_running_loop()
        self._places = threading.Semaphore(self.options.in_flight_max)
        capture = threading.Thread(target=self._capture, name="capture", daemon=True)
        sending = asyncio.ensure_future(self._keep_connected())
        capture.start()
        try:
            while True:
                for result in self.pending.take_ready():
                    self._data.pop(result.index, None)
                    result.frame = self._frames.pop(result.index, None)
                    self._places.release()
                    yield result
                if self._trouble is not None:
                    raise self._trouble
                if self._exhausted and not self.pending.order:
                    return
                await self._wait()
        finally:
            self._stopped.set()
            self._places.release()
            self._closing = True
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def __iter__(self) -> Iterator[FrameResult]:
        """The same for code without a loop: a thread of its own runs one."""
        results: SimpleQueue[FrameResult | BaseException | None] = SimpleQueue()

        async def pump() -> None:
            try:
                async for result in self:
                    # Frames are large, and the caller may take them more slowly than they come.
                    while self.options.keep_frames and results.qsize() >= IN_HAND_MAX:
                        await asyncio.sleep(LOOK_S)
                    results.put(result)
                results.put(None)
            except BaseException as error:
                # Any error is passed on: another thread waits for the next result.
                results.put(error)

        pumping = asyncio.run_coroutine_threadsafe(pump(), _shared_loop())
        try:
            while (result := results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            self._stopped.set()
            pumping.cancel()

    def stop(self) -> None:
        """Take no more frames; those under way still get their results."""
        self._stopped.set()

    async def _wait(self) -> None:
        """Until something has changed or is due."""
        self._changed.clear()
        now_ns = time.monotonic_ns()
        wake_at_ns = self.pending.wake_at_ns()
        timeout_s = None if wake_at_ns == NEVER else max(0.001, (wake_at_ns - now_ns) / 1e9)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        now_ns = time.monotonic_ns()
        self.pending.on_time(now_ns)
        for index in self.pending.due(now_ns):
            self._outbox.put_nowait(index)

    # Capture, in a thread

    def _capture(self) -> None:
        call = self._loop.call_soon_threadsafe
        trouble: Exception | None = None
        try:
            for index, taken in enumerate(open_captures(self.source, self.options.fps)):
                now_ns = time.monotonic_ns()
                captured_at_ns = now_ns if taken.at_ns is None else taken.at_ns
                data = self._encode(now_ns, taken.frame)
                self._places.acquire()
                if self._stopped.is_set():
                    break
                if self.options.fps == 0:
                    # Nobody waits for a frame that is made on demand: its time starts now.
                    captured_at_ns = time.monotonic_ns()
                kept = taken.frame if self.options.keep_frames else None
                call(self._on_frame, captured_at_ns, index, data, kept)
        # Errors of a camera's source are raised where the answers are read.
        except Exception as error:
            trouble = error
        # Behind the last frame, or that one would come to a stream that has ended. A loop that is
        # closed has nobody left to tell.
        if not self._loop.is_closed():
            call(self._on_exhausted, trouble)

    def _encode(self, now_ns: int, frame: Frame) -> Sized:
        if self.adaptation is not None:
            return self.adaptation.encode(now_ns, frame)
        return Sized(encode_jpeg(frame, self.options.quality), 0, 1.0)

    def _on_exhausted(self, trouble: Exception | None) -> None:
        self._exhausted = True
        self._trouble = trouble
        self._changed.set()

    def _on_frame(self, captured_at_ns: int, index: int, data: Sized, kept: Frame | None) -> None:
        self.pending.add(captured_at_ns, index)
        self._data[index] = data
        if kept is not None:
            self._frames[index] = kept
        self._outbox.put_nowait(index)
        self._changed.set()

    # The connection

    async def _keep_connected(self) -> None:
        backoff_s = BACKOFF_S_MIN
        access = self.options.access
        async with access.aio_channel(self.server, CHANNEL_OPTIONS) as channel:
            while True:
                # Each time anew: a token may have been changed meanwhile.
                stub = InferenceStub(channel, access.headers())
                self.connects += 1
                await self._probe(stub)
                call = stub.ModelStreamInfer()
                ending = CallStatus(call)
                sender = asyncio.ensure_future(self._send(call))
                message, status = "the server ended the stream", "UNAVAILABLE"
                answered = False
                try:
                    async for response in call:
                        answered = True
                        self._on_response(response)
                except grpc.aio.AioRpcError:
                    code, details = await ending.final()
                    message = f"{code.name}: {details}"
                    if code in DENIED:
                        status = code.name
                finally:
                    sender.cancel()
                    call.cancel()
                if self._closing:
                    # A call that fails as it is cancelled swallows the cancellation.
                    return
                self.pending.on_disconnect(time.monotonic_ns(), message, status)
                if self.adaptation is not None:
                    self.adaptation.on_disconnect()
                self._changed.set()
                backoff_s = BACKOFF_S_MIN if answered else min(2 * backoff_s, BACKOFF_S_MAX)
                await asyncio.sleep(backoff_s)

    async def _probe(self, stub: InferenceStub) -> None:
        """Learn what distance alone costs, before the stream keeps the uplink busy."""
        for _ in range(PROBES if self.adaptation is not None else 0):
            started_at_ns = time.monotonic_ns()
            try:
                await stub.ServerLive(pb.ServerLiveRequest(), timeout=PROBE_S)
            except grpc.aio.AioRpcError:
                # The stream that follows tells what is wrong.
                return
            assert self.adaptation is not None
            self.adaptation.on_probe(time.monotonic_ns() - started_at_ns)

    async def _send(self, call: Any) -> None:
        if self.link is None:
            await self._send_by(call.write)
            return
        carried: asyncio.Queue[pb.ModelInferRequest] = asyncio.Queue()
        writing = asyncio.ensure_future(_write_each(call, carried))
        try:
            await self._send_by(partial(self._carry, self.link, carried))
        finally:
            writing.cancel()

    async def _carry(
        self,
        link: EmulatedLink,
        carried: "asyncio.Queue[pb.ModelInferRequest]",
        request: pb.ModelInferRequest,
    ) -> None:
        """Let the emulated uplink have a frame, which it hands on when it has carried it."""
        now_ns = time.monotonic_ns()
        through_ns = link.carry(now_ns, 8 * request.ByteSize()) - now_ns
        self._loop.call_later(through_ns / 1e9, carried.put_nowait, request)

    async def _send_by(self, write: Write) -> None:
        while True:
            index = await self._outbox.get()
            now_ns = time.monotonic_ns()
            left_ns = self.pending.left_ns(now_ns, index)
            reason = "no time was left to send it"
            if left_ns > 0 and self.adaptation is not None:
                left_ns = self.adaptation.send(now_ns, index, self._data[index], left_ns)
                reason = self.adaptation.why_not_sent()
            if left_ns <= 0:
                self.pending.give_up(time.monotonic_ns(), index, reason)
                self._changed.set()
                continue
            self.pending.on_sent(index)
            try:
                await write(self._request(index, left_ns))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                # The reading side sees the end too, and sends this frame again with the others.
                return

    def _request(self, index: int, left_ns: int) -> pb.ModelInferRequest:
        options = self.options
        request = pb.ModelInferRequest(model_name=self.model, id=str(index))
        # The rest of the SLO, so that time lost on this side is not counted as the server's.
        request.parameters[names.TIMEOUT].int64_param = max(1, left_ns // 1000)
        if options.priority:
            request.parameters[names.PRIORITY].uint64_param = options.priority
        if options.client:
            request.parameters[names.CLIENT].CopyFrom(parameter(options.client))
        sized = self._data[index]
        if self.adaptation is not None:
            now_ns = time.monotonic_ns()
            self.adaptation.report(now_ns, sized.side, request.parameters, sized.least_bits)
        if options.accuracy_floor:
            request.parameters[names.ACCURACY_FLOOR].double_param = options.accuracy_floor
        if options.variant:
            request.parameters[names.PINNED].string_param = options.variant
        add_input(request, RawTensor(options.input, "BYTES", (1,), join_bytes([sized.data])))
        if options.classes:
            output = request.outputs.add(name=options.output)
            output.parameters["classification"].int64_param = options.classes
        return request

    def _on_response(self, message: pb.ModelStreamInferResponse) -> None:
        response = message.infer_response
        now_ns = time.monotonic_ns()
        given = response.parameters
        if not response.id.isdecimal():
            return
        index = int(response.id)
        sized = self._data.get(index)
        if self.adaptation is not None and not self.adaptation.on_message(now_ns, index, given):
            return
        if message.error_message:
            status = text(given, names.STATUS) or "UNKNOWN"
            retry_after_ns = (integer(given, names.RETRY_AFTER_US) or 0) * 1000
            self.pending.on_refusal(now_ns, index, status, message.error_message, retry_after_ns)
        else:
            result = self.pending.on_result(now_ns, index)
            if result is not None:
                result.outputs = {each.name: to_array(each) for each in response_tensors(response)}
                if sized is not None:
                    result.side = sized.side
                    if sized.scale != 1.0:
                        self._move_back(result.outputs, sized.scale)
                result.variant = text(given, names.VARIANT)
                result.batch_size = integer(given, names.BATCH_SIZE) or 0
                result.queue_ns = (integer(given, names.QUEUE_US) or 0) * 1000
        self._changed.set()

    def _move_back(self, outputs: dict[str, Any], scale: float) -> None:
        """Give places in pixels of the frame as it was before it was made smaller."""
        options = self.options
        if options.boxes in outputs:
            form = BoxForm(options.boxes, options.boxes_format, options.boxes_axis)
            rows = outputs[form.output]
            outputs[form.output] = original_boxes(rows, scale, form.axis, form.numbers)
        if options.answer in outputs:
            document = outputs[options.answer]
            given = document.reshape(-1)[0]
            document.reshape(-1)[0] = original_answer(given, scale, options.stage_boxes)
