"""A small fleet of three kinds through a surge: the benchmark's own run, in seconds."""

import pytest

from benchmarks.fleet import Outcome, play
from benchmarks.fleet_control import scaling_options
from benchmarks.fleet_load import draw_fleet
from benchmarks.fleet_parts import Order, PartReport
from benchmarks.fleet_workers import FleetParts
from fermata.foundation.units import seconds

SHARE, SPAN = 0.006, (0.285, 0.325)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return play(11, SHARE, SPAN, 0.3, samples=0)


def test_limits_hold_through_a_surge(outcome: Outcome) -> None:
    assert outcome.requests > 5_000
    assert outcome.moved_over <= 1.0
    assert outcome.kinds_over <= 1.0
    assert outcome.bad <= 0.01


def test_a_process_of_its_own_plays_the_same() -> None:
    fleet = draw_fleet(11, SHARE, SPAN)
    told: list[list[PartReport]] = []
    for processes in (0, 1):
        with FleetParts(processes) as parts:
            parts.start(fleet, scaling_options(fleet), [5] * len(fleet.kinds))
            (number, *_) = fleet.played
            own = [each for each in fleet.models if each.runs_on(fleet.kinds[number])]
            rates = {each.name: 30.0 for each in own}
            orders = [Order(seconds(0.5), rates, 4.0, target=6) for _ in fleet.kinds]
            told.append(parts.step(orders))
    assert told[0] == told[1]
    assert told[0][number].requests > 0
