"""A worker's DNN where its clients' networks differ."""

from random import Random

import pytest

from fermata.foundation.units import ms
from fermata.router.policies.jellyfish.decision import Decider, SearchEffort
from fermata.router.policies.jellyfish.known_clients import ClientNeeds
from fermata.router.policies.jellyfish.mapping_problem import MappingProblem, answer
from fermata.router.policies.jellyfish.problem import make_zoo

TABLES = ((ms(10), ms(14), ms(18)), (ms(15), ms(22), ms(29)), (ms(25), ms(40), ms(55)))


def needs(client: int, mbps: float, floor: float = 0.0, pinned: int = -1) -> ClientNeeds:
    # Frames of 100, 250 and 450 kbit.
    bits = {128: 100e3, 224: 250e3, 320: 450e3}
    return ClientNeeds(client, ms(100), 10.0, mbps * 1e6, 0, floor, pinned, bits)


def dnn_of(*wishes: ClientNeeds, selection: str = "resplit") -> tuple[int, tuple[int, ...]]:
    problem = MappingProblem(
        (0.3, 0.5, 0.6), TABLES, (128, 224, 320), (0, 1, 2), wishes, 0.0, 0, 0.0, 1
    )
    decider = Decider(make_zoo((), ()), SearchEffort(selection), 4, Random(0))
    (post,) = answer(decider, problem).posts
    return post.dnn, tuple(sorted(post.clients))


def test_one_slow_network_does_not_decide_for_all() -> None:
    # Two runs at 320 pixels leave 50 ms, of which the second's 128 pixels take 29: within 0.6.
    assert dnn_of(needs(1, 50), needs(2, 3.5)) == (2, (1, 2))
    # As published, all send what the slowest can.
    assert dnn_of(needs(1, 50), needs(2, 3.5), selection="published") == (0, (1, 2))


def test_a_larger_one_must_leave_time_for_the_slowest_network() -> None:
    # 128 pixels take 40 ms: within 0.6 of the 70 that two runs at 224 pixels leave, not of 50.
    assert dnn_of(needs(1, 50), needs(2, 2.5)) == (1, (1, 2))


def test_alone_it_sends_what_fills_its_dnn() -> None:
    assert dnn_of(needs(1, 2.2)) == (0, (1,))


@pytest.mark.parametrize("wish", [needs(2, 3.5, pinned=0), needs(2, 9, floor=0.5)])
def test_limits_of_clients_hold(wish: ClientNeeds) -> None:
    # Pinned to the smallest; or 250 kbit take 28 ms, which leaves time for 320 pixels too.
    pinned = wish.pinned >= 0
    assert dnn_of(needs(1, 50), wish) == (0 if pinned else 2, (1, 2))
    # A frame worth less than its floor does not do.
    low = needs(2, 4.5, floor=0.5)
    assert dnn_of(needs(1, 50), low) == (1, (1, 2))
