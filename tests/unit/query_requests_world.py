"""A frontend's queries on a clock of the test's own, and pipelines for them."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import finalize

import numpy as np

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import add_input, from_array, split_bytes
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.outcomes import OnAnswer, Outcome, Refusal, drop_refusal
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import PartTicket
from fermata.deployments.frontend.requests.queries.function_loops import FunctionLoop, OwnLoop
from fermata.deployments.frontend.requests.queries.query_requests import QueryRequests
from fermata.deployments.specs.registry import Registry
from fermata.foundation.learnt_time import LearntTime
from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Cancel, HandedOn, Result


def split(result: Any) -> list[Any]:
    """One input for each number of the output."""
    return [np.array([each], np.float32) for each in result.outputs["output"]]


def gather(results: Any) -> Any:
    """The sum of all that was found."""
    return np.array([sum(float(each.outputs["output"][0]) for each in results["each"])])


def count(results: Any) -> Any:
    """How many results there are."""
    return np.array([float(len(results["first"]))])


def nothing(result: Any) -> list[Any]:
    return []


def fail(result: Any) -> list[Any]:
    raise ValueError("spilt milk")


def misfit(result: Any) -> list[Any]:
    return [np.zeros(7, np.float32)]


def application(name: str, shape: int) -> dict[str, object]:
    variant = {"name": f"{name}-v", "model": "emulated", "latency_ms": [1.0] * 8}
    return {"name": name, "slo_ms": 100, "input": {"shape": [shape]}, "variants": [variant]}


def pipeline(name: str, function: str, *more: object, **options: object) -> dict[str, object]:
    each = {"application": "each", "transform": f"{__name__}:{function}"}
    stages = [{"application": "first"}, each, *more]
    return {"name": name, "slo_ms": 100, "stages": stages, **options}


SIDE_JOIN = {"application": "all", "join": True, "transform": f"{__name__}:count"}
JOIN = {"application": "all", "join": True, "transform": f"{__name__}:gather"}


def two_joins() -> dict[str, object]:
    """A pipeline whose second join waits for what the first one does, and for more."""
    stages = [
        {"application": "first"},
        {"application": "each", "name": "a", "after": "first", "transform": f"{__name__}:split"},
        {"application": "each", "name": "b", "after": "first", "transform": f"{__name__}:split"},
        {"application": "each", "name": "c", "after": "b", "transform": f"{__name__}:nothing"},
        {**SIDE_JOIN, "name": "one", "after": "a"},
        {**SIDE_JOIN, "name": "two", "after": ["a", "c"]},
    ]
    return {"name": "two-joins", "slo_ms": 100, "stages": stages}


def pipelines_of_three() -> Registry:
    """Applications `first`, `each` and `all`, and pipelines of them."""
    applications = [application("first", 2), application("each", 1), application("all", 1)]
    pipelines = [
        pipeline("chain", "split"),
        pipeline("gaps", "split", partial=True),
        pipeline("joined", "split", JOIN),
        pipeline("joined-gaps", "split", JOIN, partial=True),
        pipeline("side-join", "split", {**SIDE_JOIN, "after": "first"}),
        two_joins(),
        {
            "name": "twice",
            "slo_ms": 100,
            "stages": [
                {"application": "first"},
                {"application": "first", "name": "again", "transform": "input"},
            ],
        },
        pipeline("failing", "fail"),
        pipeline("misfit", "misfit"),
    ]
    return registry(read_config({"applications": applications, "pipelines": pipelines}))


def result_of(rid: int, *numbers: float) -> Result:
    tensor = from_array("output", np.array(numbers, np.float32))
    told = tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)
    return Result(rid, "v", 1, 0, ms(1), (told,))


class Timer:
    """A call that is to come."""

    def __init__(self, at_ns: int, call: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


@dataclass(eq=False)
class World:
    """Means of a frontend on a clock of the test's own (`QueryMeans`)."""

    models: Registry
    counts: OutcomeCounts = field(default_factory=OutcomeCounts)
    pixels_max: int = 1 << 20
    grace_ns: int = ms(10)
    observer: RequestObserver | None = None
    clock_ns: int = ms(1000)
    refuses: str = ""
    parts: dict[int, tuple[ParsedRequest, OnAnswer]] = field(default_factory=dict)
    told: list[object] = field(default_factory=list)
    work: list[Callable[[], None]] = field(default_factory=list)
    costs: list[LearntTime | None] = field(default_factory=list)
    """Of all work so far."""
    timers: list[Timer] = field(default_factory=list)
    answers: dict[int, list[Outcome]] = field(default_factory=dict)
    begun: int = 0
    together: list[list[int]] = field(default_factory=list)
    """Parts that were submitted in one message."""
    held: set[str] = field(default_factory=set)
    """Functions that hold all of their threads."""
    loop: asyncio.AbstractEventLoop | None = None
    """On which functions run."""

    def __post_init__(self) -> None:
        self.queries = QueryRequests(self)

    def begin(self, now_ns: int, part: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        if self.refuses == part.terms.application:
            return Refusal("RESOURCE_EXHAUSTED", "memory", "memory: 9 of 8 bytes are held", ms(7))
        self.begun += 1
        self.parts[self.begun] = part, on_answer
        ticket = part.terms.part
        assert ticket is not None
        self.told.append(ticket.tell())
        return self.begun

    def begin_together(
        self,
        now_ns: int,
        part: ParsedRequest,
        inputs: Sequence[RequestInput],
        tickets: Sequence[PartTicket],
        on_answers: Sequence[OnAnswer],
    ) -> list[int] | None:
        if self.refuses == part.terms.application:
            return None
        found: list[int] = []
        for given, ticket, on_answer in zip(inputs, tickets, on_answers, strict=True):
            terms = replace(part.terms, size_bytes=given.memory_bytes(), part=ticket)
            rid = self.begin(now_ns, replace(part, input=given, terms=terms), on_answer)
            assert not isinstance(rid, Refusal)
            found.append(rid)
        self.together.append(found)
        return found

    def new_rid(self) -> int:
        self.begun += 1
        return self.begun

    def function_loop(self, function: str) -> FunctionLoop | None:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            # Nothing of a test is left behind it.
            finalize(self, self.loop.close)
        return None if function in self.held else OwnLoop(self.loop)

    def cancel_soon(self, rid: int) -> None:
        self.work.append(lambda: self.end(rid, drop_refusal(DropReason.CANCELLED)))

    def to_router(self, message: Cancel | HandedOn, home: int) -> None:
        self.told.append(message)

    def run_aside(
        self, work: Callable[[], Any], then: Callable[[Any], None], cost: LearntTime | None
    ) -> None:
        self.costs.append(cost)

        def run() -> None:
            try:
                found = work()
            except Exception as error:
                found = error
            then(found)

        self.work.append(run)

    def call_later(self, delay_ns: int, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.clock_ns + delay_ns, call))
        return self.timers[-1]

    def now_ns(self) -> int:
        return self.clock_ns

    def open(self, model: str) -> int | Refusal:
        request = pb.ModelInferRequest(model_name=model)
        add_input(request, from_array("input", np.zeros(2, np.float32)))
        parsed = parse_request(request, self.models)
        return self.queries.open(self.clock_ns, parsed, self.note)

    def note(self, rid: int, outcome: Outcome) -> None:
        self.answers.setdefault(rid, []).append(outcome)

    def settle(self) -> None:
        while True:
            while self.work:
                self.work.pop(0)()
            # A few rounds: what functions wait for goes through several calls.
            for _ in range(10 if self.loop is not None else 0):
                assert self.loop is not None
                self.loop.call_soon(self.loop.stop)
                self.loop.run_forever()
            if not self.work:
                return

    def end(self, rid: int, outcome: Outcome) -> None:
        if rid in self.parts:
            self.parts.pop(rid)[1](rid, outcome)

    def found(self, rid: int, *numbers: float) -> None:
        """A part ends with these numbers."""
        self.end(rid, result_of(rid, *numbers))
        self.settle()

    def lost(self, rid: int, reason: str) -> None:
        self.end(rid, drop_refusal(reason))
        self.settle()

    def take(self) -> list[object]:
        told, self.told = self.told, []
        return told

    def answer(self) -> Any:
        """The document of the only query."""
        ((outcome,),) = self.answers.values()
        assert isinstance(outcome, Result), outcome
        (tensor,) = outcome.tensors
        return json.loads(split_bytes(tensor[3])[0])

    def refusal(self) -> Refusal:
        ((outcome,),) = self.answers.values()
        assert isinstance(outcome, Refusal)
        return outcome
