"""Sessions: bytes in any pieces, hellos, epochs, silence; never a crash."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.units import ms
from router.links.messages import (
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
)
from router.links.session import PREFIX, LinkError, Session, encode, encode_the_sayable


def hello(role: str = "backend", epoch: int = 0, protocol: int = PROTOCOL) -> Hello:
    return Hello(protocol, role, 3, epoch)


def session(role: str = "router", epoch: int = 0, frame_bytes_max: int = 1 << 20) -> Session:
    return Session(hello(role, epoch), 0, frame_bytes_max=frame_bytes_max)


def frame(*messages: Message) -> bytes:
    return encode(messages)[0]


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
    stream = frame(hello()) + b"".join(frame(*messages) for messages in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    link = session()
    heard: list[Message] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += link.receive(0, stream[start:end])
    assert link.closed is None
    assert link.peer == hello()
    assert heard == [message for messages in frames for message in messages]
    assert len(link.buffer) == 0


@given(st.lists(st.binary(max_size=64), max_size=8), st.booleans())
def test_no_bytes_crash_it(chunks: list[bytes], greeted: bool) -> None:
    link = session()
    if greeted:
        link.receive(0, frame(hello()))
    for chunk in chunks:
        link.receive(0, chunk)
        link.receive(0, len(chunk).to_bytes(PREFIX, "big") + chunk)
    assert link.closed is None or link.closed.startswith(("malformed", "goodbye", "refused"))


def test_a_stranger_gets_no_memory() -> None:
    large = Payload(1, "UINT8", (1 << 17,), bytes(1 << 17))
    link = session()
    assert link.receive(0, (1 << 17).to_bytes(PREFIX, "big")) == []
    assert link.closed == "malformed: a frame of 131072 bytes is over the limit of 65536"
    known = session()
    assert known.receive(0, frame(hello()) + frame(large)) == [large]


def test_what_came_before_a_malformed_frame_is_heard() -> None:
    link = session()
    heard = link.receive(0, frame(hello()) + frame(Cancel(4)) + b"\0\0\0\1\xc1")
    assert heard == [Cancel(4)]
    assert link.closed is not None
    assert link.closed.startswith("malformed")
    assert link.receive(0, frame(Cancel(5))) == []


def test_nested_msgpack_is_malformed_not_a_crash() -> None:
    link = session()
    body = b"\x91" * 100_000
    link.receive(0, len(body).to_bytes(PREFIX, "big") + body)
    assert link.closed is not None
    assert link.closed.startswith("malformed")


def test_text_that_is_no_utf8_is_malformed() -> None:
    link = session()
    link.receive(0, frame(hello()))
    body = frame(Dropped(1, "late"))[PREFIX:].replace(b"late", b"la\xff\xfe")
    link.receive(0, len(body).to_bytes(PREFIX, "big") + body)
    assert link.closed is not None
    assert link.closed.startswith("malformed")


def test_first_word_must_be_hello_and_only_once() -> None:
    early = session()
    assert early.receive(0, frame(Cancel(1))) == []
    assert early.closed == "malformed: Cancel before hello"
    twice = session()
    twice.receive(0, frame(hello(), hello()))
    assert twice.closed == "malformed: backend 3 said hello twice"


def test_other_protocol_is_refused_by_name() -> None:
    link = session()
    link.receive(0, frame(hello(protocol=PROTOCOL + 1)))
    assert link.peer is None
    assert link.closed is not None
    assert f"backend 3 speaks protocol {PROTOCOL + 1}" in link.closed


@pytest.mark.parametrize(
    ("mine", "role", "theirs", "word"),
    [
        ("backend", "router", 4, "router epoch 4 is stale: this backend has met 5"),
        ("router", "backend", 6, "this router's epoch 5 is stale: backend 3 has met 6"),
    ],
)
def test_older_router_is_refused(mine: str, role: str, theirs: int, word: str) -> None:
    link = session(mine, epoch=5)
    link.receive(0, frame(hello(role, theirs)))
    assert link.closed is not None
    assert word in link.closed


def test_newer_router_and_unaware_peers_are_welcome() -> None:
    assert _meets("backend", 5, "router", 6)
    assert _meets("router", 5, "frontend", 0)
    assert _meets("backend", 5, "frontend", 2)


def _meets(mine: str, epoch: int, role: str, theirs: int) -> bool:
    link = session(mine, epoch)
    link.receive(0, frame(hello(role, theirs)))
    return link.peer is not None


def test_peer_is_dead_after_silence_but_not_while_it_beats() -> None:
    link = session()
    link.receive(0, frame(hello()))
    for tick in range(1, 8):
        link.receive(ms(100 * tick), frame(Heartbeat(0)))
        assert link.check(ms(100 * tick))
    assert link.check(ms(800))
    assert link.check(ms(900))
    assert link.check(ms(1000))
    assert not link.check(ms(1001))
    assert link.closed == "silent: nothing heard for 301 ms"


def test_time_in_which_one_did_not_run_oneself_is_not_the_peers_silence() -> None:
    link = session()
    assert link.check(ms(75))
    # 4,850 ms late: of five seconds, 75 and 75 ms were listened to.
    assert link.check(ms(5000))
    assert link.check(ms(5075))
    assert link.check(ms(5150))
    assert not link.check(ms(5151))
    assert link.closed == "silent: nothing heard for 301 ms"


def test_whoever_starves_together_with_its_peer_does_not_give_it_up() -> None:
    link = session()
    # Both run for a moment every 130 ms: each look is late, and each time something was said.
    for tick in range(1, 100):
        link.receive(ms(130 * tick - 129), frame(hello() if tick == 1 else Heartbeat(0)))
        assert link.check(ms(130 * tick))


def test_a_late_look_gives_no_verdict_before_the_socket_has_been_read() -> None:
    link = session()
    for look in (75, 150, 225, 300):
        assert link.check(ms(look))
    assert link.check(ms(2000)), "words may be waiting"
    assert not link.check(ms(2075))


def test_a_dead_peer_is_noticed_although_every_look_is_late() -> None:
    link = session()
    looks = [look for look in range(1, 20) if link.check(ms(1000 * look))]
    # 75 ms count of each; four of them are allowed.
    assert looks == [1, 2, 3, 4]


def test_goodbye_ends_it_with_the_reason() -> None:
    link = session()
    heard = link.receive(0, frame(hello()) + frame(Cancel(1), Goodbye("moved"), Cancel(2)))
    assert heard == [Cancel(1)]
    assert link.closed == "goodbye: moved"
    other = session("backend")
    other.receive(0, frame(hello("router")))
    other.receive(0, link.farewell("x"))
    assert other.closed == "goodbye: x"


def test_frames_over_the_limit_are_split_or_refused() -> None:
    payloads: list[Message] = [Payload(rid, "UINT8", (600,), bytes(600)) for rid in range(5)]
    frames = encode(payloads, 2000)
    assert len(frames) > 1
    link = session(frame_bytes_max=2000)
    link.receive(0, frame(hello()))
    assert [message for each in frames for message in link.receive(0, each)] == payloads
    with pytest.raises(LinkError, match="a Payload of 6"):
        encode(payloads[:1], 500)
    link.receive(0, (2001).to_bytes(PREFIX, "big"))
    assert link.closed == "malformed: a frame of 2001 bytes is over the limit of 2000"


def test_frame_is_a_plain_msgpack_list() -> None:
    # Other languages may join: nothing but a length and standard msgpack.
    body = frame(Cancel(9))[PREFIX:]
    assert msgspec.msgpack.decode(body) == [[11, 9]]


def test_what_cannot_be_said_takes_nothing_else_with_it() -> None:
    frames, unsayable = encode_the_sayable([*SAID[:2], Cancel(2**70), *SAID[2:]])
    link = session()
    link.receive(0, frame(hello()))
    assert [message for each in frames for message in link.receive(0, each)] == SAID
    assert [reason.partition(":")[0] for reason in unsayable] == ["Cancel"]
