"""Backends that look at inputs for a frontend, on real links: as a frontend looks, and killed."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("faiss")
from served import ROOT, wait_until

from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.deployments.backend.looks.desk import LookDesk
from fermata.deployments.backend.looks.looker import Looker
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.processes.process_options import store_options
from fermata.deployments.config.resolve import router_config
from fermata.deployments.config.served.looks import peeks, placed_looks
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.process import FrontendProcess, node_name
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.models.digits import held_out, load
from fermata.deployments.sneakpeek.look_queue import Votes
from fermata.deployments.specs.frontend import FrontendOptions, ServerOptions, TableLimits
from fermata.foundation.precise_timer import precise_timer
from fermata.foundation.units import ms
from fermata.profiles.profile import from_table_ms
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import Evidence, Result
from fermata.router.links.transport import LinkOptions, LinkServer
from fermata.router.live.driver import LiveRouter

pytestmark = pytest.mark.live

COUNT = 40


def config_of(look_on: str) -> DeploymentConfig:
    given = yaml.safe_load((ROOT / "deployments/sneakpeek.yaml").read_text())
    given["applications"][0]["classes"]["look_on"] = look_on
    # One variant in memory: nothing but looks differs.
    given["backend"]["swap"] = False
    del given["applications"][0]["variants"][1:]
    return read_config(given)


class NeverEnding(Looker):
    """Begins one look after it was loaded, and does not end it."""

    began: Event | None = None

    def __call__(self, application: str, items: Sequence[Any]) -> list[Votes]:
        if self.began is not None:
            self.began.set()
            time.sleep(600)
        return super().__call__(application, items)


async def start_backend(
    config: DeploymentConfig,
    number: int,
    resolve: Callable[[], Awaitable[str]],
    began: Event | None = None,
) -> tuple[BackendProcess, LookDesk | None]:
    store = ModelStore(store_options(config))
    runners = {name: await asyncio.to_thread(store.load, name) for name in store.specs}
    settings = BackendSettings(number, kind="cpu", node=node_name())
    backend = BackendProcess(settings, runners, resolve)
    desk = None
    if found := placed_looks(config):
        looker = NeverEnding(found, store.device, store.budget)
        desk = LookDesk(looker, backend.segments, backend.frontends)
        await desk.load()
        looker.began = began
    await backend.start()
    return backend, desk


def doomed(port: int, began: Event) -> None:
    """A backend in a process of its own, which is killed while it looks."""

    async def resolve() -> str:
        return f"127.0.0.1:{port}"

    async def serve() -> None:
        await start_backend(config_of("backend"), 7, resolve, began)
        await asyncio.sleep(600)

    asyncio.run(serve())


class Served:
    """A router and a frontend, and the backends that come to them."""

    def __init__(self, config: DeploymentConfig, port: int, router: LiveRouter) -> None:
        self.config = config
        self.port = port
        self.router = router
        self.evidence: dict[int, Votes] = {}

    async def resolve(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start_frontend(self) -> FrontendProcess:
        ports = ServerOptions(host="127.0.0.1", grpc_port=0, http_port=0, reuse_port=False)
        table = TableLimits(lent_ns=ms(500))
        options = FrontendOptions(number=1, server=ports, table=table)
        given = registry(self.config), self.resolve
        self.frontend = FrontendProcess(options, *given, peeks=peeks(self.config))
        await self.frontend.start()
        assert self.frontend.peeker is not None
        tell = self.frontend.peeker.send

        def keep(evidence: Evidence) -> None:
            self.evidence[evidence.rid] = evidence.votes
            tell(evidence)

        self.frontend.peeker.send = keep
        return self.frontend

    async def has_backends(self, count: int) -> None:
        def linked() -> bool:
            return self.frontend.hub.router is not None and len(self.router.fleet.backends) == count

        await asyncio.to_thread(wait_until, linked, 40)

    async def ask(self, image: np.ndarray) -> Result:
        request = ModelInferRequest(model_name="digits")
        request.inputs.add(name="input", datatype="FP32", shape=[64])
        request.raw_input_contents.append(image.astype(np.float32).tobytes())
        # The machine that runs tests is small and busy.
        request.parameters["timeout"].int64_param = 5_000_000
        hub = self.frontend.hub
        outcome = await hub.driver.infer(parse_request(request, hub.registry))
        assert isinstance(outcome, Result), outcome
        return outcome

    async def ask_until(self, image: np.ndarray, done: Callable[[], bool]) -> None:
        """Backends link once they have a batch."""
        async with asyncio.timeout(30):
            while not done():
                await self.ask(image)
                await asyncio.sleep(0.05)


@asynccontextmanager
async def served(look_on: str, backends: int = 1) -> AsyncIterator[Served]:
    config = config_of(look_on)
    profiles = {}
    for variant in config.applications[0].variants:
        card = load(variant.model.removeprefix("digits:")).card
        known = from_table_ms(variant.name, [3.0] * 16, accuracy=card.accuracy, recall=card.recall)
        profiles[variant.name] = replace(known, load_ns=ms(20))
    loop = asyncio.get_running_loop()
    router = LiveRouter(
        router_config(config, profiles),
        1,
        time.monotonic_ns,
        loop.call_soon,
        lambda call: precise_timer(loop, call),
    )
    options = LinkOptions()
    async with AsyncExitStack() as undo:
        heartbeat = HeartbeatThread(options.beat_ns)
        undo.callback(heartbeat.stop)
        undo.callback(router.stop)
        links = LinkServer(router.hello, router, heartbeat, options)
        one = Served(config, await links.start("127.0.0.1", 0), router)
        undo.push_async_callback(links.stop, "the test ends")
        for number in range(1, backends + 1):
            backend, desk = await start_backend(config, number, one.resolve)
            undo.push_async_callback(backend.stop)
            if desk is not None:
                undo.callback(desk.close)
        undo.push_async_callback((await one.start_frontend()).stop)
        await one.has_backends(backends)
        yield one


def test_backend_looks_as_a_frontend_does() -> None:
    images, _ = held_out()

    async def play(look_on: str) -> tuple[list[Votes], dict[str, Any]]:
        async with served(look_on) as one:
            peeker = one.frontend.peeker
            assert peeker is not None
            if look_on == "backend":
                await one.ask_until(images[COUNT], lambda: bool(peeker.backends.lookers))
            one.evidence.clear()
            before = peeker.peeked
            await asyncio.gather(*(one.ask(images[place]) for place in range(COUNT)))
            async with asyncio.timeout(10):
                # A short circuit may answer before the next votes are there.
                while peeker.peeked - before < COUNT:
                    await asyncio.sleep(0.01)
            status = dict(one.frontend.status())
            assert one.frontend.hub.table.lent.looked_at == set()
            return [one.evidence[rid] for rid in sorted(one.evidence)], status

    here, own = asyncio.run(play("frontend"))
    there, status = asyncio.run(play("backend"))
    assert len(here) == COUNT
    assert there == here
    assert own["peeked_on_backends"] == 0
    assert own["peek_cpu_ms"] > 0
    assert status["peeked_on_backends"] == status["peeked"] == COUNT
    # The frontend's own threads have nothing to do.
    assert status["peek_cpu_ms"] == 0


def test_backend_that_is_killed_while_it_looks_costs_its_looks_alone() -> None:
    images, labels = held_out()
    context = multiprocessing.get_context("spawn")
    began = context.Event()

    async def play() -> tuple[list[Result], dict[str, Any]]:
        async with served("backend", backends=0) as one:
            frontend, peeker = one.frontend, one.frontend.peeker
            assert peeker is not None
            child = context.Process(target=doomed, args=(one.port, began), daemon=True)
            child.start()
            try:
                await one.has_backends(1)
                await one.ask_until(images[0], began.is_set)
                asked = [asyncio.create_task(one.ask(image)) for image in images[:COUNT]]
                async with asyncio.timeout(10):
                    while len(peeker.backends.asked) < 2:
                        await asyncio.sleep(0)
                survivor, desk = await start_backend(one.config, 2, one.resolve)
            finally:
                child.kill()
                await asyncio.to_thread(child.join)
            try:
                answers = await asyncio.gather(*asked)
                async with asyncio.timeout(10):
                    while peeker.backends.asked:
                        await asyncio.sleep(0.01)
                lost = peeker.backends.lost
                await one.ask_until(images[0], lambda: 2 in peeker.backends.lookers)
                before = peeker.peeked
                await one.ask_until(images[0], lambda: peeker.peeked > before)
                table, arena = frontend.hub.table, frontend.hub.arena
                async with asyncio.timeout(10):
                    while arena.extents.used or table.lent.looked_at or table.entries:
                        await asyncio.sleep(0.05)
                return answers, {"lost": lost, **frontend.status()}
            finally:
                await survivor.stop()
                assert desk is not None
                desk.close()

    answers, status = asyncio.run(play())
    assert len(answers) == COUNT
    right = [
        int(np.frombuffer(each.tensors[0][3], np.float32).argmax()) == label
        for each, label in zip(answers, labels, strict=False)
    ]
    assert np.mean(right) > 0.8
    # Not one of them was looked at, and each of them was served.
    assert all(each.estimate < 0 and not each.short_circuit for each in answers)
    assert status["lost"] >= 2
    assert status["backends"] == [2]
