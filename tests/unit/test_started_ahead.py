"""When a router asks Ray for a process ahead, without Ray."""

import logging
from contextlib import suppress

import pytest

pytest.importorskip("ray")
from fermata.router.leadership.started_ahead import AFTER_S, LOOK_S, stay_ahead


class Over(BaseException):
    """The end of the time that is played."""


def play(idle: list[bool], error: str = "") -> tuple[list[float], float]:
    """Times of asking, where so many looks find a process idle or not; and when it ended."""
    now_s, asked = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        if not idle and now_s > AFTER_S:
            raise Over

    def ask() -> None:
        asked.append(now_s)
        if error:
            raise RuntimeError(error)

    with suppress(Over):
        stay_ahead(ask, lambda: {1} if idle.pop(0) else set(), sleep)
    return asked, now_s


def test_one_is_asked_for_once_the_router_serves_and_when_it_is_gone() -> None:
    asked, _ = play([True, True, False, True])
    assert asked == [AFTER_S, AFTER_S + 3 * LOOK_S]


def test_a_ray_that_has_no_such_call_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fermata"):
        asked, ended_s = play([True], error="no such call")
    assert asked == [AFTER_S]
    assert ended_s == AFTER_S
    assert "no process is started ahead" in caplog.text
