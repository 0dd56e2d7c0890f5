"""What a frontend counts, and what of it the router has not heard yet."""

from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.pending_request import PendingRequest, RequestTerms
from fermata.foundation.units import ms
from fermata.router.links.messages import Result


def served(tally: OutcomeCounts, latency_ms: float, size: int = 4) -> None:
    arrival = RequestTerms("cats", ms(20), ms(20), 100)
    entry = PendingRequest(1, arrival, 0, ms(20), ms(20))
    tally.serve(ms(latency_ms), entry, Result(1, "v", size, 0, ms(5)))


def test_good_and_late_are_told_by_the_slo() -> None:
    tally = OutcomeCounts()
    served(tally, 20)
    served(tally, 21)
    tally.refuse("cats", "expired")
    (told,) = tally.take()
    assert told.outcomes == {"good": 1, "ran-late": 1, "expired": 1}
    assert told.latency_ns == ms(41)
    assert sum(told.latency) == 2


def test_only_what_is_new_is_told() -> None:
    tally = OutcomeCounts()
    served(tally, 3)
    tally.take()
    assert tally.take() == ()
    tally.refuse("cats", "shed")
    (told,) = tally.take()
    assert told.outcomes == {"shed": 1}
    assert sum(told.latency) == 0
    assert tally.of("cats").served == 1


def test_run_times_are_kept_by_batch_size() -> None:
    tally = OutcomeCounts()
    for _ in range(4):
        served(tally, 12, size=2)
    found = tally.of("cats")
    assert found.batches[2].requests == 4
    assert found.run_ns == ms(20)
    assert found.queue_ns == 4 * ms(7)


def test_tenants_that_are_known_are_counted_over_all_applications() -> None:
    tally = OutcomeCounts()
    tally.know({7: "cameras", 8: "robots"})
    for tenant, latency_ms in ((7, 3), (7, 30), (9, 3)):
        arrival = RequestTerms("cats", ms(20), ms(20), 100, tenant=tenant)
        entry = PendingRequest(1, arrival, 0, ms(20), ms(20))
        tally.serve(ms(latency_ms), entry, Result(1, "v", 1, 0, ms(5)))
    tally.refuse("cats", "rate", 7)
    tally.refuse("dogs", "rate", 7)
    tally.refuse("dogs", "shed")
    assert tally.take_tenants() == (("cameras", {"good": 1, "ran-late": 1, "rate": 2}),)
    tally.of_tenant(8, "denied")
    assert tally.take_tenants() == (("robots", {"denied": 1}),)
    assert tally.take_tenants() == ()
