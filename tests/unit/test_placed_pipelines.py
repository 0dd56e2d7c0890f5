"""Pipelines in several sub-clusters: their applications live together, and plans keep them so."""

from typing import Any

import pytest
from test_sub_cluster_homes import application, config, plan_of

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.deployments.config.sub_clusters import restricted
from fermata.deployments.config.units import spread_over, units_of
from fermata.deployments.control.sub_clusters.homes import (
    DirectoryKeeper,
    first_directory,
    homes_of,
    known_homes,
    movable,
    served_at,
    starting_problem,
    sticky_applications,
)
from fermata.deployments.control.sub_clusters.moves import LEAVE_NS, HomeMoves
from fermata.deployments.control.sub_clusters.units import stages_by_pipeline
from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import Plan
from fermata.partitioner.solver.solve import solve

ROOM_MB = 530
"""Room for two models of `large`, and not for a third: 87 MB each, and 319 MB while one runs."""


def large(name: str) -> dict[str, Any]:
    """An application whose model takes memory."""
    variant = {"name": f"{name}-1", "model": "emulated", "profile": "h200-eager/resnet101"}
    return application(name) | {"slo_ms": 500, "variants": [variant]}


def pipeline(name: str, *applications: str, **more: Any) -> dict[str, Any]:
    stages = [{"application": each} for each in applications]
    return {"name": name, "slo_ms": 900, "stages": stages, **more}


def tight(memory_mb: float, *pipelines: dict[str, Any], **more: Any) -> DeploymentConfig:
    backend = {"count": 2, "device": "emulated", "memory_mb": memory_mb}
    found = config(
        applications=[large(name) for name in "abcd"], pipelines=list(pipelines), **more
    ).model_dump()
    return DeploymentConfig.model_validate(found | {"backend": backend})


def homes(given: DeploymentConfig) -> dict[str, tuple[int, ...]]:
    return dict(homes_of(given, plan_of(given)))


def test_pipelines_join_applications_and_shared_stages_join_pipelines() -> None:
    given = config(pipelines=[pipeline("p", "c", "a"), pipeline("q", "d")])
    assert units_of(given) == {"a+c": ("a", "c"), "b": ("b",), "d": ("d",)}
    given = config("abcde", pipelines=[pipeline("p", "a", "b"), pipeline("q", "b", "d")])
    assert units_of(given) == {"a+b+d": ("a", "b", "d"), "c": ("c",), "e": ("e",)}


@pytest.mark.parametrize("stages", ["ab", "ac", "ad", "bc", "cd"])
def test_a_tight_plan_keeps_a_unit_together(stages: str) -> None:
    given = tight(ROOM_MB, pipeline("p", *stages))
    found = homes(given)
    assert found[stages[0]] == found[stages[1]]
    assert sorted(found.values()) == [(0,), (0,), (1,), (1,)]


def test_a_unit_without_room_is_refused_in_one_line() -> None:
    given = tight(ROOM_MB, pipeline("p", "a", "b"), pipeline("q", "b", "d"))
    said = r"applications a, b, d of pipelines p, q live together and need \d+ MB on one backend"
    with pytest.raises(ConfigError, match=said) as refused:
        starting_problem(given, known_profiles(given))
    assert "\n" not in str(refused.value)


def test_fewer_units_than_routers_are_refused() -> None:
    said = "with 1 applications that live apart: name one in sub_clusters.spread"
    with pytest.raises(ConfigError, match=said):
        config("ab", pipelines=[pipeline("p", "a", "b")])


@pytest.mark.parametrize("named", ["p", "a", "c"])
def test_what_is_spread_takes_its_whole_unit_along(named: str) -> None:
    given = config(pipelines=[pipeline("p", "a", "c")], sub_clusters={"spread": [named]})
    assert spread_over(given) == ("a", "c")
    assert movable(given) == {"b": ("b",), "d": ("d",)}
    found = homes(given)
    assert found["a"] == found["c"] == (0, 1)
    told = first_directory(given, found, None, 5)
    assert told.applications["p"] == ((0, 0.5), (1, 0.5))


def test_each_router_knows_the_pipelines_that_live_there() -> None:
    given = config(pipelines=[pipeline("p", "a", "c"), pipeline("q", "d")])
    found = homes(given)
    told = first_directory(given, found, None, 5)
    assert told.applications["p"] == told.applications["a"] == told.applications["c"]
    assert told.applications["q"] == told.applications["d"]
    for number in range(2):
        own = restricted(given, number, served_at(found, number))
        plan = router_config(own, known_profiles(own))
        assert set(plan.pipelines) == {name for name in "pq" if told.homes_of(name) == (number,)}
    assert known_homes(given, told) == found


def test_a_directory_that_has_a_unit_apart_is_not_gone_on_with() -> None:
    before = config()
    apart = {"a": (0,), "b": (1,), "c": (1,), "d": (0,)}
    told = first_directory(before, apart, None, 5)
    assert known_homes(before, told) == apart
    assert known_homes(config(pipelines=[pipeline("p", "a", "c")]), told) is None
    assert known_homes(config(pipelines=[pipeline("p", "a", "d")]), told) == apart


def test_streams_of_a_pipeline_stay_at_one_home() -> None:
    given = config(pipelines=[pipeline("p", "a", newest=True)])
    assert sticky_applications(given) == ("p",)


def test_a_unit_moves_whole() -> None:
    given = config(pipelines=[pipeline("p", "a", "c")], epochs={})
    found = {"a": (0,), "b": (1,), "c": (0,), "d": (1,)}
    keeper = DirectoryKeeper(first_directory(given, found, None, 5), stages_by_pipeline(given))
    moves = HomeMoves(keeper, movable(given))
    moves.order(Plan({"a+c": 1, "b": 1, "d": 1}))
    assert moves.served_at(0) == ("a", "c")
    assert moves.served_at(1) == ("b", "d", "a", "c")
    # Half of it is no home for a query.
    moves.on_loaded(0, 6, {1: {"a", "b", "d"}})
    assert {keeper.directory.homes_of(name) for name in "acp"} == {(0,)}
    moves.on_loaded(1, 7, {1: {"a", "b", "c", "d"}})
    assert {keeper.directory.homes_of(name) for name in "acp"} == {(1,)}
    # Its old home goes on with what reaches it, for a while.
    assert moves.served_at(0) == ("a", "c")
    moves.on_time(1 + LEAVE_NS)
    assert moves.served_at(0) == ()


def test_a_pipeline_has_a_share_where_all_of_it_is_loaded() -> None:
    given = config(
        pipelines=[pipeline("p", "a", "c")],
        sub_clusters={"spread": ["p"]},
        epochs={},
        count="auto",
    )
    found = {"a": (0, 1), "b": (0,), "c": (0, 1), "d": (0,)}
    told = first_directory(given, found, None, 1, 1)
    assert told.applications["p"] == ((0, 1.0), (1, 0.0))
    keeper = DirectoryKeeper(told, stages_by_pipeline(given))
    keeper.on_open((), {1: ("a",)}, 2)
    assert keeper.directory.applications["p"] == ((0, 1.0), (1, 0.0))
    keeper.on_open((), {1: ("a", "c")}, 3)
    assert keeper.directory.applications["p"] == ((0, 1.0), (1, 1.0))
    keeper.on_headroom({0: 0.1, 1: 0.9}, 4)
    assert keeper.directory.applications["p"] == keeper.directory.applications["a"]
    assert keeper.directory.applications["p"][1][1] > keeper.directory.applications["p"][0][1]


def test_units_on_groups_live_where_all_of_them_may() -> None:
    groups = [
        {"count": 2, "models": ["a", "b"]},
        {"count": 2, "models": ["a", "b", "c", "d"]},
    ]
    given = config(groups=groups, pipelines=[pipeline("p", "a", "c")])
    by_group = [known_profiles(given)] * 2
    problem = starting_problem(given, by_group[0], by_group=by_group)
    plan = solve(problem, 1.0).plan
    assert plan.home["a+c"] == 1
    found = homes_of(given, plan, None, problem, by_group)
    assert found["a"] == found["c"] == (1,)


def test_an_application_with_the_name_of_a_unit_is_refused() -> None:
    given: dict[str, Any] = {
        "applications": [application(name) for name in ("a", "b", "a+b")],
        "pipelines": [pipeline("p", "a", "b")],
    }
    with pytest.raises(ConfigError, match=r"application 'a\+b' has the name of those that a pipe"):
        config(**given)
    # Nobody lives with others where there is one router.
    config(**given, count=1)
