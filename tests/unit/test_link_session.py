"""Sessions: bytes in any pieces, terms, silence; never a crash."""

import msgspec
import pytest
from handshakes import FRAME_BYTES_MAX, acceptor, connector, frame, hello, linked, shake
from hypothesis import given
from hypothesis import strategies as st

from fermata.foundation.units import ms
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import (
    PROTOCOL,
    Cancel,
    Dropped,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Payload,
    Run,
    Submit,
    Unavailable,
)
from fermata.router.links.session import PREFIX, LinkError, Session, encode, encode_valid
from fermata.router.links.unavailability import Unavailability, UnavailableCause


def session(role: str = "router", term: int = 0) -> Session:
    return acceptor(hello(role, term))


def up(frame_bytes_max: int = FRAME_BYTES_MAX) -> Session:
    """A router's, with a backend that has proven itself."""
    return linked(hello("router"), hello(), frame_bytes_max)[0]


def code_of(link: Session) -> CloseCode | None:
    return None if link.closed is None else link.closed.code


SAID: list[Message] = [
    Submit(1, "camera", ms(50), ms(50)),
    Cancel(1),
    Dropped(1, "late"),
    Run(7, "resnet", (1, 2, 3), 0, ms(5)),
    Payload(1, "UINT8", (2, 2), b"abcd"),
]


@given(st.lists(st.lists(st.sampled_from(SAID), min_size=1), max_size=6), st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(
    frames: list[list[Message]], data: st.DataObject
) -> None:
    link, peer = session(), connector(hello())
    # The connector's part of the handshake is cut too; nonces are the same for every link here.
    greeting = [said for speaker, said in shake(session(), peer) if speaker is peer]
    stream = b"".join(greeting) + b"".join(frame(*messages) for messages in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    heard: list[Message] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += link.receive(0, stream[start:end])
    assert link.closed is None
    assert link.peer == peer.me
    assert heard == [message for messages in frames for message in messages]
    assert len(link.buffer) == 0


@given(st.lists(st.binary(max_size=64), max_size=8), st.booleans())
def test_no_bytes_crash_it(chunks: list[bytes], greeted: bool) -> None:
    link = up() if greeted else session()
    for chunk in chunks:
        link.receive(0, chunk)
        link.receive(0, len(chunk).to_bytes(PREFIX, "big") + chunk)
    assert link.closed is None or link.closed.by_peer or code_of(link) is CloseCode.MALFORMED


def test_a_stranger_gets_no_memory() -> None:
    large = Payload(1, "UINT8", (1 << 17,), bytes(1 << 17))
    link = session()
    assert link.receive(0, (1 << 17).to_bytes(PREFIX, "big")) == []
    assert link.closed == Closed(
        CloseCode.MALFORMED, "a frame of 131072 bytes is over the limit of 4096"
    )
    known = up()
    assert known.receive(0, frame(large)) == [large]


def test_what_came_before_a_malformed_frame_is_heard() -> None:
    link = up()
    heard = link.receive(0, frame(Cancel(4)) + b"\0\0\0\1\xc1")
    assert heard == [Cancel(4)]
    assert code_of(link) is CloseCode.MALFORMED
    assert link.receive(0, frame(Cancel(5))) == []


@pytest.mark.parametrize("known", [False, True])
def test_nested_msgpack_is_malformed_not_a_crash(known: bool) -> None:
    link = up() if known else session()
    body = b"\x91" * (100_000 if known else 4000)
    link.receive(0, len(body).to_bytes(PREFIX, "big") + body)
    assert code_of(link) is CloseCode.MALFORMED


def test_text_that_is_no_utf8_is_malformed() -> None:
    link = up()
    body = frame(Dropped(1, "late"))[PREFIX:].replace(b"late", b"la\xff\xfe")
    link.receive(0, len(body).to_bytes(PREFIX, "big") + body)
    assert code_of(link) is CloseCode.MALFORMED


@pytest.mark.parametrize(
    ("mine", "theirs", "detail"),
    [
        (
            hello("frontend", 5),
            hello("router", 4),
            "router term 4 is stale: frontend 3 has met 5",
        ),
        (hello("backend", 6), hello("router", 5), "router term 5 is stale: backend 3 has met 6"),
    ],
)
def test_older_router_is_refused_by_those_who_prove_that_they_may(
    mine: Hello, theirs: Hello, detail: str
) -> None:
    link, router = connector(mine), acceptor(theirs)
    shake(link, router)
    assert router.peer is None
    assert router.closed is not None
    assert router.closed.code is CloseCode.STALE
    assert detail in router.closed.detail
    assert not router.closed.by_peer
    assert router.closed.term == mine.term
    # Who has not proven itself yet says why, and nothing that a program acts on.
    assert link.closed == Closed(CloseCode.REFUSED, "closed", by_peer=True)


@pytest.mark.parametrize(
    ("opens", "takes"),
    [
        (hello("backend", 5), hello("router", 6)),
        (hello("frontend", 0), hello("router", 5)),
        (hello("backend", 5), hello("frontend", 2)),
        (hello("backend", 2), hello("frontend", 5)),
        (hello("backend", 5), hello("standby", 2)),
        (hello("standby", 0), hello("router", 2)),
    ],
)
def test_newer_router_and_unaware_peers_are_welcome(opens: Hello, takes: Hello) -> None:
    one, other = connector(opens), acceptor(takes)
    shake(one, other)
    assert one.peer == takes
    assert other.peer == one.me


def test_peer_is_dead_after_silence_but_not_while_it_beats() -> None:
    link = up()
    for tick in range(1, 8):
        link.receive(ms(100 * tick), frame(Heartbeat(0)))
        assert link.check(ms(100 * tick))
    assert link.check(ms(800))
    assert link.check(ms(900))
    assert link.check(ms(1000))
    assert not link.check(ms(1001))
    assert link.closed == Closed(CloseCode.SILENT, "nothing heard for 301 ms")


def test_time_in_which_one_did_not_run_oneself_is_not_the_peers_silence() -> None:
    link = up()
    assert link.check(ms(75))
    # 4,850 ms late: of five seconds, 75 and 75 ms were listened to.
    assert link.check(ms(5000))
    assert link.check(ms(5075))
    assert link.check(ms(5150))
    assert not link.check(ms(5151))
    assert link.closed == Closed(CloseCode.SILENT, "nothing heard for 301 ms")


def test_whoever_starves_together_with_its_peer_does_not_give_it_up() -> None:
    link = up()
    # Both run for a moment every 130 ms: each look is late, and each time something was said.
    for tick in range(1, 100):
        link.receive(ms(130 * tick - 129), frame(Heartbeat(0)))
        assert link.check(ms(130 * tick))


def test_a_late_look_gives_no_verdict_before_the_socket_has_been_read() -> None:
    link = up()
    for look in (75, 150, 225, 300):
        assert link.check(ms(look))
    assert link.check(ms(2000)), "words may be waiting"
    assert not link.check(ms(2075))


def test_a_dead_peer_is_noticed_although_every_look_is_late() -> None:
    link = up()
    looks = [look for look in range(1, 20) if link.check(ms(1000 * look))]
    # 75 ms count of each; four of them are allowed.
    assert looks == [1, 2, 3, 4]


def test_goodbye_ends_it_with_code_and_detail() -> None:
    link, other = linked(hello("router"), hello())
    said = frame(Cancel(1), Goodbye("moved", CloseCode.SUPERSEDED), Cancel(2))
    assert link.receive(0, said) == [Cancel(1)]
    assert link.closed == Closed(CloseCode.SUPERSEDED, "moved", by_peer=True)
    other.receive(0, acceptor(hello()).farewell(CloseCode.STALE, "x", 7))
    assert other.closed == Closed(CloseCode.STALE, "x", by_peer=True, term=7)


def test_a_cause_of_a_newer_version_is_harmless() -> None:
    for cause in (99, -1, 2**40):
        link = up()
        body = msgspec.msgpack.encode([[21, {"m": [cause, "of a new kind", "a new field"]}]])
        [message] = link.receive(0, len(body).to_bytes(PREFIX, "big") + body)
        other = Unavailability(UnavailableCause.OTHER, "of a new kind")
        assert message == Unavailable({"m": other})
        assert str(other) == "it is not available: of a new kind"


def test_a_code_of_a_newer_version_is_harmless() -> None:
    for code in (99, -1, 2**40):
        link = up()
        body = msgspec.msgpack.encode([[3, "a new reason", code, 0, "a new field"]])
        link.receive(0, len(body).to_bytes(PREFIX, "big") + body)
        assert link.closed == Closed(CloseCode.OTHER, "a new reason", by_peer=True)


def test_what_a_peer_says_is_never_taken_for_what_this_end_has_seen() -> None:
    for code in CloseCode:
        link = up()
        link.receive(0, frame(Goodbye("as if it had crashed", code)))
        assert link.closed is not None
        assert link.closed.by_peer
        assert not link.closed.unmeant


def test_frames_over_the_limit_are_split_or_refused() -> None:
    payloads: list[Message] = [Payload(rid, "UINT8", (600,), bytes(600)) for rid in range(5)]
    frames = encode(payloads, 2000)
    assert len(frames) > 1
    link = up(frame_bytes_max=2000)
    assert [message for each in frames for message in link.receive(0, each)] == payloads
    with pytest.raises(LinkError, match="a Payload of 6"):
        encode(payloads[:1], 500)
    link.receive(0, (2001).to_bytes(PREFIX, "big"))
    assert link.closed == Closed(
        CloseCode.MALFORMED, "a frame of 2001 bytes is over the limit of 2000"
    )


def test_frame_is_a_plain_msgpack_list() -> None:
    # Other languages may join: nothing but a length and standard msgpack.
    body = frame(Cancel(9))[PREFIX:]
    assert msgspec.msgpack.decode(body) == [[11, 9]]


def test_what_cannot_be_said_takes_nothing_else_with_it() -> None:
    frames, invalid = encode_valid([*SAID[:2], Cancel(2**70), *SAID[2:]])
    link = up()
    assert [message for each in frames for message in link.receive(0, each)] == SAID
    assert [reason.partition(":")[0] for reason in invalid] == ["Cancel"]


def test_other_protocol_is_refused_by_name() -> None:
    link = session()
    link.receive(0, frame(hello(protocol=PROTOCOL + 1)))
    assert link.peer is None
    assert link.closed is not None
    assert link.closed.code is CloseCode.PROTOCOL
    assert f"backend 3 speaks protocol {PROTOCOL + 1}" in link.closed.detail
