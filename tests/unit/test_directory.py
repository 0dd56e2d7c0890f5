"""The directory: versions, shares and how they follow headroom."""

import msgspec
import pytest

from fermata.router.links.directory import (
    Directory,
    Home,
    is_newer,
    is_worth_telling,
    next_version,
    shifted,
)
from fermata.router.links.messages import Message
from fermata.router.links.session import PREFIX, encode

FIRST = Directory(
    7,
    (Home(0, "127.0.0.1:1", 5), Home(1, "127.0.0.1:2", 6)),
    {"a": ((0, 1.0),), "b@2": ((0, 0.5), (1, 0.5))},
    ("b@2",),
)


def test_says_where_an_application_lives() -> None:
    assert FIRST.homes_of("a") == (0,)
    assert FIRST.homes_of("b@2") == (0, 1)
    assert FIRST.homes_of("b") == ()
    assert FIRST.split_among_several() == ("b@2",)


def test_is_a_message_of_links() -> None:
    frame = encode([FIRST])[0]
    assert msgspec.msgpack.decode(frame[PREFIX:], type=list[Message]) == [FIRST]


def test_holds_by_its_version() -> None:
    later = msgspec.structs.replace(FIRST, version=8)
    assert is_newer(FIRST, None)
    assert is_newer(later, FIRST)
    assert not is_newer(FIRST, later)
    assert not is_newer(FIRST, FIRST)


def test_versions_grow_over_control_planes() -> None:
    assert next_version(0, 1_000) == 1_000
    assert next_version(1_000, 900) == 1_001


def test_shares_shift_towards_headroom() -> None:
    found = shifted(((0, 0.5), (1, 0.5)), {0: 0.2, 1: 0.6})
    # 0.5 * (1 -+ 0.5 * 0.2)
    assert found == ((0, pytest.approx(0.45)), (1, pytest.approx(0.55)))
    assert is_worth_telling(((0, 0.5), (1, 0.5)), found)


def test_shares_stay_where_headroom_is_equal_or_unknown() -> None:
    shares = ((0, 0.25), (1, 0.75))
    assert shifted(shares, {0: 0.4, 1: 0.4}) == shares
    assert shifted(shares, {0: 0.4}) == shares
    assert not is_worth_telling(shares, shares)
