"""A link's session: bytes in, messages out; who may speak, and when a peer counts as dead.

Pure: it never touches a socket or a clock, so that tests and fault simulations drive the same
object as the transport does. A frame is four bytes of length and a msgpack list of messages.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from profiles.errors import ServingError
from router.core.units import ms
from router.links.messages import PROTOCOL, Goodbye, Heartbeat, Hello, Message

PREFIX = 4
STALE = "this router's epoch"
"""In what a router hears that must not go on."""
SILENCE_NS = ms(300)
LOOKS = 4
"""How often the transport asks within a peer's allowed silence."""
FRAME_BYTES_MAX = 64 << 20
HELLO_BYTES_MAX = 64 << 10
"""Of whoever has not said who they are: strangers get no memory."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Message])


class LinkError(ServingError):
    """What one side asked of a link cannot be done."""

    grpc_status: ClassVar[str] = "UNAVAILABLE"


def encode(messages: Sequence[Message], frame_bytes_max: int = FRAME_BYTES_MAX) -> list[bytes]:
    """The messages as frames: one, unless together they would pass the limit."""
    body = _encoder.encode(messages)
    if len(body) <= frame_bytes_max:
        return [len(body).to_bytes(PREFIX, "big") + body]
    if len(messages) == 1:
        raise LinkError(
            f"a {type(messages[0]).__name__} of {len(body)} bytes is over the frame limit of "
            f"{frame_bytes_max}; send less at once or raise frame_bytes_max"
        )
    half = len(messages) // 2
    return encode(messages[:half], frame_bytes_max) + encode(messages[half:], frame_bytes_max)


def encode_the_sayable(
    messages: Sequence[Message], frame_bytes_max: int = FRAME_BYTES_MAX
) -> tuple[list[bytes], list[str]]:
    """Frames of all messages that can be said, and why the others cannot: one must not take those
    of its loop tick with it."""
    try:
        return encode(messages, frame_bytes_max), []
    except (LinkError, OverflowError, UnicodeEncodeError) as error:
        if len(messages) == 1:
            return [], [f"{type(messages[0]).__name__}: {error}"]
    half = len(messages) // 2
    frames, unsayable = encode_the_sayable(messages[:half], frame_bytes_max)
    more_frames, more = encode_the_sayable(messages[half:], frame_bytes_max)
    return frames + more_frames, unsayable + more


class Session:
    """One end of one link, from the first byte to the last.

    `receive` returns what the peer said; whether the link is up, who the peer is and why it has
    ended stand in the attributes. Whatever bytes come in, the worst that happens is `closed`.
    """

    __slots__ = (
        "buffer",
        "checked_at_ns",
        "closed",
        "frame_bytes_max",
        "heard_at_ns",
        "late",
        "me",
        "needed",
        "peer",
        "silence_ns",
    )

    def __init__(
        self,
        me: Hello,
        now_ns: int,
        silence_ns: int = SILENCE_NS,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.me = me
        self.silence_ns = silence_ns
        self.frame_bytes_max = frame_bytes_max
        self.peer: Hello | None = None
        """Set by its hello: from then on the link is up."""
        self.closed: str | None = None
        """Why the link has ended; None while it lives."""
        self.buffer = bytearray()
        self.needed = PREFIX
        """Bytes the buffer must hold before it is worth looking at."""
        self.heard_at_ns = now_ns
        self.checked_at_ns = now_ns
        self.late = False
        """The last look came late."""

    def greeting(self) -> bytes:
        """What to send first."""
        return encode([self.me])[0]

    def farewell(self, reason: str) -> bytes:
        """What to send last; the session ends here."""
        self.close(reason)
        return encode([Goodbye(reason)])[0]

    def close(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason
        # Not cleared: a decoder that failed may still look at it.
        self.buffer = bytearray()

    # What comes in

    def receive(self, now_ns: int, data: bytes) -> list[Message]:
        """The messages these bytes complete, in order; hellos, heartbeats and goodbyes aside."""
        self.heard_at_ns = now_ns
        if self.closed is not None:
            return []
        buffer = self.buffer
        if not buffer:
            # The common case: whole frames, decoded where they lie.
            taken, messages = self._take(data)
            if taken < len(data) and self.closed is None:
                buffer += data[taken:] if taken else data
            return messages
        buffer += data
        if len(buffer) < self.needed:
            return []
        # Decoding copies what it keeps, so nothing holds on to the buffer when it is cut.
        taken, messages = self._take(buffer)
        if self.closed is None:
            del buffer[:taken]
        return messages

    def _take(self, data: bytes | bytearray) -> tuple[int, list[Message]]:
        """Decode the whole frames in front: how many bytes they took, and what they said."""
        messages: list[Message] = []
        start, end = 0, len(data)
        with memoryview(data) as view:
            while end - start >= PREFIX:
                length = int.from_bytes(view[start : start + PREFIX], "big")
                most = self.frame_bytes_max
                if self.peer is None:
                    most = min(most, HELLO_BYTES_MAX)
                if length > most:
                    self.close(f"malformed: a frame of {length} bytes is over the limit of {most}")
                    return end, messages
                body = start + PREFIX
                if end - body < length:
                    self.needed = PREFIX + length
                    return start, messages
                try:
                    frame = _decoder.decode(view[body : body + length])
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    self.close(f"malformed: {error}")
                    return end, messages
                start = body + length
                self._read(frame, messages)
                if self.closed is not None:
                    return end, messages
        self.needed = PREFIX
        return start, messages

    def _read(self, frame: list[Message], messages: list[Message]) -> None:
        """Keep what the link is about to itself, hand the rest on."""
        if self.peer is not None and len(frame) == 1 and isinstance(frame[0], Heartbeat):
            return
        for message in frame:
            if isinstance(message, Hello):
                self._meet(message)
            elif self.peer is None and not isinstance(message, Goodbye):
                self.close(f"malformed: {type(message).__name__} before hello")
            elif isinstance(message, Goodbye):
                self.close(f"goodbye: {message.reason}")
            elif not isinstance(message, Heartbeat):
                messages.append(message)
            if self.closed is not None:
                return

    def _meet(self, hello: Hello) -> None:
        if self.peer is not None:
            self.close(f"malformed: {hello.role} {hello.number} said hello twice")
            return
        reason = refusal(self.me, hello)
        if reason is not None:
            self.close(f"refused: {reason}")
            return
        self.peer = hello

    # Silence

    def check(self, now_ns: int) -> bool:
        """Whether the peer still counts as alive; to be asked `LOOKS` times within its allowed
        silence.

        Who asks late was itself not running, as where all of a machine is starved: that time is
        not the peer's silence. The first time it gives no verdict either, since words may lie in
        the socket that are older than the question; by the next look they have been read. However
        late all looks are, so, a dead peer is noticed after a few of them.
        """
        every_ns = self.silence_ns // LOOKS
        late_ns = now_ns - self.checked_at_ns - every_ns
        self.checked_at_ns = now_ns
        was_late, self.late = self.late, late_ns > every_ns // 2
        if self.late:
            self.heard_at_ns = min(now_ns, self.heard_at_ns + late_ns)
        silent_ns = now_ns - self.heard_at_ns
        waits = self.late and not was_late
        if self.closed is None and silent_ns > self.silence_ns and not waits:
            self.close(f"silent: nothing heard for {silent_ns // 1_000_000} ms")
        return self.closed is None


def refusal(me: Hello, peer: Hello) -> str | None:
    """Why these two may not talk; None when they may."""
    if peer.protocol != PROTOCOL:
        return (
            f"{peer.role} {peer.number} speaks protocol {peer.protocol}, this {me.role} speaks "
            f"{PROTOCOL}; deploy one version"
        )
    if peer.role == "router" and peer.epoch < me.epoch:
        return (
            f"router epoch {peer.epoch} is stale: this {me.role} has met {me.epoch}; "
            "a newer router has taken over"
        )
    if me.role == "router" and peer.epoch > me.epoch:
        return (
            f"{STALE} {me.epoch} is stale: {peer.role} {peer.number} has met "
            f"{peer.epoch}; a newer router has taken over"
        )
    return None


def stale_router(me: Hello, router: Hello) -> str | None:
    """Why a router that would lead me must not, as it is told; None when it may."""
    if router.epoch >= me.epoch:
        return None
    return (
        f"{STALE} {router.epoch} is stale: {me.role} {me.number} has met {me.epoch}; "
        "a newer router has taken over"
    )
