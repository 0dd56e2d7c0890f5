"""Strangers on real sockets: whatever they say to a router or a frontend, nothing comes of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from test_link_transport import Recorder, greet
from test_links import FRONTEND, HOST, OPTIONS, World, inline, run, served, until

from fermata.deployments.frontend.link_hub import LinkHub
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.foundation.units import ms
from fermata.router.links.closing import CloseCode
from fermata.router.links.connecting import connect
from fermata.router.links.handshake import NONCE_BYTES, ROLES
from fermata.router.links.messages import (
    PROTOCOL,
    Dropped,
    FleetStatus,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Proof,
    Ready,
    Result,
    Shares,
    TakesLead,
)
from fermata.router.links.session import LinkError, encode
from fermata.router.links.transport import Link, LinkServer

pytestmark = pytest.mark.live

HUGE = 2**62
NONCE = bytes(NONCE_BYTES)
STRANGERS = 1000


def stranger(role: str, term: int = HUGE) -> Hello:
    return Hello(PROTOCOL, role, FRONTEND, term, "127.0.0.1:1", "here", NONCE)


def stray_words() -> list[bytes]:
    """The two that once ended a router and took a frontend away, and their neighbours."""
    hellos = [
        Hello(protocol, role, number, term, nonce=nonce)
        for protocol in (PROTOCOL, 5, 99)
        for role in (*sorted(ROLES), "x")
        for number in (0, FRONTEND)
        for term in (0, HUGE)
        for nonce in (NONCE, b"")
    ]
    said: list[list[Message]] = [[each] for each in hellos]
    said += [[stranger(role), Proof(bytes(32)), TakesLead(HUGE)] for role in sorted(ROLES)]
    said += [[Goodbye("this router's term 1 is stale", code)] for code in CloseCode]
    said += [[stranger(role), Goodbye("stale", CloseCode.STALE)] for role in sorted(ROLES)]
    said += [[TakesLead(HUGE)], [Heartbeat(0)], [Ready("cpu", ("v",))], [Dropped(1, "late")]]
    return [encode(each)[0] for each in said] + [b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\0"]


@asynccontextmanager
async def reached(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def say(address: str, data: bytes) -> None:
    """Say this to whoever listens there, and leave once it has been read."""
    async with reached(address) as (reader, writer):
        with suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
            await reader.read()


class Fronted:
    """A frontend's links, and the router that it follows."""

    def __init__(self, hub: LinkHub, router: Any) -> None:
        self.hub = hub
        self.router = router

    def check(self) -> None:
        assert self.hub.term == 1
        assert self.hub.router is not None
        assert self.hub.router.open
        assert list(self.router.fleet.frontends) == [FRONTEND]


@asynccontextmanager
async def fronted() -> AsyncIterator[Fronted]:
    world = World()
    router, server = await world.start_router(term=1)
    options = FrontendOptions(FRONTEND, links=OPTIONS)
    hub = LinkHub(options, Registry.of(()), world.resolve, "here")
    async with AsyncExitStack() as undo:
        pool: Any = None
        await hub.listen(undo, Arena(0), pool, world.heartbeat)
        hub.reach_router(undo)
        await until(lambda: router.fleet.frontends)
        yield Fronted(hub, router)
    await server.stop("done")
    router.stop()
    world.heartbeat.stop()


def test_one_frame_does_not_end_the_router() -> None:
    async def test() -> None:
        async with served(1, inline) as (router, frontend, world, _):
            frame = encode([Hello(PROTOCOL, "backend", 1, HUGE)])[0]
            assert len(frame) < 32
            await say(world.router_address, frame)
            assert not router.stale
            frontend.submit()
            await frontend.all_ended()
            assert len(frontend.results()) == 1

    run(test)


def test_one_frame_does_not_take_a_frontend_from_its_router() -> None:
    async def test() -> None:
        async with fronted() as one:
            await say(one.hub.address, encode([Hello(PROTOCOL, "router", 0, HUGE)])[0])
            one.check()

    run(test)


def test_no_stray_word_changes_anything_at_a_router() -> None:
    async def test() -> None:
        async with served(1, inline) as (router, frontend, world, _):
            fleet = router.fleet
            links = dict(fleet.frontends), {n: each.link for n, each in fleet.backends.items()}
            for data in stray_words():
                await say(world.router_address, data)
                assert not router.stale
            assert dict(fleet.frontends) == links[0]
            assert {n: each.link for n, each in fleet.backends.items()} == links[1]
            frontend.submit()
            await frontend.all_ended()
            assert len(frontend.results()) == 1

    run(test)


def test_no_stray_word_changes_anything_at_a_frontend() -> None:
    async def test() -> None:
        async with fronted() as one:
            for data in stray_words():
                await say(one.hub.address, data)
                one.check()
            assert not one.hub.backends
            assert one.hub.link_server.lobby.refused == len(stray_words())
            assert not one.hub.link_server.lobby.addresses

    run(test)


def test_a_stranger_in_a_routers_place_is_not_followed() -> None:
    async def test() -> None:
        heard: list[bytes] = []
        async with fronted() as one:
            hub, how = one.hub, replace(OPTIONS, silence_ns=ms(100))
            for data in stray_words():

                async def rogue(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes = data
                ) -> None:
                    said = b""
                    writer.write(data)
                    with suppress(ConnectionError):
                        said = await reader.read()
                    heard.append(said)
                    writer.close()

                listens = await asyncio.start_server(rogue, HOST, 0)
                address = f"{HOST}:{listens.sockets[0].getsockname()[1]}"
                events = Recorder()
                with pytest.raises(LinkError):
                    await connect(address, hub._hello, events, hub.heartbeat, how)
                assert events.up == []
                listens.close()
                one.check()
        await until(lambda: len(heard) == len(stray_words()))
        assert not any(OPTIONS.secret in each for each in heard)

    run(test)


@asynccontextmanager
async def taken(
    handshake_ns: int = ms(300), role: str = "router"
) -> AsyncIterator[tuple[LinkServer, Recorder, Callable[[], Any]]]:
    """A server of links, and how to connect to it properly."""
    options = replace(OPTIONS, handshake_ns=handshake_ns, silence_ns=ms(200))
    world, events = World(), Recorder()
    server = LinkServer(greet(role), events, world.heartbeat, options)
    await server.start(HOST)

    async def link() -> Link:
        return await connect(server.address, greet("backend"), Recorder(), world.heartbeat, OPTIONS)

    try:
        yield server, events, link
    finally:
        await server.stop("done")
        world.heartbeat.stop()


async def trickle(address: str, data: bytes, every_s: float) -> float:
    """One byte at a time; for how long one was listened to."""
    async with reached(address) as (reader, writer):
        began_s = time.monotonic()
        ended = asyncio.ensure_future(reader.read())
        with suppress(ConnectionError):
            for byte in data * 100:
                writer.write(bytes([byte]))
                await writer.drain()
                done, _ = await asyncio.wait([ended], timeout=every_s)
                if done:
                    break
            await ended
        return time.monotonic() - began_s


def test_whoever_does_not_prove_itself_in_time_is_cut_however_it_talks() -> None:
    async def test() -> None:
        async with taken() as (server, events, link):
            hello = encode([stranger("backend")])[0]
            assert await trickle(server.address, hello, 0.02) < 3
            # Half a frame, then nothing; and nothing at all.
            for data in (hello[:7], b""):
                async with reached(server.address) as (reader, writer), asyncio.timeout(3):
                    writer.write(data)
                    await reader.read()
            await until(lambda: len(events.down) == 3)
            assert {each.code for each in events.down} == {CloseCode.UNPROVEN}
            assert (await link()).open

    run(test)


def test_a_thousand_strangers_keep_nobody_out() -> None:
    async def test() -> None:
        async with AsyncExitStack() as opened, taken(ms(30_000)) as (server, events, link):
            for _ in range(STRANGERS):
                await opened.enter_async_context(reached(server.address))
                assert len(server.lobby.addresses) <= OPTIONS.unproven_each_max
            # While they all wait, those who know the secret come in at once.
            for _ in range(20):
                began_s = time.monotonic()
                assert (await link()).open
                assert time.monotonic() - began_s < 1
            await until(lambda: len(events.up) == 20)
            assert all(each.open for each in events.up)
            assert len(server.lobby.addresses) <= OPTIONS.unproven_each_max
            turned_out = [each for each in events.down if each.code is CloseCode.CROWDED]
            assert len(turned_out) >= STRANGERS - OPTIONS.unproven_each_max

    run(test)


def test_a_recorded_handshake_is_worth_nothing() -> None:
    async def test() -> None:
        async with taken(ms(2000)) as (server, events, _):
            heard: list[bytes] = []

            async def listen_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                """Pass everything on, and keep what whoever connects has said."""
                async with reached(server.address) as (there, onward):

                    async def back() -> None:
                        while data := await there.read(1 << 16):
                            writer.write(data)
                        writer.close()

                    backwards = asyncio.ensure_future(back())
                    while data := await reader.read(1 << 16):
                        heard.append(data)
                        onward.write(data)
                    await backwards

            between = await asyncio.start_server(listen_in, HOST, 0)
            address = f"{HOST}:{between.sockets[0].getsockname()[1]}"
            with pytest.raises(LinkError):
                # Its peer meant to be elsewhere: whoever passes it on is found out.
                await connect(address, greet("backend"), Recorder(), World().heartbeat, OPTIONS)
            await until(lambda: events.down)
            assert events.down[0].code is CloseCode.MISDIRECTED
            await say(server.address, b"".join(heard))
            await until(lambda: len(events.down) == 2)
            assert events.down[1].code is CloseCode.UNPROVEN
            assert events.up == []
            between.close()

    run(test)


@pytest.mark.parametrize("secret", [b"", b"another"])
def test_another_secret_gets_no_link_and_both_are_told(secret: bytes) -> None:
    async def test() -> None:
        async with taken() as (server, events, _):
            how = replace(OPTIONS, secret=secret)
            heartbeat = World().heartbeat
            with pytest.raises(LinkError, match="the secret of one deployment"):
                await connect(server.address, greet("backend"), Recorder(), heartbeat, how)
            await until(lambda: events.down)
            assert [each.code for each in events.down] == [CloseCode.UNPROVEN]

    run(test)


def test_options_do_not_show_the_secret() -> None:
    assert "secret" not in repr(OPTIONS)
    assert "a secret" not in str(OPTIONS)


@pytest.mark.parametrize(
    "message", [FleetStatus(9, 9), Dropped(1, "late"), Shares({"a": 1.0}), TakesLead(HUGE)]
)
def test_a_backend_that_speaks_as_a_router_is_cut(message: Message) -> None:
    async def test() -> None:
        async with fronted() as one:
            hub, events = one.hub, Recorder()
            fleet = hub.readiness.fleet
            link = await connect(hub.address, greet("backend"), events, hub.heartbeat, OPTIONS)
            link.send_all([message, FleetStatus(9, 9)])
            await until(lambda: events.down)
            assert events.down[0].code is CloseCode.WRONG_ROLE
            assert hub.readiness.fleet == fleet
            assert hub.strays == 1
            one.check()

    run(test)


def test_a_router_that_speaks_as_a_backend_is_cut() -> None:
    async def test() -> None:
        async with fronted() as one:
            link = one.router.fleet.frontends[FRONTEND]
            link.send(Result(1, "v", 1, 0, 0))
            await until(lambda: one.router.fleet.frontends.get(FRONTEND) is not link)
            assert link.session.closed is not None
            assert link.session.closed.code is CloseCode.WRONG_ROLE
            # It is the same router: the frontend comes back to it.
            await until(lambda: one.router.fleet.frontends)
            one.check()

    run(test)


def test_a_backend_that_claims_a_term_is_not_believed_against_the_record() -> None:
    async def test() -> None:
        async with served(1, inline) as (router, frontend, world, _):
            asked: list[int] = []
            router.confirm = lambda term, then: asked.append(term)

            def claims() -> Hello:
                return Hello(PROTOCOL, "backend", 99, HUGE)

            with pytest.raises(LinkError, match="is stale"):
                await connect(world.router_address, claims, Recorder(), world.heartbeat, OPTIONS)
            await until(lambda: asked)
            assert asked == [HUGE]
            assert not router.stale
            frontend.submit()
            await frontend.all_ended()
            assert len(frontend.results()) == 1

    run(test)


def test_whoever_dialled_another_address_is_refused() -> None:
    async def test() -> None:
        async with fronted() as one:
            hub = one.hub
            wrong = f"localhost:{hub.address.rpartition(':')[2]}"
            with pytest.raises(LinkError, match="was dialled"):
                await connect(wrong, greet("backend"), Recorder(), hub.heartbeat, OPTIONS)
            assert not hub.backends

    run(test)
