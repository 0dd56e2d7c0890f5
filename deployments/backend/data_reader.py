"""Data connections to frontends of other nodes, by which large inputs come.

Each has a thread, which reads inputs into the memory that a model reads. See
`fermata.router.links.data_socket`.
"""

import threading
from collections.abc import Callable
from functools import partial

import msgspec

from fermata.foundation.errors import ServingError
from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import seconds
from fermata.router.links.address import join_address, split_address
from fermata.router.links.data_socket import DataSocket, dial, has_started
from fermata.router.links.heartbeat import Clock
from fermata.router.links.messages import DataPort, Fetch, Hello, Payload
from fermata.router.links.transport import Link, LinkOptions, Me

RETRY_NS = seconds(5)
"""A frontend whose data connection has failed is asked for another one so much later."""
READERS_MAX = 256
"""Threads of a process; inputs of further frontends come over links."""
Post = Callable[[Callable[[], None]], None]


class Reader:
    """One data connection, and its thread."""

    def __init__(self, frontend: int) -> None:
        self.frontend = frontend
        self.nonce = b""
        """Set once it is up."""
        self.data: DataSocket | None = None
        self.is_cut = False

    def keep(self, data: DataSocket) -> None:
        """Take a connection that is being made."""
        self.data = data
        if self.is_cut:
            data.cut()

    def cut(self) -> None:
        """End it, from any thread."""
        self.is_cut = True
        if self.data is not None:
            self.data.cut()


class DataReaders:
    """Has large inputs come by data connections. Methods for the loop, but for `_read`."""

    def __init__(
        self,
        me: Me,
        on_payloads: Callable[[list[Payload]], None],
        on_lost: Callable[[int], None],
        post: Post,
        clock: Clock,
        options: LinkOptions,
    ) -> None:
        """`on_lost` is told a frontend whose inputs are to be fetched again, over the link. `post`
        has the loop call something."""
        self.me = me
        self.on_payloads = on_payloads
        self.on_lost = on_lost
        self.post = post
        self.clock = clock
        self.options = options
        self.readers: dict[int, Reader] = {}
        """By frontend, from the attempt to connect on."""
        self.asks_at_ns: dict[int, int] = {}
        """By frontend: time of the next question for its address; set while its link is up."""

    def on_link_up(self, link: Link) -> None:
        """Ask a frontend that does not share memory with this process."""
        if link.peer.node != self.me().node:
            self.asks_at_ns[link.peer.number] = 0

    def on_link_down(self, frontend: int) -> None:
        self.asks_at_ns.pop(frontend, None)
        reader = self.readers.pop(frontend, None)
        if reader is not None:
            reader.cut()

    def marked(self, frontend: int, fetch: Fetch) -> Fetch:
        """The same with the connection by which the inputs are to come."""
        reader = self.readers.get(frontend)
        if reader is not None:
            return msgspec.structs.replace(fetch, by=reader.nonce) if reader.nonce else fetch
        asks_at_ns = self.asks_at_ns.get(frontend)
        if asks_at_ns is None or self.clock() < asks_at_ns or len(self.readers) >= READERS_MAX:
            return fetch
        # One that knows no data connections does not answer, and is asked again now and then.
        self.asks_at_ns[frontend] = self.clock() + RETRY_NS
        return msgspec.structs.replace(fetch, asks=True)

    def on_port(self, link: Link, told: DataPort) -> None:
        """Connect to a frontend that has been asked."""
        frontend = link.peer.number
        if frontend not in self.asks_at_ns or frontend in self.readers:
            return
        address = join_address(split_address(link.session.me.dialled)[0], told.port)
        reader = Reader(frontend)
        me = msgspec.structs.replace(self.me(), protocol=link.peer.protocol)
        thread = threading.Thread(
            target=self._read, args=(reader, address, me), name="data-read", daemon=True
        )
        # Before the thread can say that it is up.
        self.readers[frontend] = reader
        if not has_started(thread):
            del self.readers[frontend]

    def stop(self) -> None:
        for frontend in tuple(self.readers):
            self.on_link_down(frontend)

    def _on_up(self, reader: Reader, nonce: bytes) -> None:
        reader.nonce = nonce
        LOG.info("data connection is up", extra=fields(frontend=reader.frontend))

    def _on_read(self, reader: Reader, payloads: list[Payload]) -> None:
        if self.readers.get(reader.frontend) is reader:
            self.on_payloads(payloads)

    def _on_end(self, reader: Reader, reason: str) -> None:
        frontend = reader.frontend
        if self.readers.get(frontend) is reader:
            del self.readers[frontend]
            self.asks_at_ns[frontend] = self.clock() + RETRY_NS
            LOG.info("data connection ended", extra=fields(frontend=frontend, reason=reason))
            # Nothing was to come by one that has never been up.
            if reader.nonce:
                self.on_lost(frontend)

    def _read(self, reader: Reader, address: str, me: Hello) -> None:
        """Connect and read, in a thread, until the connection ends."""
        reason = ""
        try:
            data, nonce = dial(address, me, self.options, self.clock, reader.keep)
            self.post(partial(self._on_up, reader, nonce))
            while True:
                self.post(partial(self._on_read, reader, data.receive()))
        # ssl.SSLError among them.
        except (OSError, ServingError) as error:
            reason = str(error)
        finally:
            if reader.data is not None:
                reader.data.close()
            self.post(partial(self._on_end, reader, reason))
