"""CPU time of a router, a frontend and a backend for each crop, one role at a time.

The other roles are played here, at no cost to the one that is measured. Messages come and go as
bytes, but over no sockets. No device is needed: the backend has all but the work of one.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec
import numpy as np

from benchmarks.pipelines_cuts import PIXELS_MAX, result_tensors
from benchmarks.pipelines_gpu_scene import CROPS_MEAN, NAME, Setting, jpegs, sections
from benchmarks.router_growth import Alarm
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import add_input
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import router_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.requests.request_driver import DriverLimits, RequestDriver
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.foundation.units import NEVER, SECOND, ms
from fermata.profiles.profile import Profile
from fermata.router.links.messages import (
    CUT,
    PROTOCOL,
    RID_BITS,
    Done,
    HandedOn,
    Hello,
    Message,
    Payload,
    QueryPart,
    Ready,
    Result,
    Run,
    Submit,
    frontend_of,
)
from fermata.router.links.session import encode
from fermata.router.live.driver import LiveRouter

RATE_RPS = 1500.0
FRONTENDS = 4
SETTING = Setting("auto", 32, 128, 1, 100.0, "gpu")
LINES_NS = {"tiny": (120_000, 1_000_000), "lite0": (50_000, 1_000_000)}
"""Run times of batches, alpha * size + beta, about those of an H200."""
CLASSES = 1000
SEED = 1_000_002
WAIT_S = 0.02
decoded = msgspec.msgpack.Decoder(list[Message]).decode


class Stopwatch:
    """CPU time of this process within `with`; nothing is counted while `counts` is false."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self.from_ns = 0
        self.counts = False

    def __enter__(self) -> None:
        self.from_ns = time.process_time_ns()

    def __exit__(self, *_: object) -> None:
        self.spent_ns += (time.process_time_ns() - self.from_ns) * self.counts


def on_wire(messages: Sequence[Message]) -> bytes:
    return msgspec.msgpack.encode(messages)


class PlayedLink:
    """A link to somebody who is played."""

    def __init__(self, role: str, number: int) -> None:
        self.peer = Hello(PROTOCOL, role, number, 0, f"host:{number}", "node")
        self.outbox: list[Message] = []

    def send(self, message: Message) -> None:
        self.outbox.append(message)

    def flush(self) -> None:
        pass

    def close(self, code: object, detail: str) -> None:
        raise AssertionError(f"{code}: {detail}")

    def sent(self) -> bytes:
        """All that was said, as bytes."""
        said, self.outbox = self.outbox, []
        return encode(said)[0][4:] if said else b""


# The router


class RouterScene:
    """A router in virtual time, with frontends and one backend that are played."""

    def __init__(self) -> None:
        config = read_config(sections(SETTING))
        profiles = {name: Profile(name, linear_ns=line) for name, line in LINES_NS.items()}
        self.now_ns = SECOND
        self.soon: list[Callable[[], None]] = []
        self.timer: Any = None
        self.router = LiveRouter(
            router_config(config, profiles), 1, lambda: self.now_ns, self.soon.append, self._arm
        )
        self.watch = Stopwatch()
        self.rng = np.random.default_rng(SEED)
        self.numbers = count()
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.crops = 0
        self.frontends = [PlayedLink("frontend", 1 + each) for each in range(FRONTENDS)]
        self.backend = PlayedLink("backend", 1)
        for link in (*self.frontends, self.backend):
            self.router.on_up(link)
        self.hear(self.backend, Ready("gpu", tuple(LINES_NS)))
        self.free_at_ns = 0
        self.rids = [(each.peer.number << RID_BITS) for each in self.frontends]

    def _arm(self, call: Callable[[], None]) -> Alarm:
        self.timer = Alarm(call)
        return self.timer  # type: ignore[no-any-return]

    def hear(self, link: PlayedLink, *messages: Message) -> None:
        """The router hears these, and says what follows."""
        data = on_wire(messages)
        with self.watch:
            self.router.on_messages(link, decoded(data))
        self._settle()

    def _settle(self) -> None:
        with self.watch:
            soon, self.soon[:] = self.soon[:], []
            for call in soon:
                call()
            said = [(each, each.sent()) for each in (*self.frontends, self.backend)]
        for link, data in said:
            for message in decoded(data) if data else ():
                if link is self.backend and isinstance(message, Run):
                    self._run(message)

    def at(self, at_ns: int, call: Callable[[], None]) -> None:
        heappush(self.events, (at_ns, next(self.numbers), call))

    def play(self, warmup: int, queries: int) -> float:
        """CPU time of a crop, in microseconds."""
        at_ns = self.now_ns
        for number in range(warmup + queries):
            at_ns += int(self.rng.exponential(SECOND / RATE_RPS))
            self.at(at_ns, lambda number=number: self._query(number))  # type: ignore[misc]
            if number == warmup:
                self.at(at_ns, self._begin)
        while self.events:
            at_ns, _, call = self.events[0]
            if self.timer.at_ns <= at_ns:
                self.now_ns = max(self.now_ns, self.timer.at_ns)
                self.timer.at_ns = NEVER
                with self.watch:
                    self.timer.call()
                self._settle()
            else:
                self.now_ns = at_ns
                heappop(self.events)
                call()
        return self.watch.spent_ns / 1e3 / self.crops

    def _begin(self) -> None:
        self.watch.counts = True
        self.crops = 0

    def _next(self, frontend: int) -> int:
        self.rids[frontend] += 1
        return self.rids[frontend]

    def _query(self, number: int) -> None:
        frontend = number % FRONTENDS
        rid = self._next(frontend)
        place = Payload(rid, "BYTES", (1,), b"", "fermata-1234-abcdef", 4096 * rid, 40_000)
        place = msgspec.structs.replace(place, frame=rid)
        told = Submit(rid, "detect", ms(95), ms(98), payload=place, part=QueryPart(NAME))
        self.hear(self.frontends[frontend], told)

    def _run(self, run: Run) -> None:
        alpha, beta = LINES_NS[run.variant]
        run_ns = alpha * len(run.rids) + beta
        self.free_at_ns = max(self.free_at_ns, self.now_ns) + run_ns
        self.at(self.free_at_ns, lambda: self._done(run, run_ns))

    def _done(self, run: Run, run_ns: int) -> None:
        self.hear(self.backend, Done(run.batch, run_ns, 0))
        if run.variant == "tiny":
            for frontend in range(FRONTENDS):
                there = [each for each in run.rids if frontend_of(each) == frontend + 1]
                said = [message for rid in there for message in self._hand_on(frontend, rid)]
                if said:
                    self.hear(self.frontends[frontend], *said)

    def _hand_on(self, frontend: int, frame: int) -> list[Message]:
        crops = int(self.rng.geometric(1 / (1 + CROPS_MEAN))) - 1
        self.crops += crops
        return [*crop_submits(frame, [self._next(frontend) for _ in range(crops)]), HandedOn(frame)]


def crop_submits(frame: int, rids: Sequence[int]) -> list[Message]:
    """Crops of one frame, as frontends submit them."""
    if not rids:
        return []
    first, *others = [crop_place(rid, frame, each) for each, rid in enumerate(rids)]
    part = QueryPart(NAME, 1, frame)
    told = {"payload": first, "part": part, "beside": tuple(others)}
    return [Submit(first.rid, "classify", ms(60), ms(63), **told)]  # type: ignore[arg-type]


def crop_place(rid: int, frame: int, number: int) -> Payload:
    box = 10 * number, 20, 10 * number + 100, 140
    place = b"", "fermata-1234-abcdef", 4096 * rid, 40_000
    return Payload(rid, CUT, (1,), *place, frame=frame, cut=box)


def router_us(quick: bool) -> float:
    return RouterScene().play(500, 1000 if quick else 5000)


# The frontend


class PlayedSender:
    """Takes what a frontend says, as bytes."""

    def __init__(self) -> None:
        self.link = PlayedLink("router", 0)

    def to_router(self, message: Any, home: int | None = None) -> None:
        self.link.send(message)

    def to_backend(self, backend: int, payload: Payload) -> None:
        raise AssertionError("backends know where inputs lie")


class FrontendScene:
    """A frontend on a loop of its own, with a router and a backend that are played."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.models = registry(read_config(sections(SETTING)))
        self.sender = PlayedSender()
        self.table = RequestTable(1)
        self.arena = Arena(256 << 20)
        limits = DriverLimits(pixels_max=PIXELS_MAX)
        self.driver = RequestDriver(self.table, self.arena, pool, self.sender, limits)
        self.driver.on_router_up(1)
        self.watch = Stopwatch()
        self.rng = np.random.default_rng(SEED)
        self.crops = 0
        self.answers = 0
        scores = np.random.default_rng(SEED).random(CLASSES, np.float32)
        self.scores = (("output", "FP32", (CLASSES,), scores.tobytes()),)
        self.given = [self._parsed(each) for each in jpegs()]

    def _parsed(self, tensor: Any) -> Any:
        request = pb.ModelInferRequest(model_name=NAME)
        add_input(request, tensor)
        parsed = parse_request(request, self.models)
        # What is measured is no matter of time.
        terms = replace(parsed.terms, slo_ns=60 * SECOND, hard_limit_ns=60 * SECOND)
        return replace(parsed, terms=terms)

    def _on_answer(self, rid: int, outcome: object) -> None:
        assert isinstance(outcome, Result), outcome
        self.answers += 1

    async def play(self, warmup: int, batches: int) -> float:
        """CPU time of a crop, in microseconds: from a query to its answer."""
        for number in range(warmup + batches):
            if number == warmup:
                self.watch.counts, self.crops = True, 0
            await self._batch()
        assert not self.table.entries
        return self.watch.spent_ns / 1e3 / self.crops

    async def _batch(self) -> None:
        """Queries that are detected together, and whose crops are classified together."""
        wanted = self.answers + len(self.given)
        with self.watch:
            for each in self.given:
                self.driver.open(each, self._on_answer)
        frames = await self._submitted(len(self.given))
        counts = [int(each) - 1 for each in self.rng.geometric(1 / (1 + CROPS_MEAN), len(frames))]
        self.crops += sum(counts)
        found = [
            Result(rid, "tiny", len(frames), 0, ms(4), result_tensors(self.rng, crops))
            for rid, crops in zip(frames, counts, strict=True)
        ]
        self._hear(on_wire(found))
        crops = await self._submitted(sum(counts))
        named = [Result(rid, "lite0", len(crops), 0, ms(6), self.scores) for rid in crops]
        self._hear(on_wire(named))
        while self.answers < wanted:
            await self._wait()
        self.sender.link.sent()

    def _hear(self, data: bytes) -> None:
        with self.watch:
            for message in decoded(data):
                assert isinstance(message, Result)
                self.driver.on_result(1, message)
            self.driver.pump()

    async def _wait(self) -> None:
        """A while for the frontend alone, most of which it sleeps."""
        with self.watch:
            await asyncio.sleep(WAIT_S)

    async def _submitted(self, wanted: int) -> list[int]:
        """Requests that the router hears of, once it has heard of so many."""
        rids: list[int] = []
        while len(rids) < wanted:
            await self._wait()
            with self.watch:
                data = self.sender.link.sent()
            rids += [rid for each in (decoded(data) if data else ()) for rid in submitted(each)]
        return rids


def submitted(message: Message) -> Sequence[int]:
    """Requests that a message submits."""
    if not isinstance(message, Submit):
        return ()
    return message.rid, *(each if isinstance(each, int) else each.rid for each in message.beside)


def frontend_us(quick: bool) -> float:
    async def play() -> float:
        with ThreadPoolExecutor(2) as pool:
            scene = FrontendScene(pool)
            try:
                return await scene.play(20, 20 if quick else 150)
            finally:
                scene.driver.close()
                scene.arena.close()

    return asyncio.run(play())
