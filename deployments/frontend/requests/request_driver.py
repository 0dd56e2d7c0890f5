"""The driver of the request table: real time, decoding threads and the table's effects."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import DTYPES, check_finite
from fermata.deployments.frontend.access.tenants import ANYBODY, ForbiddenError, Tenant
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.protocol.decoding import (
    payload_bytes,
    payload_spec,
    write_payload,
)
from fermata.deployments.frontend.protocol.images import check_pixels
from fermata.deployments.frontend.protocol.parsing import ParsedRequest, tenant_number
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.outcomes import (
    RETRY_AFTER_NS,
    Outcome,
    Refusal,
    RefusalReason,
)
from fermata.deployments.frontend.requests.peeker import Peeker
from fermata.deployments.frontend.requests.pending_request import (
    RequestTerms,
    SendAnswer,
    ToBackend,
    ToRouter,
)
from fermata.deployments.frontend.requests.stall_detector import StallDetector
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs import Registry
from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import NEVER, ms
from fermata.router.links.heartbeat import Clock
from fermata.router.links.messages import (
    Cancel,
    ClientNetworkReport,
    Dropped,
    Estimated,
    Evidence,
    Fetch,
    InputSizeAdvice,
    Payload,
    Result,
    Returned,
    ShortCircuit,
    Submit,
)

INLINE_BYTES_MAX = 256 << 10
"""A tensor up to this size is checked and copied at once: a thread would cost more."""
LOOK_AGAIN_NS = ms(1)
ADVICE_MAX = 10_000
"""Clients whose advice is kept; who was silent for longest is forgotten first."""

OnAnswer = Callable[[int, Outcome], None]


class Wires(Protocol):
    """How messages leave."""

    def to_router(self, message: Submit | Cancel | Evidence | ClientNetworkReport) -> None: ...
    def to_backend(self, backend: int, payload: Payload) -> None: ...


class RequestDriver:
    """Takes requests in and calls back with each one's outcome, on the loop."""

    def __init__(
        self,
        table: RequestTable,
        arena: Arena,
        pool: Executor,
        wires: Wires,
        pixels_max: int = 64_000_000,
        peeker: Peeker | None = None,
        follower: RequestObserver | None = None,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        self.table = table
        self.arena = arena
        self.pool = pool
        self.wires = wires
        self.pixels_max = pixels_max
        """A picture with more is refused before it is decoded."""
        self.peeker = peeker
        """Looks at inputs while their requests wait; None where nobody asked for it."""
        self.follower = follower
        """Follows requests; None where nobody asked for it."""
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.stalls = StallDetector(self.loop, clock)
        self.waiters: dict[int, OnAnswer] = {}
        self.advice: dict[tuple[str, int], InputSizeAdvice] = {}
        """The last word of the router to each client that reports, by application, in the order of
        their last requests."""
        self.decoding = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = NEVER

    # Clients

    def open(
        self, intake: ParsedRequest, on_answer: OnAnswer, tenant: Tenant = ANYBODY
    ) -> int | Refusal:
        """Admit a request: its id, and `on_answer` once; or a refusal, and no call."""
        now_ns = self.clock()
        refusal = tenant.admit(now_ns) or self._outdated(now_ns, intake.arrival)
        if refusal is not None:
            return self._turn_away(intake, refusal)
        raw = None if intake.encoded else intake.tensor
        inline = raw is not None and len(raw.data) <= INLINE_BYTES_MAX
        # Before it is admitted: an input that is no input takes no place in any queue, and no
        # memory on the word of its header.
        try:
            check_pixels(*intake.frame, self.pixels_max)
            if raw is not None and inline and not intake.model.allow_nan:
                check_finite(raw)
        except BadRequestError as error:
            refusal = Refusal("INVALID_ARGUMENT", RefusalReason.BAD_INPUT, str(error))
            return self._turn_away(intake, refusal)
        rid = self.table.admit(now_ns, intake.arrival)
        if isinstance(rid, Refusal):
            return self._refused(intake, rid)
        self.waiters[rid] = on_answer
        if self.follower is not None:
            self.follower.begin(now_ns, rid, intake.arrival, intake.traceparent, intake.request_id)
        if intake.report is not None:
            self.wires.to_router(intake.report)
        if raw is not None and inline:
            shape = raw.shape[1:] if intake.batched else raw.shape
            payload = self.arena.place(rid, raw.datatype, shape, raw.data)
            self._on_payload(now_ns, rid, payload)
            self._peek(rid, intake, raw.datatype, shape, raw.data)
        else:
            # The router hears of it now, so it queues while it is being decoded.
            self._decode(rid, intake)
        self.pump()
        return rid

    def check(self, tenant: Tenant, registry: Registry, model: str) -> None:
        """As `Tenant.check`, and counted."""
        try:
            tenant.check(registry, model)
        except ForbiddenError:
            self.table.tally.of_tenant(tenant_number(tenant.name), RefusalReason.DENIED)
            raise

    def _turn_away(self, intake: ParsedRequest, refusal: Refusal) -> Refusal:
        """Refuse what the table has not seen."""
        arrival = intake.arrival
        self.table.tally.refuse(arrival.application, refusal.reason, arrival.tenant)
        return self._refused(intake, refusal)

    def _outdated(self, now_ns: int, arrival: RequestTerms) -> Refusal | None:
        """Why a request is refused that lay unread for as long as it may take."""
        unread_ns = self.stalls.unread_ns(now_ns)
        if not unread_ns or unread_ns < min(arrival.hard_limit_ns, arrival.left_ns):
            return None
        message = f"stalled: the frontend did not run for {unread_ns / 1e6:.0f} ms"
        return Refusal("UNAVAILABLE", RefusalReason.STALLED, message, RETRY_AFTER_NS)

    def _refused(self, intake: ParsedRequest, refusal: Refusal) -> Refusal:
        if self.follower is not None:
            self.follower.refuse(intake.arrival.application, refusal)
        return refusal

    def _on_payload(self, now_ns: int, rid: int, payload: Payload) -> None:
        self.table.on_payload(now_ns, rid, payload)
        if self.follower is not None:
            self.follower.on_payload(now_ns, rid)

    def _peek(
        self,
        rid: int,
        intake: ParsedRequest,
        dtype: str,
        shape: tuple[int, ...],
        data: bytes | memoryview,
    ) -> None:
        if self.peeker is not None:
            sample = np.frombuffer(data, DTYPES[dtype]).reshape(shape)
            self.peeker.take(rid, intake.arrival.application, sample)

    async def infer(self, intake: ParsedRequest, tenant: Tenant = ANYBODY) -> Outcome:
        """One request from start to end; cancelling the caller cancels it."""
        future: asyncio.Future[Outcome] = self.loop.create_future()
        rid = self.open(intake, partial(_settle, future), tenant)
        if isinstance(rid, Refusal):
            return rid
        try:
            return await future
        except asyncio.CancelledError:
            self.cancel(rid)
            raise

    def cancel(self, rid: int) -> None:
        """Its client has left."""
        self.table.on_cancel(self.clock(), rid)
        self.pump()

    # Links

    def on_router_up(self, epoch: int) -> None:
        self.table.on_router_up(self.clock(), epoch)
        self.pump()

    def on_router_down(self) -> None:
        self.table.on_router_down(self.clock())
        self.pump()

    def on_backend_down(self, backend: int) -> None:
        self.table.on_backend_down(self.clock(), backend)
        self.pump()

    def on_advice(self, advice: InputSizeAdvice) -> None:
        """It goes out with the client's next answers."""
        who = (advice.application, advice.client)
        if len(self.advice) >= ADVICE_MAX and who not in self.advice:
            self.advice.pop(next(iter(self.advice)))
        self.advice[who] = advice

    def advice_for(self, arrival: RequestTerms) -> InputSizeAdvice | None:
        """What the client of this request should hear."""
        who = (arrival.application, arrival.client)
        advice = self.advice.pop(who, None)
        if advice is not None:
            self.advice[who] = advice
        return advice

    def on_dropped(self, dropped: Dropped) -> None:
        self.table.on_dropped(self.clock(), dropped)

    def on_estimated(self, estimated: Estimated) -> None:
        self.table.on_estimated(estimated)

    def on_short_circuit(self, answer: ShortCircuit) -> None:
        self.table.on_short_circuit(self.clock(), answer)

    def on_fetch(self, backend: int, fetch: Fetch) -> None:
        now_ns = self.clock()
        self.table.on_fetch(now_ns, backend, fetch)
        if self.follower is not None:
            self.follower.on_fetch(now_ns, backend, fetch)

    def on_returned(self, backend: int, returned: Returned) -> None:
        self.table.on_returned(self.clock(), backend, returned)

    def on_result(self, backend: int, result: Result) -> None:
        now_ns = self.clock()
        self.table.on_result(now_ns, backend, result)
        if self.follower is not None:
            self.follower.on_result(now_ns, result.rid)

    # Effects and time

    def pump(self) -> None:
        """Carry out what the table has decided, and wake up when it next wants to."""
        for effect in self.table.take_effects():
            if isinstance(effect, SendAnswer):
                self._tell(self.waiters.pop(effect.rid), effect.rid, effect.outcome)
                if self.follower is not None:
                    self.follower.end(self.clock(), effect.rid, effect.outcome)
            elif isinstance(effect, ToRouter):
                self.wires.to_router(effect.message)
            elif isinstance(effect, ToBackend):
                self.wires.to_backend(effect.backend, effect.payload)
            else:
                self.arena.free(effect.payload)
        wake_at_ns = self.table.wake_at_ns()
        if wake_at_ns < self._timer_at_ns:
            self._arm(wake_at_ns)

    def _tell(self, waiter: OnAnswer, rid: int, outcome: Outcome) -> None:
        """Answer one; a result that cannot be put into its words must not keep others waiting."""
        try:
            waiter(rid, outcome)
        except Exception as error:
            LOG.exception("the answer cannot be said", extra=fields(request=str(rid)))
            message = f"failed: the result cannot be sent ({error})"
            waiter(rid, Refusal("INTERNAL", RefusalReason.FAILED, message))

    def _arm(self, wake_at_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # uvloop fires up to a millisecond early; then the table finds nothing to do, and we look
        # again.
        wait_ns = max(wake_at_ns - self.clock(), LOOK_AGAIN_NS)
        self._timer = self.loop.call_later(wait_ns / 1e9, self._on_timer)
        self._timer_at_ns = wake_at_ns

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ns = NEVER
        self.table.on_time(self.clock())
        self.pump()

    def close(self) -> None:
        """Answer whoever still waits; nothing may be asked of the desk afterwards."""
        for rid in list(self.waiters):
            self.cancel(rid)
        self.stalls.close()
        if self._timer is not None:
            self._timer.cancel()

    # Decoding

    def _decode(self, rid: int, intake: ParsedRequest) -> None:
        """Have a thread make the payload; the slot is its own until it is done."""
        size = payload_bytes(intake)
        slot = self.arena.take(size)
        view = memoryview(bytearray(size)) if slot is None else slot[1]
        self.decoding += 1
        job = self.loop.run_in_executor(self.pool, self._work, rid, intake, view)
        job.add_done_callback(partial(self._on_decoded, rid, intake, slot[0] if slot else -1, view))

    def _work(self, rid: int, intake: ParsedRequest, view: memoryview) -> bool:
        """In a thread: write the input into `view`; False when nobody waits for it any more."""
        if rid not in self.table.entries:
            return False
        write_payload(intake, view, self.pixels_max)
        return True

    def _on_decoded(
        self,
        rid: int,
        intake: ParsedRequest,
        offset: int,
        view: memoryview,
        job: asyncio.Future[bool],
    ) -> None:
        self.decoding -= 1
        spec, tensor = payload_spec(intake), intake.tensor
        size = len(view)
        dtype, shape = spec.datatype, spec.shape
        if not intake.encoded:
            dtype, shape = tensor.datatype, tensor.shape[1:] if intake.batched else tensor.shape
        payload = (
            Payload(rid, dtype, shape, b"", self.arena.name, offset, size)
            if offset >= 0
            else Payload(rid, dtype, shape, bytes(view))
        )
        now_ns = self.clock()
        error = None if job.cancelled() else job.exception()
        if error is None and not job.cancelled() and job.result():
            self._on_payload(now_ns, rid, payload)
            self._peek(rid, intake, dtype, shape, view)
        else:
            self.arena.free(payload)
            if isinstance(error, BadRequestError):
                self.table.on_bad_payload(now_ns, rid, str(error))
            elif error is not None:
                # Ours to mend, but its client is told at once.
                self.table.on_bad_payload(now_ns, rid, f"decoding failed: {error!r}", "INTERNAL")
        self.pump()


def _settle(future: asyncio.Future[Outcome], rid: int, outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
