"""A frontend process: servers for clients, links to the router and from the backends."""

import asyncio
import gc
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from starlette.routing import Route

from fermata.deployments.frontend.access.tenants import TokenSource
from fermata.deployments.frontend.link_hub import LinkHub
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.memory.client_memory import ClientMemory
from fermata.deployments.frontend.protocol.grpc_service import InferenceService
from fermata.deployments.frontend.protocol.server import FrontendServer
from fermata.deployments.frontend.requests.looks.peeker import Peeker
from fermata.deployments.frontend.requests.observers import RequestObserver, observe_with
from fermata.deployments.frontend.requests.request_log import RequestLog
from fermata.deployments.frontend.requests.tracing.trace_file import Traces
from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.foundation.json_types import JsonObject
from fermata.foundation.logs import LOG, debugging, fields
from fermata.foundation.ports import bind_error, grpc_endpoint
from fermata.foundation.process_memory import keep_freed_memory, resident_bytes, settle_garbage
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import FrontendStats
from fermata.router.links.transport import Resolve
from fermata.router.telemetry.periodic_report import PeriodicReport

TASKS_EVERY = 5
"""One in so many reports to the router counts the loop's tasks."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def node_name() -> str:
    """A name that is equal for processes that share memory, and for no others."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    # Containers of one machine share its boot id, but not its name nor its /dev/shm.
    return f"{socket.gethostname()}-{boot}"


class FrontendProcess:
    """A link hub with the servers, threads and shared memory that it needs."""

    def __init__(
        self,
        options: FrontendOptions,
        registry: Registry,
        resolve_router: Resolve,
        routes: tuple[Route, ...] = (),
        peeks: Mapping[str, SneakPeekModel] | None = None,
        export: Callable[[FrontendStats], None] | None = None,
        tokens: TokenSource | None = None,
        standby: Resolve | None = None,
        others: Sequence[Sequence[Resolve]] = (),
    ) -> None:
        """`peeks` are the SneakPeek models, by application; `export` receives each report;
        `tokens` follows the tokens of tenants; `others` find routers of further sub-clusters."""
        self.options = options
        node = options.node or node_name()
        self.hub = LinkHub(options, registry, resolve_router, node, standby, others)
        self.routes = routes
        self.peeks = peeks or {}
        self.export = export
        self.tokens = tokens
        self.traces: Traces | None = None
        self.reported = self.tasks = 0

    async def start(self) -> None:
        """Listen to clients and backends. Where no other frontend does, a router may come later."""
        options, hub = self.options, self.hub
        keep_freed_memory()
        async with AsyncExitStack() as undo:
            # A failure below leaves nothing behind.
            arena = Arena(options.table.payload_bytes_max if options.shared_memory else 0)
            undo.callback(arena.close)
            pool = ThreadPoolExecutor(options.decoders, thread_name_prefix="decode")
            undo.callback(pool.shutdown, wait=False, cancel_futures=True)
            self.peeker = (
                Peeker(self.peeks, pool, hub.to_router, send_look=hub.send_look)
                if self.peeks
                else None
            )
            if options.traces is not None:
                self.traces = Traces(options.traces, options.number, pool)
                undo.callback(self.traces.close)
            heartbeat = HeartbeatThread(options.links.beat_ns)
            undo.callback(heartbeat.stop)
            observer = observe_with(self._observers())
            await hub.listen(undo, arena, pool, heartbeat, self.peeker, observer)
            hub.serve_data(undo)
            memory = ClientMemory(options.client_memory)
            undo.callback(memory.close)
            self.service = InferenceService(
                hub.driver,
                hub.registry,
                options.streams,
                hub.repository,
                hub.readiness,
                hub.tenants,
                options.server.message_bytes_max,
                memory,
            )
            self.server = FrontendServer(self.service, options.server, self.routes)
            hub.reach_router(undo)
            await self._wait_for_router()
            await self.server.start()
            LOG.info("frontend listens", extra=fields(links=hub.address))
            if self.tokens is not None:
                renewing = asyncio.ensure_future(self.tokens.keep(hub.tenants.renew))
                undo.callback(renewing.cancel)
            reports = PeriodicReport(asyncio.get_running_loop(), self._report)
            undo.callback(reports.close)
            self._undo = undo.pop_all()
        settle_garbage()
        # Requests leave few cycles behind.
        gc.set_threshold(100_000, 50, 1000)
        hub.driver.stall_detector.start()

    async def _wait_for_router(self) -> None:
        """Leave clients to the frontends that share our ports until a router is linked here."""
        server = self.options.server
        if server.reuse_port and bind_error(grpc_endpoint(server.host, server.grpc_port)):
            with suppress(TimeoutError):
                wait_s = self.options.table.router_wait_ns / 1e9
                await asyncio.wait_for(self.hub.router_met.wait(), wait_s)

    def check(self) -> None:
        """Raise what a frontend cannot go on after."""
        self.server.check()

    def _observers(self) -> list[RequestObserver]:
        found: list[RequestObserver] = [] if self.traces is None else [self.traces.tracer]
        return [*found, RequestLog()] if debugging() else found

    async def stop(self) -> None:
        """Drain, then release everything."""
        await self.server.stop()
        self.hub.driver.close()
        await self._undo.aclose()

    def _tasks(self) -> int:
        """Tasks of the loop; counting one takes a microsecond, so not every report counts anew."""
        if self.reported % TASKS_EVERY == 0:
            self.tasks = len(asyncio.all_tasks())
        self.reported += 1
        return self.tasks

    def _report(self, late_ns: int) -> None:
        if self.traces is not None:
            self.traces.write()
        for stats in self.hub.report(resident_bytes(), late_ns, self._tasks()):
            if self.export is not None:
                self.export(stats)

    def status(self) -> JsonObject:
        """The state of the process, for tests and debugging."""
        hub = self.hub
        return {
            "router": all(each.link is not None for each in hub.homes),
            "trouble": "; ".join(filter(None, (each.links.trouble for each in hub.homes))),
            "term": hub.term,
            "links_refused": hub.links_refused,
            "data_connections": [] if hub.data is None else sorted(hub.data.senders),
            "backends": sorted(hub.backends),
            "open": len(hub.table.entries),
            "payload_bytes": hub.table.payload_bytes,
            "decoding": hub.driver.decoding,
            "streams": len(self.service.streams),
            "http_connections": self.server.gate.total,
            "http_connections_refused": self.server.gate.refused,
            "http_connections_slow": self.server.gate.slow,
            "grpc_calls": self.server.calls.total,
            "grpc_calls_refused": self.server.calls.refused,
            "grpc_connections_cut": dict(self.server.connections.cut),
            "peeked": 0 if self.peeker is None else self.peeker.peeked,
            "not_peeked": 0 if self.peeker is None else self.peeker.skipped,
            "peeked_on_backends": 0 if self.peeker is None else self.peeker.backends.looked,
            "peek_cpu_ms": 0.0 if self.peeker is None else self.peeker.cpu_ns / 1e6,
        }
