"""Emulated backends; a batch of b runs b + 4 ms."""

import random

import pytest

from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.events import Batch, Request
from fermata.simulator.assembly import spreads
from fermata.simulator.cluster import COMPLETION, END_FAULT, START_FAULT, EmulatedCluster
from fermata.simulator.reports.report import report as make_report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Fault, Scenario, read_scenario


def make(
    *faults: Fault,
    backends: int = 1,
    dispatch_ns: int = 0,
    jitter: tuple[tuple[int, float], ...] = ((0, 0.0),),
    start_ns: int = 0,
    variation: float = 0.0,
    slow: tuple[float, float] = (0.0, 1.0),
    fetch_ns: int = 0,
) -> EmulatedCluster:
    costs = Costs()
    costs.add(0, [ms(4 + size) for size in range(1, 17)])
    rng = random.Random(1)
    return EmulatedCluster(
        backends,
        costs,
        dispatch_ns,
        jitter,
        faults,
        start_ns,
        rng,
        variation,
        slow=slow,
        fetch_ns=fetch_ns,
    )


def batch_of(size: int) -> Batch:
    return Batch(0, [Request(rid, 0, 0, ms(100)) for rid in range(size)])


def finish(cluster: EmulatedCluster) -> tuple[int, int, int, int]:
    """Play the next completion: (now, size, started at, run time)."""
    now_ns = cluster.next_ns()
    kind, backend, incarnation = cluster.pop()
    assert kind == COMPLETION
    assert not cluster.stale(backend, incarnation)
    batch, started_at_ns, run_ns = cluster.complete(now_ns, backend)
    return now_ns, len(batch.requests), started_at_ns, run_ns


def begin(cluster: EmulatedCluster) -> Fault:
    now_ns = cluster.next_ns()
    kind, index, _ = cluster.pop()
    assert kind == START_FAULT
    return cluster.begin_fault(now_ns, index)


def bad_rate(scenario: Scenario) -> float:
    return make_report(scenario, simulate(scenario)).bad_rate


def fault(kind: str, at_ns: int, for_ns: int | None = None, factor: float = 1.0) -> Fault:
    return Fault(at_ns, 0, kind, factor, for_ns)


def test_nothing_to_do_never_ends() -> None:
    assert make().next_ns() == NEVER


def test_batch_runs_as_long_as_its_profile_says() -> None:
    cluster = make()
    cluster.accept(ms(3), 0, batch_of(2))
    assert finish(cluster) == (ms(9), 2, ms(3), ms(6))
    assert cluster.next_ns() == NEVER


def test_batch_starts_once_it_has_arrived() -> None:
    cluster = make(dispatch_ns=ms(1))
    cluster.accept(ms(3), 0, batch_of(2))
    assert finish(cluster) == (ms(10), 2, ms(4), ms(6))


def test_inputs_come_one_after_the_other_beside_the_batch_that_runs() -> None:
    cluster = make(dispatch_ns=ms(1), fetch_ns=ms(2))
    cluster.accept(0, 0, batch_of(1))
    cluster.accept(ms(1), 0, batch_of(2))
    assert finish(cluster) == (ms(8), 1, ms(3), ms(5))
    # Its inputs were there at 6 ms.
    assert finish(cluster) == (ms(14), 2, ms(8), ms(6))
    cluster.accept(ms(14), 0, batch_of(3))
    assert finish(cluster) == (ms(28), 3, ms(21), ms(7))


def test_some_runs_are_held_up() -> None:
    cluster = make(slow=(0.1, 3.0))
    runs_ns = []
    for _ in range(1000):
        cluster.accept(0, 0, batch_of(1))
        runs_ns.append(finish(cluster)[3])
    assert set(runs_ns) == {ms(5), ms(15)}
    assert 70 <= runs_ns.count(ms(15)) <= 130


def test_waiting_batch_starts_when_the_running_one_ends() -> None:
    cluster = make(dispatch_ns=ms(1))
    cluster.accept(0, 0, batch_of(1))
    cluster.accept(ms(2), 0, batch_of(3))
    assert finish(cluster) == (ms(6), 1, ms(1), ms(5))
    assert finish(cluster) == (ms(13), 3, ms(6), ms(7))


def test_two_batches_wait_where_they_run_shorter_than_their_dispatch() -> None:
    cluster = make(dispatch_ns=ms(12))
    for at_ms, size in enumerate((1, 2, 3)):
        cluster.accept(ms(at_ms), 0, batch_of(size))
    assert finish(cluster) == (ms(17), 1, ms(12), ms(5))
    assert finish(cluster) == (ms(23), 2, ms(17), ms(6))
    assert finish(cluster) == (ms(30), 3, ms(23), ms(7))


@pytest.mark.parametrize("dispatch_ms", [0, 3, 6, 12, 20])
def test_a_dispatch_longer_than_the_runs_costs_latency_alone(dispatch_ms: float) -> None:
    variant = {"name": "v", "alpha_ms": 0.25, "beta_ms": 4}
    scenario = {
        "seed": 1,
        "duration_s": 4,
        "backends": 1,
        "policy": "eager",
        "rate_rps": 400,
        "dispatch_ms": dispatch_ms,
        "applications": [{"name": "a", "slo_ms": 60, "variants": [variant]}],
    }
    assert bad_rate(read_scenario(scenario)) == 0.0


def test_waiting_batch_that_is_still_on_its_way_starts_when_it_is_there() -> None:
    cluster = make(dispatch_ns=ms(3))
    cluster.accept(0, 0, batch_of(1))
    cluster.accept(ms(7), 0, batch_of(1))
    assert finish(cluster)[0] == ms(8)
    assert finish(cluster) == (ms(15), 1, ms(10), ms(5))


def test_backend_holds_at_most_two_batches_beside_the_running_one() -> None:
    cluster = make()
    for _ in range(3):
        cluster.accept(0, 0, batch_of(1))
    with pytest.raises(AssertionError, match="more batches wait than the rules allow"):
        cluster.accept(0, 0, batch_of(1))


def test_backends_run_side_by_side() -> None:
    cluster = make(backends=2)
    cluster.accept(0, 0, batch_of(4))
    cluster.accept(ms(1), 1, batch_of(1))
    assert [finish(cluster)[:2] for _ in range(2)] == [(ms(6), 1), (ms(8), 4)]


def test_crash_forgets_both_batches() -> None:
    cluster = make(fault("crash", ms(3), for_ns=ms(10)))
    cluster.accept(0, 0, batch_of(1))
    cluster.accept(ms(1), 0, batch_of(2))
    assert begin(cluster).kind == "crash"
    # The completion that was on the agenda is of an earlier life.
    assert cluster.next_ns() == ms(5)
    assert cluster.stale(*cluster.pop()[1:])
    assert cluster.next_ns() == ms(13)
    assert cluster.pop()[:2] == (END_FAULT, 0)
    assert cluster.end_fault(0).kind == "crash"
    cluster.accept(ms(14), 0, batch_of(1))
    assert finish(cluster) == (ms(19), 1, ms(14), ms(5))


def test_hang_delays_what_runs_and_what_comes() -> None:
    cluster = make(fault("hang", ms(3), for_ns=ms(10)))
    cluster.accept(0, 0, batch_of(1))
    begin(cluster)
    cluster.accept(ms(4), 0, batch_of(2))
    assert cluster.stale(*cluster.pop()[1:])
    assert cluster.pop()[:2] == (END_FAULT, 0)
    # It had 2 ms to go when it stopped, and goes on at 13 ms.
    assert finish(cluster) == (ms(15), 1, 0, ms(15))
    assert finish(cluster) == (ms(21), 2, ms(15), ms(6))


def test_batch_for_a_hung_backend_starts_when_it_is_back() -> None:
    cluster = make(fault("hang", ms(3), for_ns=ms(10)))
    begin(cluster)
    cluster.accept(ms(4), 0, batch_of(1))
    assert cluster.pop()[:2] == (END_FAULT, 0)
    assert finish(cluster) == (ms(18), 1, ms(13), ms(5))


def test_slow_backend_multiplies_what_it_starts() -> None:
    cluster = make(fault("slow", ms(3), for_ns=ms(10), factor=3.0))
    cluster.accept(0, 0, batch_of(1))
    begin(cluster)
    cluster.accept(ms(4), 0, batch_of(1))
    assert finish(cluster) == (ms(5), 1, 0, ms(5))
    assert cluster.pop()[:2] == (END_FAULT, 0)
    cluster.end_fault(0)
    assert finish(cluster) == (ms(20), 1, ms(5), ms(15))
    cluster.accept(ms(20), 0, batch_of(1))
    assert finish(cluster)[3] == ms(5)


def test_faults_count_from_the_end_of_the_warm_up() -> None:
    assert make(fault("slow", ms(3)), start_ns=ms(100)).next_ns() == ms(103)


def run_times(cluster: EmulatedCluster, from_ns: int, count: int) -> list[int]:
    times = []
    for index in range(count):
        cluster.accept(from_ns + index * ms(10), 0, batch_of(1))
        times.append(finish(cluster)[3])
    return times


def test_jitter_makes_runs_longer_never_shorter() -> None:
    times = run_times(make(jitter=((0, 0.1),)), 0, 200)
    assert min(times) >= ms(5)
    # The mean of |N(0, s)| is 0.8 s.
    assert sum(times) / 200 == pytest.approx(ms(5) * 1.08, rel=0.01)
    assert times == run_times(make(jitter=((0, 0.1),)), 0, 200)


def test_jitter_changes_step_by_step() -> None:
    cluster = make(jitter=((0, 0.0), (ms(1000), 0.1), (ms(2000), 0.0)), start_ns=ms(500))
    assert set(run_times(cluster, 0, 10)) == {ms(5)}
    assert set(run_times(cluster, ms(1490) - ms(90), 10)) == {ms(5)}
    assert min(run_times(cluster, ms(1500), 10)) > ms(5)
    assert set(run_times(cluster, ms(2500), 10)) == {ms(5)}


def test_variation_goes_both_ways_about_the_profile() -> None:
    cluster = make(variation=0.3)
    ratios: list[float] = []
    for _ in range(4000):
        cluster.accept(0, 0, batch_of(1))
        ratios.append(finish(cluster)[3] / ms(5))
    mean = sum(ratios) / len(ratios)
    spread = (sum((ratio - mean) ** 2 for ratio in ratios) / len(ratios)) ** 0.5
    assert mean == pytest.approx(1.0, abs=0.02)
    assert spread == pytest.approx(0.3, abs=0.02)
    assert min(ratios) < 0.8


def test_drawn_run_times_have_the_profiles_median_and_tail() -> None:
    scenario = read_scenario(
        {
            "backends": 1,
            "rate_rps": 1,
            "execution": {"draw": "profile"},
            "applications": [
                {
                    "name": "a",
                    "slo_ms": 50,
                    "variants": [{"name": "v", "latency_ms": [10.0], "p99_ms": [12.0]}],
                }
            ],
        }
    )
    (((spread,),),) = spreads(scenario)
    costs = Costs()
    costs.add(0, [ms(10)])
    cluster = EmulatedCluster(
        1, costs, 0, ((0, 0.0),), (), 0, random.Random(5), spreads=[[[spread]]]
    )
    runs: list[int] = []
    now_ns = 0
    for rid in range(4000):
        cluster.accept(now_ns, 0, Batch(0, [Request(rid, 0, 0, NEVER)]))
        now_ns = cluster.next_ns()
        cluster.pop()
        runs.append(cluster.complete(now_ns, 0)[2])
    runs.sort()
    assert runs[2000] == pytest.approx(ms(10), rel=0.01)
    assert runs[3960] == pytest.approx(ms(12), rel=0.02)
