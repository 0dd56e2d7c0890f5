"""Who is kept from doing harm, and until when."""

from fermata.foundation.units import ms, seconds
from fermata.router.health.hang_detector import HangDetector, HangLimits
from fermata.router.health.quarantine import Quarantine, QuarantineRules

RULES = QuarantineRules()
GRACE_NS = HangLimits().grace_ns


def test_a_backend_that_drags_is_replaced_after_many_batches() -> None:
    quarantine = Quarantine()
    for _ in range(RULES.slow_batches - 1):
        assert not quarantine.on_done(1, 0, 2.5, failed=False)
    assert quarantine.on_done(1, 0, 2.5, failed=False) == "it takes 2.5 times as long as its peers"


def test_one_batch_at_its_peers_pace_clears_it() -> None:
    quarantine = Quarantine()
    for _ in range(RULES.slow_batches - 1):
        quarantine.on_done(1, 0, 2.5, failed=False)
    quarantine.on_done(1, 0, 1.0, failed=False)
    assert not quarantine.on_done(1, 0, 2.5, failed=False)


def test_failures_count_only_while_others_succeed() -> None:
    quarantine = Quarantine()
    for _ in range(2 * RULES.failed_batches):
        # A model that fails everywhere.
        assert not quarantine.on_done(1, 0, 1.0, failed=True)
    for _ in range(RULES.failed_batches):
        quarantine.on_done(2, 0, 1.0, failed=False)
    assert "failed here, and none elsewhere" in quarantine.on_done(1, 0, 1.0, failed=True)


def test_successes_of_other_models_say_nothing_about_one_that_always_fails() -> None:
    quarantine = Quarantine()
    for _ in range(10 * RULES.failed_batches):
        quarantine.on_done(2, 1, 1.0, failed=False)
        assert not quarantine.on_done(1, 0, 1.0, failed=True)


def test_failures_are_excused_where_a_model_fails_now_and_then_on_every_backend() -> None:
    quarantine = Quarantine()
    for _ in range(20):
        for _ in range(RULES.failed_batches):
            for failed in (True, False):
                quarantine.on_done(2, 0, 1.0, failed)
            # By chance, all that go wrong here do so in a row.
            assert not quarantine.on_done(1, 0, 1.0, failed=True)
        quarantine.on_done(1, 0, 1.0, failed=False)


def test_two_broken_backends_do_not_excuse_each_other() -> None:
    quarantine = Quarantine()
    told = ["", ""]
    for _ in range(RULES.failed_batches + 1):
        quarantine.on_done(2, 0, 1.0, failed=False)
        told = [quarantine.on_done(backend, 0, 1.0, failed=True) for backend in (0, 1)]
    assert all(told)


def test_a_model_that_always_fails_does_not_hide_a_broken_backend() -> None:
    quarantine = Quarantine()
    told = ""
    for _ in range(RULES.failed_batches + 1):
        quarantine.on_done(2, 0, 1.0, failed=True)
        quarantine.on_done(2, 1, 1.0, failed=False)
        for application in (0, 1):
            told = quarantine.on_done(1, application, 1.0, failed=True)
    assert "failed here" in told


def test_a_model_that_kills_its_processes_rests_and_may_try_again() -> None:
    quarantine = Quarantine()
    for backend in range(RULES.crashes - 1):
        assert not quarantine.on_crash(0, backend, 7)
    assert quarantine.on_crash(0, 9, 7)
    assert quarantine.is_quarantined(RULES.quarantine_ns - 1, 7)
    assert quarantine.wake_at_ns() == RULES.quarantine_ns
    assert quarantine.released(RULES.quarantine_ns - 1) == []
    assert quarantine.released(RULES.quarantine_ns) == [7]
    assert not quarantine.is_quarantined(RULES.quarantine_ns, 7)
    for backend in range(RULES.crashes):
        quarantine.on_crash(seconds(100), 20 + backend, 7)
    assert quarantine.wake_at_ns() == seconds(100) + 2 * RULES.quarantine_ns


def test_backends_that_die_of_something_else_do_not_blame_the_model() -> None:
    quarantine = Quarantine()
    for backend in range(10 * RULES.crashes):
        assert not quarantine.on_crash(0, backend, 7)
        for _ in range(RULES.crash_batches_max + 1):
            quarantine.on_done(99, 7, 1.0, failed=False)


def test_a_machine_that_falls_counts_once_however_many_backends_it_had() -> None:
    quarantine = Quarantine()
    for backend in range(10 * RULES.crashes):
        assert not quarantine.on_crash(ms(backend), backend, 7, "machine-1")
    assert not quarantine.on_crash(ms(500), 50, 7, "machine-2")
    # Another crash there, later, is another crash.
    assert quarantine.on_crash(RULES.together_ns + ms(500), 51, 7, "machine-1")


def test_a_backend_that_comes_back_had_only_lost_its_link() -> None:
    quarantine = Quarantine()
    for _ in range(10 * RULES.crashes):
        assert not quarantine.on_crash(0, 1, 7)
        quarantine.on_up(0, 1)


def test_backends_that_come_back_end_a_rest() -> None:
    quarantine = Quarantine()
    assert [bool(quarantine.on_crash(0, backend, 7)) for backend in range(3)] == [0, 0, 1]
    quarantine.on_up(ms(20), 1)
    assert not quarantine.is_quarantined(ms(20), 7)
    assert quarantine.released(ms(20)) == [7]
    # The next one is as long as the first.
    for backend in range(10, 10 + RULES.crashes):
        quarantine.on_crash(seconds(1), backend, 7)
    assert quarantine.wake_at_ns() == seconds(1) + RULES.quarantine_ns


def test_those_who_die_while_it_rests_make_it_rest_no_longer() -> None:
    quarantine = Quarantine()
    for backend in range(3 * RULES.crashes):
        quarantine.on_crash(backend, backend, 7)
    assert quarantine.wake_at_ns() == RULES.crashes - 1 + RULES.quarantine_ns
    # Of so many, one that comes back proves little.
    quarantine.on_up(ms(20), 1)
    assert quarantine.is_quarantined(ms(20), 7)


def test_a_batch_is_overdue_past_its_plan_and_a_grace() -> None:
    watch = HangDetector()
    watch.begin(0, 5, start_at_ns=ms(10), plan_ns=ms(20))
    limit_ns = ms(10) + GRACE_NS + 2 * ms(20)
    while watch.check_at_ns < limit_ns:
        assert watch.overdue(watch.check_at_ns) == []
    assert watch.check_at_ns <= limit_ns + GRACE_NS // 4
    assert watch.overdue(watch.check_at_ns) == [5]


def test_who_looks_late_gives_everyone_more_time() -> None:
    watch = HangDetector()
    watch.begin(0, 5, start_at_ns=0, plan_ns=ms(20))
    assert watch.overdue(seconds(2)) == []
    assert watch.overdue(watch.check_at_ns) == []
    assert watch.overdue(watch.check_at_ns) == [5]


def test_a_batch_that_ended_is_not_overdue() -> None:
    watch = HangDetector()
    watch.begin(0, 5, start_at_ns=0, plan_ns=ms(20))
    watch.end(5)
    assert watch.overdue(seconds(10)) == []
    assert watch.check_at_ns > seconds(1000)
