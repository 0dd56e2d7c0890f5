"""Router, frontend and backends on real links in one process, for figures and tests."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.processes.frontend_options import trace_options
from fermata.deployments.config.processes.process_options import store_options
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.process import FrontendProcess, node_name
from fermata.deployments.specs.frontend import FrontendOptions, ServerOptions
from fermata.foundation.precise_timer import precise_timer
from fermata.foundation.units import seconds
from fermata.profiles.profile import Profile
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.transport import LinkOptions, LinkServer
from fermata.router.live.driver import LiveRouter

START_S = 180.0
LINKS = LinkOptions()
PATIENT = LinkOptions(silence_ns=seconds(20))
"""Links that outlast a machine which is busy with other things; a killed peer is seen at once."""
STEP_S = 0.02


def _profiles(config: DeploymentConfig, store: ModelStore) -> dict[str, Profile]:
    """Run times that the file gives, and those of the others as measured."""
    found = known_profiles(config)
    for name in store.specs.keys() - found.keys():
        runner = store.load(name)
        found[name] = store.measure(name, runner)
        runner.close()
        store.release(name)
    return found


@asynccontextmanager
async def serve_here(
    config: Mapping[str, Any],
    backends: int = 1,
    shared_memory: bool = True,
    start_others: Callable[[str], Awaitable[int]] | None = None,
    options: LinkOptions = LINKS,
) -> AsyncIterator[FrontendProcess]:
    """The frontend of a deployment; variants without run times in the file are measured.
    `start_others` is given the router's address, and returns how many backends more will come."""
    given = read_config(dict(config))
    store = ModelStore(store_options(given))
    profiles = await asyncio.to_thread(_profiles, given, store)
    plan = router_config(given, profiles)
    loop = asyncio.get_running_loop()
    router = LiveRouter(
        plan, 1, time.monotonic_ns, loop.call_soon, lambda call: precise_timer(loop, call)
    )
    heartbeat = HeartbeatThread(options.beat_ns)
    links = LinkServer(router.hello, router, heartbeat, options)
    port = await links.start("127.0.0.1", 0)

    async def resolve() -> str:
        return f"127.0.0.1:{port}"

    processes: list[BackendProcess] = []
    for number in range(1, backends + 1):
        at_start = [name for name in store.specs if name not in store.options.on_demand]
        runners = {name: await asyncio.to_thread(store.load, name) for name in at_start}
        settings = BackendSettings(number, kind=store.kind, node=node_name(), links=options)
        processes.append(BackendProcess(settings, runners, resolve, store))
        await processes[-1].start()
    others = 0 if start_others is None else await start_others(await resolve())
    ports = ServerOptions(host="127.0.0.1", grpc_port=0, http_port=0, reuse_port=False)
    own = FrontendOptions(
        number=1,
        server=ports,
        shared_memory=shared_memory,
        client_memory=given.frontend.client_memory,
        repository_open=given.repository == "open",
        traces=trace_options(given),
        links=options,
    )
    frontend = FrontendProcess(own, registry(given), resolve)
    await frontend.start()
    try:
        async with asyncio.timeout(START_S):
            while frontend.hub.router is None or len(router.fleet.backends) < backends + others:
                await asyncio.sleep(STEP_S)
        yield frontend
    finally:
        await frontend.stop()
        for process in processes:
            await process.stop()
        await links.stop("the run ends")
        router.stop()
        heartbeat.stop()


async def run_backend(config: Mapping[str, Any], number: int, address: str) -> None:
    """One backend that links itself to a router, in a process of its own; ends when killed."""
    given = read_config(dict(config))
    store = ModelStore(store_options(given))

    async def resolve() -> str:
        return address

    runners = {name: await asyncio.to_thread(store.load, name) for name in store.specs}
    settings = BackendSettings(number, kind=store.kind, node=node_name(), links=PATIENT)
    process = BackendProcess(settings, runners, resolve)
    await process.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run_backend(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
