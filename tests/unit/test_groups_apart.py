"""Groups of backends that are sub-clusters: limits and models of their own."""

from typing import Any

import pytest
from sub_cluster_world import FakeClusters, play, until
from test_sub_cluster_homes import application

from fermata.autoscaler.options import KindLimit
from fermata.deployments.config.backend_groups import are_apart, groups_of, own_config
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.config.sub_clusters import (
    backend_counts,
    backend_limits,
    groups_in_sub_clusters,
    restricted,
)
from fermata.deployments.control.sub_clusters.homes import (
    first_directory,
    homes_of,
    known_homes,
    starting_problem,
)
from fermata.deployments.control.sub_clusters.kinds import in_time, kind_limits
from fermata.deployments.control.sub_clusters.moving_routers import moving_loop
from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters
from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import Plan
from fermata.partitioner.solver.solve import solve
from fermata.profiles.store import BYTES_PER_MB

FAST: dict[str, Any] = {"count": 1, "maximum": 4}
SLOW: dict[str, Any] = {"count": 2, "minimum": 2, "maximum": 6, "slower": 4}
A_AND_C = [{"application": "a"}, {"application": "c"}]


def given(*groups: dict[str, Any], names: str = "abcd", **more: Any) -> DeploymentConfig:
    more.setdefault("applications", [application(name) for name in names])
    more.setdefault("autoscaler", {"maximum": 20})
    document = {"backend": {"device": "emulated"}, "backends": list(groups), **more}
    return read_config(document)


def measured(config: DeploymentConfig) -> tuple[Any, ...]:
    return tuple(known_profiles(each) for each in groups_of(config))


# The file


def test_groups_with_limits_have_a_router_each() -> None:
    found = given(FAST, SLOW)
    assert are_apart(found)
    assert found.sub_clusters.routers == 2
    assert backend_counts(found) == [1, 2]
    assert backend_limits(found) == [(1, 4), (2, 6)]
    assert [number for _, number in groups_in_sub_clusters(found)] == [0, 1]
    assert kind_limits(found) == (KindLimit((0,), 4, 1), KindLimit((1,), 6, 2))
    assert read_config(found.model_dump()) == found
    assert given(FAST, SLOW, autoscaler={"minimum": 3, "maximum": 20}).backends == found.backends
    # A group says neither: the deployment's.
    assert backend_limits(given({"count": 1}, SLOW))[0] == (1, 20)


def test_groups_of_a_fixed_size_stay_in_one_pool() -> None:
    found = given({"count": 1}, {"count": 2, "slower": 4}, autoscaler=None)
    assert not are_apart(found)
    assert found.sub_clusters.routers == 1
    assert kind_limits(found) == ()


def test_a_group_has_the_models_that_it_may() -> None:
    found = given(FAST, {**SLOW, "models": ["b", "c"]})
    fast, slow = groups_of(found)
    assert [each.name for each in fast.applications] == ["a", "b", "c", "d"]
    assert [each.name for each in slow.applications] == ["b", "c"]
    assert own_config(found, 1) == slow
    assert (slow.backend.slower, slow.backend.count) == (4, 2)
    # Without epochs a router knows what lives there, and with them what may.
    assert [each.name for each in restricted(found, 1, ("b",)).applications] == ["b"]
    moved = given(FAST, {**SLOW, "models": ["b", "c"]}, epochs={})
    assert [each.name for each in restricted(moved, 1, ("b",)).applications] == ["b", "c"]


@pytest.mark.parametrize(
    ("groups", "more", "says"),
    [
        ([FAST], {}, "backends has one group: say it in backend"),
        ([FAST, SLOW], {"autoscaler": None}, "needs autoscaler"),
        ([FAST, SLOW], {"sub_clusters": {"count": 3}}, "sub_clusters.count=3 and 2 groups"),
        ([{**FAST, "count": 5}, SLOW], {}, "backends.0.count=5 is not from 1 to 4, its limits"),
        ([FAST, {**SLOW, "count": 1}], {}, "backends.1.count=1 is not from 2 to 6"),
        ([FAST, SLOW], {"autoscaler": {"maximum": 2}}, "is not from|above autoscaler.maximum=2"),
        (
            [FAST, SLOW],
            {"autoscaler": {"minimum": 4, "maximum": 20}},
            "autoscaler.minimum=4 is above 3, the minima of all groups; say it in backends",
        ),
        (
            [FAST, SLOW],
            {"autoscaler": {"to_zero": True}},
            "autoscaler.to_zero and groups of backends: each keeps its minimum; leave to_zero out",
        ),
        (
            [FAST, SLOW],
            {"names": "a"},
            r"backends \(2 groups, a router each\) with 1 applications: name one in "
            "sub_clusters.spread, or have fewer groups",
        ),
        (
            [FAST, SLOW],
            {"repository": "open"},
            r"backends \(2 groups, a router each\) and repository: open",
        ),
        (
            [{**FAST, "models": ["a", "b"]}, {**SLOW, "models": ["b", "c", "d"]}],
            {"pipelines": [{"name": "p", "slo_ms": 100, "stages": A_AND_C}]},
            "no group of backends has applications a, c of pipeline p among its models, which live",
        ),
        ([FAST, {**SLOW, "models": ["x"]}], {}, "backends.1.models: application 'x' is unknown"),
        (
            [{**FAST, "models": ["a", "b"]}, {**SLOW, "models": ["b", "c"]}],
            {},
            "no group of backends has 'd' among its models",
        ),
    ],
)
def test_groups_that_contradict_themselves_are_refused(
    groups: list[Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        given(*groups, **more)
    assert "\n" not in str(caught.value)


# Plans


def test_models_go_where_they_may_live_and_have_room() -> None:
    roomy = {**FAST, "memory_mb": 100}
    found = given(roomy, {**SLOW, "models": ["b", "c"]}, epochs={})
    problem = starting_problem(found, {}, by_group=measured(found))
    assert problem.sub_clusters[0].memory_bytes == 100 * BYTES_PER_MB
    assert [each.share for each in problem.sub_clusters] == [4.0, 6.0]
    plan = solve(problem, 1.0).plan
    assert {plan.home["a"], plan.home["d"]} == {0}
    # The slow ones have 1.5 backends' worth of the fast ones in all.
    assert 1 in {plan.home["b"], plan.home["c"]}
    loop = moving_loop(found, {}, by_group=measured(found))
    assert loop is not None
    assert loop.placer is not None
    options = loop.placer.options
    assert options.kinds == ("group 0", "group 1")
    assert options.memory_bytes_by[0] == 100 * BYTES_PER_MB < options.memory_bytes_by[1]


def test_a_model_stays_off_a_kind_that_cannot_hold_its_slo() -> None:
    # One request takes 6 ms, and 24 ms on the slow ones.
    tight = [application("a", slo_ms=20), application("b", slo_ms=40), application("c")]
    found = given(FAST, SLOW, applications=tight)
    problem = starting_problem(found, {}, by_group=measured(found))
    runs = {each.name: each.runs_on("group 1") for each in problem.models}
    assert runs == {"a": False, "b": False, "c": True}
    assert in_time(own_config(found, 1), measured(found)[1]) == {"b", "c"}


def test_an_slo_that_no_group_holds_is_refused() -> None:
    found = given(
        SLOW, {**SLOW, "slower": 3}, applications=[application("a", slo_ms=10), application("b")]
    )
    with pytest.raises(ConfigError, match="slo_ms=10 of a is below its run time on every group"):
        starting_problem(found, {}, by_group=measured(found))


def test_a_faster_variant_holds_an_slo_that_the_first_does_not() -> None:
    one = application("a", slo_ms=20)
    (first,), others = one["variants"], [application("b"), application("c")]
    one["variants"] = [
        {**first, "name": "a-large", "beta_ms": 30, "accuracy": 0.9},
        {**first, "name": "a-small", "beta_ms": 4, "accuracy": 0.7},
    ]
    rated = [{**each, "variants": [{**each["variants"][0], "accuracy": 0.8}]} for each in others]
    apps = [one, *rated]
    found = given(FAST, SLOW, applications=apps, router={"policy": "central-queue"})
    problem = starting_problem(found, {}, by_group=measured(found))
    runs = {each.name: each.runs_on("group 0") for each in problem.models}
    assert runs["a"]
    (placed,) = (each for each in problem.models if each.name == "a")
    # Work is counted by what can run.
    assert placed.profiles["group 0"].latency_ns(1) == 5_000_000
    fixed = given(FAST, SLOW, applications=apps, router={"policy": "eager"})
    with pytest.raises(ConfigError, match="slo_ms=20 of a is below its run time on every group"):
        starting_problem(fixed, {}, by_group=measured(fixed))


def test_what_is_spread_lives_on_every_group_that_may_have_it() -> None:
    third = {"count": 1, "models": ["c", "d"]}
    found = given(FAST, SLOW, third, sub_clusters={"spread": ["a"]})
    problem = starting_problem(found, {}, by_group=measured(found))
    homes = homes_of(found, solve(problem, 1.0).plan)
    assert homes["a"] == (0, 1)
    told = first_directory(found, homes, None, 1)
    assert dict(told.applications["a"]) == {0: 0.5, 1: 0.5}
    assert known_homes(found, told) == homes


# Windows


def test_each_group_is_scaled_by_its_own_router_within_its_limits() -> None:
    found = given(
        {**FAST, "models": ["a", "b"]},
        {**SLOW, "models": ["c", "d"]},
        autoscaler={"maximum": 20, "window_s": 0.2, "startup_s": 0.1},
    )

    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        served = {
            number: [each.name for each in router.plan.applications]
            for number, router in clusters.routers.items()
        }
        assert served == {0: ["a", "b"], 1: ["c", "d"]}
        fast, slow = clusters.routers[0], clusters.routers[1]
        fast.busy, fast.least = 1.0, 30.0
        slow.busy = 0.0
        # Both have two: the first one has more than it may, and the other stays at its minimum.
        await until(lambda: fast.wanted == [4])
        assert slow.wanted in ([], [2])
        fast.busy, fast.least = 0.0, 0.0
        slow.busy, slow.least = 1.0, 5.0
        await until(lambda: slow.wanted > [4])

    play(story, found)


@pytest.mark.parametrize(
    ("slo_ms", "epochs", "says"),
    [
        (40, None, "backends.1 has no application to serve"),
        (20, None, "backends.1 has no application to serve"),
        (20, {}, "backends.1: no application holds its SLO there"),
    ],
)
def test_a_group_that_nothing_can_live_on_is_refused(
    slo_ms: float, epochs: dict[str, Any] | None, says: str
) -> None:
    tight = [application(name, slo_ms=slo_ms) for name in "ab"]

    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        """It does not come to that."""

    with pytest.raises(ConfigError, match=says):
        play(story, given(FAST, SLOW, applications=tight, epochs=epochs))


def test_each_group_has_something_to_serve_where_it_can() -> None:
    # The slow ones can hold the SLO of c alone, which a plan by work alone leaves to the fast one.
    own = [application("a", slo_ms=20), application("b", slo_ms=20), application("c")]
    found = given({**FAST, "maximum": 10}, {**SLOW, "maximum": 2}, applications=own)
    problem = starting_problem(found, {}, by_group=measured(found))
    homes = homes_of(found, Plan(dict.fromkeys("abc", 0)), problem=problem)
    assert homes == {"a": (0,), "b": (0,), "c": (1,)}
