"""Requests of sequences: inputs that clients do not send, and ends that are told by name.

A model that keeps the state itself is told which sequence each row belongs to; the router has its
requests run in order, where the state is. A state that a model hands back is carried here: the next
request waits for it, takes it along, and runs anywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import msgspec
import numpy as np

from fermata.clients.wire.tensors import DTYPES, RawTensor
from fermata.deployments.frontend.outcomes import (
    OnAnswer,
    Outcome,
    Refusal,
    drop_refusal,
    error_refusal,
)
from fermata.deployments.frontend.requests.joined_parts import Begin
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.served_model import (
    SEQUENCE_END,
    SEQUENCE_ID,
    SEQUENCE_START,
    SequenceSpec,
    TensorSpec,
)
from fermata.router.core.events import DropReason, SequenceStep
from fermata.router.core.sessions.table import ITS_TURN, WAITS, SessionTable, StepEnd
from fermata.router.links.messages import Result

HERE = 0
"""The home of every state that this frontend holds."""
SESSIONS_MAX = 10_000
"""Carried states of one application; the start of one more is refused."""
OVER_MAX = 100_000
"""Ends of sequences that are kept in mind."""
OVER = frozenset(
    (
        *(DropReason.SEQUENCE_LOST, DropReason.NO_SEQUENCE, DropReason.HUNG, DropReason.LOST),
        *(RefusalReason.FAILED, RefusalReason.EXPIRED),
    )
)
"""Refusals after which a state that a model keeps is gone, or may have changed unseen."""
Key = tuple[str, int]
"""Application and number of a sequence."""


@dataclass(slots=True)
class CarriedStep:
    """A request whose state is carried here, until it has its answer."""

    handle: int
    """Its id for its client's call; negative, as others count up."""
    request: ParsedRequest
    on_answer: OnAnswer
    arrived_at_ns: int
    rid: int = -1
    """Its id once it has been submitted."""


@dataclass(slots=True, eq=False)
class KeptStep:
    """A request without an answer whose state its model keeps."""

    start: bool
    rid: int = -1


class SequenceRequests:
    """Requests of models with a state between the requests of a sequence."""

    def __init__(
        self,
        begin: Begin,
        refuse: Callable[[ParsedRequest, Refusal], Refusal],
        clock: Callable[[], int],
        call_soon: Callable[..., object],
        end: Callable[[int, Refusal], None],
    ) -> None:
        """`begin` admits a request, `refuse` counts one that is not, `end` ends an open one."""
        self.begin = begin
        self.refuse = refuse
        self.clock = clock
        self.call_soon = call_soon
        self.end = end
        self.kept: dict[Key, list[KeptStep]] = {}
        """Open requests of sequences whose models keep the state, in the order that they came."""
        self.over: dict[Key, None] = {}
        """Sequences of models that keep state, which have to be started anew; oldest first."""
        self.tables: dict[str, SessionTable[CarriedStep]] = {}
        """By application: sequences whose state is here."""
        self.states: dict[Key, tuple[RawTensor, ...]] = {}
        self.steps: dict[int, CarriedStep] = {}
        """By handle."""
        self.handles = -1

    def open(self, now_ns: int, request: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        """Admit a request of a sequence: its id, or the refusal that is its answer."""
        spec, step = _spec_and_step(request)
        if spec.state:
            return self._open_carried(now_ns, request, on_answer, spec, step)
        if not step.start and _key(request) in self.over:
            return self.refuse(request, _by_name(drop_refusal(DropReason.NO_SEQUENCE), request))
        if step.start:
            self.over.pop(_key(request), None)
        kept = KeptStep(step.start)
        self.kept.setdefault(_key(request), []).append(kept)
        told = with_hidden(request, [_control(each, step) for each in spec.controls])
        rid = self.begin(now_ns, told, partial(self._on_kept, request, on_answer, kept))
        if isinstance(rid, Refusal):
            self._leave_kept(_key(request), kept)
            self.on_refused(request)
        else:
            kept.rid = rid
        return rid

    def on_refused(self, request: ParsedRequest) -> None:
        """A request has no result. Where it was to start a sequence, those that follow it must not
        join the one before."""
        step = request.terms.sequence
        if step is None or not step.start:
            return
        table = self.tables.get(request.terms.application)
        if table is not None:
            table.void(self.clock(), step.key)
        self._end(request)

    def _end(self, request: ParsedRequest) -> None:
        if len(self.over) >= OVER_MAX:
            del self.over[next(iter(self.over))]
        self.over[_key(request)] = None

    def _on_kept(
        self,
        request: ParsedRequest,
        on_answer: OnAnswer,
        kept: KeptStep,
        rid: int,
        outcome: Outcome,
    ) -> None:
        behind = self._leave_kept(_key(request), kept)
        if isinstance(outcome, Refusal):
            starts = [each.start for each in behind]
            if kept.start:
                # Their router may never hear of the start, and would run them on the state before.
                for each in behind[: starts.index(True) if True in starts else None]:
                    self.call_soon(self.end, each.rid, drop_refusal(DropReason.NO_SEQUENCE))
            if True not in starts:
                self.on_refused(request)
                if outcome.reason in OVER:
                    self._end(request)
            outcome = _by_name(outcome, request)
        on_answer(rid, outcome)

    def _leave_kept(self, key: Key, kept: KeptStep) -> list[KeptStep]:
        """A request has its answer; returns the open ones of its sequence that came after it."""
        steps = self.kept[key]
        place = steps.index(kept)
        behind = steps[place + 1 :]
        del steps[place]
        if not steps:
            del self.kept[key]
        return behind

    # States that are carried

    def _open_carried(
        self,
        now_ns: int,
        request: ParsedRequest,
        on_answer: OnAnswer,
        spec: SequenceSpec,
        step: SequenceStep,
    ) -> int | Refusal:
        application = request.terms.application
        table = self.tables.get(application)
        if table is None:
            table = self.tables[application] = SessionTable(spec.idle_ns, SESSIONS_MAX)
        table.expire(now_ns)
        self._drop_states(application, table)
        carried = CarriedStep(self.handles, request, on_answer, now_ns)
        self.handles -= 1
        verdict = table.enter(now_ns, step, carried)
        if verdict not in (ITS_TURN, WAITS):
            return self.refuse(request, _by_name(drop_refusal(verdict), request))
        self.steps[carried.handle] = carried
        refusal = self._begin(now_ns, carried) if verdict == ITS_TURN else None
        if refusal is not None:
            del self.steps[carried.handle]
            self._leave(now_ns, carried, StepEnd.SKIPPED)
            return refusal
        return carried.handle

    def _begin(self, now_ns: int, carried: CarriedStep) -> Refusal | None:
        """Submit a request whose turn it is, with the state; the refusal where that fails."""
        request = carried.request
        spec, step = _spec_and_step(request)
        table = self.tables[request.terms.application]
        table.settle(table.sessions[step.key], HERE)
        waited_ns = now_ns - carried.arrived_at_ns
        terms = request.terms
        if waited_ns:
            terms = replace(
                terms,
                slo_ns=terms.slo_ns - waited_ns,
                hard_limit_ns=terms.hard_limit_ns - waited_ns,
                left_ns=terms.left_ns - waited_ns,
            )
            if min(terms.slo_ns, terms.left_ns) <= 0:
                return self.refuse(request, drop_refusal(DropReason.LATE))
        state = None if step.start else self.states.get(_key(request))
        hidden = state or tuple(_zeros(each) for each, _ in spec.state)
        # The router sees requests that stand alone.
        told = replace(with_hidden(request, hidden), terms=replace(terms, sequence=None))
        rid = self.begin(now_ns, told, partial(self._on_carried, carried))
        if isinstance(rid, Refusal):
            return rid
        carried.rid = rid
        return None

    def _on_carried(self, carried: CarriedStep, rid: int, outcome: Outcome) -> None:
        request, end = carried.request, StepEnd.SKIPPED
        if isinstance(outcome, Result):
            outcome = self._take_state(request, outcome)
            end = StepEnd.RAN if isinstance(outcome, Result) else StepEnd.BROKEN
        self.steps.pop(carried.handle, None)
        carried.on_answer(carried.handle, outcome)
        self._leave(self.clock(), carried, end)

    def _take_state(self, request: ParsedRequest, result: Result) -> Outcome:
        """Keep the state that a result holds; returns the result without it."""
        spec, _ = _spec_and_step(request)
        given = {name: each for each in result.tensors for name in (each[0],)}
        found: list[RawTensor] = []
        for wanted, output in spec.state:
            tensor = given.get(output)
            if tensor is None or tensor[1:3] != (wanted.datatype, wanted.shape):
                got = "nothing" if tensor is None else f"{tensor[1]}{list(tensor[2])}"
                return error_refusal(f"its state {output!r} is {got}, its input takes {wanted}")
            found.append(RawTensor(wanted.name, wanted.datatype, wanted.shape, tensor[3]))
        self.states[_key(request)] = tuple(found)
        kept = tuple(each for each in result.tensors if each[0] not in spec.hidden_outputs)
        return msgspec.structs.replace(result, tensors=kept)

    def _leave(self, now_ns: int, carried: CarriedStep, end: str) -> None:
        application, step = carried.request.terms.application, carried.request.terms.sequence
        table = self.tables[application]
        assert step is not None
        found = table.leave(now_ns, step.key, carried, end)
        if step.key not in table.sessions:
            self.states.pop((application, step.key), None)
        self._drop_states(application, table)
        self._follow(found)

    def _follow(self, found: Sequence[tuple[CarriedStep, str]]) -> None:
        """Have requests go on, or end, that waited for others. Not at once: an answer may come
        while the table of requests is being read."""
        for carried, verdict in found:
            self.call_soon(self._resume, carried, verdict)

    def _resume(self, carried: CarriedStep, verdict: str) -> None:
        if carried.handle not in self.steps:
            self._leave(self.clock(), carried, StepEnd.SKIPPED)
            return
        if verdict == ITS_TURN:
            refusal = self._begin(self.clock(), carried)
        else:
            refusal = _by_name(drop_refusal(verdict), carried.request)
            self.refuse(carried.request, refusal)
        if refusal is not None:
            del self.steps[carried.handle]
            carried.on_answer(carried.handle, refusal)
            if verdict == ITS_TURN:
                self._leave(self.clock(), carried, StepEnd.SKIPPED)

    def _drop_states(self, application: str, table: SessionTable[CarriedStep]) -> None:
        for _, key in table.take_closed():
            self.states.pop((application, key), None)

    def cancel(self, handle: int) -> int:
        """The client of a request has left; returns its id where it has been submitted, else -1."""
        carried = self.steps.get(handle)
        if carried is None or carried.rid >= 0:
            return -1 if carried is None else carried.rid
        del self.steps[handle]
        step = carried.request.terms.sequence
        assert step is not None
        table = self.tables[carried.request.terms.application]
        session = table.sessions.get(step.key)
        # One whose turn has just come ends when it would begin.
        if session is not None and session.current is not carried:
            table.cancel(self.clock(), step, carried)
        return -1


def with_hidden(request: ParsedRequest, hidden: Sequence[RawTensor]) -> ParsedRequest:
    """The request with tensors that its client did not send."""
    given = replace(request.input, hidden=tuple(hidden))
    terms = replace(request.terms, size_bytes=given.memory_bytes())
    return replace(request, input=given, terms=terms)


def _spec_and_step(request: ParsedRequest) -> tuple[SequenceSpec, SequenceStep]:
    spec, step = request.model.stateful, request.terms.sequence
    assert spec is not None
    assert step is not None
    return spec, step


def _key(request: ParsedRequest) -> Key:
    step = request.terms.sequence
    assert step is not None
    return request.terms.application, step.key


def _by_name(refusal: Refusal, request: ParsedRequest) -> Refusal:
    """The refusal with the name of its sequence."""
    if refusal.reason not in (DropReason.SEQUENCE_LOST, DropReason.NO_SEQUENCE):
        return refusal
    message = refusal.message.replace("its sequence", f"sequence {request.sequence_id}")
    return replace(refusal, message=message)


def _control(spec: TensorSpec, step: SequenceStep) -> RawTensor:
    """One of the inputs that tell a model of a row's sequence."""
    value = {SEQUENCE_ID: step.key, SEQUENCE_START: step.start, SEQUENCE_END: step.end}[spec.name]
    data = np.full(spec.shape, value, DTYPES[spec.datatype]).tobytes()
    return RawTensor(spec.name, spec.datatype, spec.shape, data)


def _zeros(spec: TensorSpec) -> RawTensor:
    size = prod(spec.shape) * DTYPES[spec.datatype].itemsize
    return RawTensor(spec.name, spec.datatype, spec.shape, bytes(size))
