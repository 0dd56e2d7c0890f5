"""gRPC calls and connections against their limits, by hand."""

import asyncio
from dataclasses import replace

import pytest

from fermata.deployments.frontend.access.callers import CallGate, OpenCall, address_of
from fermata.deployments.frontend.access.client_sockets import ClientSocket
from fermata.deployments.frontend.access.connection_watch import ConnectionWatch, WatchLimits
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.specs.frontend import ConnectionLimits
from fermata.foundation.units import NEVER, ms, seconds

LIMITS = ConnectionLimits(
    total_max=8, per_address_max=3, receive_ns=seconds(30), unread_ns=seconds(10),
    calls_per_address_max=4, proxies=frozenset({"10.0.0.99"}),
)  # fmt: skip
MB = 1 << 20
ONE = "ipv4:10.0.0.1:4000"


class World:
    """A gate and a watch, on a clock that is set by hand."""

    def __init__(self, held_mb: int = 32, limits: ConnectionLimits = LIMITS) -> None:
        self.now_ns = self.inodes = 0
        self.gate = CallGate(limits, 6, lambda: self.now_ns)
        self.watch = ConnectionWatch(self.gate, held_mb * MB, MB, WatchLimits())
        self.sockets: list[ClientSocket] = []

    def connect(self, address: str = "10.0.0.1", port: int = 4000) -> ClientSocket:
        self.inodes += 1
        one = ClientSocket(self.inodes, self.inodes, address, port)
        self.sockets.append(one)
        return one

    def call(self, peer: str = ONE, health: bool = False) -> OpenCall:
        call = self.gate.enter(peer, health)
        assert isinstance(call, OpenCall)
        return call

    def look(self, after_ns: int = ms(250)) -> list[ClientSocket]:
        self.now_ns += after_ns
        cut = self.watch.judge(self.now_ns, list(self.sockets))
        self.sockets = [each for each in self.sockets if each not in cut]
        return cut


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (ONE, ("10.0.0.1", 4000)),
        ("ipv6:%5B::1%5D:80", ("::1", 80)),
        ("ipv6:[2001:db8::7]:8001", ("2001:db8::7", 8001)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:4000", ("10.0.0.1", 4000)),
        ("unix:/tmp/socket", ("/tmp/socket", 0)),
    ],
)
def test_peers_are_read_as_grpc_writes_them(peer: str, address: tuple[str, int]) -> None:
    if not peer.startswith("unix"):
        assert address_of(peer) == address
    else:
        assert address_of(peer)[1] == 0


def test_calls_are_refused_by_name_in_all_and_by_address() -> None:
    world = World()
    calls = [world.call() for _ in range(4)]
    refusal = world.gate.enter("ipv4:10.0.0.1:4001")
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.retry_after_ns > 0) == ("too-many", True)
    assert "10.0.0.1 has 4 calls open here" in refusal.message
    for port in (1, 2):
        world.call(f"ipv4:10.0.0.2:{port}")
    full = world.gate.enter("ipv4:10.0.0.3:1")
    assert isinstance(full, Refusal)
    assert "6 calls are open here" in full.message
    # Health is answered nonetheless, unless the same address asks without end.
    for _ in range(4):
        world.call("ipv4:10.0.0.4:1", health=True)
    assert isinstance(world.gate.enter("ipv4:10.0.0.4:1", health=True), Refusal)
    assert isinstance(world.gate.enter("ipv4:10.0.0.1:5", health=True), Refusal)
    for call in calls:
        world.gate.leave(call)
    world.call("ipv4:10.0.0.3:1")
    assert world.gate.total == 3


def test_a_proxy_is_not_limited_as_one_client() -> None:
    world = World()
    for port in range(5):
        world.connect("10.0.0.99", port)
        world.call("ipv4:10.0.0.99:1")
    assert world.look() == []


def test_connections_of_an_address_beyond_its_limit_are_cut_the_newest_first() -> None:
    world = World()
    first = [world.connect(port=port) for port in range(3)]
    assert world.look() == []
    later = [world.connect(port=port) for port in (7, 8)]
    other = world.connect("10.0.0.2")
    assert world.look() == later
    assert world.sockets == [*first, other]


def test_an_answer_that_is_not_read_ends_its_connection_in_seconds() -> None:
    world = World()
    one, other = world.connect(), world.connect("10.0.0.2")
    world.call("ipv4:10.0.0.2:4000").answered_at_ns = NEVER
    unread = world.call(health=True)
    unread.answered_at_ns = world.now_ns
    assert world.look(seconds(9)) == []
    assert world.look(seconds(2)) == [one]
    assert world.sockets == [other]
    assert world.watch.cut == {"unread": 1}


def test_many_answers_that_are_not_read_end_it_at_once() -> None:
    world = World()
    one = world.connect("10.0.0.99")
    world.gate.total_max = 200
    for _ in range(129):
        world.call("ipv4:10.0.0.99:4000").answered_at_ns = world.now_ns
    assert world.look(ms(900)) == []
    assert world.look(ms(200)) == [one]


def test_half_sent_messages_are_counted_and_their_connection_is_cut() -> None:
    world = World()
    honest, greedy = world.connect("10.0.0.2"), world.connect()
    world.call("ipv4:10.0.0.2:4000")
    for _ in range(4):
        world.call()
    honest.received_bytes = greedy.received_bytes = 3 * MB
    assert world.look() == []
    assert world.watch.held_bytes == 6 * MB
    greedy.received_bytes = 12 * MB
    # A warning first: its calls are refused by name. It goes on.
    assert world.look() == []
    assert world.watch.is_pressed
    assert world.look() == [greedy]
    assert world.sockets == [honest]
    # Its address is kept out for a while: it would hold as much again.
    assert list(world.watch.penalties) == ["10.0.0.1"]
    # One that holds much more is cut without a word.
    another = world.connect("10.0.0.3")
    world.call("ipv4:10.0.0.3:4000")
    another.received_bytes = 17 * MB
    assert world.look() == [another]


@pytest.mark.parametrize(("share", "cut_at_mb"), [(0.5, 16), (1.0, 32), (0.01, 2)])
def test_the_share_of_one_address_is_as_given(share: float, cut_at_mb: int) -> None:
    """Two messages of a megabyte may be held in any case."""
    world = World(limits=replace(LIMITS, held_share=share))
    one = world.connect()
    world.call()
    one.received_bytes = cut_at_mb * MB
    assert [world.look(), world.look()] == [[], []]
    one.received_bytes += 1
    # Its calls are refused, and as that does not help it is cut.
    assert [world.look(), world.look()] == [[], [one]]


def test_messages_that_came_whole_are_not_held() -> None:
    world = World()
    one = world.connect()
    call = world.call()
    for sent in range(1, 100):
        one.received_bytes = sent * 5 * MB
        call.caller.taken_bytes += 5 * MB + 1024
        assert world.look() == []
        assert world.watch.held_bytes == 0


def test_nothing_is_held_where_no_call_is_open() -> None:
    world = World()
    one = world.connect()
    one.received_bytes = 6 * MB
    assert world.look() == []
    assert world.watch.held_bytes == 0


def test_a_message_that_trickles_is_cut_in_the_end() -> None:
    world = World()
    one = world.connect()
    world.call().since_ns = NEVER
    for step in range(125):
        one.received_bytes = 100_000 + step
        assert world.look() == ([one] if step == 121 else [])
    assert world.watch.cut == {"slow": 1}


def test_a_call_without_its_message_is_refused_in_time() -> None:
    async def test() -> None:
        world = World()
        call = world.call()
        call.task = asyncio.ensure_future(asyncio.Event().wait())
        world.look(seconds(29))
        assert call.refusal is None
        world.look(seconds(2))
        assert call.refusal is not None
        assert call.refusal.reason == "slow"
        with pytest.raises(asyncio.CancelledError):
            await call.task

    asyncio.run(test())


def test_rapid_resets_end_a_connection_and_the_next_ones_of_its_address() -> None:
    world = World()
    honest, rapid = world.connect("10.0.0.2"), world.connect()
    for _ in range(60):
        world.gate.leave(world.call())
    for _ in range(60):
        call = world.call("ipv4:10.0.0.2:4000")
        call.since_ns = NEVER
        world.gate.leave(call)
    assert world.look() == [rapid]
    again = world.connect(port=4001)
    assert world.look() == [again]
    assert world.sockets == [honest]
    world.look(seconds(6))
    world.connect(port=4002)
    assert world.look() == []


def test_connections_that_leave_their_calls_behind_cost_their_address_the_next() -> None:
    world = World()
    world.gate.limits = replace(LIMITS, calls_per_address_max=100)
    world.gate.total_max = 100
    calls = [world.call() for _ in range(60)]
    for call in calls:
        world.gate.leave(call)
    world.look()
    again = world.connect(port=4001)
    assert world.look() == [again]


def test_calls_that_are_wrong_end_their_connection_if_there_is_no_end_of_them() -> None:
    world = World()
    honest, wrong = world.connect("10.0.0.2"), world.connect()
    for count, peer in ((100, "ipv4:10.0.0.2:4000"), (101, ONE)):
        for _ in range(count):
            call = world.call(peer)
            call.since_ns = NEVER
            world.gate.leave(call, wrong=True)
    assert world.look() == [wrong]
    assert world.sockets == [honest]
    assert list(world.watch.penalties) == ["10.0.0.1"]


@pytest.mark.parametrize(("address", "cut"), [("10.0.0.1", 5), ("10.0.0.99", 0)])
def test_vain_calls_are_counted_by_address_too(address: str, cut: int) -> None:
    """Five connections, each within its limits; those of a proxy may be five clients."""
    world = World()
    world.gate.limits = replace(LIMITS, per_address_max=6)
    world.connect(address, port=9)
    for port in range(5):
        world.connect(address, port)
        for _ in range(45):
            world.gate.leave(world.call(f"ipv4:{address}:{port}"))
    assert len(world.look()) == cut
    assert list(world.watch.penalties) == [address][: min(cut, 1)]


def test_a_flood_is_looked_at_without_delay() -> None:
    world = World()
    world.connect()
    for count in range(1, 200):
        world.gate.leave(world.call())
        assert world.gate.alarm.is_set() == (count % 51 == 0)
        world.gate.alarm.clear()


def test_calls_of_connections_that_are_gone_punish_nobody() -> None:
    world = World()
    for _ in range(60):
        world.gate.leave(world.call(""))
    world.look()
    assert world.watch.penalties == {}


def test_health_checks_that_are_not_read_are_refused_and_end_their_connection() -> None:
    world = World()
    one = world.connect("10.0.0.99")
    asked = [world.gate.enter("ipv4:10.0.0.99:4000", health=True) for _ in range(90)]
    assert [isinstance(each, Refusal) for each in asked] == [False] * 32 + [True] * 58
    assert world.look() == [one]


def test_connections_that_ended_are_forgotten() -> None:
    world = World()
    for port in range(3):
        world.connect(port=port)
        world.gate.leave(world.call(f"ipv4:10.0.0.1:{port}"))
    world.sockets = world.sockets[:1]
    world.look()
    assert len(world.gate.callers) == 1
    assert not world.gate.addresses


def test_calls_that_wait_for_their_turn_count_against_the_limits() -> None:
    world = World()
    waiting = [world.gate.line_up(ONE) for _ in range(4)]
    assert all(each is not None for each in waiting)
    assert world.gate.line_up(ONE) is None
    assert isinstance(world.gate.enter(ONE), Refusal)
    assert waiting[0] is not None
    assert world.gate.step_up(waiting[0])
    world.gate.leave(world.call())
    assert (world.gate.total, world.gate.addresses["10.0.0.1"]) == (3, 3)


def test_bytes_of_calls_that_wait_are_held() -> None:
    world = World()
    one = world.connect()
    caller = world.gate.line_up(ONE)
    one.received_bytes = 6 * MB
    world.look()
    assert world.watch.watched[one.inode].held_bytes == 6 * MB
    assert caller is not None
    world.gate.step_up(caller)
    world.look()
    assert world.watch.watched[one.inode].held_bytes == 0


def test_calls_of_a_connection_that_ended_do_not_begin_and_a_new_one_is_not_taken_for_ended() -> (
    None
):
    world = World()
    new = world.gate.line_up(ONE)
    assert new is not None
    # The call was taken after the look at the sockets.
    world.look()
    assert not new.gone
    world.connect()
    world.look()
    assert not new.gone
    world.sockets.clear()
    world.look()
    assert new.gone
    assert not world.gate.step_up(new)
    world.look()
    assert (world.gate.callers, world.gate.total) == ({}, 0)


def test_a_connection_that_is_left_with_many_calls_waiting_is_held_against_its_address() -> None:
    world = World()
    world.gate.limits = replace(LIMITS, calls_per_address_max=1000)
    world.gate.total_max = 1000
    world.connect()
    callers = [world.gate.line_up(ONE) for _ in range(WatchLimits().misuses_max + 1)]
    world.look()
    assert not world.watch.penalties
    world.sockets.clear()
    world.look()
    assert "10.0.0.1" in world.watch.penalties
    assert not any(world.gate.step_up(each) for each in callers if each is not None)
