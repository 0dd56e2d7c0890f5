"""A link's session: bytes in, messages out, and the silence after which a peer is dead.

Pure: it never touches a socket or a clock, so that tests and fault simulations drive the same
object as the transport does. A frame is four bytes of length and a msgpack list of messages.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from fermata.foundation.errors import ServingError
from fermata.router.links.closing import CloseCode, Closed, quoted
from fermata.router.links.handshake import Handshake, LinkRefusedError
from fermata.router.links.limits import LIMITS, SessionLimits
from fermata.router.links.messages import Challenge, Goodbye, Heartbeat, Hello, Message, Proof

PREFIX = 4
OWN = frozenset((Hello, Challenge, Proof, Heartbeat, Goodbye))
"""Messages of the link itself."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Message])


class LinkError(ServingError):
    """A link cannot do what one side asked."""

    grpc_status: ClassVar[str] = "UNAVAILABLE"


def encode(
    messages: Sequence[Message], frame_bytes_max: int = LIMITS.frame_bytes_max
) -> list[bytes]:
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


def encode_valid(
    messages: Sequence[Message], frame_bytes_max: int = LIMITS.frame_bytes_max
) -> tuple[list[bytes], list[str]]:
    """Frames of all messages that can be encoded, and why the others cannot: one must not take
    those of its loop tick with it."""
    try:
        return encode(messages, frame_bytes_max), []
    except (LinkError, OverflowError, UnicodeEncodeError) as error:
        if len(messages) == 1:
            return [], [f"{type(messages[0]).__name__}: {error}"]
    half = len(messages) // 2
    frames, invalid = encode_valid(messages[:half], frame_bytes_max)
    more_frames, more = encode_valid(messages[half:], frame_bytes_max)
    return frames + more_frames, invalid + more


class Session:
    """One end of one link, from the first byte to the last.

    `receive` returns what the peer said; whether the link is up, who the peer is and why it has
    ended stand in the attributes. Whatever bytes come in, the worst that happens is `closed`.
    """

    __slots__ = (
        "buffer",
        "checked_at_ns",
        "closed",
        "handshake",
        "heard_at_ns",
        "late",
        "limits",
        "needed",
        "peer",
        "replies",
    )

    def __init__(
        self,
        handshake: Handshake,
        now_ns: int,
        limits: SessionLimits = LIMITS,
    ) -> None:
        self.handshake = handshake
        self.limits = limits
        self.peer: Hello | None = None
        """Set once it has proven itself: from then on the link is up."""
        self.closed: Closed | None = None
        """The end of the link; None while it lives."""
        self.buffer = bytearray()
        self.needed = PREFIX
        """Bytes the buffer must hold before it is worth looking at."""
        self.replies: list[Message] = []
        """Messages of the handshake that are to be sent; see `take_reply`."""
        self.heard_at_ns = now_ns
        self.checked_at_ns = now_ns
        self.late = False
        """The last look came late."""

    @property
    def me(self) -> Hello:
        return self.handshake.me

    def greeting(self) -> bytes:
        """Bytes to send first; none where the peer has to speak first."""
        said = self.handshake.greeting()
        return encode(said)[0] if said else b""

    def take_reply(self) -> bytes:
        """Bytes to send for what has just been received, as long as the handshake goes on."""
        replies, self.replies = self.replies, []
        return encode(replies)[0] if replies else b""

    def farewell(self, code: CloseCode, detail: str, term: int = 0) -> bytes:
        """Bytes to send last; the session ends here."""
        self.close(code, detail, term=term)
        return encode([Goodbye(detail, code, term)])[0]

    def close(self, code: CloseCode, detail: str, by_peer: bool = False, term: int = 0) -> None:
        if self.closed is None:
            self.closed = Closed(code, detail, by_peer, term)
        # Not cleared: a decoder that failed may still look at it.
        self.buffer = bytearray()

    # Incoming bytes

    def receive(self, now_ns: int, data: bytes) -> list[Message]:
        """The messages these bytes complete, in order; those of the link itself aside."""
        # Strangers gain no time by talking.
        if self.peer is not None or not self.handshake.accepts:
            self.heard_at_ns = now_ns
        # By another name: what comes in may end the session.
        ended = self.closed
        if ended is not None:
            return []
        buffer = self.buffer
        if not buffer:
            # The common case: whole frames, decoded where they lie.
            taken, messages = self._take(now_ns, data)
            if taken < len(data) and self.closed is None:
                buffer += data[taken:] if taken else data
            return messages
        buffer += data
        if len(buffer) < self.needed:
            return []
        # Decoding copies what it keeps, so nothing holds on to the buffer when it is cut.
        taken, messages = self._take(now_ns, buffer)
        if self.closed is None:
            del buffer[:taken]
        return messages

    def _take(self, now_ns: int, data: bytes | bytearray) -> tuple[int, list[Message]]:
        """Decode the whole frames in front: how many bytes they took, and what they said."""
        messages: list[Message] = []
        start, end = 0, len(data)
        with memoryview(data) as view:
            while end - start >= PREFIX:
                length = int.from_bytes(view[start : start + PREFIX], "big")
                most = self.limits.frame_bytes_max
                if self.peer is None:
                    most = min(most, self.limits.handshake_bytes_max)
                if length > most:
                    detail = f"a frame of {length} bytes is over the limit of {most}"
                    self.close(CloseCode.MALFORMED, detail)
                    return end, messages
                body = start + PREFIX
                if end - body < length:
                    self.needed = PREFIX + length
                    return start, messages
                try:
                    frame = _decoder.decode(view[body : body + length])
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    self.close(CloseCode.MALFORMED, str(error))
                    return end, messages
                start = body + length
                self._read(now_ns, frame, messages)
                if self.closed is not None:
                    return end, messages
        self.needed = PREFIX
        return start, messages

    def _read(self, now_ns: int, frame: list[Message], messages: list[Message]) -> None:
        """Keep what the link is about to itself, hand the rest on."""
        if self.peer is not None and len(frame) == 1 and isinstance(frame[0], Heartbeat):
            return
        for message in frame:
            if self.peer is not None and type(message) not in OWN:
                messages.append(message)
                continue
            self._on_own(now_ns, message)
            if self.closed is not None:
                return

    def _on_own(self, now_ns: int, message: Message) -> None:
        if isinstance(message, Goodbye):
            # A stranger's code means nothing: programs act on codes.
            code = CloseCode.REFUSED if self.peer is None else message.code
            self.close(code, quoted(message.detail), True, message.term)
        elif self.peer is None:
            self._shake(now_ns, message)
        elif not isinstance(message, Heartbeat):
            self.close(CloseCode.MALFORMED, f"{type(message).__name__} after the handshake")

    def _shake(self, now_ns: int, message: Message) -> None:
        try:
            self.replies += self.handshake.on_message(message)
        except LinkRefusedError as error:
            self.close(error.code, error.detail, term=error.term)
            return
        self.peer = self.handshake.peer
        if self.peer is not None:
            self.heard_at_ns = now_ns

    # Silence

    def check(self, now_ns: int) -> bool:
        """Whether the peer still counts as alive; to be asked every `beat_ns`.

        A late check means that this process did not run, as on a starved machine. That time is not
        the peer's silence. The first late check gives no verdict either: older messages may lie in
        the socket, and have been read by the next one. However late the checks are, a dead peer is
        noticed after a few of them.
        """
        limits, every_ns = self.limits, self.limits.beat_ns
        late_ns = now_ns - self.checked_at_ns - every_ns
        self.checked_at_ns = now_ns
        was_late, self.late = self.late, late_ns > every_ns // 2
        if self.late:
            self.heard_at_ns = min(now_ns, self.heard_at_ns + late_ns)
        silent_ns = now_ns - self.heard_at_ns
        waits = self.late and not was_late
        stranger = self.peer is None and self.handshake.accepts
        allowed_ns = limits.handshake_ns if stranger else limits.silence_ns
        if self.closed is None and silent_ns > allowed_ns and not waits:
            silent_ms = silent_ns // 1_000_000
            if stranger:
                self.close(CloseCode.UNPROVEN, f"no proof within {silent_ms} ms")
            else:
                self.close(CloseCode.SILENT, f"nothing heard for {silent_ms} ms")
        return self.closed is None
