"""Large inputs between nodes by connections of their own, on real sockets and threads; no Ray."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_links import HOST, NODE, OPTIONS, World, run, until

from benchmarks.certificates import Authority
from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.deployments.backend.batch_pipeline import PipelineLimits
from fermata.deployments.backend.execution.runners.runner import PlainRunner
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.frontend.data_server import LARGE_BYTES, DataServer
from fermata.deployments.frontend.link_hub import LinkHub
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.units import ms, seconds
from fermata.router.links.data_socket import DataError, DataSocket, dial
from fermata.router.links.messages import PROTOCOL, Hello, Payload, Result
from fermata.router.links.tls import LinkTls
from fermata.router.links.transport import LinkOptions
from fermata.router.policies.application import ApplicationSpec, VariantSpec

pytestmark = pytest.mark.live

SIZE = 150_000
FRONTEND, BACKEND = 4, 1
SLO_NS = seconds(20)
APPLICATION = ApplicationSpec("app", SLO_NS, (VariantSpec("v", (ms(300),) * 16),))
"""Batches end much sooner: what is slow on a busy machine is not taken for hung."""
MODEL = ServedModel("app", TensorSpec("input", "UINT8", (-1,)), SLO_NS, SLO_NS)


def sealed(authority: Authority, *roles: str) -> LinkOptions:
    pair = authority.vouch("fermata", roles=roles)
    tls = LinkTls(str(pair.certificate), str(pair.key), str(authority.file))
    return replace(OPTIONS, tls=tls)


@pytest.fixture(params=["plain", "TLS"])
def links(request: pytest.FixtureRequest, tmp_path: Path) -> LinkOptions:
    return OPTIONS if request.param == "plain" else sealed(Authority(tmp_path))


@dataclass
class Hosts:
    """A frontend and a backend of different nodes."""

    hub: LinkHub
    backend: BackendProcess

    @property
    def data(self) -> DataServer:
        assert self.hub.data is not None
        return self.hub.data

    async def ask(self, number: int, size: int = SIZE) -> None:
        """Have the model return an input, and compare."""
        sent = np.random.default_rng(number).bytes(size)
        request = ModelInferRequest(model_name="app")
        request.inputs.add(name="input", datatype="UINT8", shape=[size])
        request.raw_input_contents.append(sent)
        outcome = await self.hub.driver.infer(parse_request(request, self.hub.registry))
        assert isinstance(outcome, Result), outcome
        assert outcome.tensors[0][3] == sent

    async def ask_many(self, count: int, size: int = SIZE) -> None:
        await asyncio.gather(*[self.ask(number, size) for number in range(count)])

    async def connected(self) -> None:
        """Wait for a data connection, which the first inputs have brought about."""
        readers = self.backend.frontends.data
        assert readers is not None
        await until(lambda: any(each.nonce for each in readers.readers.values()))

    def all_is_free(self) -> bool:
        self.data.collect(BACKEND)
        arena, sender = self.hub.arena, self.data.senders.get(BACKEND)
        return not arena.shared and not arena.extents.used and not (sender and sender.lent)

    def nobody_writes(self) -> bool:
        return all(count == 1 for count in self.hub.arena.shared.values())


@asynccontextmanager
async def hosts(links: LinkOptions, node: str = "there") -> AsyncIterator[Hosts]:
    world = World(links)
    router, server = await world.start_router(term=1, application=APPLICATION)
    options = FrontendOptions(FRONTEND, links=links)
    hub = LinkHub(options, Registry.of((MODEL,)), world.resolve, NODE)
    runner = PlainRunner(lambda batch: np.array(batch), 16)
    # The machine that runs tests is small and busy.
    patient = PipelineLimits(fetch_limit_ns=SLO_NS)
    settings = BackendSettings(BACKEND, "cpu", node, patient, links, data_connections=True)
    backend = BackendProcess(settings, {"v": runner}, world.resolve)
    async with AsyncExitStack() as undo:
        pool: Any = None
        arena = Arena(32 << 20)
        undo.callback(arena.close)
        await hub.listen(undo, arena, pool, world.heartbeat)
        hub.serve_data(undo)
        hub.reach_router(undo)
        await backend.start()
        undo.push_async_callback(backend.stop)
        await until(lambda: router.fleet.frontends and router.fleet.backends)
        yield Hosts(hub, backend)
        hub.driver.close()
    await server.stop("done")
    router.stop()
    world.heartbeat.stop()


def test_inputs_arrive_as_they_were(links: LinkOptions) -> None:
    async def test() -> None:
        async with hosts(links) as two:
            await two.ask(0)
            await two.connected()
            for _ in range(5):
                await two.ask_many(16)
            sender = two.data.senders[BACKEND]
            await until(lambda: sender.written == 5 * 16)
            await until(two.all_is_free)
            # Small ones go over the link.
            await two.ask_many(4, LARGE_BYTES - 1)
            assert sender.written == 5 * 16

    run(test)


def test_a_backend_that_shares_memory_reads_inputs_there() -> None:
    async def test() -> None:
        async with hosts(OPTIONS, NODE) as two:
            for _ in range(3):
                await two.ask_many(4)
            assert two.data.listener is None
            assert not two.data.senders

    run(test)


class Breaking(DataSocket):
    """A connection that breaks after so many bytes."""

    def __init__(self, data: DataSocket, left: int) -> None:
        super().__init__(data.connection, data.options)
        self.left = left

    def write(self, data: bytes | memoryview) -> None:
        super().write(data[: self.left])
        self.left -= len(data)
        if self.left < 0:
            self.cut()
            raise ConnectionResetError("broken")


@pytest.mark.parametrize("left", [0, 2, 100, SIZE // 2, 3 * SIZE])
def test_a_connection_that_breaks_loses_nothing(links: LinkOptions, left: int) -> None:
    async def test() -> None:
        async with hosts(links) as two:
            await two.ask(0)
            await two.connected()
            sender = two.data.senders[BACKEND]
            sender.data = Breaking(sender.data, left)
            await two.ask_many(16)
            await until(lambda: not two.data.senders)
            # From then on they go over the link.
            await two.ask_many(16)
            assert two.hub.backends[BACKEND].open
            await until(two.nobody_writes)

    run(test)


def test_one_that_the_backend_ends_loses_nothing(links: LinkOptions) -> None:
    async def test() -> None:
        async with hosts(links) as two:
            await two.ask(0)
            await two.connected()
            readers = two.backend.frontends.data
            assert readers is not None
            asked = asyncio.ensure_future(two.ask_many(64))
            await asyncio.sleep(0)
            data = readers.readers[FRONTEND].data
            assert data is not None
            data.cut()
            await asked
            await two.ask_many(16)
            await until(two.nobody_writes)

    run(test)


def test_a_link_that_ends_takes_its_data_connection_along(links: LinkOptions) -> None:
    async def test() -> None:
        async with hosts(links) as two:
            await two.ask(0)
            await two.connected()
            before = two.data.senders[BACKEND]
            two.hub.backends[BACKEND].transport.abort()
            await until(lambda: not two.data.senders)
            # The next link brings another one.
            await until(lambda: BACKEND in two.hub.backends)
            await two.ask(1)
            await until(lambda: two.data.senders.get(BACKEND, before) is not before)
            await two.ask(2)

    run(test)


@pytest.fixture
def waiting() -> Iterator[tuple[DataSocket, socket.socket]]:
    """One end that sends, and one that nobody reads from."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0.05)
    with closing(ours), closing(theirs):
        yield DataSocket(ours, OPTIONS), theirs


def test_a_peer_that_does_not_read_is_not_waited_for(
    waiting: tuple[DataSocket, socket.socket],
) -> None:
    data, _ = waiting
    with pytest.raises(TimeoutError):
        data.send([Payload(1, "UINT8", (SIZE,), length=SIZE)] * 64, [memoryview(bytes(SIZE))] * 64)


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\x03abc",
        # One of [1, "UINT8", [9], b"", "", 0, 2^40].
        b"\0\0\0\x18\x91\x97\x01\xa5UINT8\x91\x09\xc4\0\xa0\0\xcf\0\0\x01\0\0\0\0\0",
        b"\0\0\0\x11\x91\x97\x01\xa5UINT8\x91\x09\xc4\0\xa0\0\xff",
        b"\0\0",
    ],
)
def test_no_stray_word_takes_memory(waiting: tuple[DataSocket, socket.socket], said: bytes) -> None:
    data, theirs = waiting
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(DataError):
        data.receive()


def hello(number: int = BACKEND, role: str = "backend") -> Hello:
    return Hello(PROTOCOL, role, number, 1)


@asynccontextmanager
async def taken(
    links: LinkOptions, linked: Callable[[int], bool] = lambda number: True
) -> AsyncIterator[DataServer]:
    arena = Arena(1 << 20)
    me = Hello(PROTOCOL, "frontend", FRONTEND, 1)
    data = DataServer(HOST, lambda: me, linked, arena, time.monotonic_ns, links)
    assert data.listen()
    try:
        yield data
    finally:
        await data.stop()
        arena.close()


async def knock(data: DataServer, how: LinkOptions, me: Hello) -> DataSocket:
    made = await asyncio.to_thread(dial, data.address, me, how, time.monotonic_ns, lambda _: None)
    return made[0]


async def refuses(data: DataServer, how: LinkOptions, me: Hello) -> None:
    with pytest.raises((DataError, OSError)):
        await knock(data, how, me)
    await until(lambda: not data.lobby.addresses)
    assert not data.senders


def test_strangers_get_no_inputs(links: LinkOptions) -> None:
    async def test() -> None:
        async with taken(links) as data:
            for how, me in (
                (replace(links, secret=b"another"), hello()),
                (links, hello(role="frontend")),
                (links, hello(role="router")),
            ):
                await refuses(data, how, me)
            assert data.lobby.refused == 3
            (await knock(data, links, hello())).close()
            await until(lambda: list(data.senders) == [BACKEND])

    run(test)


def test_certificates_speak_for_their_role(tmp_path: Path) -> None:
    async def test() -> None:
        ours = Authority(tmp_path)
        frontend, backend = sealed(ours, "frontend"), sealed(ours, "backend")
        foreign = tmp_path / "other"
        foreign.mkdir()
        async with taken(frontend) as data:
            for how in (frontend, sealed(Authority(foreign, "other")), OPTIONS):
                await refuses(data, how, hello())
            (await knock(data, backend, hello())).close()
            await until(lambda: data.senders)

    run(test)


def test_a_backend_without_a_link_is_not_taken() -> None:
    async def test() -> None:
        async with taken(OPTIONS, lambda number: number == 7) as data:
            await refuses(data, OPTIONS, hello(6))
            (await knock(data, OPTIONS, hello(7))).close()
            await until(lambda: data.senders)

    run(test)


async def ends(connection: socket.socket, say: bytes, every_s: float) -> float:
    """How long one is listened to that says this, byte for byte."""
    began_s = time.monotonic()

    def talk() -> None:
        with suppress(OSError):
            connection.settimeout(every_s)
            for byte in say:
                connection.sendall(bytes([byte]))
                with suppress(TimeoutError):
                    if not connection.recv(1024):
                        return
            connection.settimeout(10)
            while connection.recv(1024):
                pass

    await asyncio.to_thread(talk)
    return time.monotonic() - began_s


def test_who_does_not_prove_itself_in_time_is_cut_however_it_talks(links: LinkOptions) -> None:
    async def test() -> None:
        async with taken(replace(links, handshake_ns=ms(300))) as data:
            for said in (b"", b"\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\0" * 500):
                with socket.create_connection((HOST, data.port)) as connection:
                    assert await ends(connection, said, 0.02) < 5
            await until(lambda: not data.lobby.addresses)
            assert data.lobby.refused == 4
            (await knock(data, links, hello())).close()

    run(test)


def test_many_strangers_keep_nobody_out(links: LinkOptions) -> None:
    async def test() -> None:
        how = replace(links, unproven_each_max=8, handshake_ns=seconds(30))
        async with taken(how) as data:
            strangers = [socket.create_connection((HOST, data.port)) for _ in range(100)]
            try:
                (await knock(data, links, hello())).close()
                await until(lambda: data.lobby.refused >= 92)
                assert len(data.lobby.addresses) <= 8
                await until(lambda: count("data-send") <= 9)
            finally:
                for each in strangers:
                    each.close()
        await until(lambda: count("data-send") + count("data-accept") == 0)

    run(test)


def count(name: str) -> int:
    return sum(each.name == name for each in threading.enumerate())
