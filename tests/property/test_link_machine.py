"""Two ends of a link, whatever comes between them: both agree on what was said, and on the end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.core.units import ms
from router.links.messages import PROTOCOL, Cancel, Heartbeat, Hello, Message, Payload
from router.links.session import SILENCE_NS, Session, encode

END = ("goodbye", "refused", "silent", "malformed")


class End:
    """One end: its session, what it has said, heard and not yet delivered to the other."""

    def __init__(self, hello: Hello, now_ns: int) -> None:
        self.session = Session(hello, now_ns, frame_bytes_max=1 << 12)
        self.said: list[Message] = []
        self.heard: list[Message] = []
        self.wire = bytearray(self.session.greeting())
        """On its way to the other end."""

    def take(self, now_ns: int, data: bytes) -> None:
        was_closed = self.session.closed
        self.heard += self.session.receive(now_ns, data)
        if was_closed is not None:
            assert self.session.closed == was_closed, "the first reason stays"


class LinkMachine(RuleBasedStateMachine):
    """A byte stream each way that delivers in order, in any pieces, as late as it likes."""

    @initialize(
        backend_epoch=st.integers(0, 3),
        router_epoch=st.integers(0, 3),
        protocol=st.sampled_from([PROTOCOL] * 5 + [PROTOCOL + 1]),
    )
    def meet(self, backend_epoch: int, router_epoch: int, protocol: int) -> None:
        self.now_ns = ms(1000)
        self.may = protocol == PROTOCOL and backend_epoch <= router_epoch
        self.ends = (
            End(Hello(protocol, "backend", 3, backend_epoch), self.now_ns),
            End(Hello(PROTOCOL, "router", 0, router_epoch), self.now_ns),
        )
        self.last_ns = [self.now_ns, self.now_ns]
        """When each end was last handed something."""
        self.left: set[int] = set()
        """Ends that have said goodbye."""
        self.spoilt = False

    @rule(who=st.integers(0, 1), sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4))
    def say(self, who: int, sizes: list[int]) -> None:
        end = self.ends[who]
        if end.session.closed is not None:
            return
        messages: list[Message] = [
            Payload(len(end.said) + place, "UINT8", (size,), bytes(size)) if size else Cancel(place)
            for place, size in enumerate(sizes)
        ]
        end.said += messages
        for frame in encode(messages, 1 << 12):
            end.wire += frame

    @rule(who=st.integers(0, 1))
    def beat(self, who: int) -> None:
        end = self.ends[who]
        if end.session.closed is None:
            end.wire += encode([Heartbeat(self.now_ns)])[0]

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

    @rule(who=st.integers(0, 1))
    def leave(self, who: int) -> None:
        end = self.ends[who]
        if end.session.closed is None:
            end.wire += end.session.farewell("done")
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
            was_closed = end.session.closed
            alive = end.session.check(self.now_ns)
            if was_closed is None and not alive:
                assert self.now_ns - self.last_ns[number] > SILENCE_NS, "it had been heard"
                assert end.session.closed is not None
                assert end.session.closed.startswith("silent")

    @invariant()
    def nothing_is_heard_that_was_not_said(self) -> None:
        if not hasattr(self, "ends"):
            return
        for end, other in (self.ends, self.ends[::-1]):
            if not self.spoilt:
                assert end.heard == other.said[: len(end.heard)]
            if end.heard:
                assert end.session.peer is not None
            if not self.may:
                assert self.spoilt or end.session.peer is None or other.heard == []
            if end.session.closed is not None:
                assert end.session.closed.startswith(END) or end.session.closed == "done"
            assert len(end.session.buffer) <= (1 << 12) + 4 + 3000

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
            if who in self.left:
                assert other.session.closed == "goodbye: done"
            elif end.session.closed is None:
                assert other.session.closed is None


TestLink = LinkMachine.TestCase
TestLink.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
