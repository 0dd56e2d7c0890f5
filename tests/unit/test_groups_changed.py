"""Groups of backends whose models the file has changed, or that serve too slowly: homes follow."""

from pathlib import Path
from typing import Any

import pytest
from sub_cluster_world import FakeClusters, play
from test_groups_apart import FAST, SLOW, given, measured
from test_sub_cluster_homes import application

from fermata.deployments.config.backend_groups import own_config
from fermata.deployments.control.sub_clusters.homes import (
    first_directory,
    known_homes,
    starting_problem,
)
from fermata.deployments.control.sub_clusters.kinds import in_time
from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters
from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import Plan
from fermata.partitioner.plan_file import by_name, save_json

BEFORE = given({**FAST, "models": ["a", "b"]}, {**SLOW, "models": ["c", "d"]})
AFTER = given({**FAST, "models": ["c", "b"]}, {**SLOW, "models": ["a", "d"]})
HOMES = {"a": (0,), "b": (0,), "c": (1,), "d": (1,)}


def test_homes_that_a_group_may_not_have_any_more_are_found_anew() -> None:
    told = first_directory(BEFORE, HOMES, None, 1)
    assert known_homes(BEFORE, told, measured(BEFORE)) == HOMES
    assert known_homes(AFTER, told, measured(AFTER)) is None
    assert known_homes(AFTER, told) is None


def test_homes_that_are_too_slow_by_now_are_found_anew() -> None:
    told = first_directory(BEFORE, HOMES, None, 1)
    # One request takes 6 ms, and 120 ms on the slow ones now: above the SLO of 100 ms.
    slower = given({**FAST, "models": ["a", "b"]}, {**SLOW, "models": ["c", "d"], "slower": 20})
    assert known_homes(slower, told, measured(slower)) is None


@pytest.mark.parametrize(
    ("kept", "solved"),
    [({"a": 1, "b": 0, "c": 0, "d": 1}, 0), ({"a": 0, "b": 0, "c": 1, "d": 1}, 1)],
)
def test_a_kept_plan_counts_where_groups_may_have_its_models(
    tmp_path: Path, kept: dict[str, int], solved: int
) -> None:
    path = tmp_path / "plan.json"
    save_json(path, {"plan": by_name(Plan(kept), ["0", "1"])})
    epochs = {"plan_file": str(path)}
    found = given(*(each.model_dump() for each in AFTER.backends), epochs=epochs)

    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        assert clusters.solved == solved
        assert control.homes == {"a": (1,), "b": (0,), "c": (0,), "d": (1,)}

    play(story, found)


def test_what_is_spread_has_no_share_on_a_group_that_is_too_slow_for_it() -> None:
    # One request takes 6 ms, and 24 ms on the slow ones.
    own = [application("a", slo_ms=20), *map(application, "bc")]
    found = given(FAST, SLOW, applications=own, sub_clusters={"spread": ["a", "b"]})

    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        assert (control.homes["a"], control.homes["b"]) == ((0,), (0, 1))
        for name, at in control.keeper.directory.applications.items():
            for number, _ in at:
                known = {each.name for each in clusters.routers[number].plan.applications}
                assert name in known
        told = control.keeper.directory
        assert known_homes(found, told, measured(found)) == control.homes

    play(story, found)


def heavier(version: int, beta_ms: float) -> dict[str, Any]:
    variant = {"name": f"a-{version}", "model": "emulated", "alpha_ms": 1, "beta_ms": beta_ms}
    return application("a", slo_ms=60, version=version, variants=[variant])


@pytest.mark.parametrize("betas", [(5, 15), (15, 5)])
def test_versions_live_where_the_slowest_of_them_is_in_time(betas: tuple[float, float]) -> None:
    # One request of the slower version takes 16 ms, and 64 ms on the slow ones.
    versions = [heavier(at, beta_ms) for at, beta_ms in enumerate(betas, 1)]
    own = [*versions, *map(application, "bcd")]
    found = given(FAST, SLOW, applications=own)
    problem = starting_problem(found, {}, by_group=measured(found))
    runs = {each.name: each.runs_on("group 1") for each in problem.models}
    assert runs == {"a": False, "b": True, "c": True, "d": True}
    assert in_time(own_config(found, 1), measured(found)[1]) == {"b", "c", "d"}


@pytest.mark.parametrize("spread", [[], ["a"]])
def test_a_version_that_no_group_serves_in_time_is_refused(spread: list[str]) -> None:
    own = [heavier(1, 5), heavier(2, 15), *map(application, "bcd")]
    fast, slow = {**FAST, "models": ["b", "c"]}, {**SLOW, "models": ["a", "d"]}
    found = given(fast, slow, applications=own, sub_clusters={"spread": spread})

    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        """It does not come to that."""

    says = "slo_ms=60 of a is below its run time on every group"
    with pytest.raises(ConfigError, match=says) as caught:
        play(story, found)
    assert "\n" not in str(caught.value)
