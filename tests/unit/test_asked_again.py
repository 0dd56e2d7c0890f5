"""Questions that are asked again before an answer has come."""

import asyncio

import pytest

from fermata.router.leadership.asked_again import first_answer


def ask(delays_s: list[float], error: str = "") -> tuple[str, int]:
    """The answer where the first question takes so long, the second one, and so on; and how many
    were asked."""
    asked = 0

    async def answer() -> str:
        nonlocal asked
        number, asked = asked, asked + 1
        await asyncio.sleep(delays_s[number])
        if error:
            raise ValueError(error)
        return f"answer {number}"

    found = asyncio.run(first_answer(answer, every_s=0.02, times=len(delays_s)))
    return found, asked


def test_an_answer_that_comes_at_once_is_asked_for_once() -> None:
    assert ask([0.0, 0.0]) == ("answer 0", 1)


def test_a_question_that_was_held_back_is_asked_again() -> None:
    assert ask([60.0, 60.0, 0.0]) == ("answer 2", 3)


def test_a_slow_answer_counts_though_it_is_asked_again() -> None:
    found, asked = ask([0.05, *[60.0] * 50])
    assert found == "answer 0"
    assert asked > 1


def test_no_answer_is_an_error_and_an_error_is_an_answer() -> None:
    with pytest.raises(TimeoutError, match=r"no answer in 0\.04 s"):
        ask([60.0, 60.0])
    with pytest.raises(ValueError, match="gone"):
        ask([0.0, 0.0], error="gone")
