"""The autoscaler with two applications whose policies tell different things, or nothing."""

from itertools import combinations_with_replacement

import pytest

from benchmarks.autoscale import BAD_RATE_MAX, beside, judge_pair

POLICIES = ("deferred", "central-queue", "ramsis", "routing", "jellyfish", "batch-queues")
CHANGES_MAX = 3


PAIRS = list(combinations_with_replacement(POLICIES, 2))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_any_two_policies_settle_and_serve(first: str, second: str) -> None:
    bad_rate, changes = judge_pair(beside(first, second, seed=1))
    assert bad_rate <= BAD_RATE_MAX
    assert changes <= CHANGES_MAX


@pytest.mark.parametrize("window_s", [2, 10])
@pytest.mark.parametrize("other", ["central-queue", "routing"])
def test_other_windows_settle_too(other: str, window_s: float) -> None:
    bad_rate, changes = judge_pair(beside("deferred", other, seed=2, window_s=window_s))
    assert bad_rate <= BAD_RATE_MAX
    assert changes <= CHANGES_MAX
