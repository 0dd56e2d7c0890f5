"""Router, backends and a small frontend on real sockets, threads and time; no Ray."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest
import uvloop
from snapshots import snapshot

from fermata.deployments.backend.execution.emulated import EmulatedModel
from fermata.deployments.backend.execution.emulated_gpu import EmulatedGpu
from fermata.deployments.backend.execution.executor import tune
from fermata.deployments.backend.execution.runners.runner import PlainRunner, Runner, RunnerStore
from fermata.deployments.backend.process import BackendProcess, UnfitError
from fermata.deployments.backend.settings import BackendSettings
from fermata.foundation.precise_timer import precise_timer
from fermata.foundation.units import ms, seconds
from fermata.router.assembly import RouterConfig
from fermata.router.links.closing import Closed
from fermata.router.links.connecting import PersistentLink
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import (
    PROTOCOL,
    PROTOCOLS,
    RID_BITS,
    Cancel,
    Dropped,
    Fetch,
    Hello,
    Message,
    Payload,
    Result,
    Submit,
)
from fermata.router.links.session import LinkError
from fermata.router.links.transport import Link, LinkOptions, LinkServer
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec

pytestmark = pytest.mark.live

LOOPS: list[asyncio.AbstractEventLoop] = []
HOST = "127.0.0.1"
NODE = "here"
# One version: with several, each refusal is followed by an attempt in an older one.
OPTIONS = LinkOptions(silence_ns=ms(2000), secret=b"a secret of this test", speaks=PROTOCOLS[:1])
TABLE_NS = tuple(ms(5 + size) for size in range(1, 41))
SLO_NS = ms(60)
FRONTEND = 4


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    tune()
    # Closing a uvloop has been seen to wait for ever; our processes end without closing theirs.
    loop = uvloop.new_event_loop()
    LOOPS.append(loop)
    loop.run_until_complete(bounded())


class World:
    """Where things listen, and what they share."""

    def __init__(self, links: LinkOptions = OPTIONS) -> None:
        self.links = links
        self.heartbeat = HeartbeatThread(links.beat_ns)
        self.router_address = ""
        self.routers: list[LiveRouter] = []
        self.ended: list[int] = []
        """Backends whose process has ended itself."""

    async def resolve(self) -> str:
        if not self.router_address:
            raise LinkError("no router yet")
        return self.router_address

    async def start_router(
        self, term: int, application: ApplicationSpec | None = None
    ) -> tuple[LiveRouter, LinkServer]:
        loop = asyncio.get_running_loop()
        served = application or ApplicationSpec("app", SLO_NS, (VariantSpec("v", TABLE_NS),))
        router = LiveRouter(
            RouterConfig((served,), policy_options={"hold": "auto"}),
            term,
            time.monotonic_ns,
            loop.call_soon,
            lambda call: precise_timer(loop, call),
        )
        self.routers.append(router)
        server = LinkServer(router.hello, router, self.heartbeat, self.links)
        self.router_address = f"{HOST}:{await server.start(HOST)}"
        return router, server

    async def start_backend(
        self, number: int, runner: Runner | None = None, stock: RunnerStore | None = None
    ) -> BackendProcess:
        if runner is None:
            runner = PlainRunner(EmulatedModel(EmulatedGpu(), TABLE_NS), len(TABLE_NS))
        settings = BackendSettings(number, "emulated", NODE, links=OPTIONS)
        end = partial(self.ended.append, number)
        backend = BackendProcess(settings, {"v": runner}, self.resolve, stock, end_process=end)
        await backend.start()
        return backend


class TinyFrontend:
    """Just enough of a frontend: payloads, and an account of what came back."""

    def __init__(self, world: World, make: Callable[[int], Payload]) -> None:
        self.world = world
        self.make = make
        self.count = 0
        self.sent_at_ns: dict[int, int] = {}
        self.ended: dict[int, list[Message]] = {}
        self.latency_ns: list[int] = []
        self.term = 0

    async def start(self) -> None:
        self.server = LinkServer(self.hello, self, self.world.heartbeat, OPTIONS)
        self.address = f"{HOST}:{await self.server.start(HOST)}"
        self.to_router = PersistentLink(
            self.world.resolve, self.hello, self, self.world.heartbeat, OPTIONS
        )
        self.to_router.start()

    async def stop(self) -> None:
        await self.to_router.stop("done")
        await self.server.stop("done")

    def hello(self) -> Hello:
        address = getattr(self, "address", "")
        return Hello(PROTOCOL, "frontend", FRONTEND, self.term, address, NODE)

    def submit(self, slo_ns: int = SLO_NS) -> int:
        self.count += 1
        rid = (FRONTEND << RID_BITS) + self.count
        self.sent_at_ns[rid] = time.monotonic_ns()
        self.ended[rid] = []
        assert self.to_router.link is not None
        self.to_router.link.send(Submit(rid, "app", slo_ns, slo_ns))
        return rid

    def cancel(self, rid: int) -> None:
        assert self.to_router.link is not None
        self.to_router.link.send(Cancel(rid))

    def on_up(self, link: Link) -> None:
        if link.peer.role == "router":
            self.term = link.peer.term

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Fetch):
                link.send_all([self.make(rid) for rid in message.rids])
            elif isinstance(message, Result | Dropped):
                self.ended[message.rid].append(message)
                self.latency_ns.append(time.monotonic_ns() - self.sent_at_ns[message.rid])

    def on_down(self, link: Link, closed: Closed) -> None:
        pass

    def on_refused(self, link: Link, closed: Closed) -> None:
        pass

    async def all_ended(self) -> None:
        while not all(self.ended.values()):
            await asyncio.sleep(0.01)

    def results(self) -> list[Result]:
        return [each for ends in self.ended.values() for each in ends if isinstance(each, Result)]

    def dropped(self) -> list[Dropped]:
        return [each for ends in self.ended.values() for each in ends if isinstance(each, Dropped)]


def inline(rid: int) -> Payload:
    return Payload(rid, "UINT8", (20_000,), bytes(20_000))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@asynccontextmanager
async def served(
    backends: int,
    make: Callable[[int], Payload],
    runner: Runner | None = None,
    stock: RunnerStore | None = None,
) -> AsyncIterator[tuple[LiveRouter, TinyFrontend, World, LinkServer]]:
    world = World()
    router, server = await world.start_router(term=1)
    processes = [await world.start_backend(number, runner, stock) for number in range(backends)]
    frontend = TinyFrontend(world, make)
    await frontend.start()
    await until(lambda: len(router.fleet.backends) == backends and router.fleet.frontends)
    try:
        yield router, frontend, world, server
    finally:
        await frontend.stop()
        for process in processes:
            await process.stop()
        await server.stop("done")
        for one in world.routers:
            one.stop()
        world.heartbeat.stop()


def test_every_request_ends_once_batches_form_and_deadlines_are_met() -> None:
    async def test() -> None:
        async with served(2, inline) as (router, frontend, _, _):
            rng = random.Random(1)
            at_ns = time.monotonic_ns()
            for _ in range(1000):
                at_ns += int(rng.expovariate(700) * 1e9)
                await asyncio.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))
                frontend.submit()
            await frontend.all_ended()
            await asyncio.sleep(0.1)
            assert all(len(ends) == 1 for ends in frontend.ended.values())
            results = frontend.results()
            assert all(result.error == "" for result in results)
            assert max(result.batch_size for result in results) >= 4
            late = sum(latency_ns > SLO_NS + ms(10) for latency_ns in frontend.latency_ns)
            told = snapshot(router)
            print(
                f"results {len(results)}, late {late}, p50 "
                f"{sorted(frontend.latency_ns)[500] / 1e6:.1f} ms, {told}"
            )
            # Other processes may take this machine's cores away for a while.
            assert late <= 50
            assert len(results) >= 900
            assert told["applications"]["app"]["requests"] == 1000

    run(test)


def test_inputs_in_shared_memory_are_read_and_answers_are_the_models() -> None:
    segment = SharedMemory("fermata-test-links", create=True, size=4 * 1000)
    assert segment.buf is not None
    segment.buf[:] = np.arange(1000, dtype=np.int32).tobytes()

    def shared(rid: int) -> Payload:
        place = rid % 1000
        return Payload(rid, "INT32", (1,), b"", segment.name, 4 * place, 4)

    async def test() -> None:
        runner = PlainRunner(lambda batch: {"double": batch * 2}, 40, (1,), "int32")
        async with served(1, shared, runner) as (_, frontend, _, _):
            for _ in range(100):
                frontend.submit()
            await frontend.all_ended()
            for result in frontend.results():
                [(name, dtype, shape, data)] = result.tensors
                assert (name, dtype, shape) == ("double", "INT32", (1,))
                assert np.frombuffer(data, np.int32)[0] == 2 * (result.rid % 1000)
            assert len(frontend.results()) > 50

    try:
        run(test)
    finally:
        segment.close()
        segment.unlink()


def test_bad_inputs_and_failing_models_are_told_in_words() -> None:
    def made(rid: int) -> Payload:
        if rid % 2:
            return Payload(rid, "FP32", (7,), b"short")
        return Payload(rid, "FP32", (1,), bytes(4))

    def model(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise ZeroDivisionError("by zero")

    async def test() -> None:
        async with served(1, made, PlainRunner(model, 40)) as (router, frontend, _, _):
            for _ in range(10):
                frontend.submit()
            await frontend.all_ended()
            assert "ZeroDivisionError: by zero" in {each.detail for each in frontend.dropped()}
            counts = snapshot(router)["applications"]["app"]
            assert counts["dropped"]["failed"] > 0
            frontend.ended.clear()
            frontend.count += frontend.count % 2
            frontend.submit()
            await frontend.all_ended()
            assert "FP32 (7,) takes 28 bytes" in frontend.results()[0].error

    run(test)


@pytest.mark.parametrize("breaks", ["the device", "one batch", "the driver says so"])
def test_a_backend_whose_device_is_unusable_ends_itself_and_others_serve(breaks: str) -> None:
    async def test() -> None:
        async with served(1, inline) as (router, frontend, world, _):
            gpu = EmulatedGpu()
            model = EmulatedModel(gpu, TABLE_NS)
            # The higher number: it is given something once the other one is busy.
            other = await world.start_backend(7, PlainRunner(model, len(TABLE_NS)))
            await until(lambda: len(router.fleet.backends) == 2)
            if breaks != "the driver says so":
                gpu.broken = "an illegal memory access was encountered"
            if breaks == "one batch":
                model.check_device = lambda: None  # type: ignore[method-assign]
            for number in range(60):
                if number == 30 and breaks == "the driver says so":
                    other.give_up("RuntimeError: an illegal Xid 79")
                # Time enough for a busy machine: what is asked here is who answers.
                frontend.submit(seconds(5))
                await asyncio.sleep(0.003)
            await frontend.all_ended()
            assert all(len(ends) == 1 for ends in frontend.ended.values())
            # Nobody was told of it who could be served by the other one.
            assert frontend.dropped() == []
            assert all(result.error == "" for result in frontend.results())
            if breaks != "one batch":
                await until(lambda: world.ended == [7])
                assert sorted(router.fleet.backends) == [0]
                _, reason = router.supervisor.losses[-1]
                assert "device unusable: RuntimeError: an illegal" in reason
                with pytest.raises(UnfitError, match="unusable"):
                    other.check()
            else:
                assert world.ended == []
                assert 7 in router.fleet.backends
            await other.stop()

    run(test)


def test_the_last_backend_ends_itself_too() -> None:
    async def test() -> None:
        gpu = EmulatedGpu()
        runner = PlainRunner(EmulatedModel(gpu, TABLE_NS), len(TABLE_NS))
        async with served(1, inline, runner) as (router, frontend, world, _):
            gpu.broken = "an illegal memory access was encountered"
            frontend.submit(seconds(5))
            await frontend.all_ended()
            [dropped] = frontend.dropped()
            assert (dropped.reason, dropped.detail) == ("failed", f"RuntimeError: {gpu.broken}")
            # Each end of a link sees its end in its own time.
            await until(lambda: world.ended == [0] and not router.fleet.backends)
            assert not router.supervisor.quarantine.applications, "the model has crashed nobody"

    run(test)


def test_new_router_takes_over_and_the_old_one_is_refused() -> None:
    async def test() -> None:
        async with served(1, inline) as (_, frontend, world, server):
            frontend.submit()
            await frontend.all_ended()
            await server.stop("handed over")
            router, server = await world.start_router(term=2)
            await until(lambda: router.fleet.backends and router.fleet.frontends)
            frontend.submit()
            await frontend.all_ended()
            assert len(frontend.results()) == 2
            await server.stop("crashed")
            stale, server = await world.start_router(term=1)
            await until(lambda: stale.stale)
            assert "has met 2" in stale.stale
            assert not stale.fleet.backends
            await server.stop("stale")

    run(test)
