"""How many sub-clusters a load needs: by rate, by memory, and by both."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fermata.commands.main import app
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.partitioner.kind_sizing import sized_by_kind
from fermata.partitioner.plan import PlacedModel, Problem, SubCluster, fits
from fermata.partitioner.sizing import sized
from fermata.partitioner.solution import PlacementSolution
from fermata.partitioner.solver.two_level import solve_two_level
from fermata.profiles.profile import linear

LIMIT_S = 2.0


def problem(*models: PlacedModel, rate: float = 100.0, memory: int = 10) -> Problem:
    return Problem(models, (SubCluster("x", rate, memory),))


def count_of(given: Problem) -> int:
    asked, found = sized(given, solve_two_level, LIMIT_S)
    places = asked.sub_clusters
    for number, place in enumerate(places):
        own = set(found.plan.models_of(number))
        held = [each for each in asked.models if each.name in own]
        assert sum(each.rate_rps for each in held) <= place.rate_rps_max * (1 + 1e-9)
        assert fits(held, place.memory_bytes)
    return len(places)


def models(count: int, rate: float, static: int) -> list[PlacedModel]:
    return [PlacedModel(f"m{number}", rate, static) for number in range(count)]


def test_one_is_enough_for_little() -> None:
    assert count_of(problem(*models(4, 10.0, 1))) == 1


def test_rates_ask_for_as_many_routers_as_carry_them() -> None:
    assert count_of(problem(*models(10, 25.0, 1))) == 3
    # Two of 60 never share a router of 100.
    assert count_of(problem(*models(5, 60.0, 1))) == 5


def test_memory_asks_for_as_many_as_hold_all() -> None:
    assert count_of(problem(*models(5, 1.0, 4))) == 3


def test_a_model_above_the_rate_of_a_router_is_split() -> None:
    asked, found = sized(
        problem(PlacedModel("hot", 250.0, 2), *models(2, 10.0, 1)), solve_two_level, LIMIT_S
    )
    parts = [each for each in asked.models if each.name.startswith("hot")]
    assert [each.name for each in parts] == ["hot (1 of 3)", "hot (2 of 3)", "hot (3 of 3)"]
    assert sum(each.rate_rps for each in parts) == pytest.approx(250.0)
    assert len({found.plan.home[each.name] for each in parts}) == 3
    assert len(asked.sub_clusters) == 3


def test_many_are_placed_at_two_levels() -> None:
    asked, _ = sized(problem(*models(50, 60.0, 1)), solve_two_level, LIMIT_S)
    assert len(asked.sub_clusters) == 50
    assert [each.cluster for each in asked.sub_clusters] == [str(n // 20) for n in range(50)]


def test_the_whole_search_keeps_to_its_time() -> None:
    began = time.monotonic()
    # No two share a router, by rate or by memory, though all together would need half as many.
    assert count_of(problem(*models(41, 51.0, 1))) == 41
    assert count_of(problem(*models(41, 1.0, 51), memory=100)) == 41
    working = [PlacedModel(f"m{number}", 1.0, 45, 20) for number in range(30)]
    assert count_of(problem(*working, memory=100)) == 30
    # By rate at most two share one, which is shown anew for each count from 14 on.
    assert count_of(problem(*models(41, 34.0, 1), memory=100)) == 21
    assert time.monotonic() - began < 4 * LIMIT_S + 2.0


def test_a_solver_that_finds_nothing_leaves_the_first_fit() -> None:
    asked_s: list[float] = []

    def never(asked: Problem, limit_s: float) -> PlacementSolution:
        asked_s.append(limit_s)
        raise ConfigError("none within the time")

    given = problem(*models(4, 45.0, 1), PlacedModel("x", 20.0, 1))
    asked, found = sized(given, never, 60.0)
    assert len(asked.sub_clusters) == 3
    assert {each.name for each in given.models} == found.plan.home.keys()
    # No search is so long that all of them would pass the limit.
    assert sum(asked_s[:-1]) <= 30.0
    assert max(asked_s) <= 60.0


def test_no_models_need_no_sub_clusters() -> None:
    with pytest.raises(ConfigError, match="there are none"):
        sized(problem(), solve_two_level, LIMIT_S)


def test_a_model_that_fits_nowhere_is_named() -> None:
    with pytest.raises(ConfigError, match="model m0 needs"):
        sized(problem(*models(1, 1.0, 11)), solve_two_level, LIMIT_S)


def test_unequal_sub_clusters_are_refused() -> None:
    unequal = (SubCluster("x", 1.0, 1), SubCluster("y", 2.0, 1))
    with pytest.raises(ConfigError, match="x and y differ"):
        sized(Problem(tuple(models(1, 1.0, 1)), unequal), solve_two_level, LIMIT_S)


def asked(tmp_path: Path, *options: str) -> Any:
    """The answer of the command to a load that three routers carry."""
    path = tmp_path / "problem.yaml"
    path.write_text(
        "sub_clusters: 1\nrate_max_rps: 1000\nmemory_mb: 2000\nmodels:\n"
        "  - {profile: h200-graph/resnet50, rate_rps: 250, slo_ms: 25, copies: 10}\n"
    )
    return CliRunner().invoke(app, ["plan", str(path), "--time-limit-s", "1", *options])


def test_the_command_tells_sub_clusters_and_backends(tmp_path: Path) -> None:
    found = json.loads(asked(tmp_path, "--size", "--json").stdout)
    assert found["sub_clusters"] == len(found["backends"]) == 3
    assert found["backends_all"] == sum(found["backends"].values()) >= 3
    slower = json.loads(asked(tmp_path, "--size", "--rate-max-rps", "500", "--json").stdout)
    assert slower["sub_clusters"] == 5
    assert "needs 3 sub-clusters with a router each" in asked(tmp_path, "--size").stdout


SLOWNESS = {"fast": 1.0, "slow": 2.0}
PLACES = (
    SubCluster("f", 100.0, 10, kind="fast"),
    SubCluster("s", 100.0, 10, share=2.0, kind="slow"),
)


def on_kinds(name: str, *kinds: str, rate: float = 40.0, static: int = 1) -> PlacedModel:
    profiles = {kind: linear("any", SLOWNESS[kind], 0.0) for kind in kinds}
    return PlacedModel(name, rate, static, profiles=profiles, slo_ns=ms(100))


def test_each_kind_has_as_many_sub_clusters_as_its_part_of_the_models_needs() -> None:
    # Two slow backends where there is a fast one, which is twice as fast: half of the work each.
    given = [on_kinds(f"m{number}", "fast", "slow") for number in range(8)]
    asked, found = sized_by_kind(Problem(tuple(given), PLACES), solve_two_level, LIMIT_S)
    assert [each.name for each in asked.sub_clusters] == ["fast-0", "fast-1", "slow-0", "slow-1"]
    assert [len(found.plan.models_of(place)) for place in range(4)] == [2, 2, 2, 2]
    # 80 requests of 1 and of 2 ms each.
    assert found.backends == (1, 1, 1, 1)


def test_models_go_to_kinds_that_run_and_hold_them() -> None:
    given = [
        *(on_kinds(f"m{number}", "fast", "slow", rate=1.0) for number in range(6)),
        on_kinds("only-fast", "fast", rate=1.0),
        on_kinds("large", "fast", "slow", rate=1.0, static=15),
    ]
    places = (PLACES[0], replace(PLACES[1], memory_bytes=20))
    asked, found = sized_by_kind(Problem(tuple(given), places), solve_two_level, LIMIT_S)
    kinds = {name: asked.sub_clusters[at].kind for name, at in found.plan.home.items()}
    assert (kinds["only-fast"], kinds["large"]) == ("fast", "slow")
    assert set(kinds) == {each.name for each in given}


def test_a_kind_that_nothing_needs_has_no_sub_cluster() -> None:
    given = Problem((on_kinds("a", "fast"),), PLACES)
    asked, _ = sized_by_kind(given, solve_two_level, LIMIT_S)
    assert [each.kind for each in asked.sub_clusters] == ["fast"]


def test_a_model_above_the_rate_of_any_router_is_split_among_kinds_too() -> None:
    given = Problem((on_kinds("hot", "fast", "slow", rate=390.0),), PLACES)
    asked, found = sized_by_kind(given, solve_two_level, LIMIT_S)
    assert len(asked.models) == len(asked.sub_clusters) == len(set(found.plan.home.values())) == 4
    assert {each.kind for each in asked.sub_clusters} == {"fast", "slow"}


def test_sub_clusters_of_one_kind_that_differ_are_refused() -> None:
    places = (*PLACES, replace(PLACES[1], name="t", memory_bytes=5))
    with pytest.raises(ConfigError, match="s and t differ"):
        sized_by_kind(Problem((on_kinds("a", "fast"),), places), solve_two_level, LIMIT_S)


def test_a_model_that_no_kind_holds_is_named() -> None:
    given = Problem((on_kinds("a", "fast", "slow", static=11),), PLACES)
    with pytest.raises(ConfigError, match="model a needs"):
        sized_by_kind(given, solve_two_level, LIMIT_S)


def test_the_command_tells_the_backends_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "problem.yaml"
    path.write_text(
        "sub_clusters:\n"
        "  - {name: big, kind: h200, rate_max_rps: 1000, memory_mb: 2000}\n"
        "  - {name: old, kind: gtx, share: 4, rate_max_rps: 1000, memory_mb: 2000}\n"
        "models:\n"
        "  - {name: net, rate_rps: 250, slo_ms: 60, copies: 10, static_mb: 90, profiles: "
        "{h200: h200-graph/resnet50, gtx: symphony-1080ti/ResNet50}}\n"
    )
    command = ["plan", str(path), "--time-limit-s", "2", "--size"]
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    kinds = found["backends_of_kinds"]
    assert kinds.keys() <= {"h200", "gtx"}
    assert sum(kinds.values()) == found["backends_all"] == sum(found["backends"].values())
    assert "gtx" in kinds
    assert "gtx" in CliRunner().invoke(app, command).stdout
