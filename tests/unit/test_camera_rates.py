"""Rates of cameras: measured, not believed, and each admitted up to its own share."""

import pytest

from benchmarks.camera_rates import misses
from fermata.clients.frames import thinned


@pytest.mark.parametrize("declared", [8.0, 0.0, 1.0])
def test_cameras_that_send_more_than_they_say_harm_no_other(declared: float) -> None:
    found = misses([30.0, 30.0, 8.0, 8.0, 8.0, 8.0], [declared, declared, 8.0, 8.0, 8.0, 8.0])
    assert max(found[2:]) <= 0.01


def test_cameras_that_tell_the_truth_are_served_as_ever() -> None:
    assert max(misses([8.0] * 6, [8.0] * 6)) == 0.0
    # Their rates need not be told at all.
    assert max(misses([8.0] * 6, [0.0] * 6)) <= 0.01


@pytest.mark.parametrize(("source", "fps", "kept"), [(30, 8, 80), (30, 30, 300), (25, 30, 250)])
def test_live_source_is_thinned_to_the_rate_that_is_asked_for(
    source: int, fps: float, kept: int
) -> None:
    # Ten seconds of a camera whose frames come a little early or late.
    times = [frame / source + 0.004 * (frame % 3) for frame in range(10 * source)]
    clock = iter(times)
    found = list(thinned(iter([b""] * len(times)), fps, lambda: next(clock)))
    assert len(found) == pytest.approx(kept, abs=1)
