"""`make fuzz` plays every story of the fault simulation."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fermata.fault_simulator.__main__ import STORIES, USUAL, Played, fuzz, fuzz_all
from fermata.fault_simulator.story import RunResult

ROOT = Path(__file__).parents[2]


class Clock:
    """Time that only seeds take."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def playing(clock: Clock, heard: dict[str, float], broken: str = "") -> Callable[..., bool]:
    """A fuzzer of one story that takes a second longer than it may."""

    def play(story: str, played: Played) -> bool:
        heard[story] = played.seconds
        clock.now_s += played.seconds + 1.0
        return story != broken

    return play


def test_each_story_has_its_part_of_the_time_that_is_left() -> None:
    clock, heard = Clock(), dict[str, float]()
    assert fuzz_all(Played(0, None, 60.0, 1), playing(clock, heard), clock)
    assert heard.keys() == {USUAL, *STORIES}
    assert clock.now_s == pytest.approx(61.0)
    assert [heard[USUAL], heard[next(iter(STORIES))]] == pytest.approx([60 / 6, 49 / 5])


def test_a_story_that_breaks_keeps_no_other_from_being_played() -> None:
    clock, heard = Clock(), dict[str, float]()
    assert not fuzz_all(Played(0, None, 60.0, 1), playing(clock, heard, broken=USUAL), clock)
    assert heard.keys() == {USUAL, *STORIES}


def breaking(seed: int) -> RunResult:
    return RunResult(seed, "a promise does not hold" if seed == 7 else "", {"served": 1}, 1, [])


@pytest.mark.parametrize(
    ("story", "option"), [(USUAL, "--seed 7"), ("trials", "--trials --seed 7")]
)
def test_a_broken_seed_says_how_to_play_it_again(
    story: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Some seeds are played in any case: a story without time would pass without a look.
    assert not fuzz(story, Played(7, 1, 0.0, 1), breaking)
    said = capsys.readouterr().out
    assert "seed 7: BROKEN: a promise does not hold" in said
    assert f"replay with: python -m fermata.fault_simulator {option}\n" in said
    assert f"{story}: 1 seeds from 7 on, 1 broken" in said
    assert fuzz(story, Played(8, 1, 60.0, 1), breaking)


def test_make_fuzz_plays_all_stories() -> None:
    recipe = re.search(r"^fuzz:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert re.search(r"-m fermata\.fault_simulator --all ", recipe[1])
