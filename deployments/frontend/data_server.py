"""Data connections of backends on other nodes, by which large inputs are sent to them.

Each has a thread, which writes inputs from where they lie. See `fermata.router.links.data_socket`.
"""

import asyncio
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import msgspec

from fermata.deployments.frontend.memory.arena import Arena
from fermata.foundation.errors import ServingError
from fermata.foundation.logs import LOG, fields
from fermata.router.links.address import join_address
from fermata.router.links.data_socket import DataSocket, cut, has_started, welcome
from fermata.router.links.heartbeat import Clock
from fermata.router.links.lobby import Lobby
from fermata.router.links.messages import Hello, Payload
from fermata.router.links.transport import LinkOptions, Me

LARGE_BYTES = 32 << 10
"""Smaller inputs go over the link: to wake a thread would take longer."""
SENDERS_MAX = 256
"""Threads of a process; inputs for further backends go over links."""
BACKLOG_BYTES_MAX = 32 << 20
"""Where so much waits for a backend, more goes over the link, which has a limit and then ends."""
COLLECT_S = 0.5
"""Memory of inputs that have been written is free after this time, though the backend is silent."""
UNPROVEN_EACH_MAX, UNPROVEN_MAX = 16, 64
"""Connections without a proof, of one address and of all: each is a thread."""
ADMIT_S = 1.0
"""Time for a loop to say whether it has a link to a peer."""
RETRY_S = 0.1
"""Pause where the process has no descriptor left for another connection."""
STOP_S = 1.0
Job = tuple[list[Payload], list[memoryview]]


class Sender:
    """Sends inputs to one backend. Methods for the loop, but for `serve`, which a thread runs."""

    def __init__(self, data: DataSocket, nonce: bytes, arena: Arena) -> None:
        self.data = data
        self.nonce = nonce
        self.arena = arena
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.gathered: Job = [], []
        """Inputs of this loop tick."""
        self.lent: deque[Payload] = deque()
        """Inputs that the thread may read, in order."""
        self.written = 0
        """Inputs that it has written; set by the thread alone."""
        self.freed = 0
        self.backlog_bytes = 0
        """Sum of the inputs in `lent`."""
        self.collects = False
        """Whether the loop is going to collect by itself."""

    def has_room(self, size: int) -> bool:
        """Whether an input of this size may wait here; one alone always may."""
        return self.backlog_bytes == 0 or self.backlog_bytes + size <= BACKLOG_BYTES_MAX

    def send(self, payload: Payload) -> bool:
        """Send an input with all others of this loop tick; true for the first of them."""
        payloads, views = self.gathered
        view = self.arena.hold(payload)
        head = {"data": b"", "segment": "", "offset": 0, "length": len(view)}
        payloads.append(msgspec.structs.replace(payload, **head))
        views.append(view)
        self.lent.append(payload)
        self.backlog_bytes += len(view)
        return len(payloads) == 1

    def flush(self) -> None:
        self.jobs.put(self.gathered)
        self.gathered = [], []

    def collect(self) -> None:
        """Free the memory of inputs that have been written."""
        while self.freed < self.written:
            self.freed += 1
            payload = self.lent.popleft()
            self.backlog_bytes -= size_of(payload)
            self.arena.free(payload)

    def serve(self) -> None:
        """Write what is to be sent, until the connection ends."""
        while (job := self.jobs.get()) is not None:
            payloads, views = job
            self.data.send(payloads, views)
            self.written += len(payloads)

    def end(self) -> None:
        """Send nothing more; the backend fetches over its link what it has not got."""
        self.jobs.put(None)
        self.data.cut()

    def release(self) -> None:
        """Free the memory of all inputs, once the thread has ended."""
        self.written = self.freed + len(self.lent)
        self.collect()


def size_of(payload: Payload) -> int:
    return payload.length or len(payload.data)


class Stranger:
    """A connection whose peer has not proven itself."""

    def __init__(self, data: DataSocket) -> None:
        self.data = data

    def turn_out(self) -> None:
        self.data.cut()


class DataServer:
    """Takes data connections, and listens once the first backend of another node has asked. All
    methods for the loop, but for those that say otherwise."""

    def __init__(
        self,
        host: str,
        me: Me,
        is_linked: Callable[[int], bool],
        arena: Arena,
        clock: Clock,
        options: LinkOptions,
    ) -> None:
        """`is_linked`: whether the backend of this number has a link here."""
        self.loop = asyncio.get_running_loop()
        self.host = host
        self.me = me
        self.is_linked = is_linked
        self.arena = arena
        self.clock = clock
        self.options = options
        self.listener: socket.socket | None = None
        self.port = 0
        self.address = ""
        """As backends dial it."""
        self.senders: dict[int, Sender] = {}
        """By backend."""
        self.chosen: dict[int, Sender] = {}
        """Those by which backends want their inputs now."""
        each_max = min(UNPROVEN_EACH_MAX, options.unproven_each_max)
        self.lobby = Lobby(each_max, min(UNPROVEN_MAX, options.unproven_max))
        self.lock = threading.Lock()
        """Held around the use of the lobby."""
        self.closed = threading.Event()

    # Backends

    def listen(self) -> int:
        """Port for another backend to dial; 0 where there is none."""
        if self.closed.is_set() or len(self.senders) >= SENDERS_MAX:
            return 0
        if self.listener is None:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            try:
                self.listener = socket.create_server((self.host, 0), family=family)
            except OSError as error:
                LOG.warning("no data connections", extra=fields(reason=str(error)))
                return 0
            thread = threading.Thread(target=self._accept, name="data-accept", daemon=True)
            self.port = self.listener.getsockname()[1]
            self.address = join_address(self.host, self.port)
            if not has_started(thread):
                self.listener.close()
                self.listener, self.port = None, 0
        return self.port

    def choose(self, backend: int, nonce: bytes) -> None:
        """Send this backend's inputs by the connection of this nonce, or over the link."""
        sender = self.senders.get(backend) if nonce else None
        if sender is not None and sender.nonce == nonce:
            self.chosen[backend] = sender
        else:
            self.chosen.pop(backend, None)

    def send(self, backend: int, payload: Payload) -> bool:
        """Send an input; false where it has to go over the link."""
        sender = self.chosen.get(backend)
        size = size_of(payload)
        if sender is None or not LARGE_BYTES <= size <= self.options.data_bytes_max:
            return False
        if not sender.has_room(size):
            sender.collect()
            if not sender.has_room(size):
                return False
        if sender.send(payload):
            self.loop.call_soon(sender.flush)
        if not sender.collects:
            sender.collects = True
            self.loop.call_later(COLLECT_S, self._collect_from, sender)
        return True

    def _collect_from(self, sender: Sender) -> None:
        """Free what has been written, now and then, until nothing is lent."""
        sender.collect()
        sender.collects = bool(sender.lent)
        if sender.collects:
            self.loop.call_later(COLLECT_S, self._collect_from, sender)

    def collect(self, backend: int) -> None:
        """Free what a backend has been sent."""
        sender = self.senders.get(backend)
        if sender is not None:
            sender.collect()

    def on_link_down(self, backend: int) -> None:
        self.chosen.pop(backend, None)
        sender = self.senders.pop(backend, None)
        if sender is not None:
            sender.end()

    async def stop(self) -> None:
        """End all connections; what waits to be sent is not."""
        self.closed.set()
        if self.listener is not None:
            cut(self.listener)
            self.listener.close()
        for backend in tuple(self.senders):
            self.on_link_down(backend)

    def _add(self, backend: int, sender: Sender, admitted: "Future[bool]") -> None:
        """Take a connection whose peer has proven itself."""
        linked = self.is_linked(backend) and not self.closed.is_set()
        if linked:
            self.on_link_down(backend)
            self.senders[backend] = sender
        admitted.set_result(linked)

    def _remove(self, backend: int, sender: Sender, reason: str) -> None:
        """A connection has ended, and its thread does nothing more."""
        sender.release()
        if self.senders.get(backend) is sender:
            self.on_link_down(backend)
            LOG.info("data connection ended", extra=fields(backend=backend, reason=reason))

    # Threads

    def _post(self, call: Callable[..., None], *given: object) -> None:
        # The loop has been closed.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(call, *given)

    def _accept(self) -> None:
        """Take connections; each is a thread's from then on."""
        assert self.listener is not None
        while not self.closed.is_set():
            try:
                connection, peer = self.listener.accept()
            except OSError:
                self.closed.wait(RETRY_S)
                continue
            data = DataSocket(connection, self.options)
            stranger = Stranger(data)
            with self.lock:
                self.lobby.enter(stranger, peer[0])
            thread = threading.Thread(
                target=self._serve, args=(data, stranger), name="data-send", daemon=True
            )
            if not has_started(thread):
                data.close()
                with self.lock:
                    self.lobby.leave(stranger, proven=False)

    def _serve(self, data: DataSocket, stranger: Stranger) -> None:
        sender: Sender | None = None
        backend, reason = -1, ""

        def admit(peer: Hello) -> bool:
            nonlocal sender, backend
            with self.lock:
                self.lobby.leave(stranger, proven=True)
            backend, sender = peer.number, Sender(data, peer.nonce, self.arena)
            admitted: Future[bool] = Future()
            self._post(self._add, backend, sender, admitted)
            return admitted.result(ADMIT_S)

        try:
            welcome(data, self.me(), self.address, self.clock, admit)
            assert sender is not None
            sender.serve()
        # TimeoutError and ssl.SSLError among them.
        except (OSError, ServingError) as error:
            reason = str(error)
        finally:
            data.close()
            with self.lock:
                self.lobby.leave(stranger, proven=False)
            if sender is not None:
                self._post(self._remove, backend, sender, reason)
