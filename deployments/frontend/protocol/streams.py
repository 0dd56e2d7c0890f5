"""One client's ModelStreamInfer: requests in as they come, answers out as they are ready."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from fermata.clients.wire.open_inference_pb2 import ModelInferRequest, ModelStreamInferResponse
from fermata.deployments.frontend.access.tenants import ANYBODY, Tenant
from fermata.deployments.frontend.protocol.client_errors import UNSOUND, refusal_of
from fermata.deployments.frontend.protocol.parsing import ParsedRequest, parse_request
from fermata.deployments.frontend.protocol.replies import (
    advise,
    stream_acknowledgement,
    stream_refusal,
    stream_response_of,
)
from fermata.deployments.frontend.requests.outcomes import Outcome, Refusal
from fermata.deployments.frontend.requests.request_driver import RequestDriver
from fermata.deployments.specs import Registry
from fermata.foundation.units import NEVER, seconds


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What one stream may take."""

    in_flight_max: int = 256
    """Requests without an answer written; then no more are read, and the client's own flow
    control holds it back. This also bounds what a client that does not read can pile up."""
    age_ns_max: int = seconds(600)
    """Then the stream is ended with UNAVAILABLE, so that it may reconnect elsewhere."""
    stall_ns_max: int = seconds(10)
    """A client that takes no answer for so long is cut."""
    idle_ns_max: int = seconds(120)
    """A stream without a request for so long, and without one open, is ended like an old one."""
    per_client_max: int = 1024
    """Streams that one tenant, or where there are none one address, may have open here."""


class ClientStream:
    """The state of one stream. Answers may overtake one another; ids tell them apart."""

    def __init__(
        self,
        desk: RequestDriver,
        registry: Registry,
        context: Any,
        number: int,
        limits: StreamLimits,
        tenant: Tenant = ANYBODY,
    ) -> None:
        self.desk = desk
        self.registry = registry
        self.context = context
        self.tenant = tenant
        self.number = number
        """The client of requests that name none."""
        self.traceparent = ""
        """The trace of requests that say none."""
        self.limits = limits
        self.open: set[int] = set()
        self.ready: deque[ModelStreamInferResponse] = deque()
        self.writing_since_ns = NEVER
        self.heard_at_ns = time.monotonic_ns()
        self.finished = False
        """No more requests will come."""
        self.retired = ""
        """Why it is to end although its client would go on."""
        self.answerable = asyncio.Event()
        self.room = asyncio.Event()

    async def run(self) -> None:
        """Until the client has sent its last request and has its last answer, or leaves."""
        self.reader = reader = asyncio.ensure_future(self._read())
        writer = asyncio.ensure_future(self._write())
        old = f"the stream is {self.limits.age_ns_max / 1e9:g} s old"
        timer = reader.get_loop().call_later(self.limits.age_ns_max / 1e9, self.retire, old)
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not reader.cancelled():
                reader.result()
            self.finished = True
            self.answerable.set()
            await writer
            if self.retired:
                message = f"{self.retired}: reconnect, and send again what is open"
                await self.context.abort(grpc.StatusCode.UNAVAILABLE, message)
        finally:
            timer.cancel()
            reader.cancel()
            writer.cancel()
            for rid in tuple(self.open):
                self.desk.cancel(rid)

    def retire(self, reason: str) -> None:
        """Read no more; once every answer is out, the client is told to reconnect."""
        self.retired = reason
        self.reader.cancel()

    async def _read(self) -> None:
        context, limit = self.context, self.limits.in_flight_max
        while True:
            while len(self.open) + len(self.ready) >= limit:
                self.room.clear()
                await self.room.wait()
            request = await context.read()
            if request is grpc.aio.EOF:
                return
            self._take(request)

    def _take(self, request: ModelInferRequest) -> None:
        now_ns = self.heard_at_ns = time.monotonic_ns()
        try:
            self.desk.check(self.tenant, self.registry, request.model_name)
            intake = parse_request(
                request,
                self.registry,
                stream=self.number,
                traceparent=self.traceparent,
                tenant=self.tenant.name,
            )
        except UNSOUND as error:
            self._answer(stream_refusal(request.model_name, request.id, refusal_of(error)))
            return
        if intake.acknowledge:
            # Before anything else, so that the client times its network and not this server.
            said = stream_acknowledgement(intake.model.name, intake.request_id)
            advise(said, 0, self.desk.advice_for(intake.arrival))
            self._answer(said)
        rid = self.desk.open(intake, partial(self._on_answer, intake, now_ns), self.tenant)
        if isinstance(rid, Refusal):
            self._answer(stream_refusal(intake.model.name, intake.request_id, rid))
            return
        self.open.add(rid)

    def _on_answer(
        self, intake: ParsedRequest, arrived_at_ns: int, rid: int, outcome: Outcome
    ) -> None:
        self.open.discard(rid)
        queue_ns = 0
        server_ns = time.monotonic_ns() - arrived_at_ns
        if not isinstance(outcome, Refusal):
            queue_ns = server_ns - outcome.run_ns
        message = stream_response_of(intake, outcome, queue_ns)
        if intake.report is not None:
            advise(message, server_ns, self.desk.advice_for(intake.arrival))
        self._answer(message)

    def _answer(self, response: ModelStreamInferResponse) -> None:
        self.ready.append(response)
        self.answerable.set()

    async def _write(self) -> None:
        context, ready = self.context, self.ready
        while True:
            while ready:
                self.writing_since_ns = time.monotonic_ns()
                await context.write(ready.popleft())
                self.room.set()
            self.writing_since_ns = NEVER
            if self.finished and not self.open:
                return
            self.answerable.clear()
            await self.answerable.wait()

    def rest(self, now_ns: int) -> None:
        """End it where nothing has come for long: its client reconnects when it has something."""
        if not self.open and now_ns - self.heard_at_ns > self.limits.idle_ns_max:
            self.retire(f"no request came for {self.limits.idle_ns_max / 1e9:g} s")

    def stalled(self, now_ns: int) -> bool:
        """Whether its client has stopped to read."""
        return now_ns - self.writing_since_ns > self.limits.stall_ns_max
