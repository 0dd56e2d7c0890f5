"""Routers that come to lead: what the control loop gives them."""

from dataclasses import replace

from control_loop_world import (
    APART,
    SWAPPED,
    read,
    reading,
    started,
    the,
)

from fermata.autoscaler.control_loop import SetTargets, WindowEnded
from fermata.autoscaler.placer import ApplyPlan, KeepPlan
from fermata.foundation.units import SECOND, seconds
from fermata.partitioner.plan import Plan


def test_a_new_leader_without_anything_is_given_targets_and_plan() -> None:
    loop = started(plan=SWAPPED)
    alone = Plan({"a": 0, "b": 0})
    effects = read(loop, reading(3, alone, term=2))
    assert effects == [SetTargets((10, 10)), ApplyPlan(SWAPPED)]
    # On their way: there is nothing more to ask for.
    assert read(loop, reading(4, alone, term=2, on_their_way=frozenset("a"))) == []
    assert read(loop, reading(5, SWAPPED, term=2)) == [KeepPlan(SWAPPED)]


def test_a_new_leader_that_has_both_keeps_them() -> None:
    loop = started()
    assert read(loop, reading(3, APART, term=2, targets=(4, 4))) == []
    assert loop.targets == (4, 4)


def test_a_new_leader_that_serves_where_backends_hold_models_is_given_the_plan() -> None:
    """It loads nothing before it has one: backends that came later stayed empty for ever."""
    loop = started(None)
    adopted = reading(3, APART, term=2, planned=False)
    assert read(loop, adopted) == [ApplyPlan(APART)]
    # The call was lost: it is made again.
    assert read(loop, replace(adopted, at_ns=seconds(4))) == [ApplyPlan(APART)]
    assert read(loop, reading(5, APART, term=2)) == [KeepPlan(APART)]
    assert read(loop, reading(6, APART, term=2)) == []


def test_a_router_that_lost_its_plan_is_given_it_again() -> None:
    loop = started(None, plan=SWAPPED)
    assert read(loop, reading(3, Plan({"a": 0}), planned=False)) == [ApplyPlan(SWAPPED)]
    assert read(loop, reading(4, SWAPPED)) == [KeepPlan(SWAPPED)]


def test_counters_of_two_routers_are_never_subtracted() -> None:
    loop = started()
    read(loop, reading(4, ended={"a": (500, 500), "b": (0, 0)}, busy_s=(40, 0)))
    read(loop, reading(4, term=2, targets=(10, 10)))
    ended = {"a": (100, 0), "b": (0, 0)}
    effects = read(loop, reading(10, term=2, targets=(10, 10), ended=ended, busy_s=(30, 0)))
    found = the(WindowEnded, effects)
    assert isinstance(found, WindowEnded)
    assert (found.windows[0].requests, found.windows[0].bad) == (100, 0)


def test_an_effect_that_was_lost_is_made_good() -> None:
    loop = started(plan=SWAPPED)
    assert read(loop, reading(3, Plan({"a": 0, "b": 0}), term=2))
    loop.on_no_answer(3 * SECOND)
    effects = read(loop, reading(4, Plan({"a": 0, "b": 0}), term=2))
    assert effects == [SetTargets((10, 10)), ApplyPlan(SWAPPED)]
