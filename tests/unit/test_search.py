"""The search for a server's limit, on servers that are a number."""

import pytest

from benchmarks.search import highest


@pytest.mark.parametrize("guess_rps", [50.0, 480.0, 4000.0])
def test_finds_the_limit_to_the_precision_from_any_guess(guess_rps: float) -> None:
    found = highest(lambda rate: rate <= 500, guess_rps, 0.03)
    assert 500 / 1.03 <= found <= 500


def test_tries_nothing_twice_and_never_below_what_is_known_good() -> None:
    tried: list[float] = []

    def good(rate: float) -> bool:
        tried.append(rate)
        return rate <= 500

    found = highest(good, 450, 0.03)
    assert len(set(tried)) == len(tried)
    assert tried[:2] == [450, 585]
    assert min(tried) == 450
    assert found == max(rate for rate in tried if rate <= 500)


def test_a_server_that_serves_nothing_has_no_limit() -> None:
    assert highest(lambda rate: False, 100, 0.03, probes=5) == 0


def test_stops_after_so_many_rates() -> None:
    tried: list[float] = []

    def good(rate: float) -> bool:
        tried.append(rate)
        return True

    assert highest(good, 100, 0.03, probes=3) == pytest.approx(169)
    assert len(tried) == 3
