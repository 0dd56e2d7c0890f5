"""RAMSIS where a queue cannot run whole in time: large batches go on, and few requests are lost."""

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Request
from fermata.router.core.slot import Slot
from fermata.router.policies.ramsis.overload import in_part, quickest
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

FLAT_MS = [6.0 + 0.5 * (size - 1) for size in range(1, 17)]
STEEP, FLAT = 0, 1


def waiting(*left_ms: float) -> tuple[DeadlineQueue, Slot]:
    """A queue of requests with so much time left, and a backend that is free now."""
    costs = Costs()
    costs.add(STEEP, [ms(5 * size) for size in range(1, 5)])
    costs.add(FLAT, [ms(10 + size) for size in range(1, 5)])
    slot = Slot(costs)
    slot.offer(0, 0, SECOND, None)
    queue = DeadlineQueue()
    for rid, each_ms in enumerate(left_ms):
        queue.push(Request(rid, 0, 0, SECOND + ms(each_ms)))
    return queue, slot


def parted(
    queue: DeadlineQueue, slot: Slot, arrivals_per_s: float = 0.0
) -> tuple[list[int], int | None]:
    """Rids of the batch, and of the request that is to go."""
    taken, dropped = in_part(queue, slot, FLAT, arrivals_per_s / 1e9)
    return [each.rid for each in taken], None if dropped is None else dropped.rid


def test_queue_that_fits_runs_whole() -> None:
    assert parted(*waiting(13, 14, 20)) == ([0, 1, 2], None)


def test_first_goes_where_it_would_make_the_others_late() -> None:
    # Three take 13 ms. The first alone takes 11, and then two more 12.
    assert parted(*waiting(12, 20, 20)) == ([], 0)


def test_first_runs_alone_where_that_costs_nothing() -> None:
    assert parted(*waiting(11, 23, 23)) == ([0], None)
    # Unless more are about to come.
    assert parted(*waiting(11, 23, 23), arrivals_per_s=100.0) == ([], 0)


def test_one_with_a_hard_limit_goes_before_one_that_may_be_late() -> None:
    queue, slot = waiting(5, 8)
    queue.first().expires_at_ns = 2 * SECOND
    assert parted(queue, slot) == ([], 1)


def test_quickest_variant_depends_on_how_many_wait() -> None:
    _, slot = waiting()
    assert [quickest(slot, (STEEP, FLAT), size) for size in (1, 2, 3, 9)] == [
        STEEP,
        STEEP,
        FLAT,
        FLAT,
    ]


@pytest.mark.parametrize(("rate_rps", "bad_rate_max"), [(2000, 0.005), (3000, 0.3), (4000, 0.45)])
def test_overload_costs_what_is_too_much_and_little_more(
    rate_rps: float, bad_rate_max: float
) -> None:
    scenario = read_scenario(
        {
            "backends": 2,
            "policy": "ramsis",
            "policy_options": {"bins": 40, "load_rps": rate_rps},
            "rate_rps": rate_rps,
            "duration_s": 3,
            "applications": [
                {
                    "name": "task",
                    "slo_ms": 30,
                    "variants": [{"name": "flat", "latency_ms": FLAT_MS, "accuracy": 0.7}],
                }
            ],
        }
    )
    assert report(scenario, simulate(scenario)).bad_rate < bad_rate_max
