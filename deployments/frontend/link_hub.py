"""A frontend's links: to the router, and from the backends.

It has no servers and no threads of its own, so that the fault simulator runs it as it is.
"""

import asyncio
from concurrent.futures import Executor
from contextlib import AsyncExitStack

from fermata.deployments.frontend.access.client_ids import tenant_number
from fermata.deployments.frontend.access.tenants import Tenants
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.readiness import Readiness
from fermata.deployments.frontend.repository import Repository
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.peeker import Peeker
from fermata.deployments.frontend.requests.request_driver import DriverLimits, RequestDriver
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.foundation.logs import LOG, fields
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import (
    PLACES_FROM,
    PROTOCOL,
    Cancel,
    ClientNetworkReport,
    Dropped,
    Estimated,
    Evidence,
    Fetch,
    FleetStatus,
    Hello,
    InputSizeAdvice,
    Message,
    Payload,
    Place,
    Result,
    Returned,
    Shares,
    ShortCircuit,
    Submit,
    Truth,
    Unavailable,
    Unread,
)
from fermata.router.links.router_links import RouterLinks
from fermata.router.links.transport import Link, LinkServer, Resolve


class LinkHub:
    """Passes messages between links and the request driver (`LinkEvents`, `MessageSender`)."""

    def __init__(
        self,
        options: FrontendOptions,
        registry: Registry,
        resolve_router: Resolve,
        node: str,
        standby: Resolve | None = None,
    ) -> None:
        """`standby` finds a second router; one of the two leads at a time."""
        self.options = options
        self.registry = registry
        self.routers = (resolve_router,) if standby is None else (resolve_router, standby)
        self.node = node
        self.table = RequestTable(options.number, options.table)
        self.tenants = Tenants(options.tenants)
        self.table.counts.add_tenants({tenant_number(name): name for name in self.tenants.names})
        self.readiness = Readiness(self.table, options.to_zero)
        self.term = 0
        """The highest term met: an older router is refused."""
        self.address = ""
        self.router: Link | None = None
        self.router_met = asyncio.Event()
        """Set once a router was linked."""
        self.backends: dict[int, Link] = {}
        self.strays = 0
        """Messages that their sender had no business to send."""

    async def listen(
        self,
        undo: AsyncExitStack,
        arena: Arena,
        pool: Executor,
        heartbeat: HeartbeatThread,
        peeker: Peeker | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        """Accept links of backends, until `undo` is closed."""
        options = self.options
        self.arena = arena
        self.heartbeat = heartbeat
        limits = DriverLimits(pixels_max=options.pixels_max)
        self.driver = RequestDriver(
            self.table, arena, pool, self, limits, peeker, observer, heartbeat.clock
        )
        self.repository = Repository(self.registry, options.repository_open, self.to_router)
        self.link_server = LinkServer(self._hello, self, heartbeat, options.links)
        await self.link_server.start(options.link_host)
        undo.push_async_callback(self.link_server.stop, "the frontend shuts down")
        self.address = self.link_server.address

    def reach_router(self, undo: AsyncExitStack) -> None:
        """Keep a link to the router; returns before it is up."""
        self.router_link = RouterLinks(
            self.routers, self._hello, self, self.heartbeat, self.options.links
        )
        self.router_link.start()
        undo.push_async_callback(self.router_link.stop, "the frontend shuts down")

    def _hello(self) -> Hello:
        number = self.options.number
        return Hello(PROTOCOL, "frontend", number, self.term, self.address, self.node)

    # LinkEvents

    def on_up(self, link: Link) -> None:
        peer = link.peer
        if peer.role == "router":
            self.term = max(self.term, peer.term)
            self.router = link
            self.router_met.set()
            self.repository.on_router_up()
            self.readiness.on_router_up()
            self.driver.on_router_up(peer.term, peer.protocol >= PLACES_FROM)
            LOG.info("router linked", extra=fields(term=peer.term, address=peer.address))
        else:
            before = self.backends.get(peer.number)
            if before is not None and before is not link:
                before.close(CloseCode.SUPERSEDED, f"backend {peer.number} has come anew")
                self.driver.on_backend_down(peer.number)
            self.backends[peer.number] = link

    def on_down(self, link: Link, closed: Closed) -> None:
        peer = link.peer
        if link is self.router:
            self.router = None
            self.driver.on_router_down()
            LOG.info("router gone", extra=fields(term=peer.term, reason=str(closed)))
        elif self.backends.get(peer.number) is link:
            del self.backends[peer.number]
            self.driver.on_backend_down(peer.number)

    def on_refused(self, link: Link, closed: Closed) -> None:
        """Nothing to do: the peer tries again, and `router_link.trouble` has the reason."""

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        if link.peer.role == "backend":
            self._hear_backend(link, messages)
        else:
            self._hear_router(link, messages)
        self.driver.pump()

    def _hear_backend(self, link: Link, messages: list[Message]) -> None:
        driver = self.driver
        number = link.peer.number
        for message in messages:
            if isinstance(message, Result):
                driver.on_result(number, message)
            elif isinstance(message, Fetch):
                driver.on_fetch(number, message)
            elif isinstance(message, Returned):
                driver.on_returned(number, message)
            else:
                self._on_stray(link, message)
                return

    def _hear_router(self, link: Link, messages: list[Message]) -> None:
        driver = self.driver
        for message in messages:
            if isinstance(message, Dropped):
                driver.on_dropped(message)
            elif isinstance(message, Unread):
                driver.on_unread(message)
            elif isinstance(message, Unavailable):
                self.repository.on_unavailable(message)
            elif isinstance(message, FleetStatus):
                self.readiness.on_fleet(message)
                self.tenants.set_frontends(message.frontends)
            elif isinstance(message, Shares):
                self.tenants.set_shares(message.tenants)
            elif isinstance(message, Estimated):
                driver.on_estimated(message)
            elif isinstance(message, ShortCircuit):
                driver.on_short_circuit(message)
            elif isinstance(message, InputSizeAdvice):
                driver.on_advice(message)
            else:
                self._on_stray(link, message)
                return

    def _on_stray(self, link: Link, message: Message) -> None:
        self.strays += 1
        detail = f"{type(message).__name__} from a {link.peer.role}"
        link.close(CloseCode.WRONG_ROLE, detail)

    # MessageSender

    def to_router(
        self, message: Submit | Cancel | Evidence | Place | ClientNetworkReport | Truth
    ) -> None:
        if self.router is not None:
            self.router.send(message)

    def to_backend(self, backend: int, payload: Payload) -> None:
        link = self.backends.get(backend)
        if link is None:
            return
        if not payload.segment or link.peer.node != self.node:
            size, most = payload.length or len(payload.data), self.options.links.data_bytes_max
            if size > most:
                link.send(Payload(payload.rid, "", (), missing=True))
                self.driver.on_too_large(payload.rid, size, most)
                return
            payload = self.arena.inline(payload)
        link.send(payload)
