"""Buckets that are filled when somebody asks."""

from fermata.router.telemetry.histogram import Histogram, HistogramSnapshot


def test_a_value_at_a_bound_is_in_its_bucket() -> None:
    one = Histogram((10, 20))
    one.add_all([-5, 10, 11, 20, 21])
    assert one.counts == [2, 2, 1]
    assert one.sum == 57


def test_what_is_taken_is_not_taken_again() -> None:
    one = Histogram((10,))
    one.add(3)
    assert one.take() == ((1, 0), 3)
    one.add(30)
    assert one.take() == ((0, 1), 30)
    assert one.take() == ((0, 0), 0)


def test_what_others_counted_is_added() -> None:
    one = Histogram((10,))
    one.add(3)
    one.merge((2, 5), 100)
    assert one.snapshot() == HistogramSnapshot((10,), (3, 5), 103)


def test_it_never_holds_more_than_so_many_values() -> None:
    one = Histogram((10,))
    for _ in range(3):
        one.add_all([1] * one.pending_max)
    assert len(one._pending) <= one.pending_max
    assert one.counts == [3 * one.pending_max, 0]
