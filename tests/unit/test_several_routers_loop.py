"""The control loop over several routers: those that take no part, and what one carries."""

from dataclasses import replace
from random import Random

import pytest
from control_loop_world import AUTOSCALER, EPOCHS, offered, read, reading, started, the

from fermata.autoscaler.capacity import RouterCapacity
from fermata.autoscaler.control_loop import ControlLoop, SetTargets, WindowEnded
from fermata.autoscaler.placer import ApplyPlan, KeepPlan, Placer, SolvePlacement
from fermata.autoscaler.readings import ApplicationReading, ClusterReading
from fermata.foundation.units import SECOND, seconds
from fermata.partitioner.plan import PlacedModel, Plan
from fermata.partitioner.solver.solve import solve

THREE = Plan({"a": 0, "b": 0, "c": 1, "d": 2})


def three(at_s: float, count: int = 0, plan: Plan = THREE, **values: object) -> ClusterReading:
    """Three sub-clusters; requests come for a and b alone, which share the first."""
    made = reading(at_s, plan, busy_s=(0, 0, 0), **values)  # type: ignore[arg-type]
    each = ApplicationReading(count, 0, 0)
    rest = ApplicationReading(0, 0, 0)
    return replace(made, applications={"a": each, "b": each, "c": rest, "d": rest})


def started_with_three() -> ControlLoop:
    loop = ControlLoop(
        None, replace(EPOCHS, sub_clusters=3), [PlacedModel(name, 1.0, 10) for name in "abcd"]
    )
    loop.on_start(0, three(0), 3)
    read(loop, three(0))
    return loop


def test_nothing_moves_to_or_from_a_closed_sub_cluster() -> None:
    loop = started_with_three()
    (asked,) = read(loop, three(60, 600, closed=frozenset((1,))))
    assert isinstance(asked, SolvePlacement)
    assert [each.name for each in asked.problem.sub_clusters] == ["0", "2"]
    assert [each.name for each in asked.problem.models] == ["a", "b", "d"]
    assert asked.problem.current == Plan({"a": 0, "b": 0, "d": 1})
    # The answer counts the open ones alone.
    loop.on_solved(Plan({"a": 0, "b": 1, "d": 1}))
    moved = Plan({"a": 0, "b": 2, "c": 1, "d": 2})
    assert loop.take_effects() == [ApplyPlan(moved)]
    assert read(loop, three(61, plan=moved)) == [KeepPlan(moved)]


def test_a_closed_sub_cluster_alone_unbalances_nothing() -> None:
    loop = started_with_three()
    assert read(loop, three(60, 600, closed=frozenset((1, 2)))) == []
    assert not loop.is_placing
    # What it has counted meanwhile says nothing of its rates.
    assert read(loop, three(120, 1200, closed=frozenset((0,)))) == []
    assert read(loop, three(180, 9000)) == []
    assert the(SolvePlacement, read(loop, three(240, 9600)))


def test_applications_leave_a_sub_cluster_that_has_lost_its_backends() -> None:
    loop = started_with_three()
    (asked,) = read(loop, three(60, 600, bare=frozenset((0,))))
    assert isinstance(asked, SolvePlacement)
    assert [each.name for each in asked.problem.sub_clusters] == ["1", "2"]
    assert [each.name for each in asked.problem.models] == ["a", "b", "c", "d"]
    loop.on_solved(solve(asked.problem, 1.0).plan)
    (applied,) = loop.take_effects()
    assert isinstance(applied, ApplyPlan)
    assert applied.plan.models_of(0) == ()
    assert {applied.plan.home[name] for name in "ab"} == {1, 2}


def test_nothing_moves_to_a_sub_cluster_without_backends() -> None:
    loop = started_with_three()
    # There is nowhere else to go.
    assert read(loop, three(60, 600, bare=frozenset((1,)), closed=frozenset((2,)))) == []
    # Where nobody asks for what lives there, it need not be loaded elsewhere.
    idle = three(120, 600, bare=frozenset((1,)))
    assert read(loop, idle) == []
    assert read(loop, three(180, 1200, bare=frozenset((0, 1, 2)))) == []


def test_a_sub_cluster_whose_router_is_silent_keeps_its_target_and_others_do_not() -> None:
    loop = started()
    before = loop.targets
    read(loop, reading(10, busy_s=(20.0, 0.0), closed=frozenset((1,))))
    assert loop.targets[1] == before[1]
    assert loop.targets[0] != before[0]
    kept = loop.targets[1]
    # A window that it was silent in is not judged.
    read(loop, reading(20, busy_s=(40.0, 40.0)))
    assert loop.targets[1] == kept
    read(loop, reading(30, busy_s=(60.0, 60.0)))
    assert loop.targets[1] != kept


def with_routers(seen: ClusterReading, *counts: tuple[int, float]) -> ClusterReading:
    """The reading, with (requests, CPU seconds) of the router of each sub-cluster."""
    sub_clusters = tuple(
        replace(each, router_requests=requests, router_cpu_ns=seconds(cpu_s))
        for each, (requests, cpu_s) in zip(seen.sub_clusters, counts, strict=True)
    )
    return replace(seen, sub_clusters=sub_clusters)


def test_the_rate_that_a_router_carries_is_learnt_from_its_cpu_time() -> None:
    loop = started(None, replace(EPOCHS, rate_rps_max=50_000.0))
    assert loop.placer is not None
    # 600,000 requests took 30 s, so that a core does 20,000 a second; the other one is idle.
    seen = reading(60, received=offered(a=600_000, b=600))
    (asked,) = read(loop, with_routers(seen, (600_000, 30.0), (600, 1.0)))
    assert isinstance(asked, SolvePlacement)
    assert loop.placer.capacity.rate_rps == pytest.approx(16_000.0)
    assert {each.rate_rps_max for each in asked.problem.sub_clusters} == {16_000.0}


def test_a_trial_is_believed_until_a_router_is_busy_enough_to_tell() -> None:
    capacity = RouterCapacity()
    capacity.start_rps = capacity.rules.start_rps(50_000.0)
    assert capacity.rate_rps == pytest.approx(40_000.0)
    capacity.on_span(540, seconds(7.2), seconds(60))
    assert capacity.rate_rps == pytest.approx(40_000.0)
    capacity.on_span(600_000, seconds(30), seconds(60))
    assert capacity.rate_rps == pytest.approx(16_000.0)
    assert [capacity.rules.start_rps(rate) for rate in (3.0, 1e9)] == [1_000.0, 200_000.0]


def test_a_router_that_is_nearly_idle_teaches_nothing() -> None:
    capacity = RouterCapacity()
    # 9 requests a second, and 12 % of a core that it is awake for anyway.
    capacity.on_span(540, seconds(7.2), seconds(60))
    assert capacity.rate_rps is None
    capacity.on_span(0, seconds(60), seconds(60))
    assert capacity.rate_rps is None


def test_spans_teach_by_their_cpu_time() -> None:
    capacity = RouterCapacity()
    capacity.on_span(1_000, seconds(21), seconds(60))
    capacity.on_span(100_000, seconds(60), seconds(60))
    # 100,700 requests in 74.7 s.
    assert capacity.rate_rps == pytest.approx(0.8 * 100_700 / 74.7)
    for _ in range(30):
        capacity.on_span(200_000, seconds(50), seconds(60))
    assert capacity.rate_rps == pytest.approx(3_200.0, rel=0.01)


def test_a_load_above_what_all_routers_carry_is_still_placed_evenly() -> None:
    loop = started(None, replace(EPOCHS, rate_rps_max=50_000.0))
    seen = reading(60, received=offered(a=1_200_000, b=600_000))
    (asked,) = read(loop, with_routers(seen, (1_200_000, 60.0), (600_000, 60.0)))
    assert isinstance(asked, SolvePlacement)
    # One core does 20,000 of 30,000 requests a second, less its reserve. Where each goes to the
    # emptier of two, none has more than the mean and half of the largest.
    assert {each.rate_rps_max for each in asked.problem.sub_clusters} == {25_000.0}


def test_a_learnt_rate_leaves_room_for_models_that_do_not_divide_evenly() -> None:
    placer = Placer(EPOCHS, [PlacedModel(name, 1.0, 10) for name in "abc"])
    placer.plan = Plan(dict.fromkeys("abc", 0))
    placer.capacity.on_span(100, SECOND, SECOND)
    (asked,) = placer._ask([PlacedModel(name, 100.0, 10) for name in "abc"])
    assert isinstance(asked, SolvePlacement)
    found = solve(asked.problem, 1.0).plan
    assert sorted(len(found.models_of(number)) for number in (0, 1)) == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_rates_alone_never_rule_every_plan_out(seed: int) -> None:
    rng = Random(seed)
    names = [f"m{number}" for number in range(rng.randint(1, 9))]
    rates = {name: rng.choice((100, 100, 100, rng.randint(1, 300))) for name in names}
    options = replace(EPOCHS, sub_clusters=rng.randint(2, 4))
    placer = Placer(options, [PlacedModel(name, 0.0, 1) for name in names])
    placer.capacity.on_span(1, SECOND, SECOND)
    placer.settled_rps = tuple(rng.choice((0.0, 50.0, 500.0)) for _ in range(options.sub_clusters))
    (asked,) = placer._ask([PlacedModel(name, rates[name], 1) for name in names])
    assert isinstance(asked, SolvePlacement)
    assert solve(asked.problem, 0.2).plan.home.keys() == rates.keys()


def test_a_problem_without_a_plan_is_tried_again_with_the_configured_rate() -> None:
    loop = started(None, replace(EPOCHS, rate_rps_max=50_000.0))
    seen = reading(60, received=offered(a=600_000, b=600))
    read(loop, with_routers(seen, (600_000, 30.0), (600, 1.0)))
    loop.on_unsolved()
    (again,) = loop.take_effects()
    assert isinstance(again, SolvePlacement)
    assert {each.rate_rps_max for each in again.problem.sub_clusters} == {50_000.0}
    # Then there is none.
    loop.on_unsolved()
    assert loop.take_effects() == []
    assert not loop.is_placing


def test_applications_that_do_not_move_take_their_part_of_a_router() -> None:
    loop = started(None, replace(EPOCHS, rate_rps_max=50_000.0))
    seen = with_routers(
        reading(60, received=offered(a=300_000, b=600)), (600_000, 30.0), (60_600, 1.0)
    )
    sub_clusters = tuple(
        replace(each, settled_requests=count)
        for each, count in zip(seen.sub_clusters, (300_000, 60_000), strict=True)
    )
    (asked,) = read(loop, replace(seen, sub_clusters=sub_clusters))
    assert isinstance(asked, SolvePlacement)
    # Of 16,000 a second, 5,000 and 1,000 are for those that stay.
    assert [each.rate_rps_max for each in asked.problem.sub_clusters] == [11_000.0, 15_000.0]
    loop.on_unsolved()
    (again,) = loop.take_effects()
    assert isinstance(again, SolvePlacement)
    assert [each.rate_rps_max for each in again.problem.sub_clusters] == [45_000.0, 49_000.0]


def test_a_configured_rate_is_never_passed() -> None:
    loop = started(None, replace(EPOCHS, rate_rps_max=1_000.0))
    seen = reading(60, received=offered(a=6_000, b=600))
    (asked,) = read(loop, with_routers(seen, (600_000, 30.0), (600, 1.0)))
    assert isinstance(asked, SolvePlacement)
    assert {each.rate_rps_max for each in asked.problem.sub_clusters} == {1_000.0}


def parted(at_s: float, home: int, bad: int, busy_s: float) -> ClusterReading:
    """Two routers that count what they serve themselves, with two backends each; an application
    moves to and fro between them, and the other one stays at the first."""
    made = reading(at_s, busy_s=(busy_s, 0), backends=2, targets=(2, 2))
    parts = {"0/a": ApplicationReading(bad, 0, bad), "1/b": ApplicationReading(0, 0, 0)}
    came = {f"{home}/c": ApplicationReading(0, 0, 0)}
    return replace(
        made, applications=parts | came, plan=Plan({"0/a": 0, "1/b": 1, f"{home}/c": home})
    )


def test_moves_in_every_window_do_not_keep_an_overloaded_router_from_growing() -> None:
    loop = ControlLoop(AUTOSCALER, None, (), 2)
    loop.on_start(0, parted(0, 0, 0, 0.0), 4)
    # Half of what the first one serves is too late, and both of its backends are busy.
    seen = parted(10, 1, 500, 20.0)
    half = ApplicationReading(1000, 500, 500)
    effects = read(loop, replace(seen, applications={**seen.applications, "0/a": half}))
    targets = the(SetTargets, effects)
    assert targets == SetTargets((4, 1))


def test_what_a_router_served_before_an_application_left_counts_in_its_window() -> None:
    loop = ControlLoop(AUTOSCALER, None, (), 2)
    loop.on_start(0, parted(0, 0, 0, 0.0), 4)
    seen = parted(10, 1, 0, 10.0)
    gone = {"0/a": ApplicationReading(100, 100, 0), "0/c": ApplicationReading(50, 20, 30)}
    effects = read(loop, replace(seen, applications={**seen.applications, **gone}))
    ended = the(WindowEnded, effects)
    assert isinstance(ended, WindowEnded)
    assert [(each.requests, each.bad) for each in ended.windows] == [(150, 30), (0, 0)]


def test_nothing_is_released_for_a_while_after_a_move() -> None:
    rule = replace(AUTOSCALER.rule, release_after=2, idle=0.05)
    loop = ControlLoop(replace(AUTOSCALER, rule=rule), None, (), 2)
    loop.on_start(0, parted(0, 0, 0, 0.0), 4)
    for window, home in enumerate((1, 0, 1, 0), 1):
        effects = read(loop, parted(10.0 * window, home, 0, 0.0))
        assert the(SetTargets, effects) == SetTargets((2, 2))
    read(loop, parted(50, 0, 0, 0.0))
    assert the(SetTargets, read(loop, parted(60, 0, 0, 0.0))) == SetTargets((1, 1))
