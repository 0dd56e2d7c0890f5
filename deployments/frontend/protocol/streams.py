"""One client's ModelStreamInfer: reads requests as they come, writes answers when ready."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest, ModelStreamInferResponse
from fermata.deployments.frontend.access.tenants import ANYBODY, Tenant
from fermata.deployments.frontend.inputs.reading import read_input
from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.protocol.client_errors import CLIENT_ERRORS, refusal_of
from fermata.deployments.frontend.protocol.messages import (
    SMALL_BYTES,
    MessageReader,
    parse_request_bytes,
)
from fermata.deployments.frontend.protocol.parsing import CallContext, read_head
from fermata.deployments.frontend.protocol.repeats import KnownHead, Repeats
from fermata.deployments.frontend.protocol.replies import (
    ReplyTemplates,
    advise,
    stream_acknowledgement,
    stream_refusal,
    stream_response_of,
)
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.request_driver import RequestDriver
from fermata.deployments.specs.frontend import StreamLimits
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import NEVER

OnMessage = Callable[[int], Awaitable[None] | None]
"""Hears the size of a message; returns what to wait for until its turn has come, if anything."""


class ClientStream:
    """The state of one stream. Answers may come in another order than requests; ids match them."""

    def __init__(
        self,
        driver: RequestDriver,
        registry: Registry,
        context: Any,
        limits: StreamLimits,
        call: CallContext,
        tenant: Tenant = ANYBODY,
        *,
        messages: MessageReader,
        on_message: OnMessage,
    ) -> None:
        self.driver = driver
        self.messages = messages
        self.on_message = on_message
        self.registry = registry
        self.context = context
        self.tenant = tenant
        self.limits = limits
        self.call = call
        self.repeats = Repeats(registry)
        self.replies = ReplyTemplates()
        self.open: set[int] = set()
        self.ready: deque[ModelStreamInferResponse | bytes] = deque()
        self.writing_since_ns = NEVER
        self.read_at_ns = time.monotonic_ns()
        self.finished = False
        """The client has sent its last request."""
        self.taking = False
        """A request has been read, and is not open yet."""
        self.retired = ""
        """Reason for ending a stream that its client would continue."""
        self.has_answers = asyncio.Event()
        self.room = asyncio.Event()

    async def run(self) -> None:
        """Serve until the client has its last answer, or leaves."""
        self.reader = reader = asyncio.ensure_future(self._read())
        writer = asyncio.ensure_future(self._write())
        old = f"the stream is {self.limits.age_ns_max / 1e9:g} s old"
        self.loop = loop = reader.get_loop()
        self.timer = loop.call_later(self.limits.age_ns_max / 1e9, self.retire, old)
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not reader.cancelled():
                reader.result()
            self.finished = True
            self.has_answers.set()
            await writer
            if self.retired:
                message = f"{self.retired}: reconnect, and send open requests again"
                await self.context.abort(grpc.StatusCode.UNAVAILABLE, message)
        finally:
            self.timer.cancel()
            reader.cancel()
            writer.cancel()
            for rid in tuple(self.open):
                self.driver.cancel(rid)

    def retire(self, reason: str) -> None:
        """Ask the client to reconnect, once it has all its answers: what it sends until then is
        served. Where some request is always open, read no more after a while."""
        if not self.retired:
            self.retired = reason
            self.timer.cancel()
            self.timer = self.loop.call_later(self.limits.leave_ns / 1e9, self.stop_reading)
            self.has_answers.set()

    def stop_reading(self) -> None:
        """Have the stream end with the answers to what has been read."""
        self.reader.cancel()

    async def _read(self) -> None:
        context, limit = self.context, self.limits.in_flight_max
        while True:
            self.taking = False
            if self.retired:
                # What was just read may have been refused, and nothing else be open.
                self.has_answers.set()
            while len(self.open) + len(self.ready) >= limit:
                self.room.clear()
                await self.room.wait()
            raw = await context.read()
            if raw is grpc.aio.EOF:
                return
            self.taking = True
            turn = self.on_message(len(raw))
            if turn is not None:
                await turn
            known = self.repeats.find(raw)
            if known is not None:
                self._take_known(*known)
            else:
                await self._take_new(raw)
            # The next message then comes into its memory, which is still in a cache.
            del raw, known

    async def _take_new(self, raw: bytes) -> None:
        try:
            small = len(raw) <= SMALL_BYTES
            message = parse_request_bytes(raw) if small else await self.messages.read(raw)
        except BadRequestError as error:
            self._answer(stream_refusal("", "", refusal_of(error)))
            return
        self._take(raw, message)

    def _take_known(self, known: KnownHead, request_id: str, data: memoryview) -> None:
        self.read_at_ns = time.monotonic_ns()
        name = known.head.model.name
        try:
            self.driver.check(self.tenant, self.registry, name)
            parsed = known.request(request_id, data)
        except CLIENT_ERRORS as error:
            self._answer(stream_refusal(name, request_id, refusal_of(error)))
            return
        self._begin(parsed)

    def _take(self, raw: bytes, message: ModelInferRequest) -> None:
        self.read_at_ns = time.monotonic_ns()
        try:
            self.driver.check(self.tenant, self.registry, message.model_name)
            head = read_head(message, self.registry, self.call)
            read = read_input(head.model, head.form, message)
            parsed = head.request(message.id, read)
        except CLIENT_ERRORS as error:
            self._answer(stream_refusal(message.model_name, message.id, refusal_of(error)))
            return
        self.repeats.learn(raw, head, read.tensor)
        self._begin(parsed)

    def _begin(self, parsed: ParsedRequest) -> None:
        now_ns = self.read_at_ns
        if parsed.acknowledge:
            # Before all else, so that the client times its network and not this server.
            acknowledgement = stream_acknowledgement(parsed.model.name, parsed.request_id)
            advise(acknowledgement.infer_response, 0, self.driver.advice_for(parsed.terms))
            self._answer(acknowledgement)
        rid = self.driver.open(parsed, partial(self._on_answer, parsed, now_ns), self.tenant)
        if isinstance(rid, Refusal):
            self._answer(stream_refusal(parsed.model.name, parsed.request_id, rid))
            return
        self.open.add(rid)

    def _on_answer(
        self, parsed: ParsedRequest, arrived_at_ns: int, rid: int, outcome: Outcome
    ) -> None:
        self.open.discard(rid)
        queue_ns = 0
        server_ns = time.monotonic_ns() - arrived_at_ns
        if not isinstance(outcome, Refusal):
            queue_ns = server_ns - outcome.run_ns
        if parsed.report is None and not isinstance(outcome, Refusal):
            reply = self.replies.reply(parsed, outcome, queue_ns)
            if reply is not None:
                self._answer(reply)
                return
        message = stream_response_of(parsed, outcome, queue_ns)
        if parsed.report is not None:
            advise(message.infer_response, server_ns, self.driver.advice_for(parsed.terms))
        self._answer(message)

    def _answer(self, response: ModelStreamInferResponse | bytes) -> None:
        self.ready.append(response)
        self.has_answers.set()

    async def _write(self) -> None:
        context, ready = self.context, self.ready
        while True:
            while ready:
                self.writing_since_ns = time.monotonic_ns()
                await context.write(ready.popleft())
                self.room.set()
            self.writing_since_ns = NEVER
            done = self.finished or (self.retired and not self.taking)
            if done and not self.open:
                return
            self.has_answers.clear()
            await self.has_answers.wait()

    def end_if_idle(self, now_ns: int) -> None:
        """End a stream without requests for long; its client reconnects when it has one."""
        if not self.open and now_ns - self.read_at_ns > self.limits.idle_ns_max:
            self.retire(f"no request came for {self.limits.idle_ns_max / 1e9:g} s")

    def is_stalled(self, now_ns: int) -> bool:
        """Whether its client has stopped reading."""
        return now_ns - self.writing_since_ns > self.limits.stall_ns_max
