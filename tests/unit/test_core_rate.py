"""The rate meter on arrivals whose rates are known."""

import random

import pytest

from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.core.rate import QUICK, RateMeter


def test_few_arrivals_tell_nothing_before_the_first_bucket_ends() -> None:
    meter = RateMeter(QUICK)
    assert meter.on_arrival(ms(5))
    for at_ms in range(7, 105, 3):
        assert not meter.on_arrival(ms(at_ms))
    assert meter.rps == 0.0
    assert meter.lull_ns == NEVER


def test_a_high_rate_is_known_before_the_first_bucket_ends() -> None:
    meter = RateMeter(QUICK)
    told_ms = [at / 50 for at in range(5 * 50) if meter.on_arrival(ms(at / 50))]
    # As it begins, after a millisecond, and whenever it is twice as old.
    assert told_ms == [0.0, 1.0, 2.0, 4.0]
    assert meter.rps == 50_000.0


def test_a_first_look_changes_nothing_afterwards() -> None:
    meter = RateMeter(QUICK)
    for index in range(500):
        meter.on_arrival(index)
    meter.on_arrival(ms(100))
    assert meter.rps == 5_000.0
    assert meter.count == 1


def test_first_bucket_is_taken_as_it_is() -> None:
    meter = RateMeter()
    for at_ms in range(0, 100, 4):
        meter.on_arrival(ms(at_ms))
    # 25 arrivals in 100 ms; the one that ends the bucket counts in the next.
    assert meter.on_arrival(ms(100))
    assert meter.rps == 250.0
    assert meter.count == 1
    # A quarter of the mean gap of 4 ms.
    assert meter.lull_ns == ms(1)


def test_young_meter_takes_the_plain_mean() -> None:
    meter = RateMeter()
    for count, bucket in ((10, 0), (30, 1), (50, 2)):
        for index in range(count):
            meter.on_arrival(ms(100 * bucket) + index)
    meter.on_arrival(ms(300))
    assert meter.rps == pytest.approx((100 + 300 + 500) / 3)


def test_old_meter_gives_a_tenth_to_the_newest_bucket() -> None:
    meter = RateMeter()
    for bucket in range(20):
        for index in range(10):
            meter.on_arrival(ms(100 * bucket) + index)
    for index in range(20):
        meter.on_arrival(ms(2000) + index)
    meter.on_arrival(ms(2100))
    # 100 rps for 20 buckets, then one with 200.
    assert meter.rps == pytest.approx(110.0)


def test_gap_of_several_buckets_counts_as_so_many() -> None:
    meter = RateMeter()
    for bucket in range(20):
        for index in range(10):
            meter.on_arrival(ms(100 * bucket) + index)
    # The bucket from 1900 to 2000 holds 10; the next arrival comes in the third one after it.
    assert meter.on_arrival(ms(2250))
    expected = 100 + (1 - 0.9**3) * (10 * SECOND / ms(300) - 100)
    assert meter.rps == pytest.approx(expected)
    assert meter.due_at_ns == ms(2300)
    assert not meter.on_arrival(ms(2299))
    assert meter.on_arrival(ms(2300))


def test_after_a_lull_poisson_arrivals_come_as_fast_as_ever() -> None:
    rng, meter, now_ns = random.Random(3), RateMeter(), 0
    for _ in range(5000):
        now_ns += int(rng.expovariate(1000) * SECOND)
        meter.on_arrival(now_ns)
    assert meter.rps == pytest.approx(1000, rel=0.15)
    assert meter.rps_after_lull == pytest.approx(meter.rps, rel=0.1)
    assert meter.rps_after_lull <= meter.rps


def test_after_a_lull_bursts_are_over() -> None:
    meter = RateMeter()
    for burst in range(9):
        for _ in range(10):
            meter.on_arrival(ms(50 * burst))
    # 200 rps, so a lull is 1.25 ms and each one lasts another 48.75 ms. At 400 ms six have ended.
    assert meter.rps == pytest.approx(200.0)
    assert meter.lull_ns == ms(1.25)
    assert meter.rps_after_lull == pytest.approx(1000 / 48.75)


def test_a_few_lulls_prove_nothing() -> None:
    meter = RateMeter()
    for burst in range(7):
        for _ in range(10):
            meter.on_arrival(ms(50 * burst))
    assert meter.lulls < 5
    assert meter.rps_after_lull == meter.rps
