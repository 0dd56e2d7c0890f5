"""Handshakes: nobody who does not know the secret is heard, and nobody acts on a stranger."""

import time

import msgspec
import pytest
from handshakes import SECRET, acceptor, connector, frame, hello, linked, nonce, shake
from hypothesis import given
from hypothesis import strategies as st

from fermata.foundation.units import ms
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.handshake import ACCEPTOR, CONNECTOR, LINKS_TO, ROLES, Acceptor, prove
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
    Proof,
    TakesLead,
)
from fermata.router.links.session import PREFIX, Session

HUGE = 2**62
"""A term that no router ever has."""


def named(role: str, term: int = 0) -> Hello:
    """A hello as a connector sends it."""
    return msgspec.structs.replace(hello(role, term), nonce=nonce(7))


def code_of(link: Session) -> CloseCode | None:
    return None if link.closed is None else link.closed.code


def replies(link: Session) -> list[Message]:
    """What the session would send now, besides a farewell."""
    told, link.replies = link.replies, []
    return told


# A stranger


@pytest.mark.parametrize("role", sorted(ROLES))
@pytest.mark.parametrize("me", [hello("router", 5), hello("standby", 5), hello("frontend", 5)])
def test_a_hello_of_any_role_and_term_is_answered_with_a_nonce_and_changes_nothing(
    me: Hello, role: str
) -> None:
    link = acceptor(me)
    assert link.greeting() == b""
    assert link.receive(0, frame(named(role, HUGE))) == []
    assert replies(link) == [Challenge(nonce(1))]
    assert link.peer is None
    assert link.closed is None


FORGED: list[Message] = [
    Proof(b""),
    Proof(bytes(32)),
    Proof(nonce(1)),
    prove(b"", CONNECTOR, named("backend", HUGE), Challenge(nonce(1))),
    prove(b"another secret", CONNECTOR, named("backend", HUGE), Challenge(nonce(1))),
    prove(SECRET, CONNECTOR, named("backend", HUGE), Challenge(nonce(2))),
    prove(SECRET, CONNECTOR, named("backend", 0), Challenge(nonce(1))),
    prove(SECRET, CONNECTOR, named("frontend", HUGE), Challenge(nonce(1))),
    prove(SECRET, ACCEPTOR, named("backend", HUGE), Challenge(nonce(1))),
    prove(SECRET, ACCEPTOR, named("backend", HUGE), Challenge(nonce(1)), hello("router", 5)),
]
"""No secret, another one, and proofs for another nonce, term, role or direction."""


@pytest.mark.parametrize("proof", FORGED)
def test_a_wrong_proof_ends_the_link_and_tells_nothing(proof: Message) -> None:
    link = acceptor(hello("router", 5))
    link.receive(0, frame(named("backend", HUGE)))
    replies(link)
    assert link.receive(0, frame(proof)) == []
    assert link.peer is None
    assert code_of(link) is CloseCode.UNPROVEN
    assert replies(link) == []
    said = link.farewell(CloseCode.UNPROVEN, str(link.closed))
    assert not any(each in said for each in (SECRET, b"5", nonce(1)))


@pytest.mark.parametrize(
    "said",
    [
        [Proof(bytes(32))],
        [Challenge(nonce(3))],
        [Heartbeat(0)],
        [TakesLead(HUGE)],
        [Cancel(1)],
        [named("backend"), named("backend")],
        [named("backend"), Challenge(nonce(3))],
        [named("backend"), Heartbeat(0)],
        [named("backend"), Cancel(1)],
        [hello("backend")],
    ],
)
def test_whatever_is_said_out_of_turn_ends_the_link(said: list[Message]) -> None:
    link = acceptor(hello("router", 5))
    assert link.receive(0, frame(*said)) == []
    assert link.peer is None
    assert code_of(link) is CloseCode.MALFORMED


@pytest.mark.parametrize("code", list(CloseCode))
def test_a_strangers_goodbye_has_no_code(code: CloseCode) -> None:
    for link in (acceptor(hello("router", 5)), connector(hello("backend"))):
        link.receive(0, frame(Goodbye("\n\x1b[2J" + "x" * 3000, code)))
        assert link.closed == Closed(CloseCode.REFUSED, "??[2J" + "x" * 295, by_peer=True)


def test_a_stranger_is_given_a_few_seconds_however_much_it_says() -> None:
    link = acceptor(hello("router", 5))
    said = frame(named("backend"))
    for tick in range(LIMITS.handshake_ns // ms(75)):
        # One byte at a time.
        link.receive(ms(75 * tick), said[tick : tick + 1])
        assert link.check(ms(75 * tick))
    assert link.check(LIMITS.handshake_ns)
    assert not link.check(LIMITS.handshake_ns + ms(1))
    assert link.closed == Closed(CloseCode.UNPROVEN, "no proof within 3001 ms")


def test_half_a_frame_and_then_nothing_is_cut_too() -> None:
    link = acceptor(hello("router", 5))
    link.receive(0, frame(named("backend"))[:9])
    looks = [look for look in range(0, 4000, 75) if link.check(ms(look))]
    assert looks[-1] <= 3000
    assert code_of(link) is CloseCode.UNPROVEN


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_are_a_proof(noise: bytes, greets: bool) -> None:
    """Noise in place of a handshake, or of a real peer's proof."""
    link, peer = acceptor(hello("router", 5)), connector(hello("backend"))
    if greets:
        link.receive(0, peer.greeting())
    link.receive(0, noise)
    assert link.peer is None
    assert link.closed is None or link.closed.code is not CloseCode.STALE


# What was recorded


def test_a_recorded_handshake_opens_no_other_link() -> None:
    peer = connector(hello("backend"))
    recorded = [said for who, said in shake(acceptor(hello("router")), peer) if who is peer]
    again = acceptor(hello("router"), number=9)
    for said in recorded:
        again.receive(0, said)
    assert again.peer is None
    assert code_of(again) is CloseCode.UNPROVEN


def test_an_acceptors_own_words_prove_nothing_to_it_or_to_others() -> None:
    taken = acceptor(hello("router"))
    recorded = [said for who, said in shake(taken, connector(hello("backend"))) if who is taken]
    for link in (
        acceptor(hello("router"), number=9),
        acceptor(hello("frontend"), number=9),
        connector(hello("backend"), number=9),
        connector(hello("standby"), number=9),
    ):
        for said in recorded:
            link.receive(0, said)
        assert link.peer is None


def test_a_challenge_cannot_be_answered_by_its_own_acceptor() -> None:
    """A stranger hands the challenge of one link to the same process on another one."""
    target, oracle = acceptor(hello("router"), number=1), acceptor(hello("router"), number=2)
    target.receive(0, frame(named("backend")))
    oracle.receive(0, frame(msgspec.structs.replace(named("backend"), nonce=nonce(1))))
    assert replies(oracle) == [Challenge(nonce(2))], "nothing else is had from it"
    for said in (Proof(nonce(2)), Challenge(nonce(2))):
        target.receive(0, frame(said))
    assert target.peer is None


def test_a_link_that_is_passed_on_from_another_address_is_refused() -> None:
    """A stranger where a process used to listen, which passes everything on to another one."""
    opened = connector(hello("backend"), dialled="host:1")
    taken = acceptor(hello("frontend"), address="host:2")
    shake(opened, taken)
    assert taken.peer is None
    assert code_of(taken) is CloseCode.MISDIRECTED
    assert opened.peer is None


# A stranger where a router should be


@pytest.mark.parametrize(
    "said",
    [
        [hello("router", HUGE)],
        [Challenge(nonce(3)), hello("router", HUGE), Proof(bytes(32))],
        [
            Challenge(nonce(3)),
            hello("router", HUGE),
            prove(b"", ACCEPTOR, named("backend"), Challenge(nonce(3)), hello("router", HUGE)),
        ],
        [Challenge(nonce(3)), Challenge(nonce(4))],
        [Challenge(b"")],
        [Challenge(nonce(3)), TakesLead(HUGE)],
        [TakesLead(HUGE)],
    ],
)
def test_a_router_that_proves_nothing_is_not_met(said: list[Message]) -> None:
    link = connector(hello("backend"), number=7)
    for each in said:
        assert link.receive(0, frame(each)) == []
    assert link.peer is None
    if len(said) > 1 or not isinstance(said[0], Challenge):
        assert code_of(link) in (CloseCode.UNPROVEN, CloseCode.MALFORMED)


def test_a_connectors_proof_is_none_for_whoever_challenged_it() -> None:
    """A stranger hands a connector's own proof back to it."""
    link = connector(hello("backend"))
    link.receive(0, frame(Challenge(nonce(3))))
    (proof,) = replies(link)
    link.receive(0, frame(hello("router", HUGE), proof))
    assert link.peer is None
    assert code_of(link) is CloseCode.UNPROVEN


# Peers that know the secret


def test_both_know_one_another_and_all_that_was_said_is_covered() -> None:
    router, backend = linked(hello("router", 5), hello("backend", 4))
    assert router.peer == backend.me
    assert backend.peer == router.me
    told = frame(Cancel(1))
    assert router.receive(0, told) == backend.receive(0, told) == [Cancel(1)]


def test_another_secret_is_refused_on_both_sides() -> None:
    router, backend = acceptor(hello("router")), connector(hello("backend"), secret=b"other")
    shake(router, backend)
    assert router.peer is backend.peer is None
    assert code_of(router) is CloseCode.UNPROVEN


@pytest.mark.parametrize("opens", sorted(ROLES))
@pytest.mark.parametrize("takes", sorted(ROLES))
def test_only_those_link_that_have_something_to_say(opens: str, takes: str) -> None:
    one, other = connector(hello(opens)), acceptor(hello(takes))
    shake(one, other)
    may = takes in LINKS_TO.get(opens, ())
    assert (other.peer is not None) == (one.peer is not None) == may
    if not may:
        assert code_of(other) is CloseCode.WRONG_ROLE


def test_a_role_that_does_not_exist_is_not_repeated_to_anybody() -> None:
    link = acceptor(hello("router"))
    shake(link, connector(Hello(PROTOCOL, "rm -rf\n", 1, 0)))
    assert link.closed is not None
    assert "rm" not in link.closed.detail
    other = acceptor(hello("router"))
    other.receive(0, frame(Hello(9, "rm -rf\n", 1, 0)))
    assert other.closed is not None
    assert "rm" not in other.closed.detail


@pytest.mark.parametrize(
    ("role", "vouched", "may"),
    [
        ("backend", frozenset(), True),
        ("backend", frozenset(("backend",)), True),
        ("backend", frozenset(("backend", "frontend")), True),
        ("backend", frozenset(("frontend",)), False),
        ("standby", frozenset(("router",)), True),
        ("standby", frozenset(("backend",)), False),
    ],
)
def test_a_certificate_that_names_roles_speaks_for_those_alone(
    role: str, vouched: frozenset[str], may: bool
) -> None:
    link = acceptor(hello("router"))
    assert isinstance(link.handshake, Acceptor)
    link.handshake.roles = vouched
    shake(link, connector(hello(role)))
    assert (link.peer is not None) == may
    if not may:
        assert code_of(link) is CloseCode.WRONG_ROLE


def test_a_router_whose_certificate_is_a_backends_is_not_followed() -> None:
    link = connector(hello("frontend"))
    link.handshake.roles = frozenset(("backend",))
    shake(link, acceptor(hello("router", HUGE)))
    assert link.peer is None
    assert code_of(link) is CloseCode.WRONG_ROLE


@pytest.mark.parametrize("said", [hello(), Challenge(nonce(1)), Proof(bytes(32))])
def test_hands_are_shaken_once(said: Message) -> None:
    for link in linked(hello("router"), hello("backend")):
        link.receive(0, frame(said))
        assert code_of(link) is CloseCode.MALFORMED


# Other versions


class OldHello(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """As protocol 5 has it."""

    protocol: int
    role: str
    number: int
    term: int
    address: str = ""
    node: str = ""


class OldGoodbye(msgspec.Struct, tag=3, array_like=True, frozen=True):
    reason: str


OLD = msgspec.msgpack.Decoder(list[OldHello | OldGoodbye])


def old_frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode([message])
    return len(body).to_bytes(PREFIX, "big") + body


def test_a_peer_of_protocol_5_that_connects_is_told_by_name() -> None:
    link = acceptor(hello("router", 5))
    link.receive(0, old_frame(OldHello(5, "backend", 3, HUGE, "host:1", "node")))
    assert link.closed is not None
    assert link.closed.code is CloseCode.PROTOCOL
    assert replies(link) == []
    said = link.farewell(link.closed.code, link.closed.detail)
    (goodbye,) = OLD.decode(said[PREFIX:])
    assert isinstance(goodbye, OldGoodbye)
    assert goodbye.reason == (
        f"backend 3 speaks protocol 5, this router speaks {PROTOCOL}; deploy one version"
    )


@pytest.mark.parametrize("version", PROTOCOLS)
def test_an_acceptor_answers_in_the_version_of_the_connector(version: int) -> None:
    router, backend = acceptor(hello("router", 5)), connector(hello("backend", 0, version))
    shake(router, backend)
    assert router.peer is not None
    assert backend.peer is not None
    assert (router.peer.protocol, backend.peer.protocol) == (version, version)


def test_an_answer_in_another_version_than_ones_own_is_refused() -> None:
    router, backend = acceptor(hello("router", 5)), connector(hello("backend", 0, PROTOCOLS[1]))
    backend.receive(0, frame(Challenge(nonce(1)), hello("router", 5, PROTOCOLS[0])))
    assert router.peer is backend.peer is None
    assert backend.closed is not None
    assert backend.closed.code is CloseCode.PROTOCOL


def test_a_router_of_protocol_5_is_told_by_name_and_tells() -> None:
    link = connector(hello("backend"))
    (mine,) = OLD.decode(link.greeting()[PREFIX:])
    assert isinstance(mine, OldHello)
    assert (mine.protocol, mine.role, mine.number) == (PROTOCOL, "backend", 3)
    link.receive(0, old_frame(OldHello(5, "router", 0, HUGE)))
    assert link.closed is not None
    assert link.closed.code is CloseCode.PROTOCOL
    assert "router 0 speaks protocol 5, this backend speaks" in link.closed.detail
    other = connector(hello("backend"))
    other.receive(0, old_frame(OldGoodbye("refused: backend 3 speaks protocol 6")))
    assert other.closed is not None
    assert "speaks protocol 6" in other.closed.detail


def test_a_handshake_takes_less_than_a_millisecond_of_either_end() -> None:
    count = 200
    began_ns = time.process_time_ns()
    for _ in range(count):
        linked(hello("router", 5), hello("backend", 5))
    assert (time.process_time_ns() - began_ns) / count / 2 < ms(1)
