"""Kinds of backends in plans and limits: clusters of one kind each, as many as there are of it."""

from dataclasses import replace

from fermata.autoscaler.options import AutoscalerOptions, EpochOptions, KindLimit
from fermata.autoscaler.placer import placement_problem
from fermata.autoscaler.readings import ApplicationReading, ClusterReading, SubClusterReading
from fermata.autoscaler.rule import RuleOptions
from fermata.autoscaler.scaler import Scaler
from fermata.foundation.units import SECOND, ms
from fermata.partitioner.plan import PlacedModel, Plan
from fermata.partitioner.solver.two_level import solve_two_level
from fermata.profiles.profile import linear

SLOWNESS = {"fast": 1.0, "slow": 3.0}
KINDS = ("fast",) * 23 + ("slow",) * 4
MODELS = tuple(
    PlacedModel(
        f"m{number}",
        10.0,
        1,
        profiles={kind: linear("any", SLOWNESS[kind], 0.0) for kind in kinds},
        slo_ns=ms(100),
    )
    for number, kinds in enumerate([("fast",)] * 23 + [("fast", "slow")] * 31)
)


def test_models_go_to_clusters_of_one_kind_first() -> None:
    options = EpochOptions(sub_clusters=len(KINDS), kinds=KINDS)
    problem = placement_problem(options, MODELS)
    clusters = [each.cluster for each in problem.sub_clusters]
    assert clusters == ["fast-0"] * 20 + ["fast-1"] * 3 + ["slow-0"] * 4
    found = solve_two_level(problem, 1.0)
    for model in MODELS:
        assert model.runs_on(KINDS[found.plan.home[model.name]])


def test_kinds_get_models_by_the_backends_that_they_need() -> None:
    # Twelve models alike, and three slow backends where there is a fast one: 6 on either.
    models = [replace(each, name=f"n{number}") for number, each in enumerate(MODELS[-12:])]
    options = EpochOptions(sub_clusters=2, kinds=("fast", "slow"), shares=(1.0, 3.0))
    found = solve_two_level(placement_problem(options, models), 1.0)
    assert [len(found.plan.models_of(place)) for place in range(2)] == [6, 6]
    # As many of both kinds: the slow ones get a quarter.
    even = replace(options, shares=(1.0, 1.0), memory_weight=0.0)
    found = solve_two_level(placement_problem(even, models), 1.0)
    assert [len(found.plan.models_of(place)) for place in range(2)] == [9, 3]


def test_few_sub_clusters_are_placed_at_one_level() -> None:
    problem = placement_problem(EpochOptions(sub_clusters=20), MODELS)
    assert {each.cluster for each in problem.sub_clusters} == {""}


def reading(at_s: int) -> ClusterReading:
    """Three sub-clusters with four backends each, all of them busy with a hundred a second."""
    up_ns = 4 * at_s * SECOND
    return ClusterReading(
        at_s * SECOND,
        1,
        {str(each): ApplicationReading(100 * at_s, 50 * at_s, 50 * at_s) for each in range(3)},
        tuple(SubClusterReading(4, up_ns, up_ns, 8.0) for _ in range(3)),
        Plan({str(each): each for each in range(3)}),
    )


def test_no_kind_has_more_backends_than_there_are() -> None:
    kinds = (KindLimit((0, 2), 9), KindLimit((1,), 100))
    options = AutoscalerOptions(RuleOptions(maximum=109), kinds=kinds)
    scaler = Scaler(options, (4, 4, 4), reading(0))
    scaler.on_window(reading(10))
    first, other, last = scaler.targets
    assert first + last == 9
    assert abs(first - last) == 1
    assert other > 8


def test_no_kind_has_fewer_than_its_minimum_and_all_keep_to_the_maximum() -> None:
    kinds = (KindLimit((0,), 20, 5), KindLimit((1,), 20, 1), KindLimit((2,), 20, 1))
    options = AutoscalerOptions(RuleOptions(maximum=14), kinds=kinds)
    scaler = Scaler(options, (4, 4, 4), reading(0))
    assert [each.minimum for each in scaler.rules] == [5, 1, 1]
    scaler.on_window(reading(10))
    assert sum(scaler.targets) == 14
    assert scaler.targets[0] >= 5
