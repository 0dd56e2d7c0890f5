"""The driver of the request table: real time, decoding threads and the table's effects."""

import asyncio
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import DTYPES
from fermata.deployments.frontend.access.client_ids import tenant_number
from fermata.deployments.frontend.access.tenants import ANYBODY, ForbiddenError, Tenant
from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.outcomes import OnAnswer, Outcome, Refusal, answer
from fermata.deployments.frontend.requests.joined_parts import SplitRequests
from fermata.deployments.frontend.requests.looks.look_answers import LookAnswers
from fermata.deployments.frontend.requests.looks.peeker import Peeker
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import (
    RequestTerms,
    SendAnswer,
    ToBackend,
    ToRouter,
)
from fermata.deployments.frontend.requests.queries.driver_means import DriverMeans
from fermata.deployments.frontend.requests.queries.function_loops import (
    FunctionLoops,
    LoopsOfFunctions,
)
from fermata.deployments.frontend.requests.queries.query_requests import QueryRequests
from fermata.deployments.frontend.requests.sequences import SequenceRequests
from fermata.deployments.frontend.requests.stall_detector import StallDetector
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.frontend.size_advice import SizeAdvice
from fermata.deployments.models.pictures.decoding import check_pixels
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import NEVER, ms
from fermata.router.links.directory import Directory
from fermata.router.links.heartbeat import Clock
from fermata.router.links.messages import (
    Cancel,
    ClientNetworkReport,
    Dropped,
    Estimated,
    Evidence,
    Fetch,
    HandedOn,
    InputSizeAdvice,
    Payload,
    Result,
    Returned,
    ShortCircuit,
    Submit,
    Truth,
    Unread,
)


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """Limits of a request driver."""

    pixels_max: int = 64_000_000
    """A picture with more is refused before it is decoded."""
    inline_bytes_max: int = 256 << 10
    """A tensor up to this size is checked and copied at once: a thread would cost more."""
    advice_max: int = 10_000
    """Clients whose advice is kept; the one silent for longest is forgotten first."""
    timer_ns_min: int = ms(1)
    """The shortest timer: uvloop fires up to this much early, and the table has nothing to do."""


class MessageSender(Protocol):
    """Sends messages to routers and to backends."""

    def to_router(
        self,
        message: Submit | Cancel | Evidence | ClientNetworkReport | Truth | HandedOn,
        home: int | None = None,
    ) -> None:
        """To the router of this sub-cluster; None: of those that the message is about."""

    def to_backend(self, backend: int, payload: Payload) -> None: ...


class RequestDriver:
    """Admits requests and calls back with each one's outcome, on the loop."""

    def __init__(
        self,
        table: RequestTable,
        arena: Arena,
        pool: Executor,
        sender: MessageSender,
        limits: DriverLimits | None = None,
        peeker: Peeker | None = None,
        observer: RequestObserver | None = None,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        """`peeker` looks at inputs while their requests wait; `observer` follows all requests."""
        self.table = table
        self.arena = arena
        self.pool = pool
        self.sender = sender
        self.limits = limits or DriverLimits()
        self.peeker = peeker
        if peeker is not None:
            table.looks = LookAnswers(peeker.class_counts())
        self.observer = observer
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.stall_detector = StallDetector(self.loop, clock)
        # Not at once: an answer may come while the table is being read.
        self.parts = SplitRequests(
            self.begin_part, lambda rid: self.loop.call_soon(self.cancel, rid)
        )
        self.sequences = SequenceRequests(
            self.begin_part, self._refuse, self.clock, self.loop.call_soon, self._end
        )
        self.queries = QueryRequests(DriverMeans(self))
        self.function_loops: LoopsOfFunctions = FunctionLoops(self.loop, clock)
        self.waiters: dict[int, OnAnswer] = {}
        self.advice = SizeAdvice(self.limits.advice_max)
        self.takes_truths = False
        self.decoding = 0
        """Inputs that threads decode, or will."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = NEVER

    # Clients

    def open(
        self, request: ParsedRequest, on_answer: OnAnswer, tenant: Tenant = ANYBODY
    ) -> int | Refusal:
        """Admit a request: its id, and `on_answer` once; or a refusal, and no call."""
        now_ns = self.clock()
        refusal = (
            tenant.admit(now_ns)
            or self.stall_detector.refusal(now_ns, request.terms)
            or self.input_refusal(request.input)
        )
        if refusal is not None:
            self.sequences.on_refused(request)
            return self._refuse(request, refusal)
        if request.terms.sequence is not None:
            return self.sequences.open(now_ns, request, on_answer)
        if request.model.pipeline is not None:
            return self.queries.open(now_ns, request, on_answer)
        if request.input.rows > 1 and request.is_split:
            return self.parts.open(now_ns, request, on_answer)
        inline = self.is_inline(request.input)
        rid = self._begin(now_ns, request, on_answer)
        if inline:
            request.input.forget_data()
        return rid

    def begin_part(self, now_ns: int, part: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        # A part may be small enough to be looked at, where all of them together were not.
        refusal = self.input_refusal(part.input)
        if refusal is not None:
            return self._refuse(part, refusal)
        return self._begin(now_ns, part, on_answer)

    def _begin(self, now_ns: int, request: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        inline = self.is_inline(request.input)
        place = partial(self.place, request.input) if inline else None
        rid = self.table.admit(now_ns, request.terms, place)
        if isinstance(rid, Refusal):
            return self._refused(request, rid)
        self.waiters[rid] = on_answer
        if self.observer is not None:
            self.observer.begin(now_ns, rid, request.terms, request.traceparent, request.request_id)
        if request.report is not None:
            self.sender.to_router(request.report)
        if request.truth is not None:
            self.tell(request.truth)
        if inline:
            if self.observer is not None:
                self.observer.on_payload(now_ns, rid)
            if self.peeker is not None:
                self._peek(rid, request, *request.input.first)
        else:
            # The router hears of it now, so it queues while it is being decoded.
            self._decode(rid, request)
        self.pump()
        return rid

    def is_inline(self, given: RequestInput) -> bool:
        """Whether the input is small enough to be handled on the loop."""
        return not given.encoded and len(given.tensor.data) <= self.limits.inline_bytes_max

    def input_refusal(self, given: RequestInput) -> Refusal | None:
        """A refusal for an input that is broken, as far as that shows at once.

        Such a request must not enter a queue, nor take the memory that its header claims.
        """
        try:
            check_pixels(*given.frame, self.limits.pixels_max)
            if self.is_inline(given):
                given.check_finite()
        except BadRequestError as error:
            return Refusal("INVALID_ARGUMENT", RefusalReason.BAD_INPUT, str(error))
        return None

    def check(self, tenant: Tenant, registry: Registry, model: str) -> None:
        """As `Tenant.check`, and counted."""
        try:
            tenant.check(registry, model)
        except ForbiddenError:
            self.table.counts.count_tenant(tenant_number(tenant.name), RefusalReason.DENIED)
            raise

    def _refuse(self, request: ParsedRequest, refusal: Refusal) -> Refusal:
        terms = request.terms
        self.table.counts.refuse(terms.application, refusal.reason, terms.tenant)
        return self._refused(request, refusal)

    def _refused(self, request: ParsedRequest, refusal: Refusal) -> Refusal:
        if self.observer is not None:
            self.observer.refuse(request.terms.application, refusal)
        return refusal

    def _on_payload(self, now_ns: int, rid: int, payload: Payload) -> None:
        self.table.on_payload(now_ns, rid, payload)
        if self.observer is not None:
            self.observer.on_payload(now_ns, rid)

    def place(self, given: RequestInput, rid: int) -> Payload:
        tensor, told = given.tensor, (given.packed, given.payload_rows)
        return given.mark(self.arena.place(rid, tensor.datatype, given.shape, given.data, *told))

    def _peek(
        self,
        rid: int,
        request: ParsedRequest,
        dtype: str,
        shape: tuple[int, ...],
        data: bytes | memoryview,
    ) -> None:
        assert self.peeker is not None
        if request.input.hidden:
            return
        sample = None
        if dtype in DTYPES:
            sample = np.frombuffer(data, DTYPES[dtype]).reshape(shape)
        elif not request.input.is_left_encoded:
            # Words cannot be looked at.
            return
        application = request.terms.application
        answers = self.table.looks.takes(application, [name for name, _ in request.classes])
        self.peeker.take(rid, application, sample, answers, request.terms.slo_ns)

    async def infer(self, request: ParsedRequest, tenant: Tenant = ANYBODY) -> Outcome:
        """One request from start to end; cancelling the caller cancels it."""
        future: asyncio.Future[Outcome] = self.loop.create_future()
        rid = self.open(request, partial(_settle, future), tenant)
        if isinstance(rid, Refusal):
            return rid
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel(rid)
            raise

    def tell(self, truth: Truth) -> None:
        """Pass on the true class of an earlier request; routers of before would not know it."""
        if self.takes_truths:
            self.sender.to_router(truth)

    def cancel(self, rid: int) -> None:
        """Its client has left."""
        if self.queries.queries and self.queries.cancel(rid):
            return
        if rid < 0:
            rid = self.sequences.cancel(rid)
        for each in self.parts.forget(rid) or (rid,):
            self.table.on_cancel(self.clock(), each)
        self.pump()

    def _end(self, rid: int, refusal: Refusal) -> None:
        self.table.refuse(self.clock(), rid, refusal)
        self.pump()

    # Links

    def on_router_up(self, term: int, takes_places: bool = True, home: int = 0) -> None:
        """`takes_places`: the router passes on where inputs lie, and takes truths."""
        self.takes_truths = takes_places
        # Observers hear of a batch by what its backend asks for.
        self.table.tells_places = takes_places and self.observer is None
        self.queries.loosen(takes_places, home)
        self.table.on_router_up(self.clock(), term, home)
        self.pump()

    def on_router_down(self, home: int = 0) -> None:
        self.queries.loosen(self.queries.router_takes, home)
        self.table.on_router_down(self.clock(), home)
        self.pump()

    def on_directory(self, directory: Directory) -> bool:
        """Submit by another directory; false where it is no news."""
        return self.table.on_directory(self.clock(), directory)

    def on_backend_down(self, backend: int) -> None:
        self.table.on_backend_down(self.clock(), backend)
        self.pump()

    def on_advice(self, advice: InputSizeAdvice) -> None:
        self.advice.keep(advice)

    def advice_for(self, terms: RequestTerms) -> InputSizeAdvice | None:
        """Advice for the client of this request, if the router gave any."""
        return self.advice.of((terms.application, terms.client))

    def on_dropped(self, dropped: Dropped, home: int = 0) -> None:
        self.table.on_dropped(self.clock(), dropped, home)

    def on_unread(self, unread: Unread) -> None:
        self.table.on_unread(unread)

    def on_estimated(self, estimated: Estimated) -> None:
        self.table.on_estimated(estimated)

    def on_short_circuit(self, answer: ShortCircuit) -> None:
        self.table.on_short_circuit(self.clock(), answer)

    def on_fetch(self, backend: int, fetch: Fetch) -> None:
        now_ns = self.clock()
        self.table.on_fetch(now_ns, backend, fetch)
        if self.observer is not None:
            self.observer.on_fetch(now_ns, backend, fetch)

    def on_too_large(self, rid: int, size: int, limit: int) -> None:
        """The backend that fetches an input is elsewhere, and no message there may hold it."""
        message = (
            f"too-large: its input of {size} bytes goes to another machine, "
            f"and a message there holds {limit}: send a smaller one"
        )
        self.table.on_too_large(self.clock(), rid, message)
        # The effects that are carried out now were taken before.
        self.loop.call_soon(self.pump)

    def on_returned(self, backend: int, returned: Returned) -> None:
        self.table.on_returned(self.clock(), backend, returned)

    def on_result(self, backend: int, result: Result) -> None:
        now_ns = self.clock()
        self.table.on_result(now_ns, backend, result)
        if self.observer is not None:
            self.observer.on_result(now_ns, result.rid)

    # Effects and time

    def pump(self) -> None:
        """Carry out what the table has decided, and wake up when it next wants to."""
        for effect in self.table.take_effects():
            if isinstance(effect, SendAnswer):
                answer(self.waiters.pop(effect.rid), effect.rid, effect.outcome)
                if self.observer is not None:
                    self.observer.end(self.clock(), effect.rid, effect.outcome)
            elif isinstance(effect, ToRouter):
                self.sender.to_router(effect.message, effect.home)
            elif isinstance(effect, ToBackend):
                self.sender.to_backend(effect.backend, effect.payload)
            else:
                self.arena.free(effect.payload)
        wake_at_ns = self.table.wake_at_ns()
        if wake_at_ns < self._timer_at_ns:
            self._arm(wake_at_ns)

    def _arm(self, wake_at_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_ns = max(wake_at_ns - self.clock(), self.limits.timer_ns_min)
        self._timer = self.loop.call_later(wait_ns / 1e9, self._on_timer)
        self._timer_at_ns = wake_at_ns

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ns = NEVER
        self.table.on_time(self.clock())
        self.pump()

    def close(self) -> None:
        """Cancel every open request; no method may be called afterwards."""
        for rid in [*self.queries.queries, *self.waiters]:
            self.cancel(rid)
        self.function_loops.close()
        self.stall_detector.close()
        if self._timer is not None:
            self._timer.cancel()

    # Decoding

    def _decode(self, rid: int, request: ParsedRequest) -> None:
        """Have a thread make the payload; the slot is its own until it is done."""
        size = request.input.payload_bytes()
        slot = self.arena.take(size)
        view = memoryview(bytearray(size)) if slot is None else slot[1]
        self.decoding += 1
        job = self.loop.run_in_executor(self.pool, self._write_payload, rid, request, view)
        offset = -1 if slot is None else slot[0]
        job.add_done_callback(partial(self._on_decoded, rid, request, offset, view))

    def _write_payload(self, rid: int, request: ParsedRequest, view: memoryview) -> bool:
        """Write the input into `view`, in a thread; False once the request has ended."""
        if rid not in self.table.entries:
            return False
        request.input.write_payload(view, self.limits.pixels_max)
        return True

    def _on_decoded(
        self,
        rid: int,
        request: ParsedRequest,
        offset: int,
        view: memoryview,
        job: asyncio.Future[bool],
    ) -> None:
        self.decoding -= 1
        given, spec = request.input, request.input.payload_spec()
        told = given.packed, given.payload_rows
        payload = given.mark(
            self.arena.written(rid, spec.datatype, spec.shape, offset, view, *told)
        )
        now_ns = self.clock()
        error = None if job.cancelled() else job.exception()
        if error is None and not job.cancelled() and job.result():
            self._on_payload(now_ns, rid, payload)
            if self.peeker is not None:
                seen = given.first if given.tensors else (spec.datatype, spec.shape, view)
                self._peek(rid, request, *seen)
        else:
            self.arena.free(payload)
            if isinstance(error, BadRequestError):
                self.table.on_bad_payload(now_ns, rid, str(error))
            elif error is not None:
                # A bug of the server, but its client need not wait.
                self.table.on_bad_payload(now_ns, rid, f"decoding failed: {error!r}", "INTERNAL")
        self.pump()


def _settle(future: asyncio.Future[Outcome], rid: int, outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
