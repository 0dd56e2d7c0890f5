"""Two ends of a link without a network between them."""

from fermata.router.links.handshake import NONCE_BYTES, Acceptor, Connector
from fermata.router.links.limits import SessionLimits
from fermata.router.links.messages import PROTOCOL, Hello, Message
from fermata.router.links.session import Session, encode

SECRET = b"a secret of this test"
FRAME_BYTES_MAX = 1 << 20


def hello(role: str = "backend", term: int = 0, protocol: int = PROTOCOL) -> Hello:
    return Hello(protocol, role, 3, term)


def frame(*messages: Message) -> bytes:
    return encode(messages)[0]


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def acceptor(
    me: Hello,
    secret: bytes = SECRET,
    number: int = 1,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    address: str = "",
) -> Session:
    """`number` makes the nonce."""
    end = Acceptor(me, secret, nonce(number), address)
    return Session(end, 0, SessionLimits(frame_bytes_max=frame_bytes_max))


def connector(
    me: Hello,
    secret: bytes = SECRET,
    number: int = 2,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    dialled: str = "",
) -> Session:
    end = Connector(me, secret, nonce(number), dialled)
    return Session(end, 0, SessionLimits(frame_bytes_max=frame_bytes_max))


def shake(one: Session, other: Session, now_ns: int = 0) -> list[tuple[Session, bytes]]:
    """Carry bytes to and fro until there are none; who said what, in order."""
    told: list[tuple[Session, bytes]] = []
    waiting = [(each, said) for each in (one, other) if (said := each.greeting())]
    while waiting:
        speaker, said = waiting.pop(0)
        told.append((speaker, said))
        listener = other if speaker is one else one
        listener.receive(now_ns, said)
        if reply := listener.take_reply():
            waiting.append((listener, reply))
        elif listener.closed is not None and not listener.closed.by_peer:
            waiting.append((listener, listener.farewell(listener.closed.code, "closed")))
    return told


def linked(
    mine: Hello, theirs: Hello, frame_bytes_max: int = FRAME_BYTES_MAX
) -> tuple[Session, Session]:
    """A session whose peer has connected and proven itself, and that peer's."""
    taken = acceptor(mine, frame_bytes_max=frame_bytes_max)
    opened = connector(theirs, frame_bytes_max=frame_bytes_max)
    shake(taken, opened)
    return taken, opened
