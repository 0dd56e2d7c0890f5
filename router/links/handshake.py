"""Handshake of a link: both ends prove that they know the deployment's secret, and never show it.

    connector -> acceptor   Hello      role, number, term, the address dialled, a nonce
    acceptor  -> connector  Challenge  a nonce
    connector -> acceptor   Proof      HMAC-SHA256 of all of the above
    acceptor  -> connector  Hello, Proof

The acceptor speaks second, and tells a stranger nothing but a nonce. A proof covers everything that
both have said, and which end gives it: it fits no other link, and not the other direction.

The acceptor answers in the connector's version if it knows that. A connector that is refused tries
again in the version before its own (`connecting.py`).
"""

import hmac
from typing import Protocol

import msgspec

from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import (
    PROTOCOL,
    PROTOCOLS,
    STANDBY,
    Challenge,
    Hello,
    Message,
    Proof,
)

NONCE_BYTES = 16
NONCE_BYTES_MAX = 64
CONNECTOR, ACCEPTOR = b"fermata link: connector", b"fermata link: acceptor"
LINKS_TO = {
    "frontend": frozenset(("router", STANDBY)),
    "backend": frozenset(("router", STANDBY, "frontend")),
    STANDBY: frozenset(("router", STANDBY)),
}
"""Roles that each role connects to; all other pairs are refused."""
ROLES = frozenset(("frontend", "router", "backend", STANDBY))

_encoder = msgspec.msgpack.Encoder()


class LinkRefusedError(Exception):
    """Refusal of a link to the peer."""

    def __init__(self, code: CloseCode, detail: str, term: int = 0) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.term = term


class Handshake(Protocol):
    """One end's part. `peer` is set once the peer has proven itself and may be talked to."""

    accepts: bool
    me: Hello
    peer: Hello | None
    roles: frozenset[str]
    """Roles that the peer's certificate names; empty: any."""

    def greeting(self) -> list[Message]:
        """Messages to send first."""

    def on_message(self, message: Message) -> list[Message]:
        """Messages to answer with; raises LinkRefusedError."""


class Connector:
    """The end that has opened the connection."""

    accepts = False

    def __init__(self, me: Hello, secret: bytes, nonce: bytes, dialled: str = "") -> None:
        self.me = msgspec.structs.replace(me, nonce=nonce, dialled=dialled)
        self.secret = secret
        self.peer: Hello | None = None
        self.roles: frozenset[str] = frozenset()
        self.challenge: Challenge | None = None
        self.claimed: Hello | None = None
        """Hello of the peer, before its proof."""

    def greeting(self) -> list[Message]:
        return [self.me]

    def on_message(self, message: Message) -> list[Message]:
        if isinstance(message, Hello):
            check_protocol(self.me, message, (self.me.protocol,))
            if self.challenge is not None and self.claimed is None:
                self.claimed = message
                return []
        elif isinstance(message, Challenge) and self.challenge is None:
            check_nonce(message.nonce)
            self.challenge = message
            return [prove(self.secret, CONNECTOR, self.me, message)]
        elif isinstance(message, Proof) and self.claimed is not None:
            assert self.challenge is not None
            said = (self.me, self.challenge, self.claimed)
            check_proof(message, prove(self.secret, ACCEPTOR, *said))
            check_roles(self.me, self.claimed, self.claimed, self.roles)
            check_term(self.me, self.claimed)
            self.peer = self.claimed
            return []
        raise out_of_turn(message)


class Acceptor:
    """The end that has taken the connection."""

    accepts = True

    def __init__(
        self,
        me: Hello,
        secret: bytes,
        nonce: bytes,
        address: str = "",
        speaks: tuple[int, ...] = PROTOCOLS,
    ) -> None:
        """`address` is where it listens, as others dial it."""
        self.me = me
        self.speaks = speaks
        self.secret = secret
        self.address = address
        self.peer: Hello | None = None
        self.roles: frozenset[str] = frozenset()
        self.challenge = Challenge(nonce)
        self.claimed: Hello | None = None

    def greeting(self) -> list[Message]:
        return []

    def on_message(self, message: Message) -> list[Message]:
        claimed = self.claimed
        if isinstance(message, Hello):
            check_protocol(self.me, message, self.speaks)
            if claimed is None:
                check_nonce(message.nonce)
                self.claimed = message
                self.me = msgspec.structs.replace(self.me, protocol=message.protocol)
                return [self.challenge]
        elif isinstance(message, Proof) and claimed is not None:
            check_proof(message, prove(self.secret, CONNECTOR, claimed, self.challenge))
            if claimed.dialled != self.address:
                detail = f"{claimed.dialled!r} was dialled, and this is {self.address!r}"
                raise LinkRefusedError(CloseCode.MISDIRECTED, detail)
            check_roles(claimed, self.me, claimed, self.roles)
            check_term(self.me, claimed)
            self.peer = claimed
            return [self.me, prove(self.secret, ACCEPTOR, claimed, self.challenge, self.me)]
        raise out_of_turn(message)


def prove(secret: bytes, side: bytes, *said: Message) -> Proof:
    """Proof of one end for one link."""
    return Proof(hmac.digest(secret, side + _encoder.encode(said), "sha256"))


def check_proof(proof: Proof, wanted: Proof) -> None:
    if not hmac.compare_digest(proof.digest, wanted.digest):
        raise LinkRefusedError(
            CloseCode.UNPROVEN, "the proof is wrong: both ends need the secret of one deployment"
        )


def check_nonce(nonce: bytes) -> None:
    if not NONCE_BYTES <= len(nonce) <= NONCE_BYTES_MAX:
        raise LinkRefusedError(CloseCode.MALFORMED, f"a nonce of {len(nonce)} bytes")


def check_protocol(me: Hello, peer: Hello, known: tuple[int, ...]) -> None:
    """Check that the peer speaks one of the `known` versions."""
    if peer.protocol not in known:
        raise LinkRefusedError(
            CloseCode.PROTOCOL,
            f"{named(peer)} speaks protocol {peer.protocol}, this {me.role} speaks {PROTOCOL}; "
            "deploy one version",
        )


def check_roles(connector: Hello, acceptor: Hello, peer: Hello, vouched: frozenset[str]) -> None:
    """Check that these two may link, and that the peer's certificate allows its role."""
    if acceptor.role not in LINKS_TO.get(connector.role, ()):
        detail = f"{named(connector)} may not link to a {acceptor.role}"
        raise LinkRefusedError(CloseCode.WRONG_ROLE, detail)
    # A router that waits and one that leads are the same process.
    role = "router" if peer.role == STANDBY else peer.role
    if vouched and role not in vouched:
        detail = f"{named(peer)} has a certificate for {', '.join(sorted(vouched))} alone"
        raise LinkRefusedError(CloseCode.WRONG_ROLE, detail)


def check_term(me: Hello, peer: Hello) -> None:
    """Check that the router among the two is one that the other may follow."""
    router, other = (peer, me) if peer.role == "router" else (me, peer)
    if router.role == "router" and router.term < other.term:
        raise LinkRefusedError(CloseCode.STALE, stale(router, other), other.term)


def stale(router: Hello, other: Hello) -> str:
    return (
        f"router term {router.term} is stale: {named(other)} has met {other.term}; "
        "a newer router has taken over"
    )


def out_of_turn(message: Message) -> LinkRefusedError:
    kind = type(message).__name__
    return LinkRefusedError(CloseCode.MALFORMED, f"{kind} out of turn in the handshake")


def named(hello: Hello) -> str:
    """Name of the peer in refusals; words of a stranger are not repeated."""
    return f"{hello.role} {hello.number}" if hello.role in ROLES else "peer of an unknown role"
