"""Tables are made anew when the batches that run take another time, and only then."""

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Compute, Dispatch, Request
from fermata.router.policies.family import family_of
from fermata.router.policies.ramsis.drift import RecentBatches, drifted
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.source import Ramsis
from fermata.router.policies.ramsis.tables import SolveJob, job_for

QUICK, GOOD = 0, 1
FAMILY = family_of(0, "task", ms(100), (QUICK, GOOD), QUICK, (0.6, 0.9))


def known() -> tuple[Costs, SolveJob]:
    costs = Costs()
    costs.add(QUICK, [ms(2 + 0.2 * size) for size in range(1, 65)])
    costs.add(GOOD, [ms(8 + 0.5 * size) for size in range(1, 33)])
    return costs, job_for(FAMILY, [0, 1], RamsisOptions(bins=10), costs, 0, 2)


def slower(costs: Costs, variant: int, sizes: range, factor: float) -> None:
    """Let these sizes take so much longer, and all others what is profiled."""
    cost = costs.of(variant)
    for _ in range(40):
        for size in (1, 2, 3, 4, 8, 16, 32, 63):
            if size <= cost.size_max:
                ratio = factor if size in sizes else 1.0
                costs.observe(variant, 0, 0, size, int(ratio * cost.p50_ns[size]))


def ran(variant: int, sizes: range, times: int = 100) -> RecentBatches:
    recent = RecentBatches()
    for size in sizes:
        for _ in range(times):
            recent.add(variant, size)
    return recent


@pytest.mark.parametrize("variant", [QUICK, GOOD])
def test_slow_small_batches_count_where_only_these_run(variant: int) -> None:
    costs, job = known()
    slower(costs, variant, range(1, 4), 1.4)
    before = job.problem.latency_ns[variant]
    everything = sum(costs.of(variant).plan_ns[1:]) / sum(before)
    assert everything < 1.08, "the sizes that do not run hide it, nearly"
    assert drifted(job, FAMILY, costs, 0, ran(variant, range(1, 4)))


def test_sizes_that_do_not_run_do_not_count() -> None:
    costs, job = known()
    slower(costs, QUICK, range(32, 64), 1.4)
    assert not drifted(job, FAMILY, costs, 0, ran(QUICK, range(1, 4)))
    assert drifted(job, FAMILY, costs, 0, ran(QUICK, range(38, 50)))


def test_variant_that_has_not_run_is_judged_by_the_sizes_that_others_ran() -> None:
    costs, job = known()
    slower(costs, GOOD, range(1, 4), 1.4)
    assert drifted(job, FAMILY, costs, 0, ran(QUICK, range(1, 4)))


def test_memory_that_allows_fewer_sizes_is_a_change() -> None:
    costs, job = known()
    costs.limit(QUICK, 16)
    assert drifted(job, FAMILY, costs, 0, ran(QUICK, range(1, 4)))


def test_promise_follows_batches_that_became_slower() -> None:
    costs, _ = known()
    engine = Engine(costs)
    source = Ramsis(FAMILY, RamsisOptions(bins=10))
    engine.add_application(source)
    engine.on_backend_up(0, 0, owner=0)
    engine.on_time(Ramsis.rules.settle_ns)
    asked = [each for each in engine.take_effects() if isinstance(each, Compute)]
    engine.on_computed(Ramsis.rules.settle_ns, 0, asked[0].work())
    now_ns, again = SECOND, 0
    for rid in range(Ramsis.rules.look_every):
        now_ns += ms(50)
        engine.on_request(now_ns, Request(rid, 0, now_ns, now_ns + ms(100)))
        for effect in engine.take_effects():
            if isinstance(effect, Dispatch):
                # All are alone, and take 1.4 times as long as profiled.
                run_ns = int(1.4 * costs.of(effect.batch.variant).p50_ns[1])
                engine.on_done(now_ns + run_ns, effect.backend, run_ns)
        again += sum(isinstance(each, Compute) for each in engine.take_effects())
    assert again == 1
