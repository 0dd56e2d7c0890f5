"""Which way a backend has its inputs come, without a socket."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from router_world import FakeLink

from fermata.deployments.backend.data_reader import RETRY_NS, DataReaders, Reader
from fermata.deployments.frontend.data_server import BACKLOG_BYTES_MAX, Sender
from fermata.deployments.frontend.memory.arena import Arena
from fermata.router.links.messages import PROTOCOL, DataPort, Fetch, Hello, Message, Payload
from fermata.router.links.transport import LinkOptions

FETCH = Fetch(1, (2, 3))
NEAR, FAR = 4, 5
"""Frontends of this node and of another."""


class World:
    def __init__(self) -> None:
        self.now_ns = 0
        self.lost: list[int] = []
        self.heard: list[Payload] = []
        self.posted: list[Callable[[], None]] = []
        options = replace(LinkOptions(), connect_ns=1)
        me = Hello(PROTOCOL, "backend", 1, 0, node="node")
        self.readers = DataReaders(
            *(lambda: me, self.heard.extend, self.lost.append, self.posted.append),
            *(lambda: self.now_ns, options),
        )

    def link(self, frontend: int) -> Any:
        link = FakeLink("frontend", frontend, "node" if frontend == NEAR else "other")
        self.readers.on_link_up(link)  # type: ignore[arg-type]
        return link

    def connected(self, frontend: int, nonce: bytes) -> Reader:
        """As if a thread had dialled that frontend."""
        reader = self.readers.readers[frontend] = Reader(frontend)
        self.readers._on_up(reader, nonce)
        return reader


def test_a_frontend_of_another_node_is_asked_now_and_then() -> None:
    world = World()
    world.link(NEAR)
    link = world.link(FAR)
    assert world.readers.marked(NEAR, FETCH) == FETCH
    asks = msgspec.structs.replace(FETCH, asks=True)
    assert [world.readers.marked(FAR, FETCH) for _ in range(2)] == [asks, FETCH]
    world.now_ns = RETRY_NS
    assert [world.readers.marked(FAR, FETCH) for _ in range(2)] == [asks, FETCH]
    world.readers.on_link_down(FAR)
    assert world.readers.marked(FAR, FETCH) == FETCH
    # It has gone meanwhile, or was not asked: no thread dials it.
    world.readers.on_port(link, DataPort(1))
    world.readers.on_port(FakeLink("frontend", NEAR), DataPort(1))  # type: ignore[arg-type]
    assert not world.readers.readers


def test_inputs_are_wanted_on_the_connection_while_it_lasts() -> None:
    world = World()
    world.link(FAR)
    reader = world.connected(FAR, b"nonce")
    assert world.readers.marked(FAR, FETCH) == Fetch(1, (2, 3), b"nonce")
    world.readers._on_read(reader, [Payload(2, "", ())])
    world.readers._on_end(reader, "end of file")
    assert world.lost == [FAR]
    assert world.readers.marked(FAR, FETCH) == FETCH
    world.now_ns = RETRY_NS
    assert world.readers.marked(FAR, FETCH).asks
    # What comes of one that has ended is too late.
    world.readers._on_read(reader, [Payload(3, "", ())])
    world.readers._on_end(reader, "once more")
    assert [each.rid for each in world.heard] == [2]
    assert world.lost == [FAR]


def test_a_link_that_ends_cuts_its_connection_and_fetches_nothing() -> None:
    world = World()
    world.link(FAR)
    reader = world.connected(FAR, b"nonce")
    world.readers.on_link_down(FAR)
    assert reader.is_cut
    world.readers._on_end(reader, "cut")
    assert world.lost == []
    world.link(FAR)
    assert world.readers.marked(FAR, FETCH).asks


def test_nothing_is_fetched_again_where_no_connection_came_up() -> None:
    world = World()
    world.link(FAR)
    reader = world.readers.readers[FAR] = Reader(FAR)
    world.readers._on_end(reader, "connection refused")
    assert world.lost == []
    assert world.readers.marked(FAR, FETCH) == FETCH


def test_a_process_without_threads_left_asks_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    world = World()
    link = world.link(FAR)
    link.session = SimpleNamespace(me=SimpleNamespace(dialled="127.0.0.1:1"))
    assert world.readers.marked(FAR, FETCH).asks
    world.readers.on_port(link, DataPort(1))
    assert not world.readers.readers
    world.now_ns = RETRY_NS
    assert world.readers.marked(FAR, FETCH).asks


def test_more_than_a_limit_does_not_wait_for_one_backend() -> None:
    class Socket:
        """Takes everything at once."""

        def send(self, payloads: list[Payload], views: list[memoryview]) -> None: ...

        def cut(self) -> None: ...

    arena = Arena(64 << 20)
    sender = Sender(Socket(), b"nonce", arena)  # type: ignore[arg-type]
    size = BACKLOG_BYTES_MAX // 4 + 1
    for rid in range(3):
        assert sender.has_room(size)
        sender.send(Payload(rid, "UINT8", (size,), bytes(size)))
    assert not sender.has_room(size)
    sender.flush()
    sender.end()
    sender.serve()
    sender.collect()
    assert not sender.lent
    # One that is larger than the limit goes alone.
    assert sender.has_room(BACKLOG_BYTES_MAX + 1)
    arena.close()


def test_fetches_of_before_and_after_are_read_by_either() -> None:
    def heard(wire: list[Any]) -> Message:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(wire), type=Message)  # type: ignore[arg-type]

    assert heard([50, 1, [2, 3]]) == FETCH
    assert heard([50, 1, [2, 3], b"nonce", True, "later"]) == Fetch(1, (2, 3), b"nonce", True)
