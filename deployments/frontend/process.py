"""A frontend process: servers for clients, links to the router and from the backends."""

import asyncio
import gc
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

from starlette.routing import Route

from fermata.deployments.config.token_reader import TokenReader
from fermata.deployments.frontend.link_hub import LinkHub
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.options import FrontendOptions
from fermata.deployments.frontend.protocol.grpc_service import InferenceService
from fermata.deployments.frontend.protocol.server import FrontendServer
from fermata.deployments.frontend.requests.observers import RequestObserver, observe_with
from fermata.deployments.frontend.requests.peeker import Peeker
from fermata.deployments.frontend.requests.request_log import RequestLog
from fermata.deployments.frontend.requests.trace_file import Traces
from fermata.deployments.metrics.process_stats import PeriodicReport, resident_bytes
from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.deployments.specs import Registry
from fermata.foundation.logs import LOG, debugging, fields
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import FrontendStats
from fermata.router.links.transport import Resolve

TASKS_EVERY = 5
"""Of the times that it tells the router what it holds."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def node_name() -> str:
    """The same for processes that share memory, and for no others."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    # Containers of one machine share its boot, but not its name nor its /dev/shm.
    return f"{socket.gethostname()}-{boot}"


class FrontendProcess(LinkHub):
    """A switchboard with what it needs of a process: servers, threads and shared memory."""

    def __init__(
        self,
        options: FrontendOptions,
        registry: Registry,
        resolve_router: Resolve,
        routes: tuple[Route, ...] = (),
        peeks: Mapping[str, SneakPeekModel] | None = None,
        export: Callable[[FrontendStats], None] | None = None,
        tokens: TokenReader | None = None,
        standby: Resolve | None = None,
    ) -> None:
        """`peeks` are the SneakPeek models, by application; `export` hears what is counted;
        `tokens` looks which ones tenants have now."""
        super().__init__(options, registry, resolve_router, options.node or node_name(), standby)
        self.routes = routes
        self.peeks = peeks or {}
        self.export = export
        self.tokens = tokens
        self.traces: Traces | None = None
        self.told = self.tasks = 0

    async def start(self) -> None:
        """Up and listening when it returns; the router's link comes when it comes."""
        options = self.options
        async with AsyncExitStack() as undo:
            # Whatever fails below, nothing of what came before it stays behind.
            arena = Arena(options.table.payload_bytes_max if options.shared_memory else 0)
            undo.callback(arena.close)
            pool = ThreadPoolExecutor(options.decoders, thread_name_prefix="decode")
            undo.callback(pool.shutdown, wait=False, cancel_futures=True)
            self.peeker = Peeker(self.peeks, pool, self.to_router) if self.peeks else None
            if options.traces is not None:
                self.traces = Traces(options.traces, options.number, pool)
                undo.callback(self.traces.close)
            heart = HeartbeatThread(options.links.beat_ns)
            undo.callback(heart.stop)
            await self.listen(
                undo, arena, pool, heart, self.peeker, observe_with(self._followers())
            )
            self.service = InferenceService(
                self.desk,
                self.registry,
                options.streams,
                self.repository,
                self.readiness,
                self.tenants,
            )
            self.server = FrontendServer(self.service, options.server, self.routes)
            await self.server.start()
            LOG.info("frontend listens", extra=fields(links=self.address))
            self.reach_router(undo)
            if self.tokens is not None:
                renewing = asyncio.ensure_future(self.tokens.keep(self.tenants.renew))
                undo.callback(renewing.cancel)
            telling = PeriodicReport(asyncio.get_running_loop(), self._tell)
            undo.callback(telling.close)
            self._undo = undo.pop_all()
        # A full collection takes 18 ms of everyone's SLO; requests leave few cycles behind.
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 1000)
        self.desk.stalls.start()

    def check(self) -> None:
        """Raise what a frontend cannot go on after."""
        self.server.check()

    def _followers(self) -> list[RequestObserver]:
        found: list[RequestObserver] = [] if self.traces is None else [self.traces.tracer]
        return [*found, RequestLog()] if debugging() else found

    async def stop(self) -> None:
        """Drain, then leave nothing behind."""
        await self.server.stop()
        self.desk.close()
        await self._undo.aclose()

    def _tasks(self) -> int:
        """Counting takes a microsecond for each, so it is done now and then."""
        if self.told % TASKS_EVERY == 0:
            self.tasks = len(asyncio.all_tasks())
        self.told += 1
        return self.tasks

    def _tell(self, late_ns: int) -> None:
        """What there is to count is kept for a router that is away."""
        if self.traces is not None:
            self.traces.write()
        if self.router is None:
            return
        stats = FrontendStats(
            self.table.tally.take(),
            open=len(self.table.entries),
            payload_bytes=self.table.payload_bytes,
            memory_bytes=resident_bytes(),
            loop_late_ns=late_ns,
            tasks=self._tasks(),
            tenants=self.table.tally.take_tenants(),
        )
        self.router.send(stats)
        if self.export is not None:
            self.export(stats)

    def status(self) -> Mapping[str, object]:
        """What an operator asks first."""
        return {
            "router": self.router is not None,
            "trouble": self.router_link.trouble,
            "epoch": self.epoch,
            "links_refused": self.link_server.lobby.refused,
            "backends": sorted(self.backends),
            "open": len(self.table.entries),
            "payload_bytes": self.table.payload_bytes,
            "decoding": self.desk.decoding,
            "streams": len(self.service.streams),
            "http_connections": self.server.doors.total,
            "http_connections_refused": self.server.doors.refused,
            "http_connections_slow": self.server.doors.slow,
            "peeked": 0 if self.peeker is None else self.peeker.peeked,
            "not_peeked": 0 if self.peeker is None else self.peeker.skipped,
            "peek_cpu_ms": 0.0 if self.peeker is None else self.peeker.cpu_ns / 1e6,
        }
