"""The control loop, reading by reading: what it decides, and what it leaves alone."""

from dataclasses import replace

import pytest
from control_loop_world import (
    APART,
    AUTOSCALER,
    EPOCHS,
    PAPER,
    SWAPPED,
    models,
    offered,
    read,
    reading,
    started,
    the,
)

from fermata.autoscaler.control_loop import ControlLoop, SetTargets, WindowEnded
from fermata.autoscaler.placer import ApplyPlan, GiveUpMove, KeepPlan, LeaveInPlace, SolvePlacement
from fermata.autoscaler.readings import ApplicationReading, ClusterReading
from fermata.foundation.units import SECOND, seconds
from fermata.partitioner.applications import placed_application
from fermata.partitioner.plan import PlacedModel, Plan
from fermata.profiles.profile import linear

# Windows


def test_a_window_ends_when_it_is_due_and_not_before() -> None:
    loop = started()
    assert loop.wake_at_ns() == 10 * SECOND
    assert read(loop, reading(9)) == []
    # Half of both are busy: ten of twenty would do.
    effects = read(loop, reading(10, ended={"a": (9, 0), "b": (9, 0)}, busy_s=(50, 50)))
    assert the(SetTargets, effects) == SetTargets((5, 5))
    assert loop.wake_at_ns() == 20 * SECOND


def test_the_minimum_is_one_of_the_whole_deployment() -> None:
    loop = started(replace(AUTOSCALER, rule=replace(PAPER, minimum=6)))
    effects = read(loop, reading(10, ended={"a": (9, 0), "b": (9, 0)}, busy_s=(1, 1)))
    assert the(SetTargets, effects) == SetTargets((3, 3))


def test_the_maximum_is_one_of_the_whole_deployment() -> None:
    loop = started(replace(AUTOSCALER, rule=replace(PAPER, maximum=24)))
    effects = read(loop, reading(10, ended={"a": (50, 50), "b": (9, 0)}, busy_s=(100, 40)))
    targets = the(SetTargets, effects)
    assert isinstance(targets, SetTargets)
    assert sum(targets.targets) == 24
    assert targets.targets[0] > targets.targets[1]


def test_a_dry_run_advises_and_wants_nothing() -> None:
    loop = started(replace(AUTOSCALER, dry_run=True))
    effects = read(loop, reading(10, ended={"a": (9, 0), "b": (9, 0)}, busy_s=(50, 50)))
    (ended,) = effects
    assert isinstance(ended, WindowEnded)
    assert [each.target for each in ended.advice] == [5, 5]
    assert loop.targets == (10, 10)


def test_targets_that_another_control_plane_has_set_are_followed() -> None:
    loop = started()
    read(loop, reading(5, targets=(7, 3)))
    assert loop.targets == (7, 3)


def test_a_silent_router_is_asked_again_after_a_window() -> None:
    loop = started()
    loop.on_no_answer(10 * SECOND)
    assert loop.wake_at_ns() == 20 * SECOND
    # The window goes on: its means are over both.
    ended = {"a": (9, 0), "b": (9, 0)}
    effects = read(loop, reading(20, ended=ended, busy_s=(100, 100), targets=(10, 10)))
    assert the(SetTargets, effects) == SetTargets((5, 5))


# Windows and moves


def test_an_application_that_moves_takes_its_past_along() -> None:
    loop = started()
    bad_past = {"a": (0, 1000), "b": (0, 0)}
    # Between two windows a has moved to the second sub-cluster; all its bad requests are older.
    read(loop, reading(4, Plan({"a": 1, "b": 1}), ended=bad_past))
    moved = {"a": (500, 1000), "b": (500, 0)}
    effects = read(loop, reading(10, Plan({"a": 1, "b": 1}), ended=moved, busy_s=(0, 50)))
    ended = the(WindowEnded, effects)
    assert isinstance(ended, WindowEnded)
    assert [(each.requests, each.bad) for each in ended.windows] == [(0, 0), (1000, 0)]


def test_a_move_makes_the_rule_forget_all_but_what_bursts_taught() -> None:
    loop = started()
    scaler = loop.scaler
    assert scaler is not None
    for number, state in enumerate(scaler.states):
        scaler.states[number] = replace(state, demands=(3.0,), calm=7, taught=0.1)
    read(loop, reading(4, Plan({"a": 0, "b": 0})))
    for state in scaler.states:
        assert (state.demands, state.calm, state.taught) == ((), 0, 0.1)


def test_sub_clusters_without_a_move_keep_window_and_memory() -> None:
    wide = replace(EPOCHS, sub_clusters=3)
    plans = Plan({"a": 0, "b": 1, "c": 2}), Plan({"a": 1, "b": 0, "c": 2})
    loop = ControlLoop(AUTOSCALER, wide, [*models(), PlacedModel("c", 1.0, 10)])

    def seen(at_s: float, plan: Plan) -> ClusterReading:
        made = reading(at_s, plan, busy_s=(0, 0, at_s))
        return replace(made, applications={**made.applications, "c": ApplicationReading(0, 0, 0)})

    loop.on_start(0, seen(0, plans[0]), 30)
    read(loop, seen(0, plans[0]))
    scaler = loop.scaler
    assert scaler is not None
    scaler.states = [replace(state, calm=7) for state in scaler.states]
    read(loop, seen(4, plans[1]))
    assert [state.calm for state in scaler.states] == [0, 0, 7]
    assert [opened.at_ns for opened in scaler.opened] == [4 * SECOND, 4 * SECOND, 0]


def test_a_window_that_has_just_begun_decides_nothing() -> None:
    loop = started()
    read(loop, reading(7, Plan({"a": 1, "b": 1}), ended={"a": (0, 10), "b": (0, 10)}))
    lost = {"a": (0, 90), "b": (0, 90)}
    effects = read(loop, reading(10, Plan({"a": 1, "b": 1}), ended=lost, busy_s=(0, 30)))
    assert the(SetTargets, effects) == SetTargets((10, 10))
    # With the next one it is whole, and has all of what happened since.
    lost = {"a": (0, 100), "b": (90, 90)}
    effects = read(loop, reading(20, Plan({"a": 1, "b": 1}), ended=lost, busy_s=(0, 130)))
    ended = the(WindowEnded, effects)
    assert isinstance(ended, WindowEnded)
    assert (ended.windows[1].requests, ended.windows[1].bad) == (260, 170)
    assert ended.windows[1].busy == pytest.approx(10.0)


# Epochs


def test_balanced_rates_move_nothing() -> None:
    loop = started(None)
    assert read(loop, reading(60, received=offered(a=1000, b=900))) == []
    assert not loop.is_placing


def test_unbalanced_rates_are_placed_anew() -> None:
    loop = started(None)
    (asked,) = read(loop, reading(60, received=offered(a=1200, b=600)))
    assert isinstance(asked, SolvePlacement)
    assert [model.rate_rps for model in asked.problem.models] == [20.0, 10.0]
    assert asked.problem.current == APART
    assert asked.limit_s == EPOCHS.solve_s


def test_a_difference_that_chance_explains_moves_nothing() -> None:
    # Of 18 requests 12 and 6 are not far from 9 and 9: they differ by 1.4 standard deviations.
    loop = started(None)
    assert read(loop, reading(60, received=offered(a=12, b=6))) == []
    assert not loop.is_placing
    # Of 40 there would have to be 30 and 10.
    assert read(loop, reading(120, received=offered(a=12 + 29, b=6 + 11))) == []
    assert the(SolvePlacement, read(loop, reading(180, received=offered(a=41 + 30, b=17 + 10))))


def test_an_imbalance_of_0_asks_for_a_plan_at_any_difference() -> None:
    loop = started(None, replace(EPOCHS, imbalance=0.0))
    assert the(SolvePlacement, read(loop, reading(60, received=offered(a=2, b=1))))


def test_a_plan_may_leave_a_part_of_the_imbalance_that_asks_for_one() -> None:
    loop = started(None)
    asked = the(SolvePlacement, read(loop, reading(60, received=offered(a=1200, b=600))))
    assert isinstance(asked, SolvePlacement)
    assert asked.problem.slack == EPOCHS.imbalance / 4


def test_rates_are_of_what_was_offered_not_of_what_ended() -> None:
    loop = started(None)
    # b is overloaded: little of what it was offered has ended.
    seen = reading(60, received=offered(a=600, b=6000), ended={"a": (600, 0), "b": (600, 0)})
    (asked,) = read(loop, seen)
    assert isinstance(asked, SolvePlacement)
    assert [model.rate_rps for model in asked.problem.models] == [10.0, 100.0]


def test_an_epoch_is_not_judged_by_a_router_that_has_just_come() -> None:
    loop = started(None)
    read(loop, reading(50, term=2))
    assert read(loop, reading(60, term=2, received=offered(a=1200, b=0))) == []
    (asked,) = read(loop, reading(120, term=2, received=offered(a=7200, b=0)))
    assert isinstance(asked, SolvePlacement)
    assert [model.rate_rps for model in asked.problem.models] == [100.0, 0.0]


def test_a_plan_is_applied_and_kept_once_it_holds() -> None:
    loop = started(None)
    read(loop, reading(60, received=offered(a=1200, b=600)))
    loop.on_solved(SWAPPED)
    assert loop.take_effects() == [ApplyPlan(SWAPPED)]
    assert loop.is_applying
    half = Plan({"a": 1, "b": 1})
    assert read(loop, reading(61, half, on_their_way=frozenset("b"))) == []
    assert read(loop, reading(62, SWAPPED)) == [KeepPlan(SWAPPED)]
    assert loop.placer is not None
    assert loop.placer.moved == 2
    assert not loop.is_placing


def test_a_move_that_never_ends_is_given_up_and_rolled_back() -> None:
    loop = started(None)
    read(loop, reading(60, received=offered(a=1200, b=600)))
    loop.on_solved(SWAPPED)
    loop.take_effects()
    half, away = Plan({"a": 1, "b": 1}), frozenset("b")
    assert read(loop, reading(61, half, on_their_way=away)) == []
    assert read(loop, reading(181, half, on_their_way=away)) == []
    given_up = read(loop, reading(182, half, on_their_way=away))
    assert given_up == [ApplyPlan(half), GiveUpMove(("b",))]
    assert not loop.is_placing
    assert loop.placer is not None
    assert loop.placer.plan == half
    # The next epoch may try again.
    assert the(SolvePlacement, read(loop, reading(242, half, received=offered(a=9000, b=900))))


def test_a_new_leader_has_all_the_time_for_a_move() -> None:
    loop = started(None)
    read(loop, reading(60, received=offered(a=1200, b=600)))
    loop.on_solved(SWAPPED)
    read(loop, reading(61))
    assert read(loop, reading(200, Plan(), term=2)) == [ApplyPlan(SWAPPED)]
    given_up = read(loop, reading(321, Plan({"b": 1}), term=2))
    assert given_up == [ApplyPlan(APART), GiveUpMove(("a", "b"))]


def test_a_plan_on_its_way_outlasts_an_epoch() -> None:
    loop = started(None)
    read(loop, reading(60, received=offered(a=1200, b=600)))
    assert read(loop, reading(120, received=offered(a=9999, b=600))) == []
    loop.on_unsolved()
    (asked,) = read(loop, reading(180, received=offered(a=13200, b=600)))
    assert isinstance(asked, SolvePlacement)
    # Since the last epoch that was judged.
    assert asked.problem.models[0].rate_rps == 100.0


def test_a_stage_with_a_gap_stops_what_follows() -> None:
    # Neither fits beside the other: one would have to be away first.
    loop = started(None, replace(EPOCHS, memory_bytes=15))
    read(loop, reading(60, received=offered(a=1200, b=600)))
    loop.on_solved(SWAPPED)
    assert loop.take_effects() == [LeaveInPlace(("a", "b"))]
    assert not loop.is_placing
    assert loop.placer is not None
    assert loop.placer.moved == 0
    assert loop.placer.plan == APART


def test_stages_before_a_gap_are_made() -> None:
    # c has room on the third sub-cluster; a and b cannot change places.
    loop = ControlLoop(
        None,
        replace(EPOCHS, sub_clusters=3, memory_bytes=15),
        [*models(), PlacedModel("c", 1.0, 5)],
    )
    now, then = Plan({"a": 0, "b": 1, "c": 0}), Plan({"a": 1, "b": 0, "c": 2})

    def seen(at_s: float, plan: Plan, count: int = 0) -> ClusterReading:
        made = reading(at_s, plan, received=offered(a=count, b=0), busy_s=(0, 0, 0))
        return replace(made, applications={**made.applications, "c": ApplicationReading(0, 0, 0)})

    loop.on_start(0, seen(0, now), 3)
    read(loop, seen(0, now))
    read(loop, seen(60, now, 600))
    loop.on_solved(then)
    first = Plan({"a": 0, "b": 1, "c": 2})
    assert loop.take_effects() == [ApplyPlan(first)]
    assert read(loop, seen(61, first)) == [KeepPlan(first), LeaveInPlace(("a", "b"))]
    assert loop.placer is not None
    assert loop.placer.moved == 1


def test_a_new_leader_in_the_middle_of_a_move_is_told_where_it_goes() -> None:
    loop = started(None)
    read(loop, reading(60, received=offered(a=1200, b=600)))
    loop.on_solved(SWAPPED)
    loop.take_effects()
    assert read(loop, reading(61, Plan({"a": 0, "b": 0}), term=2)) == [ApplyPlan(SWAPPED)]


def test_a_new_leader_while_a_plan_is_sought_is_told_the_last_one() -> None:
    loop = started(None, plan=SWAPPED)
    read(loop, reading(60, SWAPPED, received=offered(a=1200, b=600)))
    assert read(loop, reading(61, Plan({"a": 0, "b": 0}), term=2)) == [ApplyPlan(SWAPPED)]
    # The new plan has to wait for that.
    loop.on_solved(APART)
    assert loop.take_effects() == []
    assert read(loop, reading(62, SWAPPED, term=2)) == [KeepPlan(SWAPPED), ApplyPlan(APART)]


# The first plan


def test_the_first_plan_is_solved_with_equal_rates() -> None:
    loop = ControlLoop(None, EPOCHS, models())
    loop.on_start(0, reading(0, Plan({"a": 0, "b": 0})), 4)
    (asked,) = loop.take_effects()
    assert isinstance(asked, SolvePlacement)
    assert [model.rate_rps for model in asked.problem.models] == [1.0, 1.0]
    assert asked.problem.current == Plan()
    loop.on_solved(APART)
    assert loop.take_effects() == [ApplyPlan(APART)]
    assert read(loop, reading(1, APART)) == [KeepPlan(APART)]
    assert loop.placer is not None
    assert loop.placer.moved == 0


def test_the_plan_of_the_router_comes_before_the_kept_one() -> None:
    loop = ControlLoop(None, EPOCHS, models())
    loop.on_start(0, reading(0, SWAPPED), 4, kept=APART)
    assert loop.take_effects() == [ApplyPlan(SWAPPED)]


@pytest.mark.parametrize(
    "kept",
    [
        Plan({"a": 0}),
        Plan({"a": 0, "b": 1, "gone": 0}),
        Plan({"a": 0, "b": 2}),
        Plan({"a": -1, "b": 0}),
        Plan(),
    ],
)
def test_a_kept_plan_of_other_applications_is_not_used(kept: Plan) -> None:
    loop = ControlLoop(None, EPOCHS, models())
    loop.on_start(0, reading(0, Plan({"a": 0, "b": 0})), 4, kept=kept)
    assert isinstance(loop.take_effects()[0], SolvePlacement)


def test_a_kept_plan_is_used_where_the_router_has_none() -> None:
    loop = ControlLoop(None, EPOCHS, models())
    loop.on_start(0, reading(0, Plan({"a": 0, "b": 0})), 4, kept=SWAPPED)
    assert loop.take_effects() == [ApplyPlan(SWAPPED)]


def test_an_application_is_as_large_as_all_its_variants() -> None:
    small = replace(linear("s", 1, 5), static_bytes=100, dynamic_bytes=(7,), load_ns=2_000_000)
    large = replace(linear("l", 4, 9), static_bytes=900, dynamic_bytes=(70,), load_ns=8_000_000)
    placed = placed_application("a", [small, large], [8, 8], seconds(0.1))
    assert (placed.static_bytes, placed.dynamic_bytes, placed.load_cost) == (1000, 70, 10.0)
    assert placed.rate_rps == 1.0
