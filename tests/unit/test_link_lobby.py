"""Connections without a proof: never more than there is room for, and the newest stay."""

from hypothesis import given
from hypothesis import strategies as st

from fermata.router.links.lobby import Lobby


class Caller:
    """One connection."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.here = True

    def turn_out(self) -> None:
        assert self.here
        self.here = False


def test_the_one_that_has_waited_longest_goes() -> None:
    lobby = Lobby(each_max=2, total_max=3)
    callers = [Caller(number) for number in range(6)]
    for caller, address in zip(callers[:3], "aab", strict=True):
        lobby.enter(caller, address)
    assert all(each.here for each in callers)
    lobby.enter(callers[3], "a")
    assert [each.here for each in callers[:4]] == [False, True, True, True]
    # All places are taken, and this address has room of its own left.
    lobby.enter(callers[4], "c")
    assert [each.here for each in callers[:5]] == [False, False, True, True, True]
    lobby.leave(callers[2], proven=True)
    lobby.enter(callers[5], "c")
    assert [each.here for each in callers] == [False, False, True, True, True, True]
    assert lobby.refused == 2


def test_whoever_leaves_twice_is_counted_once() -> None:
    lobby, caller = Lobby(each_max=2, total_max=3), Caller(1)
    lobby.enter(caller, "a")
    lobby.leave(caller, proven=False)
    lobby.leave(caller, proven=False)
    assert lobby.refused == 1
    assert not lobby.addresses
    assert not lobby.waiting


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["stay", "prove", "end"]))),
)
def test_there_are_never_more_than_allowed_and_nothing_is_kept_of_the_others(
    each_max: int, total_max: int, story: list[tuple[str, str]]
) -> None:
    lobby = Lobby(each_max, total_max)
    inside: dict[Caller, str] = {}
    for number, (address, fate) in enumerate(story):
        caller = Caller(number)
        lobby.enter(caller, address)
        assert caller.here, "whoever comes is let in"
        inside[caller] = address
        inside = {each: where for each, where in inside.items() if each.here}
        if fate != "stay":
            lobby.leave(caller, proven=fate == "prove")
            del inside[caller]
        assert lobby.addresses == inside
        assert len(inside) <= total_max
        addresses = list(inside.values())
        assert all(addresses.count(each) <= each_max for each in addresses)
        assert {link for those in lobby.waiting.values() for link in those} == set(inside)
