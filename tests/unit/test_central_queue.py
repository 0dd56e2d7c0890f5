"""The central queue: hull, prices and single decisions, with numbers worked by hand."""

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.policies.central.accuracy_hull import (
    Point,
    concave_hull,
    fluid_accuracy,
    price,
    reachable,
)
from fermata.router.policies.central.load_filter import LoadFilter
from fermata.router.policies.central.options import CentralOptions
from fermata.router.policies.central.prices import PriceCurve
from fermata.router.policies.central.running_work import RunningWork
from fermata.router.policies.central.source import CentralQueue
from fermata.router.policies.family import Family, family_of
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.source import Ramsis

FAST, MIDDLE, GOOD = 0, 1, 2
TABLES = {
    FAST: [ms(10), ms(14), ms(18), ms(22)],
    MIDDLE: [ms(20), ms(34), ms(48)],
    GOOD: [ms(50), ms(90)],
}
ACCURACY = (0.6, 0.7, 0.8)
SLO_NS = ms(100)


def family(**changes: object) -> Family:
    values: dict[str, object] = {
        "application": 0,
        "name": "task",
        "slo_ns": SLO_NS,
        "variants": (FAST, MIDDLE, GOOD),
        "serving": MIDDLE,
        "accuracy": ACCURACY,
    }
    values.update(changes)
    return family_of(**values)  # type: ignore[arg-type]


class Bench:
    """An engine with one central queue and so many backends that have been up for ever."""

    def __init__(
        self, backends: int = 1, of: Family | None = None, ranks: int = 1, **options: object
    ) -> None:
        costs = Costs()
        for variant, table in TABLES.items():
            costs.add(variant, table)
        self.engine = Engine(costs, ranks)
        self.source = CentralQueue(of or family(), CentralOptions(**options))  # type: ignore[arg-type]
        self.engine.add_application(self.source)
        for backend in range(backends):
            self.engine.on_backend_up(0, backend)
        self.sent = 0

    def send(self, now_ns: int, accuracies: tuple[float, ...] | None = None) -> None:
        request = Request(self.sent, 0, now_ns, now_ns + SLO_NS)
        request.accuracies = accuracies
        self.sent += 1
        self.engine.on_request(now_ns, request)

    def batches(self) -> list[tuple[int, int]]:
        """(variant, size) of what has been dispatched since the last call."""
        effects = self.engine.take_effects()
        dispatched = [each.batch for each in effects if isinstance(each, Dispatch)]
        return [(batch.variant, len(batch.requests)) for batch in dispatched]

    def at_rate(self, rps: float) -> None:
        """As if the meter had learnt this rate."""
        self.source.rate.rps = rps
        self.source._aim(0)


# The hull


def test_hull_leaves_out_what_a_mixture_beats() -> None:
    cheap, poor, dear = (
        Point(0, 1, 10, 0.6),
        Point(1, 1, 20, 0.62),
        Point(2, 1, 30, 0.8),
    )
    assert concave_hull([dear, poor, cheap]) == [cheap, dear]
    assert price(cheap, dear) == pytest.approx(0.01)


def test_hull_is_by_time_for_each_request() -> None:
    hull = concave_hull([Point(0, 4, 40, 0.5), Point(0, 1, 20, 0.5), Point(1, 2, 60, 0.9)])
    assert [(point.variant, point.size) for point in hull] == [(0, 4), (1, 2)]


def test_only_batches_that_can_gather_are_reachable() -> None:
    tables = [[0, *TABLES[GOOD]]]
    # Two requests are 10 ms apart at 100 a second: 90 + 10 just meets 100 ms.
    assert [each.size for each in reachable(tables, (0.8,), SLO_NS, 100.0)] == [1, 2]
    assert [each.size for each in reachable(tables, (0.8,), SLO_NS, 99.0)] == [1]


def test_fluid_accuracy_mixes_the_two_neighbours() -> None:
    hull = [Point(0, 1, 10, 0.6), Point(1, 1, 30, 0.8)]
    assert fluid_accuracy(hull, 20.0) == pytest.approx(0.7)
    assert fluid_accuracy(hull, 99.0) == pytest.approx(0.8)
    assert fluid_accuracy(hull, 9.0) is None


# Prices


def test_time_is_dearer_the_further_behind() -> None:
    hull = [Point(0, 1, 10, 0.5), Point(1, 1, 20, 0.7), Point(2, 1, 40, 0.8)]
    curve = PriceCurve(hull, 40.0, [100, 90, 80], calm=0.25, strained=0.6)
    assert curve.edge == 1
    # At the calm wait of the load's edge its ends are equally good; strained, the next edge's.
    assert curve.at(0.25 * 80, 0.0) == pytest.approx(0.1 / 20)
    assert curve.at(60.0 - 1e-9, 0.0) == pytest.approx(0.2 / 10)
    waits = [curve.at(float(wait), 0.0) for wait in range(-50, 150, 5)]
    assert waits == sorted(waits)


def test_a_load_near_a_steeper_edge_keeps_its_queue_shorter() -> None:
    # The cheaper edge's price is 0.2 / 10, four times that of the load's edge, 0.1 / 20.
    hull = [Point(0, 1, 10, 0.5), Point(1, 1, 20, 0.7), Point(2, 1, 40, 0.8)]
    for each_ns, calm_ns in ((40.0, 20.0), (30.0, 20.0 / 2**0.5), (20.0, 10.0)):
        curve = PriceCurve(hull, each_ns, [100, 90, 80], calm=0.25, strained=0.6)
        assert curve.edge == 1
        assert curve.calm_ns == pytest.approx(calm_ns)
        assert curve.at(calm_ns, 0.0) == pytest.approx(0.1 / 20)
    # On the cheapest edge there is nothing to keep away from.
    assert PriceCurve(hull, 11.0, [100, 90, 80], calm=0.25, strained=0.6).calm_ns == 22.5


def test_requests_that_have_waited_long_count_whatever_is_under_way() -> None:
    hull = [Point(0, 1, 10, 0.5), Point(1, 1, 20, 0.7)]
    curve = PriceCurve(hull, 15.0, [100, 90], calm=0.25, strained=0.6)
    assert curve.at(-50.0, 95.0) > curve.at(-50.0, 10.0)


def test_what_is_under_way_ends_by_itself() -> None:
    under_way = RunningWork()
    under_way.add(100, 80)
    under_way.add(50, 40)
    assert under_way.left_ns(20) == 80 + 30
    assert under_way.left_ns(60) == 40
    assert under_way.left_ns(200) == 0


def test_usual_is_half_a_run_on_each_backend() -> None:
    under_way = RunningWork()
    for _ in range(10):
        under_way.add(100, 80)
    assert under_way.usual_ns(3.0) == pytest.approx(3 * 40)


def test_a_steady_load_is_averaged_and_a_change_followed() -> None:
    steady = LoadFilter()
    for reading in (1000.0, 1020.0, 980.0, 1000.0):
        load = steady.read(reading)
    assert load == pytest.approx(1000.0)
    # Three standard deviations of a reading at 1,000 a second are 69.
    assert steady.read(1060.0) < 1015.0
    assert steady.read(1300.0) == 1300.0


# Decisions


def test_a_quiet_system_takes_the_most_accurate_variant() -> None:
    bench = Bench(backends=8)
    bench.at_rate(5.0)
    bench.send(SECOND)
    assert bench.batches() == [(GOOD, 1)]


def test_a_long_queue_takes_the_fast_one_in_large_batches() -> None:
    bench = Bench()
    bench.at_rate(150.0)
    bench.send(0)
    bench.batches()
    for _ in range(12):
        bench.send(ms(1))
    bench.engine.on_done(ms(20), 0, ms(19))
    assert bench.batches() == [(FAST, 4)]


def test_never_past_the_deadline() -> None:
    bench = Bench()
    bench.at_rate(5.0)
    bench.send(0)
    assert bench.batches() == [(GOOD, 1)]
    bench.send(0)
    # 60 ms later the good variant would end at 110 ms.
    bench.engine.on_done(ms(60), 0, ms(60))
    ((variant, _),) = bench.batches()
    assert variant != GOOD


def test_the_floor_is_never_gone_below() -> None:
    bench = Bench(of=family(accuracy_floor=0.65))
    bench.at_rate(500.0)
    for _ in range(30):
        bench.send(0)
    for step in range(1, 6):
        for variant, _ in bench.batches():
            assert variant != FAST
        bench.engine.on_done(ms(20 * step), 0, ms(20))


def test_a_pinned_variant_is_never_overridden() -> None:
    for rate in (1.0, 500.0):
        bench = Bench(pinned=True)
        bench.at_rate(rate)
        for _ in range(4):
            bench.send(0)
        bench.engine.on_time(ms(60))
        chosen = bench.batches()
        assert chosen
        assert all(variant == MIDDLE for variant, _ in chosen)


def test_evidence_about_a_request_outweighs_the_profile() -> None:
    bench = Bench(backends=8)
    bench.at_rate(5.0)
    # On this very request the fast variant is as good as the others: their time buys nothing.
    bench.send(SECOND, accuracies=(0.8, 0.8, 0.8))
    assert bench.batches() == [(FAST, 1)]


def test_overload_drops_heads_that_would_keep_batches_small() -> None:
    bench = Bench(hold="eager")
    bench.at_rate(1000.0)
    bench.send(0)
    bench.engine.take_effects()
    for _ in range(9):
        bench.send(0)
    for _ in range(9):
        bench.send(ms(80))
    bench.engine.on_done(ms(87), 0, ms(87))
    effects = bench.engine.take_effects()
    dropped = [each.reason for each in effects if isinstance(each, Drop)]
    # 13 ms are left: one request would fit, but the window is two, and the queue is long.
    assert dropped == [DropReason.WINDOW] * 9
    assert [each.backend for each in effects if isinstance(each, Dispatch)] == [0]


def test_waits_for_a_request_that_saves_more_than_the_wait_costs() -> None:
    bench = Bench(backends=4)
    bench.at_rate(1000.0)
    bench.source.under_way.add(ms(500), ms(20))
    # Alone 10 ms on the fast one, two together 14: the second saves more than the 1 ms it takes.
    bench.send(0)
    assert bench.batches() == []
    wake_ns = bench.engine.wake_at_ns()
    assert 0 < wake_ns < ms(10)


def test_late_requests_teach_caution_and_others_unteach_it() -> None:
    bench = Bench(late_share=0.01)
    bench.at_rate(5.0)
    bench.send(0)
    bench.engine.on_done(ms(101), 0, ms(101))
    assert bench.source.caution == pytest.approx(0.005)
    for step in range(1, 101):
        bench.send(step * SECOND)
        bench.engine.on_done(step * SECOND + ms(50), 0, ms(50))
    # A hundred in time make up for one late at the allowed share of 1 %.
    assert bench.source.caution == pytest.approx(0.0, abs=1e-9)


def test_caution_keeps_a_slow_variant_from_a_tight_deadline() -> None:
    for caution, variant in ((0.0, GOOD), (0.1, MIDDLE)):
        bench = Bench(hold="eager")
        bench.at_rate(5.0)
        bench.send(0)
        bench.batches()
        bench.send(ms(50) - ms(48))
        bench.source.caution = caution
        # 52 ms are left when the backend is free: 50 planned, 55 with caution.
        bench.engine.on_done(ms(50), 0, ms(50))
        assert bench.batches() == [(variant, 1)]


def test_eager_goes_at_once() -> None:
    bench = Bench(backends=2, hold="eager")
    bench.at_rate(300.0)
    bench.source.under_way.add(ms(500), ms(20))
    bench.send(0)
    assert len(bench.batches()) == 1


def test_deferred_holds_until_one_more_would_not_fit() -> None:
    bench = Bench(backends=2, hold="deferred", pinned=True)
    bench.at_rate(100.0)
    bench.send(0)
    bench.send(0)
    assert bench.batches() == []
    bench.engine.on_time(ms(100) - ms(48))
    # Three would need 48 ms: there is time for two, and no longer for three.
    assert bench.batches() == [(MIDDLE, 2)]


def test_a_frame_behind_a_plain_request_goes_when_its_successor_is_due() -> None:
    bench = Bench(backends=2, hold="deferred", pinned=True)
    bench.at_rate(100.0)
    bench.send(0)
    request = Request(9, 0, ms(1), ms(1) + SLO_NS)
    request.start_by_ns = ms(12)
    bench.engine.on_request(ms(1), request)
    while (wake_at_ns := bench.engine.wake_at_ns()) <= ms(12):
        bench.engine.on_time(wake_at_ns)
    assert [size for _, size in bench.batches()] == [2]


def test_backends_busy_with_others_are_not_counted_on() -> None:
    bench = Bench(backends=4)
    bench.at_rate(100.0)
    alone_ns = bench.source.each_ns
    for step in range(1, 80):
        bench.source.pool.busy_ns += 3 * ms(100)
        bench.source._aim(step * ms(100))
    assert bench.source.others == pytest.approx(3.0, abs=0.01)
    assert bench.source.each_ns == pytest.approx(alone_ns / 4, rel=0.02)


def test_backends_that_others_own_are_not_counted_on() -> None:
    alone, beside = Bench(backends=2), Bench(backends=2)
    owner = Ramsis(family(application=1), RamsisOptions())
    beside.engine.add_application(owner)
    for backend in (2, 3, 4):
        beside.engine.on_backend_up(0, backend, owner=1)
    for bench in (alone, beside):
        bench.at_rate(100.0)
    assert beside.source.each_ns == alone.source.each_ns
    # Nor does their work take time of the pool's away.
    for step in range(1, 40):
        beside.engine.on_request(
            ms(100 * step), Request(-step, 1, ms(100 * step), ms(100 * step + 90))
        )
        (sent,) = [each for each in beside.engine.take_effects() if isinstance(each, Dispatch)]
        beside.engine.on_done(ms(100 * step + 80), sent.backend, ms(80))
        beside.source._aim(ms(100 * step + 81))
    assert beside.source.others == 0.0


def test_a_move_takes_the_demand_along_and_leaves_what_others_did_behind() -> None:
    bench = Bench(ranks=2)
    bench.engine.on_backend_up(0, 7, rank=1)
    bench.at_rate(100.0)
    before, after = bench.engine.ranks
    demand = before.signals.demand
    assert demand > 0.0
    before.pool.busy_ns = 3600 * SECOND
    bench.source._aim(3600 * SECOND)
    bench.engine.move_application(3600 * SECOND, 0, 1)
    assert before.signals.demand == pytest.approx(0.0)
    assert after.signals.demand == pytest.approx(demand)
    bench.source._aim(3600 * SECOND + ms(100))
    assert bench.source.others == 0.0


@pytest.mark.parametrize("gap_ms", [10, 400])
def test_demand_of_a_silent_application_stays_away_when_it_moves(gap_ms: int) -> None:
    bench = Bench(backends=2, ranks=2)
    for count in range(20):
        bench.send(count * ms(gap_ms))
    assert bench.engine.ranks[0].signals.demand > 0.0
    silent_at_ns = 20 * ms(gap_ms) + 3 * SECOND
    bench.engine.on_time(silent_at_ns)
    bench.engine.move_application(silent_at_ns, 0, 1)
    found = [rank.signals.demand for rank in bench.engine.ranks]
    assert found == pytest.approx([0.0, 0.0])


def test_many_who_find_nothing_on_a_slow_backend_cost_little() -> None:
    bench = Bench(backends=0)
    slow = {variant: [20 * each for each in table] for variant, table in TABLES.items()}
    for variant, table in slow.items():
        bench.engine.costs.add(variant, table, kind=1)
    for rid in range(400):
        pinned = Request(rid, 0, 0, SLO_NS)
        pinned.allowed = frozenset((GOOD,))
        bench.engine.on_request(0, pinned)
    looks = 0

    def company(first: Request, variant: int, size_max: int) -> list[Request]:
        nonlocal looks
        looks += 1
        return CentralQueue._company(bench.source, first, variant, size_max)

    bench.source._company = company  # type: ignore[method-assign]
    bench.engine.on_backend_up(0, 0, kind=1)
    assert bench.batches() == []
    assert looks == 0
    # One that is fast enough takes them, with one look for each allowance of time.
    bench.engine.on_backend_up(0, 1)
    assert [variant for variant, _ in bench.batches()] == [GOOD]
    assert looks <= 2
