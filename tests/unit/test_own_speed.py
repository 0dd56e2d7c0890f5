"""The rate that a router carries on this machine, by a short trial."""

import itertools

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.live.own_speed import TRIAL_NS, carried_rps


def test_a_slower_clock_carries_less_by_the_same_factor() -> None:
    # Each look at the clock takes a microsecond, or two: events of the trial are the same.
    def rate(step_ns: int) -> float:
        ticks = itertools.count(0, step_ns)
        return carried_rps(step_ns * 20_000, lambda: next(ticks))

    assert rate(2_000) == pytest.approx(rate(1_000) / 2)


def test_the_trial_is_short_and_answers_requests() -> None:
    assert ms(200) >= TRIAL_NS
    # Any machine needs between 1 us and 10 ms for a request.
    assert 100 < carried_rps(ms(20)) < SECOND / 1_000
