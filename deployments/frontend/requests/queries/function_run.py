"""The function of one query: what it is given, the stages that it calls, and its answer.

All of it but `stop` and the makers is called on the functions' loop; the frontend's loop is told.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Protocol

import msgspec
import numpy as np

from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import Array
from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.queries.function_loops import FunctionLoop
from fermata.deployments.frontend.requests.queries.parts import (
    QueryPartRecord,
    StageResult,
    arrays_of,
    plain_array,
)
from fermata.deployments.frontend.requests.queries.transforms import call_input
from fermata.deployments.models.pictures.decoding import Pixels
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.pipelines import ServedPipeline
from fermata.foundation.json_types import Json
from fermata.foundation.stage_calls import StageLostError
from fermata.foundation.user_code import import_function

CALLS_MAX = 1024
"""Calls of one function: more of them would keep others waiting."""


class QueryInputs(Mapping[str, Array]):
    """The first argument of a function: the query's input as arrays by name. `picture` is that as
    pixels, rows x columns x 3. Passed on whole, it is not decoded here."""

    def __init__(self, given: RequestInput, pixels_max: int) -> None:
        self.given = given
        self.pixels_max = pixels_max

    @cached_property
    def arrays(self) -> dict[str, Array]:
        found = arrays_of(self.given)
        if not self.given.batched:
            return found
        return {name: each[0] if each.ndim > 1 else each for name, each in found.items()}

    @cached_property
    def picture(self) -> Pixels:
        return self.given.pixels(self.pixels_max)

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class LostCallError(StageLostError):
    """As functions see it, with what the client is told where they do not go on."""

    def __init__(self, stage: str, refusal: Refusal) -> None:
        super().__init__(stage, refusal.reason, refusal.message)
        self.refusal = refusal


class StageCall:
    """One call of a stage, until it has ended."""

    def __init__(self, place: int, given: RequestInput, is_own: bool, future: Any) -> None:
        self.place = place
        self.given = given
        self.is_own = is_own
        """Its input is the client's own."""
        self.future: asyncio.Future[StageResult | Refusal] = future
        self.record: QueryPartRecord | None = None
        """Its part, and its request's id: kept by the frontend."""
        self.rid = -1
        self.given_up = False

    def end(self, found: StageResult | Refusal) -> None:
        if not self.future.done():
            self.future.set_result(found)


class CallTaker(Protocol):
    """The frontend's side of a query, on its own loop."""

    def on_call(self, call: StageCall) -> None: ...

    def on_given_up(self, call: StageCall) -> None:
        """The function does not wait for it any more."""

    def on_ended(self, outcome: bytes | Refusal) -> None:
        """The function has ended: with an answer in JSON, or a refusal."""


class Stages:
    """The second argument of a function: calls stages (`StageCalls`)."""

    Lost = StageLostError

    def __init__(self, run: "FunctionRun") -> None:
        self._run = run

    async def __call__(self, name: str, given: Any = None) -> StageResult:
        return await self._run.call(name, given)


class FunctionRun:
    """One run of a function."""

    def __init__(
        self,
        pipeline: ServedPipeline,
        on: FunctionLoop,
        given: RequestInput,
        pixels_max: int,
        taker: CallTaker,
    ) -> None:
        self.pipeline = pipeline
        self.on = on
        self.inputs = QueryInputs(given, pixels_max)
        self.taker = taker
        self.places = {stage.name: place for place, stage in enumerate(pipeline.stages)}
        self.calls: set[StageCall] = set()
        """Those that the function waits for."""
        self.called = 0
        self.is_over = False
        self.begun = False
        self.task: asyncio.Task[None] | None = None
        """None before it is made, and once it has ended."""

    def begin(self) -> None:
        if not self.is_over:
            self.task = self.on.loop.create_task(self._follow())

    def stop(self) -> None:
        """The query has ended: whatever the function waits for is cancelled."""
        if self.is_over:
            return
        self._close()
        if self.task is not None:
            self.task.cancel()

    def _close(self) -> None:
        self.is_over = True
        for each in self.calls:
            each.future.cancel()

    async def _follow(self) -> None:
        # Its task may be made long before, where another run holds the thread.
        self.begun = True
        try:
            outcome: bytes | Refusal = await self._answer()
        except LostCallError as lost:
            outcome = lost.refusal
        except BaseExceptionGroup as group:
            # Of tasks that it has made.
            outcome = _first_lost(group) or self._failed(_one_line(group.exceptions[0]))
        except asyncio.CancelledError:
            # Not raised again: the task would keep the error, and that this frame.
            outcome = self._failed("it was cancelled by nobody but itself")
        # Whatever users' functions do, their clients are told.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            outcome = self._failed(_one_line(error))
        self.task = None
        if not self.is_over:
            self._close()
            self.on.reply(self.taker.on_ended, outcome)

    async def _answer(self) -> bytes:
        found = await called(self.pipeline.function)(self.inputs, Stages(self))
        return msgspec.json.encode(plain(found))

    def _failed(self, why: str) -> Refusal:
        message = f"failed: function {self.pipeline.function}: {why}"
        return Refusal("INTERNAL", RefusalReason.FAILED, message)

    async def call(self, name: str, given: Any) -> StageResult:
        """The result of a stage. Raises StageLostError, or what the function has done wrong."""
        place = self.places.get(name)
        if place is None:
            raise LookupError(f"stage {name!r} is unknown; one of {', '.join(self.places)}")
        if self.is_over:
            raise asyncio.CancelledError("its query has ended")
        self.called += 1
        if self.called > CALLS_MAX:
            raise RuntimeError(f"it makes more than {CALLS_MAX} calls")
        own = self.inputs if given is None else given
        try:
            made = call_input(self.pipeline.stages[place].model, own, place == 0)
        except BadRequestError as error:
            raise ValueError(f"the input of stage {name!r}: {error}") from None
        return await self._await(StageCall(place, made, own is self.inputs, self._future()))

    def _future(self) -> "asyncio.Future[StageResult | Refusal]":
        return self.on.loop.create_future()

    async def _await(self, call: StageCall) -> StageResult:
        self.calls.add(call)
        self.on.reply(self.taker.on_call, call)
        try:
            found = await call.future
        except asyncio.CancelledError:
            self.on.reply(self.taker.on_given_up, call)
            raise
        finally:
            self.calls.discard(call)
        if isinstance(found, Refusal):
            # Raised here: an error in the future would hold this frame, and that the future.
            raise LostCallError(self.pipeline.stages[call.place].name, found)
        return found


def _first_lost(group: BaseExceptionGroup[BaseException]) -> Refusal | None:
    for each in group.exceptions:
        if isinstance(each, LostCallError):
            return each.refusal
        if isinstance(each, BaseExceptionGroup) and (found := _first_lost(each)):
            return found
    return None


def _one_line(error: BaseException) -> str:
    told = " ".join(str(error).split())
    return f"{type(error).__name__}: {told}" if told else repr(error)


@cache
def called(reference: str) -> Callable[..., Any]:
    """The function of that name."""
    found: Callable[..., Any] = import_function(reference)
    return found


def plain(found: object, where: str = "the answer") -> Json:
    """A structure as JSON holds it, its arrays as lists. Raises TypeError for what it cannot."""
    if found is None or isinstance(found, bool | int | float | str):
        return found
    if isinstance(found, Mapping):
        return {str(key): plain(each, f"{where}[{key!r}]") for key, each in found.items()}
    if isinstance(found, list | tuple):
        return [plain(each, f"{where}[{place}]") for place, each in enumerate(found)]
    if isinstance(found, np.ndarray):
        return plain_array(found)
    if isinstance(found, np.generic):
        return plain(found.item(), where)
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    if isinstance(found, StageResult):
        return {"variant": found.result.variant, "outputs": plain(found.outputs)}
    raise TypeError(
        f"{where} is a {type(found).__name__}; return numbers, texts, lists, mappings or arrays"
    )
