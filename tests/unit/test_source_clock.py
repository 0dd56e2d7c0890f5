"""Times of live frames: what waited in a buffer is as old as it is."""

from itertools import count

import numpy as np
import pytest

from fermata.clients.frames import timed
from fermata.clients.source_clock import SourceClock
from fermata.foundation.units import ms, seconds

FIRST = seconds(1000)
"""Our time when the source's clock begins."""


def ages(*frames: tuple[float, float]) -> list[float]:
    """By frame (source's time, time of arrival, both in ms since the beginning): age in ms."""
    clock = SourceClock()
    found: list[float] = []
    for source_ms, arrived_ms in frames:
        now_ns = FIRST + ms(arrived_ms)
        found.append((now_ns - clock.captured_at_ns(now_ns, ms(source_ms))) / 1e6)
    return found


def test_frames_that_come_in_step_are_new() -> None:
    assert ages(*((40 * n, 40 * n + 7) for n in range(5))) == pytest.approx([0] * 5, abs=0.05)


def test_frames_that_waited_are_old() -> None:
    # Four frames come at once, after a stall of the network or of the reader.
    found = ages((0, 5), (40, 45), (80, 205), (120, 205), (160, 205), (200, 206))
    assert found == pytest.approx([0, 0, 120, 80, 40, 1], abs=0.1)


def test_the_frame_that_came_soonest_sets_the_clock() -> None:
    assert ages((0, 90), (40, 45), (80, 100)) == pytest.approx([0, 0, 15], abs=0.1)


def test_a_clock_that_runs_slow_makes_no_frame_old() -> None:
    # By 100 millionths: 6 ms in a minute.
    assert max(ages(*((40 * n, 40 * n * 1.0001) for n in range(5000)))) < 1


@pytest.mark.parametrize("source_ms", [0.0, -5000.0])
def test_times_that_begin_anew_are_believed_anew(source_ms: float) -> None:
    assert ages((90_000, 90_005), (source_ms, 90_050)) == [0, 0]


def test_a_frame_that_seems_far_too_old_is_of_another_beginning() -> None:
    assert ages((0, 5), (40, 60_000), (80, 60_040)) == pytest.approx([0, 0, 0], abs=0.05)


def test_a_source_without_times_takes_frames_now() -> None:
    frame = np.zeros((2, 2, 3), np.uint8)
    clock = count(100, 10)
    found = timed(iter([(frame, None), (frame, None)]), lambda: next(clock))
    assert [each.at_ns for each in found] == [100, 110]
