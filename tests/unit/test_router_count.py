"""The number of sub-clusters: what a load needs, and when it changes."""

from dataclasses import replace

import pytest
from control_loop_world import reading

from fermata.autoscaler.readings import ClusterReading
from fermata.autoscaler.router_count import RouterCount, routers_needed
from fermata.partitioner.plan import PlacedModel, Plan, SubCluster

PLACE = SubCluster("0", 100.0, 10)


def models(count: int, rate: float, static: int = 1) -> list[PlacedModel]:
    return [PlacedModel(f"m{number}", rate, static, load_cost=5.0) for number in range(count)]


def seen(*targets: int, **home: int) -> ClusterReading:
    made = reading(0, Plan(home), busy_s=(0,) * len(targets))
    return replace(made, targets=targets)


@pytest.mark.parametrize(
    ("given", "everywhere_rps", "needed"),
    [
        (models(4, 20.0), 0.0, 1),
        (models(10, 25.0), 0.0, 3),
        # Beside a shared rate of 60 in each of two, 40 are left.
        (models(2, 40.0), 120.0, 2),
        # Two of 4 and no more fit into 10.
        (models(6, 1.0, 4), 0.0, 3),
        # It cannot be divided, so that it fills one.
        (models(1, 900.0), 0.0, 1),
        ([], 350.0, 4),
        (models(99, 100.0), 0.0, 8),
    ],
)
def test_rates_and_memory_say_how_many_are_needed(
    given: list[PlacedModel], everywhere_rps: float, needed: int
) -> None:
    assert routers_needed(given, PLACE, everywhere_rps, 8) == needed


def test_they_open_after_some_epochs_with_their_part_of_the_backends() -> None:
    count, load = RouterCount(1, 4, 4, 20), models(10, 25.0)
    now = seen(8, 0, 0, 0, **{each.name: 0 for each in load})
    count.on_epoch(now, load, PLACE, 0.0, None)
    assert (count.opened, count.needed, count.targets(now)) == (1, 3, (8, 0, 0, 0))
    count.on_epoch(now, load, PLACE, 0.0, None)
    assert (count.opened, count.opening, count.closed) == (3, {1, 2}, {3})
    assert count.targets(now) == (8, 3, 3, 0)
    assert not count.is_open(replace(now, targets=(8, 3, 3, 0), bare=frozenset((1, 2))))
    # An epoch without need starts the count anew.
    other = RouterCount(1, 4, 4, 20)
    for rate in (25.0, 1.0, 25.0):
        other.on_epoch(now, models(10, rate), PLACE, 0.0, None)
    assert other.opened == 1


def test_they_do_not_open_beyond_the_most_backends() -> None:
    count, now = RouterCount(1, 4, 4, 12), seen(8, 0, 0, 0, m0=0)
    for _ in range(3):
        count.on_epoch(now, models(10, 25.0), PLACE, 0.0, None)
    # Two with four each have room beside eight; three would need six more.
    assert (count.opened, count.targets(now)) == (2, (8, 4, 0, 0))


def test_the_last_one_closes_slowly_once_it_is_empty() -> None:
    count = RouterCount(2, 2, 2, 20)
    now = seen(4, 3, m0=0, m1=1)
    load = models(2, 10.0)
    for _ in range(5):
        count.on_epoch(now, load, PLACE, 0.0, None)
    assert count.opened == 2
    count.on_epoch(now, load, PLACE, 0.0, None)
    # What lives there still has its backends, and the other one gets as many.
    assert (count.opened, count.targets(now)) == (1, (7, 3))
    left = seen(7, 3, m0=0, m1=0)
    assert count.targets(left) == (7, 3)
    count.on_epoch(left, load, PLACE, 0.0, None)
    assert count.targets(left) == (7, 0)


def test_it_does_not_close_where_leaving_it_would_disturb_more_than_is_allowed() -> None:
    count, now = RouterCount(2, 2, 2, 20), seen(4, 3, m0=0, m1=1)
    for _ in range(9):
        count.on_epoch(now, models(2, 10.0), PLACE, 0.0, 9.0)
    assert count.opened == 2
    count.on_epoch(now, models(2, 10.0), PLACE, 0.0, 10.0)
    assert count.opened == 1


def test_routers_near_their_limit_are_not_given_more() -> None:
    count, now = RouterCount(2, 2, 2, 20), seen(4, 3, m0=0, m1=1)
    for _ in range(9):
        count.on_epoch(now, models(2, 45.0), PLACE, 0.0, None)
    assert (count.needed, count.opened) == (1, 2)
