"""A frontend process: servers for clients, links to the router and from the backends."""

import asyncio
import gc
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from starlette.routing import Route

from deployments.frontend.desk import Desk
from deployments.frontend.memory import Arena
from deployments.frontend.models import Registry
from deployments.frontend.peeker import Peeker
from deployments.frontend.repository import Repository
from deployments.frontend.server import FrontendServer, ServerOptions
from deployments.frontend.service import InferenceService
from deployments.frontend.streams import StreamLimits
from deployments.frontend.table import RequestTable, TableLimits
from deployments.frontend.trace_file import TraceOptions, Traces
from deployments.reporting import EverySecond, resident_bytes
from deployments.sneakpeek.store import SneakPeekModel
from router.links.heart import Heart
from router.links.messages import (
    PROTOCOL,
    Absent,
    Advice,
    Cancel,
    Dropped,
    Estimated,
    Evidence,
    Fetch,
    FrontendStats,
    Hello,
    Message,
    Payload,
    Place,
    Report,
    Result,
    ShortCircuit,
    Submit,
)
from router.links.transport import Link, LinkOptions, LinkServer, Reconnecting, Resolve

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class FrontendOptions:
    """Everything a frontend process is told."""

    number: int
    """Unique in the cluster: part of every request's id."""
    link_host: str = "127.0.0.1"
    """Where backends connect to; must be reachable from theirs."""
    node: str = ""
    """Processes with the same one share memory; found out where empty."""
    decoders: int = 2
    """Threads that decode pictures."""
    shared_memory: bool = True
    repository_open: bool = False
    """Clients may load and unload models."""
    pixels_max: int = 64_000_000
    traces: TraceOptions | None = None
    """Which requests are followed, and where to; None: none."""
    table: TableLimits = field(default_factory=TableLimits)
    streams: StreamLimits = field(default_factory=StreamLimits)
    server: ServerOptions = field(default_factory=ServerOptions)
    links: LinkOptions = field(default_factory=LinkOptions)


def node_name() -> str:
    """The same for processes that share memory, and for no others."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    # Containers of one machine share its boot, but not its name nor its /dev/shm.
    return f"{socket.gethostname()}-{boot}"


class FrontendProcess:
    """Assembles the parts, and hands messages between links and desk (`LinkEvents`, `Wires`)."""

    def __init__(
        self,
        options: FrontendOptions,
        registry: Registry,
        resolve_router: Resolve,
        routes: tuple[Route, ...] = (),
        peeks: Mapping[str, SneakPeekModel] | None = None,
        export: Callable[[FrontendStats], None] | None = None,
    ) -> None:
        """`peeks` are the SneakPeek models, by application; `export` hears what is counted."""
        self.options = options
        self.registry = registry
        self.resolve_router = resolve_router
        self.routes = routes
        self.peeks = peeks or {}
        self.export = export
        self.traces: Traces | None = None
        self.node = options.node or node_name()
        self.table = RequestTable(options.number, options.table)
        self.epoch = 0
        """The highest one met: an older router is refused."""
        self.address = ""
        self.router: Link | None = None
        self.backends: dict[int, Link] = {}
        self.strays = 0
        """Messages that made no sense from who sent them."""

    async def start(self) -> None:
        """Up and listening when it returns; the router's link comes when it comes."""
        options = self.options
        async with AsyncExitStack() as undo:
            # Whatever fails below, nothing of what came before it stays behind.
            self.arena = Arena(options.table.payload_bytes_max if options.shared_memory else 0)
            undo.callback(self.arena.close)
            self.pool = ThreadPoolExecutor(options.decoders, thread_name_prefix="decode")
            undo.callback(self.pool.shutdown, wait=False, cancel_futures=True)
            self.peeker = Peeker(self.peeks, self.pool, self.to_router) if self.peeks else None
            if options.traces is not None:
                self.traces = Traces(options.traces, options.number, self.pool)
                undo.callback(self.traces.close)
            self.desk = Desk(
                self.table,
                self.arena,
                self.pool,
                self,
                options.pixels_max,
                self.peeker,
                None if self.traces is None else self.traces.tracer,
            )
            self.repository = Repository(self.registry, options.repository_open, self.to_router)
            self.service = InferenceService(
                self.desk, self.registry, options.streams, self.repository
            )
            self.heart = Heart(options.links.beat_ns)
            undo.callback(self.heart.stop)
            self.link_server = LinkServer(self._hello, self, self.heart, options.links)
            port = await self.link_server.start(options.link_host)
            undo.push_async_callback(self.link_server.stop, "the frontend shuts down")
            self.address = f"{options.link_host}:{port}"
            self.server = FrontendServer(self.service, options.server, self.routes)
            await self.server.start()
            self.router_link = Reconnecting(
                self.resolve_router, self._hello, self, self.heart, options.links
            )
            self.router_link.start()
            undo.push_async_callback(self.router_link.stop, "the frontend shuts down")
            telling = EverySecond(asyncio.get_running_loop(), self._tell)
            undo.callback(telling.close)
            self._undo = undo.pop_all()
        # A full collection takes 18 ms of everyone's SLO; requests leave few cycles behind.
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 1000)

    async def stop(self) -> None:
        """Drain, then leave nothing behind."""
        await self.server.stop()
        self.desk.close()
        await self._undo.aclose()

    def _hello(self) -> Hello:
        number = self.options.number
        return Hello(PROTOCOL, "frontend", number, self.epoch, self.address, self.node)

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
            "backends": sorted(self.backends),
            "open": len(self.table.entries),
            "payload_bytes": self.table.payload_bytes,
            "decoding": self.desk.decoding,
            "streams": len(self.service.streams),
            "peeked": 0 if self.peeker is None else self.peeker.peeked,
            "not_peeked": 0 if self.peeker is None else self.peeker.skipped,
            "peek_cpu_ms": 0.0 if self.peeker is None else self.peeker.cpu_ns / 1e6,
        }

    # LinkEvents

    def on_up(self, link: Link) -> None:
        peer = link.peer
        if peer.role == "router":
            self.epoch = max(self.epoch, peer.epoch)
            self.router = link
            self.repository.on_router_up()
            self.desk.on_router_up(peer.epoch)
        elif peer.role == "backend":
            before = self.backends.get(peer.number)
            if before is not None and before is not link:
                before.close(f"backend {peer.number} has come anew")
                self.desk.on_backend_down(peer.number)
            self.backends[peer.number] = link
        else:
            link.close(f"a frontend takes backends, not a {peer.role}")

    def on_down(self, link: Link, reason: str) -> None:
        peer = link.peer
        if link is self.router:
            self.router = None
            self.desk.on_router_down()
        elif self.backends.get(peer.number) is link:
            del self.backends[peer.number]
            self.desk.on_backend_down(peer.number)

    def on_refused(self, link: Link, reason: str) -> None:
        """Whoever it was comes again; `router_link.trouble` says why it failed."""

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        desk = self.desk
        number = link.peer.number
        for message in messages:
            if isinstance(message, Result):
                desk.on_result(message)
            elif isinstance(message, Fetch):
                desk.on_fetch(number, message)
            elif isinstance(message, Dropped):
                desk.on_dropped(message)
            elif isinstance(message, Absent):
                self.repository.on_absent(message)
            elif isinstance(message, Estimated):
                desk.on_estimated(message)
            elif isinstance(message, ShortCircuit):
                desk.on_short_circuit(message)
            elif isinstance(message, Advice):
                desk.on_advice(message)
            else:
                self.strays += 1
        desk.pump()

    # Wires

    def to_router(self, message: Submit | Cancel | Evidence | Place | Report) -> None:
        if self.router is not None:
            self.router.send(message)

    def to_backend(self, backend: int, payload: Payload) -> None:
        link = self.backends.get(backend)
        if link is None:
            return
        link.send(payload if link.peer.node == self.node else self.arena.inline(payload))
