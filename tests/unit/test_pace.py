"""Pauses of a process that loads beside another which serves."""

from fermata.deployments.backend.execution.pace import REST, Pace


def test_a_process_alone_never_rests() -> None:
    rests: list[float] = []
    Pace(sleep=rests.append).rest(1.0)
    assert rests == []


def test_beside_another_it_rests_in_proportion_until_that_one_is_gone() -> None:
    rests: list[float] = []
    serves = [True, True, False]
    pace = Pace(lambda: serves.pop(0), rests.append)
    for took_s in (0.1, 0.5, 0.5):
        pace.rest(took_s)
    assert rests == [REST * 0.1, REST * 0.5]
