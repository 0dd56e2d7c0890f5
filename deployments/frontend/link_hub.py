"""The desk and its links: to the router, and from the backends. No servers, no threads of its own,
so that a simulated world runs it as it is."""

from concurrent.futures import Executor
from contextlib import AsyncExitStack

from fermata.deployments.frontend.access.tenants import Tenants
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.options import FrontendOptions
from fermata.deployments.frontend.protocol.parsing import tenant_number
from fermata.deployments.frontend.readiness import Readiness
from fermata.deployments.frontend.repository import Repository
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.peeker import Peeker
from fermata.deployments.frontend.requests.request_driver import RequestDriver
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs import Registry
from fermata.foundation.logs import LOG, fields
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import (
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
    Unavailable,
)
from fermata.router.links.router_links import RouterLinks
from fermata.router.links.transport import Link, LinkServer, Resolve


class LinkHub:
    """Hands messages between links and desk (`LinkEvents`, `Wires`)."""

    def __init__(
        self,
        options: FrontendOptions,
        registry: Registry,
        resolve_router: Resolve,
        node: str,
        standby: Resolve | None = None,
    ) -> None:
        """`standby` tells where a second router is, of which one leads at a time."""
        self.options = options
        self.registry = registry
        self.routers = (resolve_router,) if standby is None else (resolve_router, standby)
        self.node = node
        self.table = RequestTable(options.number, options.table)
        self.tenants = Tenants(options.tenants)
        self.table.tally.know({tenant_number(name): name for name in self.tenants.names})
        self.readiness = Readiness(self.table, options.to_zero)
        self.epoch = 0
        """The highest one met: an older router is refused."""
        self.address = ""
        self.router: Link | None = None
        self.backends: dict[int, Link] = {}
        self.strays = 0
        """Messages that made no sense from who sent them."""

    async def listen(
        self,
        undo: AsyncExitStack,
        arena: Arena,
        pool: Executor,
        heart: HeartbeatThread,
        peeker: Peeker | None = None,
        follower: RequestObserver | None = None,
    ) -> None:
        """Take links of backends; what ends that is left to `undo`."""
        options = self.options
        self.arena = arena
        self.heart = heart
        self.desk = RequestDriver(
            self.table, arena, pool, self, options.pixels_max, peeker, follower, heart.clock
        )
        self.repository = Repository(self.registry, options.repository_open, self.to_router)
        self.link_server = LinkServer(self._hello, self, heart, options.links)
        await self.link_server.start(options.link_host)
        undo.push_async_callback(self.link_server.stop, "the frontend shuts down")
        self.address = self.link_server.address

    def reach_router(self, undo: AsyncExitStack) -> None:
        """Keep a link to the router; it comes when it comes."""
        self.router_link = RouterLinks(
            self.routers, self._hello, self, self.heart, self.options.links
        )
        self.router_link.start()
        undo.push_async_callback(self.router_link.stop, "the frontend shuts down")

    def _hello(self) -> Hello:
        number = self.options.number
        return Hello(PROTOCOL, "frontend", number, self.epoch, self.address, self.node)

    # LinkEvents

    def on_up(self, link: Link) -> None:
        peer = link.peer
        if peer.role == "router":
            self.epoch = max(self.epoch, peer.epoch)
            self.router = link
            self.repository.on_router_up()
            self.readiness.on_router_up()
            self.desk.on_router_up(peer.epoch)
            LOG.info("router linked", extra=fields(epoch=peer.epoch, address=peer.address))
        else:
            before = self.backends.get(peer.number)
            if before is not None and before is not link:
                before.close(CloseCode.SUPERSEDED, f"backend {peer.number} has come anew")
                self.desk.on_backend_down(peer.number)
            self.backends[peer.number] = link

    def on_down(self, link: Link, closed: Closed) -> None:
        peer = link.peer
        if link is self.router:
            self.router = None
            self.desk.on_router_down()
            LOG.info("router gone", extra=fields(epoch=peer.epoch, reason=str(closed)))
        elif self.backends.get(peer.number) is link:
            del self.backends[peer.number]
            self.desk.on_backend_down(peer.number)

    def on_refused(self, link: Link, closed: Closed) -> None:
        """Whoever it was comes again; `router_link.trouble` says why it failed."""

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        if link.peer.role == "backend":
            self._hear_backend(link, messages)
        else:
            self._hear_router(link, messages)
        self.desk.pump()

    def _hear_backend(self, link: Link, messages: list[Message]) -> None:
        desk = self.desk
        number = link.peer.number
        for message in messages:
            if isinstance(message, Result):
                desk.on_result(number, message)
            elif isinstance(message, Fetch):
                desk.on_fetch(number, message)
            elif isinstance(message, Returned):
                desk.on_returned(number, message)
            else:
                self._on_stray(link, message)
                return

    def _hear_router(self, link: Link, messages: list[Message]) -> None:
        desk = self.desk
        for message in messages:
            if isinstance(message, Dropped):
                desk.on_dropped(message)
            elif isinstance(message, Unavailable):
                self.repository.on_absent(message)
            elif isinstance(message, FleetStatus):
                self.readiness.on_fleet(message)
                self.tenants.share_with(message.frontends)
            elif isinstance(message, Shares):
                self.tenants.set_shares(message.tenants)
            elif isinstance(message, Estimated):
                desk.on_estimated(message)
            elif isinstance(message, ShortCircuit):
                desk.on_short_circuit(message)
            elif isinstance(message, InputSizeAdvice):
                desk.on_advice(message)
            else:
                self._on_stray(link, message)
                return

    def _on_stray(self, link: Link, message: Message) -> None:
        self.strays += 1
        detail = f"{type(message).__name__} from a {link.peer.role}"
        link.close(CloseCode.WRONG_ROLE, detail)

    # Wires

    def to_router(self, message: Submit | Cancel | Evidence | Place | ClientNetworkReport) -> None:
        if self.router is not None:
            self.router.send(message)

    def to_backend(self, backend: int, payload: Payload) -> None:
        link = self.backends.get(backend)
        if link is None:
            return
        link.send(payload if link.peer.node == self.node else self.arena.inline(payload))
