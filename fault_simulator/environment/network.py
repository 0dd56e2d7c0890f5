"""A network of the world's own: connections that deliver in order, late, or not at all."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from fermata.fault_simulator.environment.world import VirtualLoop, World
from fermata.foundation.units import ms, seconds
from fermata.router.links.handshake import Acceptor
from fermata.router.links.messages import PROTOCOL, BackendStats, FrontendStats, Hello
from fermata.router.links.session import Session

NEAR_NS = 30_000
"""The quickest that anything gets anywhere."""
FAR_NS = 400_000
"""On average, on top of that."""
AGAIN_NS = seconds(1)
"""After which a connection that nobody answered is asked for once more."""
PART = 0.05
"""Share of the writes that a socket takes only in part."""
OVERHEARD = 3
"""Pieces of each connection."""
MakeProtocol = Callable[[], asyncio.Protocol]


class SimulatedNetwork:
    """Listeners, and the connections between processes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners: dict[int, tuple[VirtualLoop, MakeProtocol]] = {}
        self.connections: list[Connection] = []
        self.ports = 1000
        self.split: set[frozenset[VirtualLoop]] = set()
        """Pairs of processes that do not reach one another."""
        self.dark: set[VirtualLoop] = set()
        """Processes of machines without power: nothing more is heard of them."""

    def listen(self, loop: VirtualLoop, make: MakeProtocol) -> "SimulatedListener":
        self.ports += 1
        self.listeners[self.ports] = (loop, make)
        return SimulatedListener(self, self.ports)

    async def connect(
        self, loop: VirtualLoop, make: MakeProtocol, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.Protocol]:
        there: asyncio.Future[Connection] = loop.create_future()
        wait_ns = NEAR_NS + loop.rng.randrange(FAR_NS)
        self.world.after(wait_ns, lambda: self._arrive(loop, port, there))
        connection = await there
        end = connection.ends[0]
        return end, end.accept(make)

    def _arrive(self, caller: VirtualLoop, port: int, there: "asyncio.Future[Connection]") -> None:
        listener = self.listeners.get(port)
        if listener is not None and self._is_silent(caller, listener[0]):
            # Nobody answers; the system tries again, until whoever asked gives up.
            if not there.done():
                self.world.after(AGAIN_NS, lambda: self._arrive(caller, port, there))
            return
        wait_ns = NEAR_NS + caller.rng.randrange(FAR_NS)
        if listener is None or not listener[0].alive:
            refused = ConnectionRefusedError("nobody listens there")

            def refuse() -> None:
                if not there.done():
                    there.set_exception(refused)

            self._answer(caller, wait_ns, refuse)
            return
        loop, make = listener
        self.world.say(caller.name, "reaches", loop.name)
        connection = Connection(self.world, caller, loop)
        self.connections.append(connection)
        # The system takes the connection, whether or not the process looks at it soon.
        self.world.enter(self.world.now_ns, lambda: connection.ends[1].accept(make), loop)

        def take() -> None:
            if there.done():
                connection.ends[0].abort()
            else:
                there.set_result(connection)

        self._answer(caller, wait_ns, take)

    def _is_silent(self, caller: VirtualLoop, taker: VirtualLoop) -> bool:
        return taker in self.dark or frozenset((caller, taker)) in self.split

    def _answer(self, loop: VirtualLoop, wait_ns: int, call: Callable[[], None]) -> None:
        self.world.enter(self.world.now_ns + wait_ns, call, loop)

    def overheard(self) -> "list[list[bytes]]":
        """The first words of those who connected, of each connection that still is."""
        said = [each.ends[0].pipe.first for each in self.connections if not each.over]
        return [each for each in said if each]

    def between(self, one: VirtualLoop, other: VirtualLoop) -> "list[Connection]":
        self.connections = [each for each in self.connections if not each.over]
        return [each for each in self.connections if {one, other} == set(each.loops)]

    # Faults

    def unplug(self, loop: VirtualLoop) -> None:
        """The machine of a process has lost its power: not even its end is heard."""
        self.dark.add(loop)
        for connection in self.connections:
            if loop in connection.loops:
                for end in connection.ends:
                    end.pipe.stalled = True

    def drop(self, loop: VirtualLoop) -> None:
        """A process has died: its connections end, and nobody listens there any more."""
        if loop in self.dark:
            for connection in self.connections:
                for end in connection.ends:
                    end.over = end.over or end.loop is loop
            return
        for port in [port for port, (owner, _) in self.listeners.items() if owner is loop]:
            del self.listeners[port]
        for connection in self.connections:
            for end in connection.ends:
                if end.loop is loop and not end.over:
                    end.over = True
                    end.pipe.send(None)

    def cut(self, one: VirtualLoop, other: VirtualLoop) -> None:
        """Both ends see their connections reset."""
        for connection in self.between(one, other):
            for end in connection.ends:
                end.pipe.send(ConnectionResetError("reset by the network"))

    def part(self, one: VirtualLoop, other: VirtualLoop) -> None:
        """Nothing gets through until `join`."""
        self.split.add(frozenset((one, other)))
        for connection in self.between(one, other):
            for end in connection.ends:
                end.pipe.stalled = True

    def part_one_way(self, one: VirtualLoop, other: VirtualLoop) -> None:
        """Nothing gets from one to the other until `join`; so no new connection comes about."""
        self.split.add(frozenset((one, other)))
        for connection in self.between(one, other):
            for end in connection.ends:
                end.pipe.stalled = end.pipe.stalled or end.loop is one

    def join(self, one: VirtualLoop, other: VirtualLoop) -> None:
        """Bytes that were in flight arrive after all."""
        self.split.discard(frozenset((one, other)))
        if self.dark & {one, other}:
            return
        for connection in self.between(one, other):
            for end in connection.ends:
                end.pipe.flow()

    def delay(self, one: VirtualLoop, other: VirtualLoop, extra_ns: int) -> None:
        for connection in self.between(one, other):
            for end in connection.ends:
                end.pipe.extra_ns = extra_ns


class SimulatedListener:
    """The object that `create_server` returns, as far as `LinkServer` uses it."""

    def __init__(self, network: SimulatedNetwork, port: int) -> None:
        self.network = network
        self.port = port
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return "world", self.port

    def close(self) -> None:
        self.network.listeners.pop(self.port, None)


class Connection:
    """Two ends and a pipe each way."""

    def __init__(self, world: World, caller: VirtualLoop, taker: VirtualLoop) -> None:
        self.loops = (caller, taker)
        world.sequence += 1
        rng = world.rng(f"{caller.name}-{taker.name}-{world.sequence}")
        ends = End(world, caller, rng), End(world, taker, rng)
        ends[0].pipe, ends[1].pipe = Pipe(world, ends[1], rng), Pipe(world, ends[0], rng)
        self.ends = ends

    @property
    def over(self) -> bool:
        return all(end.over for end in self.ends)


class Pipe:
    """One direction: bytes, then None for an end of file or an error for a reset."""

    def __init__(self, world: World, to: "End", rng: random.Random) -> None:
        self.world = world
        self.to = to
        self.rng = rng
        self.stalled = False
        self.held: list[bytes | ConnectionError | None] = []
        self.extra_ns = 0
        self.last_at_ns = 0
        self.first: list[bytes] = []
        """What was said first on it, for whoever listens in."""

    def send(self, what: bytes | ConnectionError | None) -> None:
        if isinstance(what, bytes) and len(self.first) < OVERHEARD:
            self.first.append(what)
        if self.stalled:
            self.held.append(what)
            return
        wait_ns = NEAR_NS + int(self.rng.expovariate(1.0) * FAR_NS) + self.extra_ns
        # Within a connection nothing overtakes anything.
        self.last_at_ns = max(self.last_at_ns + 1, self.world.now_ns + wait_ns)
        to = self.to
        self.world.enter(self.last_at_ns, partial(to.deliver, what), to.loop)

    def flow(self) -> None:
        self.stalled = False
        held, self.held = self.held, []
        for each in held:
            self.send(each)


class End(asyncio.Transport):
    """One end of a connection: transport and wire at once."""

    pipe: Pipe

    def __init__(self, world: World, loop: VirtualLoop, rng: random.Random) -> None:
        super().__init__()
        self.world = world
        self.loop = loop
        self.rng = rng
        self.protocol: asyncio.Protocol | None = None
        self.over = False
        self.waiting = 0
        """Bytes that the socket did not take."""
        self.early: list[bytes | ConnectionError | None] = []
        """Came before anyone looked."""

    def accept(self, make: MakeProtocol) -> asyncio.Protocol:
        self.protocol = protocol = make()
        protocol.connection_made(self)
        early, self.early = self.early, []
        for each in early:
            self.deliver(each)
        return protocol

    def deliver(self, what: bytes | ConnectionError | None) -> None:
        if self.over:
            return
        if self.protocol is None:
            self.early.append(what)
        elif isinstance(what, bytes):
            if self.world.said is not None:
                self._tell(what)
            self.protocol.data_received(what)
        else:
            self.world.say(self.loop.name, "lost", what or "end of file")
            self.over = True
            self.pipe.send(None)
            self.protocol.connection_lost(what)

    def _tell(self, data: bytes) -> None:
        """The story, where someone reads it: what came, heartbeats aside."""
        session = Session(Acceptor(Hello(PROTOCOL, "reader", 0, 0), b"", b""), 0)
        session.peer = session.me
        for message in session.receive(0, data):
            if not isinstance(message, BackendStats | FrontendStats):
                self.world.say(self.loop.name, "<-", message)

    def push(self, data: bytes) -> int:
        """As a `Wire`: what the socket takes at once."""
        if self.over:
            return len(data)
        taken = len(data)
        if taken > 1 and self.rng.random() < PART:
            taken = self.rng.randrange(taken)
        if taken:
            self.pipe.send(data[:taken])
        return taken

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "wire" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: Any) -> None:
        if self.over:
            return
        self.waiting += len(data)
        self.pipe.send(bytes(data))
        self.world.enter(self.world.now_ns + self.rng.randrange(ms(2)), self._written, self.loop)

    def _written(self) -> None:
        self.waiting = 0
        if not self.over and self.protocol is not None:
            self.protocol.resume_writing()

    def is_closing(self) -> bool:
        return self.over

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(ConnectionResetError("reset by the peer"))

    def _end(self, what: ConnectionError | None) -> None:
        if self.over:
            return
        self.world.say(self.loop.name, "ends", what or "in order")
        self.over = True
        self.pipe.send(what)
        if self.protocol is not None:
            self.loop.call_soon(self.protocol.connection_lost, None)
