"""Two routers, their backends and a frontend on real links in one process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from benchmarks.one_process import PATIENT
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.processes.process_options import store_options
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.config.sub_clusters import restricted
from fermata.deployments.control.sub_clusters.homes import first_directory, served_at
from fermata.deployments.frontend.outcomes import Outcome
from fermata.deployments.frontend.process import FrontendProcess, node_name
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.specs.frontend import FrontendOptions, ServerOptions
from fermata.foundation.precise_timer import precise_timer
from fermata.router.links.directory import Directory
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import Result
from fermata.router.links.session import LinkError
from fermata.router.links.transport import LinkServer
from fermata.router.live.driver import LiveRouter

pytestmark = pytest.mark.live
HOMES = {"cats": (0,), "dogs": (1,), "both": (0, 1)}
START_S = 60.0


def deployment() -> DeploymentConfig:
    applications = [
        {
            "name": name,
            "slo_ms": 5000,
            "input": {"name": "input", "dtype": "UINT8", "shape": [4]},
            "variants": [{"name": f"{name}-1", "model": "emulated", "alpha_ms": 1, "beta_ms": 5}],
        }
        for name in HOMES
    ]
    return read_config(
        {
            "applications": applications,
            "backend": {"count": 2, "device": "emulated"},
            "sub_clusters": {"count": 2, "spread": ["both"]},
        }
    )


class SubCluster:
    """A router and its backend; the router may die and come anew."""

    def __init__(self, config: DeploymentConfig, number: int, heartbeat: HeartbeatThread) -> None:
        self.config = config
        self.number = number
        self.heartbeat = heartbeat
        self.term = self.port = 0
        self.backend: BackendProcess | None = None

    async def start_router(self, directory: Directory) -> None:
        loop = asyncio.get_running_loop()
        own = restricted(self.config, self.number, served_at(HOMES, self.number))
        plan = router_config(own, known_profiles(own))
        self.term += 10
        self.router = LiveRouter(
            plan,
            self.term,
            time.monotonic_ns,
            loop.call_soon,
            lambda call: precise_timer(loop, call),
        )
        self.links = LinkServer(self.router.hello, self.router, self.heartbeat, PATIENT)
        self.port = await self.links.start("127.0.0.1", 0)
        self.router.set_directory(directory)

    async def resolve(self) -> str:
        if not self.port:
            raise LinkError("no router is there")
        return f"127.0.0.1:{self.port}"

    async def start_backend(self) -> None:
        store = ModelStore(store_options(self.config))
        settings = BackendSettings(
            self.number + 1, kind=store.kind, node=node_name(), links=PATIENT
        )
        self.backend = BackendProcess(settings, {}, self.resolve, store)
        await self.backend.start()

    async def kill_router(self) -> None:
        self.port = 0
        await self.links.stop("killed")
        self.router.stop()


class Served:
    """A deployment of two sub-clusters."""

    def __init__(self) -> None:
        self.config = deployment()
        self.heartbeat = HeartbeatThread(PATIENT.beat_ns)
        self.directory = first_directory(self.config, HOMES, None, 1)
        self.parts = [SubCluster(self.config, number, self.heartbeat) for number in (0, 1)]

    async def start(self) -> None:
        for part in self.parts:
            await part.start_router(self.directory)
            await part.start_backend()
        ports = ServerOptions(host="127.0.0.1", grpc_port=0, http_port=0, reuse_port=False)
        options = FrontendOptions(number=300, server=ports, links=PATIENT)
        first, second = self.parts
        self.frontend = FrontendProcess(
            options, registry(self.config), first.resolve, others=[[second.resolve]]
        )
        await self.frontend.start()
        await self.until(lambda: not self.trouble() and not self.trouble(*HOMES))

    def trouble(self, *applications: str) -> str:
        return self.frontend.hub.readiness.trouble(*applications)

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(START_S):
            while not ready():
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        await self.frontend.stop()
        for part in self.parts:
            if part.backend is not None:
                await part.backend.stop()
            await part.links.stop("the test ends")
            part.router.stop()
        self.heartbeat.stop()

    async def ask(self, application: str) -> Outcome:
        request = ModelInferRequest(model_name=application)
        request.inputs.add(name="input", datatype="UINT8", shape=[4])
        request.raw_input_contents.append(bytes(4))
        return await self.frontend.hub.driver.infer(
            parse_request(request, self.frontend.hub.registry)
        )

    async def ask_many(self, application: str, count: int = 20) -> list[Outcome]:
        return list(await asyncio.gather(*(self.ask(application) for _ in range(count))))

    def received(self, application: str) -> list[int]:
        """Requests that each router has had."""
        found: list[int] = []
        for part in self.parts:
            number = part.router.built.applications.get(application)
            meters = part.router.meters.applications
            found.append(0 if number is None else meters[number].received)
        return found


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    found = Served()
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


def all_good(outcomes: list[Outcome]) -> bool:
    return all(isinstance(each, Result) and not each.error for each in outcomes)


def test_requests_go_straight_to_their_homes() -> None:
    async def story() -> None:
        async with served() as system:
            for name in HOMES:
                assert all_good(await system.ask_many(name))
            assert system.received("cats") == [20, 0]
            assert system.received("dogs") == [0, 20]
            assert system.received("both") == [10, 10]

    asyncio.run(story())


def test_a_dead_router_is_noticed_by_its_own_sub_cluster_alone() -> None:
    async def story() -> None:
        async with served() as system:
            first = system.parts[0]
            asked = {name: asyncio.ensure_future(system.ask_many(name)) for name in HOMES}
            await system.until(lambda: system.received("cats") == [20, 0])
            await first.kill_router()
            await system.until(lambda: system.frontend.hub.router is None)
            assert all_good(await asked["dogs"])
            assert all_good(await asked["both"])
            # Nobody waits for the dead one where another serves it too.
            assert all_good(await system.ask_many("both"))
            assert all_good(await system.ask_many("dogs"))
            late = asyncio.ensure_future(system.ask_many("cats"))
            await first.start_router(system.directory)
            assert all_good(await late)
            assert all_good(await asked["cats"])

    asyncio.run(story())
