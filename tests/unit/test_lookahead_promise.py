"""Outcomes that the queue that looks ahead expects: foretold ones, and those it has seen."""

import pytest

from fermata.router.core.signals import Promise
from fermata.router.policies.lookahead.outcomes import OutcomeCount, Outcomes

FORETOLD = Promise(0.8, 0.0)


def test_foretold_outcome_is_promised_until_something_has_ended() -> None:
    assert Outcomes().expected(FORETOLD) == FORETOLD


def test_experience_outweighs_what_was_foretold() -> None:
    outcomes = Outcomes()
    for _ in range(100):
        outcomes.add(good=90, bad=10, answered=92, right=64.4)
    told = outcomes.expected(FORETOLD)
    assert told.accuracy == pytest.approx(0.7, abs=0.002)
    assert told.violation == pytest.approx(0.1, abs=0.002)


def test_old_experience_fades() -> None:
    outcomes = Outcomes()
    for good in (0, 1):
        for _ in range(1000):
            outcomes.add(good=100 * good, bad=100 * (1 - good), answered=0, right=0.0)
    assert outcomes.expected(FORETOLD).violation < 0.02


def test_each_outcome_is_on_one_account() -> None:
    count, first, second = OutcomeCount(), Outcomes(), Outcomes()
    count.answered, count.right = 4, 2.0
    count.settle(3, 1, first)
    count.settle(3, 1, first)
    count.answered, count.right = 6, 4.0
    count.settle(5, 1, second)
    count.settle(9, 9, None)
    count.settle(9, 9, second)
    assert (first.good, first.bad, first.answered, first.right) == (3, 1, 4, 2.0)
    assert (second.good, second.bad, second.answered, second.right) == (2, 0, 2, 2.0)
