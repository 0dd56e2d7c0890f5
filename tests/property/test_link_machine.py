"""Two ends of a link, whatever comes between them: both agree on what was said, and on the end.
Strangers, whatever they say: nobody hears them."""

from handshakes import SECRET, acceptor, connector, frame, hello, nonce, shake
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fermata.foundation.units import ms
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.handshake import ACCEPTOR, CONNECTOR, ROLES, prove
from fermata.router.links.limits import LIMITS
from fermata.router.links.messages import (
    PROTOCOL,
    PROTOCOLS,
    Cancel,
    Challenge,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Payload,
    Proof,
    TakesLead,
)
from fermata.router.links.session import Session, encode

FRAME_BYTES_MAX = 1 << 12
ENDS = frozenset(
    (
        CloseCode.MALFORMED,
        CloseCode.PROTOCOL,
        CloseCode.SILENT,
        CloseCode.STALE,
        CloseCode.UNPROVEN,
    )
)
DONE = Closed(CloseCode.SHUTDOWN, "done")


class End:
    """One end: its session, what it has said, heard and not yet delivered to the other."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.said: list[Message] = []
        self.heard: list[Message] = []
        self.wire = bytearray(session.greeting())
        """On its way to the other end."""

    def take(self, now_ns: int, data: bytes) -> None:
        was_closed = self.session.closed
        self.heard += self.session.receive(now_ns, data)
        self.wire += self.session.take_reply()
        if was_closed is not None:
            assert self.session.closed == was_closed, "the first reason stays"


class LinkMachine(RuleBasedStateMachine):
    """A byte stream each way that delivers in order, in any pieces, as late as it likes."""

    @initialize(
        backend_term=st.integers(0, 3),
        router_term=st.integers(0, 3),
        protocol=st.sampled_from([*PROTOCOLS] * 3 + [PROTOCOL + 1]),
        secret=st.sampled_from([SECRET] * 5 + [b""]),
    )
    def meet(self, backend_term: int, router_term: int, protocol: int, secret: bytes) -> None:
        self.now_ns = 0
        same = protocol in PROTOCOLS and secret == SECRET
        self.may = same and backend_term <= router_term
        me = Hello(protocol, "backend", 3, backend_term)
        backend = connector(me, secret, frame_bytes_max=FRAME_BYTES_MAX)
        router = acceptor(hello("router", router_term), frame_bytes_max=FRAME_BYTES_MAX)
        self.ends = (End(backend), End(router))
        self.last_ns = [0, 0]
        """When each end was last handed something."""
        self.left: set[int] = set()
        """Ends that have said goodbye."""
        self.spoilt = False

    @rule(who=st.integers(0, 1), sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4))
    def say(self, who: int, sizes: list[int]) -> None:
        end = self.ends[who]
        if end.session.closed is not None or end.session.peer is None:
            return
        messages: list[Message] = [
            Payload(len(end.said) + place, "UINT8", (size,), bytes(size)) if size else Cancel(place)
            for place, size in enumerate(sizes)
        ]
        end.said += messages
        for each in encode(messages, FRAME_BYTES_MAX):
            end.wire += each

    @rule(who=st.integers(0, 1))
    def beat(self, who: int) -> None:
        end = self.ends[who]
        if end.session.closed is None and end.session.peer is not None:
            end.wire += frame(Heartbeat(self.now_ns))

    @rule(who=st.integers(0, 1), count=st.integers(1, 3000))
    def deliver(self, who: int, count: int) -> None:
        """Some bytes of one end reach the other."""
        wire, other = self.ends[who].wire, self.ends[1 - who]
        if wire:
            data = bytes(wire[:count])
            del wire[:count]
            if other.session.closed is None:
                self.last_ns[1 - who] = self.now_ns
            other.take(self.now_ns, data)

    @rule()
    def greet(self) -> None:
        """All that is on its way arrives, to and fro, until nothing is."""
        for _ in range(4):
            for who in (0, 1):
                self.deliver(who, 1 << 20)

    @rule(who=st.integers(0, 1))
    def leave(self, who: int) -> None:
        end = self.ends[who]
        if end.session.closed is None:
            end.wire += end.session.farewell(DONE.code, DONE.detail)
            self.left.add(who)

    @precondition(lambda self: not self.spoilt)
    @rule(who=st.integers(0, 1), noise=st.binary(min_size=1, max_size=20))
    def spoil(self, who: int, noise: bytes) -> None:
        """Bytes that no session has said, as from a program that is none of ours."""
        self.spoilt = True
        self.ends[who].wire += noise

    @rule(step_ms=st.sampled_from([1, 50, 149, 200, 301]))
    def pass_time(self, step_ms: int) -> None:
        self.now_ns += ms(step_ms)
        for number, end in enumerate(self.ends):
            session, was_closed = end.session, end.session.closed
            alive = session.check(self.now_ns)
            if was_closed is None and not alive:
                assert session.closed is not None
                if number == 1 and session.peer is None:
                    assert session.closed.code is CloseCode.UNPROVEN
                    assert self.now_ns > LIMITS.handshake_ns
                else:
                    assert session.closed.code is CloseCode.SILENT
                    silent_ns = self.now_ns - self.last_ns[number]
                    assert silent_ns > LIMITS.silence_ns, "it had been heard"

    @invariant()
    def nothing_is_heard_that_was_not_said(self) -> None:
        if not hasattr(self, "ends"):
            return
        for end, other in (self.ends, self.ends[::-1]):
            session = end.session
            if not self.spoilt:
                assert end.heard == other.said[: len(end.heard)]
            if end.heard:
                assert session.peer is not None
            if not self.may:
                assert session.peer is None
            if session.closed is not None and not session.closed.by_peer:
                assert session.closed.code in ENDS or session.closed == DONE
            assert len(session.buffer) <= FRAME_BYTES_MAX + 4 + 3000

    def teardown(self) -> None:
        """What is on its way arrives: then all that was said before an end has been heard."""
        if not hasattr(self, "ends"):
            return
        for who in (0, 1):
            end, other = self.ends[who], self.ends[1 - who]
            before = other.session.closed
            other.take(self.now_ns, bytes(end.wire))
            if self.spoilt or before is not None or not self.may:
                continue
            assert other.heard == end.said
            closed = other.session.closed
            if who in self.left:
                assert closed is not None
                assert (closed.by_peer, closed.detail) == (True, DONE.detail)
                proven = other.session.peer is not None
                assert closed.code is (DONE.code if proven else CloseCode.REFUSED)
            elif end.session.closed is None:
                assert closed is None


def recorded() -> list[bytes]:
    """Each part of a handshake between real processes, and of one whose secret is empty."""
    found: list[bytes] = []
    for secret in (SECRET, b""):
        router, backend = acceptor(hello("router"), secret, 8), connector(hello(), secret, 9)
        found += [said for _, said in shake(router, backend)]
    return found


HELLOS = st.builds(
    Hello,
    st.sampled_from([PROTOCOL] * 8 + [PROTOCOL - 1]),
    st.sampled_from(sorted(ROLES)),
    st.integers(0, 9),
    st.sampled_from([0, 5, 6, 2**62, 2**63 - 1]),
    st.just("host:1"),
    st.just("node"),
    st.sampled_from([nonce(1), nonce(7), bytes(64), b"", bytes(65)]),
    st.sampled_from(["", "host:1"]),
)
WORDS = st.one_of(
    HELLOS,
    st.builds(Challenge, st.sampled_from([nonce(1), nonce(7), b""])),
    st.builds(Goodbye, st.text(max_size=5), st.sampled_from(list(CloseCode))),
    st.builds(TakesLead, st.integers(0, 2**63 - 1)),
    st.builds(Heartbeat, st.integers(0, 9)),
    st.builds(Cancel, st.integers(0, 9)),
    st.builds(Proof, st.binary(max_size=40)),
)


class StrangerMachine(RuleBasedStateMachine):
    """A stranger at either end of a link: it knows all that has ever been said, and no secret."""

    @initialize(
        me=st.sampled_from(["router", "standby", "frontend"]),
        other=st.sampled_from(["frontend", "backend", "standby"]),
    )
    def connect(self, me: str, other: str) -> None:
        self.now_ns = 0
        self.me, self.other = hello(me, 5), hello(other, 5)
        self.links = 0
        self.known = recorded()
        self.told: list[Message] = []
        """What the acceptor has answered."""
        self._meet(opened=False)
        self._meet(opened=True)

    def _meet(self, opened: bool) -> None:
        """Another link: the last one has ended."""
        self.links += 1
        if opened:
            self.opened = connector(self.other, number=100 + self.links)
        else:
            self.taken, self.told = acceptor(self.me, number=100 + self.links), []

    def _hand(self, opened: bool, data: bytes) -> None:
        link = self.opened if opened else self.taken
        assert link.receive(self.now_ns, data) == []
        if not opened:
            self.told += link.replies
        said = link.take_reply()
        if said:
            self.known.append(said)
        self.nobody_listens()
        if link.closed is not None:
            self._meet(opened)

    @rule(opened=st.booleans(), words=st.lists(WORDS, min_size=1, max_size=3))
    def say(self, opened: bool, words: list[Message]) -> None:
        self._hand(opened, frame(*words))

    @rule(opened=st.booleans(), data=st.data())
    def play_back(self, opened: bool, data: st.DataObject) -> None:
        """Say what somebody else has said, on this link or on another one."""
        self._hand(opened, data.draw(st.sampled_from(self.known)))

    @rule(opened=st.booleans(), side=st.sampled_from([CONNECTOR, ACCEPTOR]), peer=HELLOS)
    def forge(self, opened: bool, side: bytes, peer: Hello) -> None:
        """A proof as it would be without a secret."""
        challenge = Challenge(nonce(100 + self.links))
        self._hand(opened, frame(peer, prove(b"", side, peer, challenge)))
        self._hand(opened, frame(peer, prove(b"", side, self.opened.me, challenge, peer)))

    @rule(opened=st.booleans(), noise=st.binary(max_size=30))
    def babble(self, opened: bool, noise: bytes) -> None:
        self._hand(opened, noise)

    @rule(step_ms=st.sampled_from([1, 75, 299]))
    def pass_time(self, step_ms: int) -> None:
        self.now_ns += ms(step_ms)
        self.taken.check(self.now_ns)
        self.opened.check(self.now_ns)

    @invariant()
    def nobody_listens(self) -> None:
        if not hasattr(self, "taken"):
            return
        for link in (self.taken, self.opened):
            assert link.peer is None
            assert link.closed is None or link.closed.code is not CloseCode.STALE
            assert len(link.buffer) <= LIMITS.handshake_bytes_max + 4 + 30
        assert all(isinstance(each, Challenge) for each in self.told)
        assert len(self.told) <= 1


TestLink = LinkMachine.TestCase
TestLink.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestStranger = StrangerMachine.TestCase
TestStranger.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
