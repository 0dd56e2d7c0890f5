"""Pauses of a process that loads beside another which serves."""

import pytest

from fermata.deployments.backend.execution.pace import LOOK_S, REST_BESIDE, Pace
from fermata.router.core.costs import RULES


def test_a_process_alone_never_rests() -> None:
    rests: list[float] = []
    Pace(sleep=rests.append).rest(1.0)
    assert rests == []


def test_beside_another_it_rests_in_proportion() -> None:
    rests: list[float] = []
    Pace(lambda: True, rests.append).rest(0.1)
    assert sum(rests) == pytest.approx(REST_BESIDE * 0.1)


def test_fewer_batches_meet_a_step_than_routers_plan_by() -> None:
    slow_share = 1.0 / (1.0 + REST_BESIDE)
    assert slow_share + RULES.margin_share < 1.0


def test_a_rest_ends_when_the_other_is_gone() -> None:
    rests: list[float] = []
    serves = [True, True, False]
    Pace(lambda: serves.pop(0), rests.append).rest(2.0)
    assert rests == [LOOK_S, LOOK_S]


def test_beside_another_what_serving_does_not_need_is_put_off() -> None:
    assert not Pace().puts_off
    assert Pace(lambda: True).puts_off
    hasty = Pace()
    hasty.hurries = True
    assert hasty.puts_off
