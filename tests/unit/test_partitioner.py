"""Placement: plans and moves worked by hand, limits kept, obstacles named."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.partitioner.backends import backends_for, backends_needed
from fermata.partitioner.plan import (
    Move,
    PlacedModel,
    Plan,
    Problem,
    SubCluster,
    memory_bytes,
    moves,
    stages,
)
from fermata.partitioner.plan_file import by_name, load_plan
from fermata.partitioner.problem_file import read_problem, save_plan
from fermata.partitioner.solver.balance import Balance
from fermata.partitioner.solver.milp import Program, available_solvers
from fermata.partitioner.solver.search import greedy
from fermata.partitioner.solver.solve import solve
from fermata.partitioner.solver.two_level import solve_two_level
from fermata.profiles.profile import linear

ROOMY = 1000


def model(name: str, rate: float, static: int, dynamic: int = 0, cost: float = 1.0) -> PlacedModel:
    return PlacedModel(name, rate, static, dynamic, cost)


def places(count: int, rate_max: float = 1e6, room: int = ROOMY) -> tuple[SubCluster, ...]:
    return tuple(SubCluster(f"s{number}", rate_max, room) for number in range(count))


def alike(count: int, rate: float = 10, static: int = 10) -> tuple[PlacedModel, ...]:
    return tuple(model(f"m{number}", rate, static) for number in range(count))


def test_equal_models_split_evenly_and_provenly() -> None:
    found = solve(Problem(alike(6), places(3)), 2)
    assert [len(found.plan.models_of(number)) for number in range(3)] == [2, 2, 2]
    assert found.objective == found.bound == found.gap == 0.0
    assert found.proven


def test_rate_and_memory_are_balanced_together() -> None:
    # By rate alone {a, d} {b, c}; by memory alone {a, b} {c, d}; {a, c} {b, d} suits both.
    models = (model("a", 30, 10), model("b", 30, 30), model("c", 10, 30), model("d", 10, 10))
    found = solve(Problem(models, places(2)), 2)
    assert found.plan.home["a"] == found.plan.home["c"] != found.plan.home["b"]
    assert found.rate_imbalance == found.memory_imbalance == 0.0


def test_working_memory_counts_once() -> None:
    held = [model("a", 1, 10, 5), model("b", 1, 20, 7)]
    assert memory_bytes(held) == 37
    assert memory_bytes([]) == 0


def test_largest_working_memory_keeps_models_apart() -> None:
    # 40 + 40 + 30 fits a room of 110; with the 60 of c it does not.
    models = (model("a", 1, 40, 30), model("b", 1, 40, 30), model("c", 1, 10, 60))
    found = solve(Problem(models, places(2, room=110)), 2)
    for place in (0, 1):
        held = [each for each in models if found.plan.home[each.name] == place]
        assert memory_bytes(held) <= 110


def test_shares_make_unequal_sub_clusters() -> None:
    large = SubCluster("large", 1e6, ROOMY, share=2.0)
    found = solve(Problem(alike(6), (large, SubCluster("small", 1e6, ROOMY))), 2)
    assert len(found.plan.models_of(0)) == 4
    assert found.rate_imbalance == pytest.approx(0.0)


def test_a_model_goes_only_where_it_has_a_profile() -> None:
    fast = {"a100": linear("x", 1, 5)}
    models = tuple(replace(each, profiles=fast) for each in alike(2))
    kinds = (SubCluster("old", 1e6, ROOMY, kind="t4"), SubCluster("new", 1e6, ROOMY, kind="a100"))
    found = solve(Problem(models, kinds), 2)
    assert set(found.plan.home.values()) == {1}


def test_disruption_stays_within_its_bound() -> None:
    # Balance wants one model to move; a move costs a load and an unload.
    models = alike(4)
    home = Plan({"m0": 0, "m1": 0, "m2": 0, "m3": 1})
    stuck = Problem(models, places(2), current=home, load_cost_max=1.9)
    assert solve(stuck, 2).plan == home
    free = replace(stuck, load_cost_max=2.0)
    found = solve(free, 2)
    assert found.cost == 2.0
    assert found.objective == 0.0
    assert len(found.moves) == 1


def test_the_cheapest_models_move() -> None:
    models = (*alike(3), model("cheap", 10, 10, cost=0.1), *alike(5)[3:])
    home = Plan({each.name: 0 for each in models[:4]} | {"m3": 1, "m4": 1})
    problem = Problem(models, places(2), current=home, load_cost_max=0.2)
    found = solve(problem, 2)
    assert [move.model for move in found.moves] == ["cheap"]


def test_new_models_are_no_disruption() -> None:
    problem = Problem(alike(2), places(2), current=Plan({"m0": 0}), load_cost_max=0.0)
    found = solve(problem, 2)
    assert found.plan == Plan({"m0": 0, "m1": 1})
    assert found.cost == 0.0


@pytest.mark.parametrize("solver", available_solvers())
def test_solvers_find_the_same_optimum(solver: str) -> None:
    rates = (7, 11, 13, 17, 19, 23, 29, 31)
    models = tuple(model(f"m{rate}", rate, 100 - rate) for rate in rates)
    problem = Problem(models, places(3))
    best = min(
        Balance(problem).objective(np.array([0, *rest]))
        for rest in np.ndindex(*([3] * (len(models) - 1)))
    )
    found = solve(problem, 5, solver=solver)
    assert found.proven
    assert found.objective == pytest.approx(best, abs=1e-6)


def test_a_re_solve_of_two_leaves_the_others_alone() -> None:
    models = tuple(model(f"m{number}", 1 + number, 0) for number in range(9))
    balance = Balance(Problem(models, places(3)))
    homes = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    found = Program(balance, homes, (0, 2)).solve(2, available_solvers()[0])
    assert found.homes is not None
    assert (found.homes[3:6] == 1).all()
    assert set(found.homes[[0, 1, 2, 6, 7, 8]].tolist()) <= {0, 2}
    # 1 + 2 + 3 + 7 + 8 + 9 = 30 splits into 15 and 15.
    assert balance.rates(found.homes)[0] == 15


def test_every_obstacle_is_named() -> None:
    models = (model("huge", 1, 900, 200), model("busy", 2000, 1), model("fine", 1, 1))
    with pytest.raises(ConfigError) as caught:
        solve(Problem(models, places(2, rate_max=1000)), 1)
    text = str(caught.value)
    assert "model huge needs" in text
    assert "model busy has 2,000 req/s" in text
    assert "fine" not in text


def test_a_model_without_a_place_is_named() -> None:
    lonely = replace(model("lonely", 1, 1), profiles={"h200": linear("x", 1, 5)})
    with pytest.raises(ConfigError, match="model lonely runs on none of t4"):
        solve(Problem((lonely,), (SubCluster("s", 1e6, ROOMY, kind="t4"),)), 1)


def test_contradicting_limits_say_what_would_help() -> None:
    # Three models of 60 do not fit two rooms of 100, though all together they would.
    with pytest.raises(ConfigError, match="memory of every sub-cluster larger by 20 %"):
        solve(Problem(alike(3, static=60), places(2, room=100)), 3)


def test_a_plan_travels_as_plain_data() -> None:
    plan = Plan({"a": 0, "b": 1})
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan.after((Move("a", 0, 1, 2.0), Move("b", 1, None, 0.0))) == Plan({"a": 1, "b": 1})
    assert plan.away(Plan({"a": 0, "b": 0})) == ("b",)
    assert plan.away(Plan({"a": 0})) == ("b",)


def test_moves_are_counted_as_load_and_unload() -> None:
    changed = moves(Plan({"a": 0, "gone": 1}), Plan({"a": 1, "new": 0}), {"a": 3.0})
    assert changed == (
        Move("a", 0, 1, 6.0),
        Move("gone", 1, None, 0.0),
        Move("new", None, 0, 0.0),
    )


def test_stages_load_before_they_unload() -> None:
    # Room for three of ten: a and b change places, which fits; every move in one stage.
    models = alike(4)
    home = {"m0": 0, "m1": 0, "m2": 1, "m3": 1}
    problem = Problem(models, places(2, room=30), current=Plan(home))
    swapped = Plan({**home, "m0": 1, "m2": 0})
    (stage,) = stages(problem, swapped)
    assert {move.model for move in stage.moves} == {"m0", "m2"}
    assert not stage.gap


def test_stages_without_room_go_one_after_another() -> None:
    models = alike(3)
    home = Plan({"m0": 0, "m1": 0, "m2": 1})
    problem = Problem(models, places(2, room=20), current=home)
    ordered = stages(problem, Plan({"m0": 1, "m1": 0, "m2": 0}))
    assert [[move.model for move in stage.moves] for stage in ordered] == [["m0"], ["m2"]]
    assert not any(stage.gap for stage in ordered)


def test_a_full_exchange_needs_a_gap() -> None:
    models = alike(2)
    problem = Problem(models, places(2, room=10), current=Plan({"m0": 0, "m1": 1}))
    ordered = stages(problem, Plan({"m0": 1, "m1": 0}))
    assert [stage.gap for stage in ordered] == [True, False, False]
    ways = [(move.model, move.source, move.target) for stage in ordered for move in stage.moves]
    assert ways == [("m1", 1, None), ("m0", 0, 1), ("m1", None, 0)]


def test_backends_follow_equations_2_and_3() -> None:
    # Table 4: staggered batches of 16 on eight backends sustain 5,839 req/s.
    profile = linear("resnet50", 1.053, 5.072)
    needed = backends_for(PlacedModel("r", 5839, 1, profiles={"": profile}, slo_ns=ms(25)))
    assert needed is not None
    assert needed == pytest.approx(8.0, abs=0.01)


def test_backends_of_a_sub_cluster_share() -> None:
    profile = linear("x", 1, 4)
    half = PlacedModel("x", 50, 1, profiles={"": profile}, slo_ns=ms(20))
    one = backends_for(half)
    assert one is not None
    assert one < 0.5
    assert backends_needed([half, half]) == 1
    assert backends_needed([half, replace(half, slo_ns=0)]) is None
    assert backends_needed([replace(half, rate_rps=0.0)]) == 0


def test_two_levels_keep_clusters_and_limits() -> None:
    four = tuple(SubCluster(f"{c}{n}", 1e6, ROOMY, cluster=c) for c in "ab" for n in range(2))
    found = solve_two_level(Problem(alike(8), four), 4)
    assert [len(found.plan.models_of(index)) for index in range(4)] == [2, 2, 2, 2]
    assert found.rate_imbalance == 0.0


def test_two_levels_are_never_worse_than_the_current_plan() -> None:
    four = tuple(SubCluster(f"{c}{n}", 1e6, ROOMY, cluster=c) for c in "ab" for n in range(2))
    home = Plan({f"m{number}": number % 4 for number in range(8)})
    found = solve_two_level(Problem(alike(8), four, current=home, load_cost_max=0.0), 2)
    assert found.plan == home


def test_no_models_is_a_plan_too() -> None:
    found = solve(Problem((), places(2)), 1)
    assert found.plan.home == {}
    assert found.objective == 0.0


def test_greedy_keeps_models_at_home() -> None:
    home = Plan({"m0": 1, "m1": 1})
    balance = Balance(Problem(alike(3), places(2), current=home))
    assert balance.plan(greedy(balance)) == Plan({"m0": 1, "m1": 1, "m2": 0})


def test_problem_files_are_read_and_plans_written(tmp_path: Path) -> None:
    problem = read_problem(
        {
            "sub_clusters": [{"name": "s", "count": 2, "memory_mb": 1000}],
            "rate_max_rps": 1000,
            "models": [
                {"profile": "h200-graph/resnet50", "rate_rps": 10, "copies": 2, "slo_ms": 20},
                {"name": "own", "rate_rps": 5, "static_mb": 1.5, "dynamic_mb": 2},
            ],
        }
    )
    assert [each.name for each in problem.models] == ["resnet50-0", "resnet50-1", "own"]
    assert problem.models[2].static_bytes == 3 * 2**19
    found = solve(problem, 1)
    save_plan(tmp_path / "plan.json", problem, found)
    names = [each.name for each in problem.sub_clusters]
    assert load_plan(tmp_path / "plan.json", names) == found.plan
    # A sub-cluster that is gone is the home of nothing.
    kept = load_plan(tmp_path / "plan.json", names[:1])
    assert kept == Plan(dict.fromkeys(found.plan.models_of(0), 0))
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["gap"] >= 0.0
    assert by_name(found.plan, names) == written["plan"]


def test_the_problem_of_the_page_on_scale_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text()
    block = page.split("```yaml\n")[1].split("```")[0]
    problem = read_problem(yaml.safe_load(block))
    assert len(problem.sub_clusters) == 4
    assert len(problem.models) == 21
    assert problem.load_cost_max == 500


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": []}, "models"),
        ({"sub_clusters": 0}, "sub_clusters=0"),
        ({"memory_mb": -1}, "memory_mb=-1"),
        ({"models": [{"name": "x", "rate_rps": 1}]}, "static_mb"),
        ({"models": [{"name": "x", "rate_rps": 1, "static_mb": 1}] * 2}, "twice"),
    ],
)
def test_bad_problem_files_are_refused(change: dict[str, object], words: str) -> None:
    good: dict[str, object] = {
        "sub_clusters": 2,
        "rate_max_rps": 10,
        "memory_mb": 10,
        "models": [{"name": "x", "rate_rps": 1, "static_mb": 1}],
    }
    with pytest.raises(ConfigError, match=words):
        read_problem({**good, **change})
