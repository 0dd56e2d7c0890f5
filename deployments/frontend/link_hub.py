"""A frontend's links: to the routers, and from the backends.

It has no servers and no threads of its own, so that the fault simulator runs it as it is.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from functools import partial

from fermata.deployments.frontend.access.client_ids import tenant_number
from fermata.deployments.frontend.access.tenants import Tenants
from fermata.deployments.frontend.data_server import DataServer
from fermata.deployments.frontend.home_link import HomeLink
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.readiness import Readiness
from fermata.deployments.frontend.repository import Repository
from fermata.deployments.frontend.requests.looks.peeker import Peeker
from fermata.deployments.frontend.requests.observers import RequestObserver
from fermata.deployments.frontend.requests.request_driver import DriverLimits, RequestDriver
from fermata.deployments.frontend.requests.router_homes import RouterHomes
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.foundation.logs import LOG, fields
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.directory import Directory
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import (
    CUTS_FROM,
    PLACES_FROM,
    PROTOCOL,
    Cancel,
    ClientNetworkReport,
    DataPort,
    Dropped,
    Estimated,
    Evidence,
    Fetch,
    FleetStatus,
    FrontendStats,
    HandedOn,
    Hello,
    InputSizeAdvice,
    Look,
    Looked,
    Message,
    Payload,
    Place,
    Result,
    Returned,
    Shares,
    ShortCircuit,
    Submit,
    TakesLooks,
    Truth,
    Unavailable,
    Unread,
)
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
        others: Sequence[Sequence[Resolve]] = (),
    ) -> None:
        """`standby` finds a second router; one of the two leads at a time. `others` find those of
        further sub-clusters."""
        self.options = options
        self.registry = registry
        first = (resolve_router,) if standby is None else (resolve_router, standby)
        self.homes = [HomeLink(self, home, each) for home, each in enumerate((first, *others))]
        """Links to the routers of each sub-cluster."""
        self.node = node
        self.table = RequestTable(options.number, options.table, len(self.homes))
        self.tenants = Tenants(options.tenants)
        self.table.counts.add_tenants({tenant_number(name): name for name in self.tenants.names})
        self.readiness = Readiness(self.table, options.to_zero)
        self.address = ""
        self.router_met = asyncio.Event()
        """Set once a router of each sub-cluster was linked."""
        self.backends: dict[int, Link] = {}
        self.data: DataServer | None = None
        """Set where large inputs go to other nodes by connections of their own."""
        self.strays = 0
        """Messages that their sender had no business to send."""

    def report(self, memory_bytes: int, loop_late_ns: int, tasks: int) -> list[FrontendStats]:
        """Tell routers the counts since the last report; while none is linked they add up."""
        table, sent = self.table, list[FrontendStats]()
        for home in [each for each in self.homes if each.link is not None]:
            stats = FrontendStats(
                table.counts.take(partial(_is_counted_at, table.homes, home.number)),
                open=len(table.entries),
                payload_bytes=table.payload_bytes,
                memory_bytes=memory_bytes,
                loop_late_ns=loop_late_ns,
                tasks=tasks,
                # One router shares out the tenants' rates.
                tenants=() if sent else table.counts.take_tenants(),
            )
            home.send(stats)
            sent.append(stats)
        return sent

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

    def serve_data(self, undo: AsyncExitStack) -> None:
        """Take data connections of backends on other nodes, by threads."""
        options = self.options
        self.data = DataServer(
            *(options.link_host, self._hello, self.backends.__contains__, self.arena),
            *(self.heartbeat.clock, options.links),
        )
        undo.push_async_callback(self.data.stop)

    def reach_router(self, undo: AsyncExitStack) -> None:
        """Keep a link to the router of each sub-cluster; returns before any is up."""
        for home in self.homes:
            home.start(self.heartbeat, self.options.links)
            undo.push_async_callback(home.links.stop, "the frontend shuts down")

    @property
    def router(self) -> Link | None:
        """The leading router of the first sub-cluster."""
        return self.homes[0].link

    @property
    def term(self) -> int:
        """The highest term met there: an older router is refused."""
        return self.homes[0].term

    def hello(self, term: int) -> Hello:
        """The first message of this frontend to a peer that follows routers up to this term."""
        number = self.options.number
        return Hello(PROTOCOL, "frontend", number, term, self.address, self.node)

    def _hello(self) -> Hello:
        return self.hello(self.term)

    @property
    def links_refused(self) -> int:
        """Connections that ended before a proof."""
        apart = 0 if self.data is None else self.data.lobby.refused
        return self.link_server.lobby.refused + apart

    # Routers

    def on_router_up(self, home: HomeLink, link: Link) -> None:
        peer, number = link.peer, home.number
        if all(each.term for each in self.homes):
            self.router_met.set()
        # All is available there, until the new router says otherwise.
        self.repository.on_unavailable(Unavailable(self.table.homes.unavailable(number, {})))
        self.readiness.on_router_up(number)
        self.driver.on_router_up(peer.term, peer.protocol >= PLACES_FROM, number)
        about = fields(term=peer.term, address=peer.address, sub_cluster=number)
        LOG.info("router linked", extra=about)

    def on_router_down(self, home: HomeLink, link: Link, closed: Closed) -> None:
        self.driver.on_router_down(home.number)
        about = fields(term=link.peer.term, reason=str(closed), sub_cluster=home.number)
        LOG.info("router gone", extra=about)

    def _on_directory(self, directory: Directory) -> None:
        if self.driver.on_directory(directory):
            for each in directory.homes:
                if each.sub_cluster < len(self.homes):
                    home = self.homes[each.sub_cluster]
                    home.term = max(home.term, each.term)
            self.repository.on_unavailable(Unavailable(self.table.homes.unavailable()))

    # LinkEvents

    def on_up(self, link: Link) -> None:
        peer = link.peer
        before = self.backends.get(peer.number)
        if before is not None and before is not link:
            before.close(CloseCode.SUPERSEDED, f"backend {peer.number} has come anew")
            if self.driver.peeker is not None:
                self.driver.peeker.backends.on_down(peer.number)
            self.driver.on_backend_down(peer.number)
        self.backends[peer.number] = link
        if self.data is not None:
            self.data.on_link_down(peer.number)
        self._note_cuts()

    def _note_cuts(self) -> None:
        """Have pictures cut by backends only where all of them can."""
        peers = [link.peer for link in self.backends.values()]
        self.driver.queries.backends_cut = all(each.protocol >= CUTS_FROM for each in peers)

    def on_down(self, link: Link, closed: Closed) -> None:
        number = link.peer.number
        if self.backends.get(number) is link:
            del self.backends[number]
            self._note_cuts()
            if self.data is not None:
                self.data.on_link_down(number)
            if self.driver.peeker is not None:
                self.driver.peeker.backends.on_down(number)
            self.driver.on_backend_down(number)

    def on_refused(self, link: Link, closed: Closed) -> None:
        """Nothing to do: the peer tries again."""

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        self._hear_backend(link, messages)
        self.driver.pump()

    def _hear_backend(self, link: Link, messages: list[Message]) -> None:
        driver = self.driver
        number = link.peer.number
        if self.data is not None:
            self.data.collect(number)
        for message in messages:
            if isinstance(message, Result):
                driver.on_result(number, message)
            elif isinstance(message, Fetch):
                self._choose_way(link, message)
                driver.on_fetch(number, message)
            elif isinstance(message, Returned):
                driver.on_returned(number, message)
            elif isinstance(message, Looked | TakesLooks):
                self._hear_looker(link, message)
            else:
                self._on_stray(link, message)
                return

    def _choose_way(self, link: Link, fetch: Fetch) -> None:
        """Send inputs by the way that a backend asks for."""
        if self.data is None or link.peer.node == self.node:
            return
        self.data.choose(link.peer.number, fetch.by)
        port = self.data.listen() if fetch.asks else 0
        if port:
            link.send(DataPort(port))

    def _hear_looker(self, link: Link, message: Looked | TakesLooks) -> None:
        """Take a look that a backend has answered, or remember what it offers to look at."""
        peer, peeker = link.peer, self.driver.peeker
        if isinstance(message, Looked):
            self.table.on_looked(message.rid)
            if peeker is not None:
                peeker.on_looked(peer.number, message)
        elif peeker is not None:
            near = peer.node == self.node
            peeker.backends.on_ready(peer.number, message.applications, near)

    def hear_router(self, home: int, link: Link, messages: list[Message]) -> None:
        """Messages of the router that leads a sub-cluster."""
        driver = self.driver
        for message in messages:
            if isinstance(message, Dropped):
                driver.on_dropped(message, home)
            elif isinstance(message, Unread):
                driver.on_unread(message)
            elif isinstance(message, Unavailable):
                told = self.table.homes.unavailable(home, message.applications)
                self.repository.on_unavailable(Unavailable(told))
            elif isinstance(message, Directory):
                self._on_directory(message)
            elif isinstance(message, FleetStatus):
                self.readiness.on_fleet(message, home)
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
                break
        driver.pump()

    def _on_stray(self, link: Link, message: Message) -> None:
        self.strays += 1
        detail = f"{type(message).__name__} from a {link.peer.role}"
        link.close(CloseCode.WRONG_ROLE, detail)

    # MessageSender

    def to_router(
        self,
        message: Submit | Cancel | Evidence | Place | ClientNetworkReport | Truth | HandedOn,
        home: int | None = None,
    ) -> None:
        if home is None:
            for each in self._homes_for(message):
                self.to_router(message, each)
            return
        link = self.homes[home].link
        if link is not None:
            link.send(message)

    def _homes_for(
        self, message: Submit | Cancel | Evidence | Place | ClientNetworkReport | Truth | HandedOn
    ) -> tuple[int, ...]:
        """Sub-clusters that a message is about."""
        if len(self.homes) == 1:
            return (0,)
        homes = self.table.homes
        if isinstance(message, ClientNetworkReport):
            home = homes.pick(message.application, message.client)
            return () if home < 0 else (home,)
        if not isinstance(message, Cancel | Evidence | HandedOn):
            return homes.of(message.application)
        entry = self.table.entries.get(message.rid)
        return () if entry is None or entry.home < 0 else (entry.home,)

    def to_backend(self, backend: int, payload: Payload) -> None:
        link = self.backends.get(backend)
        if link is None or (self.data is not None and self.data.send(backend, payload)):
            return
        readable = self._readable(link, payload)
        if readable is None:
            link.send(Payload(payload.rid, "", (), missing=True))
            size = payload.length or len(payload.data)
            self.driver.on_too_large(payload.rid, size, self.options.links.data_bytes_max)
        else:
            link.send(readable)

    def _readable(self, link: Link, payload: Payload) -> Payload | None:
        """A payload as a backend can read it; None where it is too large for a message."""
        if payload.segment and link.peer.node == self.node:
            return payload
        size = payload.length or len(payload.data)
        return None if size > self.options.links.data_bytes_max else self.arena.inline(payload)

    def send_look(self, backend: int, rid: int, application: str, within_ns: int) -> bool:
        """Have a backend look at the input of a request; false where it cannot be sent there."""
        link, entry = self.backends.get(backend), self.table.entries.get(rid)
        if link is None or entry is None or entry.payload is None:
            return False
        payload = self._readable(link, entry.payload)
        if payload is None:
            return False
        if payload.segment:
            self.table.lent.on_look(rid)
        link.send(Look(application, payload, within_ns))
        return True


def _is_counted_at(homes: RouterHomes, home: int, application: str) -> bool:
    """Whether a sub-cluster's router hears what is counted of an application."""
    return homes.first_linked(application) == home
