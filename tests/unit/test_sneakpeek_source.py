"""Window scheduling on a real engine: two applications with two variants each, one backend."""

from collections.abc import Sequence

import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Answer, Dispatch, Drop, DropReason, Estimate, Request
from fermata.router.core.source import own_lane
from fermata.router.policies.family import Family, family_of
from fermata.router.policies.sneakpeek.classes import Classes
from fermata.router.policies.sneakpeek.options import (
    GROUPED,
    LO_EDF,
    LO_PRIORITY,
    MAXACC_EDF,
    SNEAKPEEK,
    SneakPeekOptions,
)
from fermata.router.policies.sneakpeek.problem import Job, Segment
from fermata.router.policies.sneakpeek.source import WindowScheduler

TIMES_MS = (4, 10, 6, 11)
SWAPS_MS = (5, 18, 8, 12)
FAMILIES = (
    family_of(0, "one", ms(150), (0, 1), 0, accuracy=(0.8, 0.9)),
    family_of(1, "two", ms(150), (2, 3), 2, accuracy=(0.7, 0.95)),
)


def make(
    options: SneakPeekOptions = SNEAKPEEK,
    backends: int = 1,
    families: Sequence[Family] = FAMILIES,
    swaps: bool = True,
    p99_over_p50: float = 1.0,
) -> tuple[Engine, WindowScheduler]:
    costs = Costs()
    for variant, (run, swap) in enumerate(zip(TIMES_MS, SWAPS_MS, strict=True)):
        swap_in_ns = ms(swap) if swaps else 0
        p50_ns = [ms(run * size) for size in range(1, 9)]
        p99_ns = [int(p99_over_p50 * each) for each in p50_ns]
        costs.add(variant, p50_ns, p99_ns, swap_in_ns=swap_in_ns)
    engine = Engine(costs)
    source = WindowScheduler(families, options)
    for _ in families:
        engine.add_application(source)
    for backend in range(backends):
        engine.on_backend_up(0, backend, owner=0, resident=frozenset())
    return engine, source


def send(
    engine: Engine,
    rid: int,
    at_ms: float,
    slo_ms: float = 150,
    application: int = 0,
    hard_ms: float = 0,
) -> None:
    at_ns = ms(at_ms)
    expires_at_ns = at_ns + ms(max(hard_ms, slo_ms))
    engine.on_request(at_ns, Request(rid, application, at_ns, at_ns + ms(slo_ms), expires_at_ns))


def advance(engine: Engine, to_ms: float) -> None:
    """Fire every timer due by then, each at its own time."""
    while engine.wake_at_ns() <= ms(to_ms):
        engine.on_time(engine.wake_at_ns())


def effects(engine: Engine) -> list[tuple[object, ...]]:
    """Batches as (variant, requests), answers as (rid, label), drops as (rid, reason)."""
    found: list[tuple[object, ...]] = []
    for effect in engine.take_effects():
        if isinstance(effect, Dispatch):
            rids = [request.rid for request in effect.batch.requests]
            found.append((effect.batch.variant, rids))
        elif isinstance(effect, Answer):
            found.append(("answer", effect.request.rid, effect.label))
        elif isinstance(effect, Drop):
            found.append(("drop", effect.request.rid, effect.reason))
    return found


def run_out(engine: Engine, now_ms: float) -> list[tuple[object, ...]]:
    """End every batch as planned until nothing runs any more."""
    found = effects(engine)
    state = engine.ranks[0].backends[0]
    while state.running is not None:
        batch = state.running
        now_ms = max(now_ms, batch.start_at_ns / 1e6) + batch.expect_ns / 1e6
        engine.on_done(ms(now_ms), 0, batch.expect_ns)
        found += effects(engine)
    return found


def test_nothing_runs_before_the_windows_end() -> None:
    engine, _ = make()
    send(engine, 0, 10)
    send(engine, 1, 60)
    advance(engine, 99.9)
    assert effects(engine) == []
    assert engine.wake_at_ns() == ms(100)
    advance(engine, 100.1)
    assert effects(engine) == [(1, [0])]


def test_group_runs_one_by_one_where_batches_gain_nothing() -> None:
    engine, _ = make()
    for rid in range(3):
        send(engine, rid, 10 * rid)
    advance(engine, 100.1)
    assert run_out(engine, 100) == [(1, [0]), (1, [1]), (1, [2])]


def test_evidence_decides_and_is_split_by_class() -> None:
    engine, _ = make()
    for rid in range(4):
        send(engine, rid, 10, slo_ms=150)
    for rid in (0, 1):
        estimate = Estimate((0.9, 0.1), (0.99, 0.99), 0, 0.0, 0)
        assert engine.on_update(ms(20), rid, estimate.accuracies, estimate)
    for rid in (2, 3):
        estimate = Estimate((0.1, 0.9), (0.2, 0.9), 1, 0.0, 1)
        assert engine.on_update(ms(20), rid, estimate.accuracies, estimate)
    advance(engine, 100.1)
    ran = run_out(engine, 100)
    assert sorted(ran[:2]) == [(0, [0]), (0, [1])] or sorted(ran[2:]) == [(0, [0]), (0, [1])]
    assert {variant for variant, rids in ran if rids in ([2], [3])} == {1}


def test_late_evidence_is_not_waited_for() -> None:
    engine, _ = make()
    send(engine, 0, 10)
    advance(engine, 100.1)
    assert effects(engine) == [(1, [0])]
    estimate = Estimate((0.9, 0.1), (0.99, 0.9), 0, 0.97, 0)
    assert not engine.on_update(ms(101), 0, estimate.accuracies, estimate)


def test_plain_accuracies_of_other_estimators_are_used_too() -> None:
    engine, _ = make()
    send(engine, 0, 10)
    engine.on_update(ms(20), 0, (0.95, 0.5))
    advance(engine, 100.1)
    assert effects(engine) == [(0, [0])]


def test_grouped_scheduler_looks_at_no_evidence() -> None:
    engine, _ = make(GROUPED)
    send(engine, 0, 10)
    estimate = Estimate((0.9, 0.1), (0.95, 0.5), 0, 0.99, 0)
    engine.on_update(ms(20), 0, estimate.accuracies, estimate)
    advance(engine, 100.1)
    assert effects(engine) == [(1, [0])]


def test_short_circuit_answers_at_the_windows_end() -> None:
    engine, _ = make()
    send(engine, 0, 10)
    estimate = Estimate((0.01, 0.99), (0.8, 0.9), 1, 0.99, 1)
    engine.on_update(ms(20), 0, estimate.accuracies, estimate)
    advance(engine, 100.1)
    assert effects(engine) == [("answer", 0, 1)]
    assert engine.wake_at_ns() == NEVER


def test_look_that_no_variant_could_better_answers_as_it_comes() -> None:
    engine, _ = make()
    send(engine, 0, 10)
    send(engine, 1, 10)
    sure = Estimate((0.01, 0.99), (0.8, 0.9), 1, 0.99, 1)
    engine.on_update(ms(20), 0, sure.accuracies, sure)
    assert effects(engine) == [("answer", 0, 1)]
    unsure = Estimate((0.15, 0.85), (0.8, 0.9), 1, 0.85, 1)
    engine.on_update(ms(20), 1, unsure.accuracies, unsure)
    assert effects(engine) == []
    advance(engine, 100.1)
    assert effects(engine) == [(1, [1])]


def test_nothing_is_left_to_plan_where_looks_have_answered_all() -> None:
    engine, _ = make()
    send(engine, 0, 10)
    sure = Estimate((0.01, 0.99), (0.8, 0.9), 1, 0.99, 1)
    engine.on_update(ms(20), 0, sure.accuracies, sure)
    assert engine.wake_at_ns() == NEVER


def test_short_circuit_answers_nobody_who_insists_on_variants() -> None:
    # All variants will do for this client; the SneakPeek model is none of them.
    engine, _ = make()
    insisting = Request(0, 0, ms(10), ms(160))
    insisting.allowed = frozenset((0, 1))
    engine.on_request(ms(10), insisting)
    estimate = Estimate((0.01, 0.99), (0.8, 0.9), 1, 0.99, 1)
    engine.on_update(ms(20), 0, estimate.accuracies, estimate)
    advance(engine, 100.1)
    assert effects(engine) == [(1, [0])]


@pytest.mark.parametrize(("sure", "as_a_rule"), [(0.7, 0.95), (0.95, 0.7)])
def test_short_circuit_keeps_the_applications_floor(sure: float, as_a_rule: float) -> None:
    floored = family_of(0, "one", ms(150), (0, 1), 0, accuracy=(0.8, 0.9), accuracy_floor=0.75)
    estimate = Estimate((1 - sure, sure), (0.2, 0.3), 1, as_a_rule, 1)
    for families, expected in (((floored,), (1, [0])), (FAMILIES, ("answer", 0, 1))):
        engine, _ = make(families=families)
        send(engine, 0, 10)
        engine.on_update(ms(20), 0, estimate.accuracies, estimate)
        advance(engine, 100.1)
        assert effects(engine) == [expected]


def test_backlog_and_resident_model_are_carried_to_the_next_window() -> None:
    engine, source = make(GROUPED)
    for rid in range(8):
        send(engine, rid, 10, slo_ms=300, application=1, hard_ms=600)
    advance(engine, 100.1)
    assert effects(engine) == [(3, [0])]
    send(engine, 8, 105, slo_ms=300, application=1, hard_ms=600)
    assert len(source.waiting) == 8
    engine.on_done(ms(123), 0, ms(23))
    advance(engine, 200.1)
    # Still on variant 3, which needs no swap-in any more.
    found = run_out(engine, 200)
    assert [variant for variant, _ in found] == [3] * 8
    assert engine.ranks[0].resident(0) == frozenset((3,))


def test_worthless_requests_are_dropped_but_baselines_run_them() -> None:
    for options, expected in ((GROUPED, [("drop", 0, DropReason.LATE)]), (LO_EDF, [(0, [0])])):
        strict = SneakPeekOptions(
            order=options.order,
            penalty="step",
            evidence=False,
            run_worthless=options.run_worthless,
        )
        engine, _ = make(strict)
        send(engine, 0, 10, slo_ms=95, hard_ms=500)
        advance(engine, 100.1)
        assert effects(engine) == expected


def test_requests_wait_for_a_backend_until_they_are_hopeless() -> None:
    engine, _ = make(backends=0)
    send(engine, 0, 10, slo_ms=180)
    send(engine, 1, 10, slo_ms=400)
    advance(engine, 200.1)
    assert effects(engine) == [("drop", 0, DropReason.NO_BACKEND)]
    engine.on_backend_up(ms(250), 0, owner=0, resident=frozenset())
    advance(engine, 300.1)
    assert effects(engine) == [(1, [1])]


def test_cancelled_request_leaves_no_timer_behind() -> None:
    engine, _ = make()
    send(engine, 0, 10)
    assert engine.on_cancel(ms(20), 0)
    assert effects(engine) == [("drop", 0, DropReason.CANCELLED)]
    assert engine.wake_at_ns() == NEVER


def test_two_workers_share_the_window() -> None:
    # In 40 ms one backend runs four on the small variant, two run two each on the large one.
    engine, _ = make(SneakPeekOptions(penalty="step"), backends=2)
    for rid in range(4):
        send(engine, rid, 10, slo_ms=130)
    advance(engine, 100.1)
    sent = [each for each in engine.take_effects() if isinstance(each, Dispatch)]
    assert {each.backend for each in sent} == {0, 1}


def test_accuracy_floor_bars_variants() -> None:
    floored = family_of(0, "one", ms(150), (0, 1), 0, accuracy=(0.8, 0.9), accuracy_floor=0.85)
    engine, _ = make(families=(floored,))
    send(engine, 0, 10, slo_ms=115, hard_ms=300)
    advance(engine, 100.1)
    assert effects(engine) == [(1, [0])]


@pytest.mark.parametrize("options", [LO_EDF, LO_PRIORITY, MAXACC_EDF])
def test_baselines_keep_the_floor_in_overload(options: SneakPeekOptions) -> None:
    floored = family_of(0, "one", ms(150), (0, 1), 0, accuracy=(0.8, 0.9), accuracy_floor=0.85)
    engine, _ = make(options, families=(floored,))
    for rid in range(12):
        send(engine, rid, 10, slo_ms=110, hard_ms=900)
    advance(engine, 100.1)
    assert {variant for variant, _ in run_out(engine, 100)} == {1}


@pytest.mark.parametrize("options", [LO_EDF, GROUPED])
def test_who_finds_no_variant_above_the_floor_waits_for_one(options: SneakPeekOptions) -> None:
    floored = family_of(0, "one", ms(150), (0, 1), 0, accuracy=(0.8, 0.9), accuracy_floor=0.85)
    engine, _ = make(options, families=(floored,), swaps=False)
    engine.on_resident(0, 0, frozenset((0,)))
    send(engine, 0, 10, slo_ms=400)
    advance(engine, 100.1)
    assert effects(engine) == []
    engine.on_resident(ms(150), 0, frozenset((0, 1)))
    advance(engine, 200.1)
    assert effects(engine) == [(1, [0])]


def test_job_barred_from_its_groups_variant_waits_for_the_next_window() -> None:
    engine, source = make()
    jobs = [Job(0, 0, 0, ms(600), ms(600), (0.9, 0.0)), Job(1, 0, 0, ms(600), ms(600), (0.8, 0.9))]
    for rid in range(2):
        send(engine, rid, 10, slo_ms=590)
    estimate = Estimate((0.5, 0.5), (0.9, 0.0), 0, 0.0, -1)
    engine.on_update(ms(20), 0, estimate.accuracies, estimate)
    source.lines[0] = [Segment(0, 1, 1, jobs)]
    engine.ranks[0].refresh(ms(30), source, (own_lane(0),))
    assert effects(engine) == [(1, [1])]
    engine.on_done(ms(58), 0, ms(28))
    advance(engine, 100.1)
    assert effects(engine) == [(0, [0])]


def test_margin_that_lets_nothing_run_is_doubted() -> None:
    engine, _ = make(p99_over_p50=60.0)
    ran = False
    for window in range(40):
        send(engine, window, 100 * window + 50)
        advance(engine, 100 * window + 100.1)
        ran = ran or any(each[0] != "drop" for each in effects(engine))
    assert ran


def test_hopeless_is_who_no_backend_that_is_up_could_serve_as_planned_now() -> None:
    engine, source = make(backends=0)
    for variant, run in enumerate(TIMES_MS):
        engine.costs.add(variant, [ms(3 * run)], kind=1)
    engine.on_backend_up(0, 5, kind=1, owner=0, resident=None)
    source.on_time(0)
    assert source.fastest == {0: (ms(12), 0, 1), 1: (ms(18), 2, 1)}
    for _ in range(20):
        engine.costs.observe(0, 1, 5, 1, ms(24))
    source.on_time(0)
    assert source.fastest[0] == (ms(24), 0, 1)
    floored = family_of(0, "one", ms(150), (0, 1), 0, accuracy=(0.8, 0.9), accuracy_floor=0.85)
    _, source = make(families=(floored,))
    assert source.fastest == {0: (ms(10), 1, 0)}


def test_unknown_penalty_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy_options\.penalty='steep'"):
        WindowScheduler(FAMILIES, SneakPeekOptions(penalty="steep"))


def test_request_without_evidence_runs_though_no_variant_keeps_all_floors() -> None:
    # The second misses the first floor by 0.2, the first the second by 0.6.
    torn = Classes(((0.98, 0.2), (0.7, 0.9)), recall_floors=(0.9, 0.8))
    families = (family_of(0, "one", ms(150), (0, 1), 0, accuracy=(0.8, 0.9), classes=torn),)
    engine, _ = make(families=families)
    send(engine, 1, at_ms=10)
    advance(engine, to_ms=101)
    assert effects(engine) == [(1, [1])]
