"""What a frontend counts, and what of it the router has not heard yet."""

import time

from fermata.deployments.frontend.protocol.server_metadata import statistics
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.frontend.requests.pending_request import PendingRequest, RequestTerms
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.units import ms
from fermata.router.links.messages import Result

MODEL = ServedModel("cats", TensorSpec("input", "FP32", (4,)), ms(20), ms(20))


def served(counts: OutcomeCounts, latency_ms: float, size: int = 4) -> None:
    arrival = RequestTerms("cats", ms(20), ms(20), 100)
    entry = PendingRequest(1, arrival, 0, ms(20), ms(20))
    counts.serve(ms(latency_ms), entry, Result(1, "v", size, 0, ms(5)))


def test_good_and_late_are_told_by_the_slo() -> None:
    counts = OutcomeCounts()
    served(counts, 20)
    served(counts, 21)
    counts.refuse("cats", "expired")
    (told,) = counts.take()
    assert told.outcomes == {"good": 1, "ran-late": 1, "expired": 1}
    assert told.latency_ns == ms(41)
    assert sum(told.latency) == 2


def test_only_what_is_new_is_told() -> None:
    counts = OutcomeCounts()
    served(counts, 3)
    counts.take()
    assert counts.take() == ()
    counts.refuse("cats", "shed")
    (told,) = counts.take()
    assert told.outcomes == {"shed": 1}
    assert sum(told.latency) == 0
    assert counts.of("cats").served == 1


def test_run_times_are_kept_by_batch_size() -> None:
    counts = OutcomeCounts()
    for _ in range(4):
        served(counts, 12, size=2)
    found = counts.of("cats")
    assert found.batches[2].requests == 4
    assert found.run_ns == ms(20)
    assert found.queue_ns == 4 * ms(7)


def test_statistics_count_rows_and_batches_as_triton_does() -> None:
    counts = OutcomeCounts()
    for rid in (1, 2):
        terms = RequestTerms("cats", ms(20), ms(20), 100, rows=8)
        entry = PendingRequest(rid, terms, 0, ms(20), ms(20))
        counts.serve(time.monotonic_ns(), entry, Result(rid, "v", 16, 0, ms(5)), entry.rows)
    before_ms = time.time_ns() // ms(1)
    (found,) = statistics([(MODEL, "1")], counts).model_stats
    assert (found.inference_count, found.execution_count) == (16, 1)
    assert found.inference_stats.success.count == 2
    (batches,) = found.batch_stats
    assert (batches.batch_size, batches.compute_infer.count) == (16, 1)
    assert batches.compute_infer.ns == ms(5)
    assert abs(found.last_inference - before_ms) < 5000


def test_a_model_that_has_answered_nothing_has_no_last_inference() -> None:
    (found,) = statistics([(MODEL, "1")], OutcomeCounts()).model_stats
    assert found.last_inference == 0


def test_tenants_that_are_known_are_counted_over_all_applications() -> None:
    counts = OutcomeCounts()
    counts.add_tenants({7: "cameras", 8: "robots"})
    for tenant, latency_ms in ((7, 3), (7, 30), (9, 3)):
        arrival = RequestTerms("cats", ms(20), ms(20), 100, tenant=tenant)
        entry = PendingRequest(1, arrival, 0, ms(20), ms(20))
        counts.serve(ms(latency_ms), entry, Result(1, "v", 1, 0, ms(5)))
    counts.refuse("cats", "rate", 7)
    counts.refuse("dogs", "rate", 7)
    counts.refuse("dogs", "shed")
    assert counts.take_tenants() == (("cameras", {"good": 1, "ran-late": 1, "rate": 2}),)
    counts.count_tenant(8, "denied")
    assert counts.take_tenants() == (("robots", {"denied": 1}),)
    assert counts.take_tenants() == ()
