"""Outlier detection: errors that count, how many backends go, and for how long."""

from fermata.foundation.units import NEVER, seconds
from fermata.router.health.outliers import OutlierRules, Outliers, UntriedErrors

RULES = OutlierRules()


def test_errors_count_in_a_row() -> None:
    outliers = Outliers()
    for _ in range(3):
        for _ in range(RULES.consecutive_errors - 1):
            assert not outliers.on_error(1)
        outliers.on_success(1)
    for _ in range(RULES.consecutive_errors - 1):
        outliers.on_error(1)
    assert outliers.on_error(1) == "5 batches in a row failed here and ran well elsewhere"


def test_no_more_than_half_of_the_peers_go() -> None:
    outliers = Outliers()
    most = {
        peers: max(n for n in range(peers) if outliers.may_eject(0, peers, n - 1) or n == 0)
        for peers in (1, 2, 3, 4, 7, 8)
    }
    assert most == {1: 0, 2: 1, 3: 1, 4: 2, 7: 3, 8: 4}


def test_who_serves_nobody_goes_beyond_that_but_never_the_last() -> None:
    outliers = Outliers()
    for _ in range(RULES.hopeless_errors):
        outliers.on_error(0)
    assert outliers.may_eject(0, 8, 6)
    assert not outliers.may_eject(0, 8, 7)
    assert not outliers.may_eject(0, 1, 0)


def test_each_ejection_is_longer_up_to_a_limit() -> None:
    outliers = Outliers()
    now_ns = 0
    for times in range(1, 40):
        outliers.eject(now_ns, 1, "boom")
        assert outliers.wake_at_ns() == now_ns + min(times * RULES.eject_ns, RULES.eject_ns_max)
        now_ns = outliers.wake_at_ns()
        assert outliers.due(now_ns - 1) == []
        assert outliers.due(now_ns) == [1]
        outliers.give_back(now_ns, 1)
        assert outliers.on_trial(1)
        assert outliers.wake_at_ns() == NEVER


def test_good_service_makes_earlier_ejections_forgotten() -> None:
    outliers = Outliers()
    for now_ns in (0, seconds(100), seconds(200)):
        outliers.eject(now_ns, 1, "boom")
        outliers.give_back(now_ns + RULES.eject_ns, 1)
    assert outliers.records[1].ejections == 3
    outliers.on_success(1)
    outliers.eject(seconds(210) + 2 * RULES.eject_ns, 1, "boom")
    assert outliers.records[1].ejections == 2


def test_a_trial_that_failed_for_an_input_does_not_count() -> None:
    outliers = Outliers()
    outliers.eject(0, 1, "boom")
    outliers.give_back(RULES.eject_ns, 1)
    assert not outliers.takes_verdict(1)
    outliers.eject(RULES.eject_ns, 1, "again")
    assert outliers.takes_verdict(1)
    assert not outliers.takes_verdict(1)
    outliers.repeat_trial(RULES.eject_ns, 1)
    assert outliers.records[1].ejections == 1
    assert outliers.on_trial(1)
    assert not outliers.ejected


def test_an_untried_error_counts_between_two_batches_that_ended_well_elsewhere() -> None:
    errors = UntriedErrors()
    assert errors.on_success(2, 0) == []
    errors.on_failure(1, 0)
    errors.on_untried(1, 0)
    # Another model's success says nothing.
    assert errors.on_success(2, 1) == []
    assert errors.on_success(2, 0) == [1]
    assert errors.on_success(2, 0) == []


def test_an_untried_error_is_excused_by_others_right_before_or_after_it() -> None:
    errors = UntriedErrors()
    errors.on_failure(2, 0)
    errors.on_failure(1, 0)
    errors.on_untried(1, 0)
    assert errors.on_success(3, 0) == []
    errors.on_failure(1, 0)
    errors.on_untried(1, 0)
    errors.on_failure(2, 0)
    assert errors.on_success(3, 0) == []


def test_a_backend_is_no_witness_in_its_own_case() -> None:
    errors = UntriedErrors()
    for _ in range(2):
        errors.on_failure(1, 0)
        errors.on_untried(1, 0)
    assert errors.on_success(1, 0) == []
    errors.on_failure(1, 0)
    errors.on_untried(1, 0)
    errors.on_gone(1)
    assert errors.on_success(2, 0) == []
