"""RAMSIS online: queues of workers, the load monitor, and tables that come and go."""

from dataclasses import replace

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Compute, Dispatch, Drop, DropReason, Request
from fermata.router.policies.family import family_of
from fermata.router.policies.load_monitor import LoadMonitor
from fermata.router.policies.ramsis.counts import poisson
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.source import Ramsis
from fermata.router.policies.ramsis.tables import Made

FAST, GOOD = 0, 1
SLO_NS = ms(40)
FAMILY = family_of(0, "task", SLO_NS, (FAST, GOOD), FAST, (0.6, 0.9))


class Bench:
    """An engine whose backends belong to one RAMSIS source; computations wait to be carried out."""

    def __init__(self, backends: int = 2, kinds: int = 1, **options: object) -> None:
        costs = Costs()
        for kind in range(kinds):
            slower = 1 + kind
            costs.add(FAST, [ms(8) * slower, ms(12) * slower, ms(16) * slower], kind=kind)
            costs.add(GOOD, [ms(16) * slower, ms(26) * slower, ms(37) * slower], kind=kind)
        self.engine = Engine(costs)
        values: dict[str, object] = {"bins": 20, **options}
        self.source = Ramsis(FAMILY, RamsisOptions(**values))  # type: ignore[arg-type]
        self.engine.add_application(self.source)
        for backend in range(backends):
            self.engine.on_backend_up(0, backend, kind=backend % kinds, owner=0)
        self.sent = 0
        self.wanted: list[Compute] = []
        self.dispatched: list[Dispatch] = []
        self.dropped: list[Drop] = []

    def settle(self) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Compute):
                self.wanted.append(effect)
            elif isinstance(effect, Dispatch):
                self.dispatched.append(effect)
            elif isinstance(effect, Drop):
                self.dropped.append(effect)

    def compute(self, now_ns: int) -> list[Made]:
        """Carry out what is wanted."""
        wanted, self.wanted = self.wanted, []
        results = [each.work() for each in wanted]
        for result in results:
            self.engine.on_computed(now_ns, 0, result)
        self.settle()
        return [result for result in results if isinstance(result, Made)]

    def fail(self, now_ns: int) -> None:
        """What is wanted cannot be carried out."""
        wanted, self.wanted = self.wanted, []
        for each in wanted:
            self.engine.on_compute_failed(now_ns, 0, each.work)
        self.settle()

    def ready(self) -> None:
        """Let the first tables be made."""
        self.engine.on_time(Ramsis.rules.settle_ns)
        self.settle()
        self.compute(Ramsis.rules.settle_ns)

    def send(self, now_ns: int, hard_limit_ns: int = SLO_NS) -> None:
        request = Request(self.sent, 0, now_ns, now_ns + SLO_NS, now_ns + hard_limit_ns)
        self.sent += 1
        self.engine.on_request(now_ns, request)
        self.settle()

    def sent_to(self) -> list[tuple[int, int, int]]:
        """(backend, variant, size) of everything dispatched so far."""
        return [
            (each.backend, each.batch.variant, len(each.batch.requests)) for each in self.dispatched
        ]


def test_the_fastest_variant_runs_until_there_are_tables() -> None:
    bench = Bench()
    bench.send(ms(1))
    assert bench.sent_to() == [(1, FAST, 1)]


def test_tables_are_made_once_backends_have_settled() -> None:
    bench = Bench(backends=3)
    bench.engine.on_time(Ramsis.rules.settle_ns)
    bench.settle()
    assert len(bench.wanted) == 1
    (made,) = bench.compute(Ramsis.rules.settle_ns)
    assert made.job.problem.workers == 3
    assert len(made.ladder.rungs) > 3


def test_lulls_get_the_good_variant() -> None:
    bench = Bench()
    bench.ready()
    bench.send(SECOND)
    assert bench.sent_to()[-1][1:] == (GOOD, 1)
    told = bench.source.promise(0)
    assert told is not None
    assert told.accuracy > 0.85
    assert told.violation < 0.01


def test_requests_go_round_and_queues_leave_whole() -> None:
    bench = Bench(load_rps=100.0)
    bench.ready()
    for _ in range(6):
        bench.send(SECOND)
    # One runs on each backend; the other four wait, two on each.
    assert sorted(each[0] for each in bench.sent_to()) == [0, 1]
    run_ns = bench.dispatched[0].batch.plan_ns
    backend = bench.dispatched[0].backend
    bench.engine.on_done(SECOND + run_ns, backend, run_ns)
    bench.settle()
    assert bench.sent_to()[-1][0] == backend
    assert bench.sent_to()[-1][2] == 2


def test_round_robin_and_queues_survive_a_change_of_tables() -> None:
    bench = Bench()
    bench.ready()
    for _ in range(5):
        bench.send(SECOND)
    turn = bench.source.turn
    waiting = [len(worker.queue) for worker in bench.source.order]
    bench.source._ask(0)
    bench.settle()
    bench.compute(SECOND)
    assert bench.source.turn == turn
    assert [len(worker.queue) for worker in bench.source.order] == waiting


def test_the_load_chooses_the_lowest_table_that_covers_it() -> None:
    bench = Bench()
    bench.ready()
    for step in range(200):
        bench.send(SECOND + step * ms(5))
    rung = bench.source.rungs[0]
    rates = [each.rate_rps for each in bench.source.made[0].ladder.rungs]
    below = [rate for rate in rates if rate < rung.rate_rps]
    # 200 a second; the monitor forgets in slices, so allow for one.
    assert rung.rate_rps >= 200.0
    assert max(below) < 210.0


def test_a_load_outside_the_range_has_a_table_made() -> None:
    bench = Bench()
    bench.ready()
    top = bench.source.made[0].ladder.rungs[-1].rate_rps
    for step in range(int(top)):
        bench.send(SECOND + step * ms(0.5))
    assert len(bench.wanted) == 1, "one at a time"
    bench.compute(2 * SECOND)
    assert bench.source.made[0].ladder.rungs[-1].rate_rps > top


def test_every_kind_of_backend_has_tables_of_its_own() -> None:
    bench = Bench(backends=2, kinds=2)
    bench.ready()
    bench.send(SECOND)
    bench.send(SECOND)
    bench.compute(SECOND)
    assert set(bench.source.made) == {0, 1}
    slow = bench.source.made[1].job.problem
    assert slow.latency_ns[0][0] == ms(16)


def test_drifted_run_times_have_tables_made_anew() -> None:
    bench = Bench()
    bench.ready()
    for _ in range(64):
        bench.engine.costs.observe(FAST, 0, 0, 1, ms(10))
    bench.source.batches = 255
    bench.send(SECOND)
    run_ns = bench.dispatched[-1].batch.plan_ns
    bench.engine.on_done(SECOND + run_ns, bench.dispatched[-1].backend, run_ns)
    bench.settle()
    assert len(bench.wanted) == 1


def test_late_requests_are_answered_up_to_their_hard_limit() -> None:
    bench = Bench(backends=1, load_rps=100.0)
    bench.ready()
    bench.send(SECOND)
    bench.send(SECOND, hard_limit_ns=ms(200))
    bench.send(SECOND)
    bench.engine.on_done(SECOND + ms(39), 0, ms(39))
    bench.settle()
    # One had its limit at 40 ms and is dropped; the other is late, but not too late.
    assert [each.reason for each in bench.dropped] == [DropReason.LATE]
    assert bench.sent_to()[-1] == (0, FAST, 1)


def test_a_worker_that_goes_leaves_its_queue_to_the_others() -> None:
    bench = Bench(load_rps=100.0)
    bench.ready()
    for _ in range(6):
        bench.send(SECOND)
    bench.engine.on_drain(SECOND, 0)
    assert [len(worker.queue) for worker in bench.source.order] == [4]


def test_shortest_queue_first() -> None:
    bench = Bench(backends=3, balancing="shortest-queue")
    for _ in range(4):
        bench.send(SECOND)
    queues = list(bench.source.workers.values())
    bench.engine.on_cancel(SECOND, 3)
    queues[1].queue.push(Request(90, 0, SECOND, 2 * SECOND))
    queues[2].queue.push(Request(91, 0, SECOND, 2 * SECOND))
    assert bench.source._next_worker(bench.source.order) is queues[0]


@pytest.mark.parametrize("balancing", ["round-robin", "shortest-queue"])
def test_pinned_request_goes_to_a_worker_that_has_its_variant(balancing: str) -> None:
    bench = Bench(backends=3, balancing=balancing)
    bench.ready()
    for backend, held in enumerate((FAST, FAST, GOOD)):
        bench.engine.on_resident(SECOND, backend, frozenset((held,)))
    for rid in range(3):
        pinned = Request(100 + rid, 0, SECOND, SECOND + 5 * SLO_NS)
        pinned.allowed = frozenset((GOOD,))
        bench.engine.on_request(SECOND, pinned)
    bench.settle()
    assert {(backend, variant) for backend, variant, _ in bench.sent_to()} == {(2, GOOD)}
    assert len(bench.source.workers[2].queue) == 2
    # The others' turns go on.
    for _ in range(3):
        bench.send(SECOND)
    assert {backend for backend, _, _ in bench.sent_to()} == {0, 1, 2}


class Law:
    """A law without a notion of sameness: a copy of it is another."""

    def __call__(self, rate_rps: float, times_s: object, count_max: int) -> object:
        return poisson(rate_rps, times_s, count_max)  # type: ignore[arg-type]


LAW = Law()


def test_table_for_one_more_load_is_taken_though_its_law_is_a_copy() -> None:
    bench = Bench(law=f"{__name__}:LAW")
    bench.engine.on_time(Ramsis.rules.settle_ns)
    bench.settle()
    for _ in range(2):
        # As from another process: what comes back is a copy.
        wanted, bench.wanted = bench.wanted, []
        for each in wanted:
            made = each.work()
            assert isinstance(made, Made)
            first = bench.source.made.get(0, made)
            law = Law()
            job = replace(made.job, problem=replace(made.job.problem, law=law))
            bench.engine.on_computed(SECOND, 0, Made(job, made.ladder))
        if not bench.sent:
            # More than any table of the range is for.
            for step in range(800):
                bench.send(SECOND + step * ms(0.5))
    assert len(bench.source.made[0].ladder.rungs) == len(first.ladder.rungs) + 1


def test_tables_that_could_not_be_made_are_asked_for_again_after_a_pause() -> None:
    bench = Bench()
    bench.engine.on_time(Ramsis.rules.settle_ns)
    bench.settle()
    now_ns = Ramsis.rules.settle_ns
    for pause_ns in (Ramsis.rules.retry_ns, 2 * Ramsis.rules.retry_ns, 4 * Ramsis.rules.retry_ns):
        bench.fail(now_ns)
        bench.engine.on_time(now_ns + pause_ns - 1)
        bench.settle()
        assert bench.wanted == []
        now_ns += pause_ns
        bench.engine.on_time(now_ns)
        bench.settle()
        assert len(bench.wanted) == 1
    assert bench.source.figures() == {"table_failures": 3.0}
    bench.compute(now_ns)
    assert bench.source.figures()["promised_accuracy"] > 0.85
    assert bench.source.pause_ns == Ramsis.rules.retry_ns


def test_a_failure_leaves_the_tables_there_are() -> None:
    bench = Bench()
    bench.ready()
    before = bench.source.made[0]
    top = before.ladder.rungs[-1].rate_rps
    for step in range(int(top)):
        bench.send(SECOND + step * ms(0.5))
    bench.fail(2 * SECOND)
    assert bench.source.made[0] is before
    bench.engine.on_time(2 * SECOND + Ramsis.rules.retry_ns)
    bench.settle()
    bench.compute(2 * SECOND + Ramsis.rules.retry_ns)
    assert bench.source.made[0].ladder.rungs[-1].rate_rps > top


def test_one_more_table_is_not_put_among_those_of_other_variants() -> None:
    bench = Bench()
    bench.ready()
    known = bench.source.made[0]
    # The fast variant has become slower than the good one, which is then the only one worth having.
    for _ in range(64):
        for size in (1, 2, 3):
            bench.engine.costs.observe(FAST, 0, 0, size, ms(60))
    bench.source._ask(0, 500.0)
    bench.settle()
    late_one, bench.wanted = bench.wanted[0], []
    bench.source._ask(0)
    bench.settle()
    bench.compute(SECOND)
    anew = bench.source.made[0]
    assert known.job.variants == (FAST, GOOD)
    assert anew.job.variants == (GOOD,)
    bench.engine.on_computed(SECOND, 0, late_one.work())
    assert bench.source.made[0] is anew
    bench.send(2 * SECOND)
    assert bench.sent_to()[-1][1] == GOOD


def test_promises_count_the_lead_of_dispatch() -> None:
    promises: list[float] = []
    for lead_ns in (0, ms(10)):
        bench = Bench(load_rps=120.0)
        bench.engine.ranks[0].lead_start_ns = lead_ns
        bench.ready()
        assert bench.source.made[0].job.problem.slo_ns == SLO_NS - lead_ns
        promises.append(bench.source.figures()["promised_accuracy"])
    assert promises[1] < promises[0]
    # A lead that grows while it runs has tables made anew.
    bench = Bench()
    bench.ready()
    bench.engine.ranks[0].lead_start_ns = ms(10)
    bench.source.batches = 255
    bench.send(SECOND)
    run_ns = bench.dispatched[-1].batch.plan_ns
    bench.engine.on_done(SECOND + run_ns, bench.dispatched[-1].backend, run_ns)
    bench.settle()
    assert len(bench.wanted) == 1


def test_drops_are_judged_by_the_times_of_the_very_backend() -> None:
    # The fast variant takes 8 ms on the first kind and 4 ms on the second.
    bench = Bench(backends=0)
    costs = bench.engine.costs
    costs.add(FAST, [ms(4), ms(6), ms(8)], kind=1)
    costs.add(GOOD, [ms(8), ms(13), ms(18)], kind=1)
    bench.engine.on_backend_up(0, 0, kind=1, owner=0)
    bench.send(SECOND)
    bench.send(SECOND)
    # After 35 of 40 ms there is time for the quicker backend alone.
    bench.engine.on_done(SECOND + ms(35), 0, ms(4))
    bench.settle()
    assert bench.dropped == []
    assert bench.sent_to()[-1] == (0, FAST, 1)


def test_monitor_counts_a_moving_window() -> None:
    monitor = LoadMonitor(ms(500))
    for step in range(100):
        monitor.on_arrival(step * ms(10))
    assert monitor.rps(ms(990)) == pytest.approx(100.0, rel=0.03)
    assert monitor.rps(ms(990) + ms(250)) == pytest.approx(50.0, rel=0.05)
    assert monitor.rps(SECOND * 5) == 0.0
