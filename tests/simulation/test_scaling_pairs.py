"""The autoscaler with applications whose policies tell different things, or nothing."""

from itertools import combinations_with_replacement

import pytest

from benchmarks.autoscale_policies import BAD_RATE_MAX, Mix, judge

POLICIES = (
    "deferred",
    "central-queue",
    "lookahead",
    "ramsis",
    "routing",
    "jellyfish",
    "batch-queues",
)
CHANGES_MAX = 3


PAIRS = list(combinations_with_replacement(POLICIES, 2))


@pytest.mark.parametrize("policies", PAIRS)
def test_any_two_policies_settle_and_serve(policies: tuple[str, str]) -> None:
    bad_rate, changes = judge(Mix(policies).scenario(seed=1))
    assert bad_rate <= BAD_RATE_MAX
    assert changes <= CHANGES_MAX


@pytest.mark.parametrize("window_s", [2, 10])
@pytest.mark.parametrize("other", ["central-queue", "routing"])
def test_other_windows_settle_too(other: str, window_s: float) -> None:
    bad_rate, changes = judge(Mix(("deferred", other), window_s=window_s).scenario(seed=2))
    assert bad_rate <= BAD_RATE_MAX
    assert changes <= CHANGES_MAX
