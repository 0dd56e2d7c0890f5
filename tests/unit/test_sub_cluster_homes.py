"""Sub-clusters with a router each: what a file may say, homes at the start, the directory."""

from typing import Any

import pytest

from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.deployments.config.sub_clusters import (
    backend_counts,
    groups_in_sub_clusters,
    restricted,
)
from fermata.deployments.control.sub_clusters.homes import (
    DirectoryKeeper,
    first_directory,
    homes_of,
    known_homes,
    opened_at_start,
    served_at,
    starting_problem,
    sticky_applications,
)
from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import Plan
from fermata.partitioner.solver.solve import solve
from fermata.profiles.store import BYTES_PER_MB
from fermata.router.links.directory import Directory, Home


def application(name: str, **more: Any) -> dict[str, Any]:
    version = more.get("version", 1)
    variant = {"name": f"{name}-{version}", "model": "emulated", "alpha_ms": 1, "beta_ms": 5}
    return {"name": name, "slo_ms": 100, "variants": [variant], **more}


def config(
    names: str = "abcd", count: int | str = 2, backends: int = 4, **more: Any
) -> DeploymentConfig:
    sub_clusters = {"count": count, **more.pop("sub_clusters", {})}
    given = more.pop("applications", [application(name) for name in names])
    backend = {"count": backends, "device": "emulated"}
    if groups := more.pop("groups", []):
        backend, more["backends"] = {"device": "emulated"}, groups
    return read_config(
        {"applications": given, "backend": backend, "sub_clusters": sub_clusters, **more}
    )


def plan_of(given: DeploymentConfig) -> Plan:
    return solve(starting_problem(given, known_profiles(given)), 1.0).plan


def test_one_router_unless_a_file_says_more() -> None:
    given = read_config({"applications": [application("a")]})
    assert given.sub_clusters.count == 1
    assert backend_counts(given) == [1]
    assert not router_config(given, known_profiles(given)).loads_all


def test_backends_are_shared_out_evenly() -> None:
    assert backend_counts(config(count=3, backends=8)) == [3, 3, 2]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"backends": 1}, "sub_clusters.count=2 needs as many backends; backend.count=1"),
        ({"names": "a"}, "with 1 applications: name one in sub_clusters.spread, or lower count"),
        ({"sub_clusters": {"spread": ["x"]}}, "application or pipeline 'x' is unknown"),
        ({"autoscaler": {"maximum": 1}}, "needs as many backends; autoscaler.maximum=1"),
        ({"epochs": {"sub_clusters": 3}}, "sub_clusters.count=2 and epochs.sub_clusters=3"),
        ({"repository": "open"}, "sub_clusters.count=2 and repository: open"),
        ({"count": "auto"}, "sub_clusters.count=auto needs epochs"),
        (
            {"groups": [{"count": 3}, {"count": 1, "slower": 2}]},
            "sub_clusters.count=2 needs as many backends in each group; backends.1.count=1",
        ),
        (
            {"groups": [{"count": 3}, {"count": 3}], "epochs": {}, "count": 3},
            "sub_clusters.count=3 and 2 groups of backends, each with a router of its own",
        ),
        (
            {"count": "auto", "epochs": {}, "autoscaler": {"to_zero": True}},
            "sub_clusters.count=auto and autoscaler.to_zero both end backends",
        ),
    ],
)
def test_refuses_what_does_not_go_together(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**more)


GROUPS = [{"count": 3}, {"count": 2, "slower": 2, "memory_mb": 7}]


def test_each_sub_cluster_has_its_part_of_every_group() -> None:
    given = config(groups=GROUPS)
    assert backend_counts(given) == [3, 2]
    parts = [
        (each.backend.slower, number, backend_counts(each)[number])
        for each, number in groups_in_sub_clusters(given)
    ]
    assert parts == [(1.0, 0, 2), (1.0, 1, 1), (2.0, 0, 1), (2.0, 1, 1)]
    second = restricted(given, 1, ("a",))
    assert second.backend.count == 2
    assert [each.count for each in second.backends] == [1, 1]
    assert read_config(given.model_dump()) == given


def test_models_have_room_on_the_smallest_backends_of_any_group() -> None:
    given = config(groups=GROUPS)
    (room, _) = starting_problem(given, known_profiles(given)).sub_clusters
    assert room.memory_bytes == 7 * BYTES_PER_MB


@pytest.mark.parametrize("count", [3, "auto"])
def test_a_copy_of_a_configuration_is_read_as_it_was(count: int | str) -> None:
    given = config(count=count, epochs={"every_s": 20})
    assert DeploymentConfig.model_validate(given.model_dump()) == given


def test_refuses_to_move_what_keeps_sequences() -> None:
    given = [application("a"), application("b", sequences=True)]
    with pytest.raises(ConfigError, match="b keeps sequences, which cannot move"):
        config(applications=given, epochs={})


def test_with_epochs_every_router_knows_all_applications_and_loads_what_it_is_told() -> None:
    given = config(epochs={"every_s": 5})
    own = restricted(given, 1, ("a",))
    told = router_config(own, known_profiles(own))
    assert [each.name for each in told.applications] == ["a", "b", "c", "d"]
    assert (told.moves, told.loads_all, told.sub_clusters) == (True, True, 1)


def test_buckets_of_an_application_live_together_and_load_one_model() -> None:
    shapes = {"buckets": [64, 128]}
    tensor = {"name": "x", "dtype": "INT64", "shape": [-1]}
    given = config(
        applications=[application("a", shapes=shapes, inputs=[tensor]), application("b")]
    )
    problem = starting_problem(given, known_profiles(given))
    assert [each.name for each in problem.models] == ["a", "b"]
    homes = homes_of(given, plan_of(given))
    assert homes["a[64]"] == homes["a[128]"] != homes["b"]
    own = restricted(given, homes["b"][0], served_at(homes, homes["b"][0]))
    assert [each.name for each in own.applications] == ["b"]


def test_refuses_to_spread_what_keeps_sequences() -> None:
    given = [application("a"), application("b", sequences=True)]
    with pytest.raises(ConfigError, match="b keeps sequences"):
        config(applications=given, sub_clusters={"spread": ["b"]})


def test_applications_are_shared_out_evenly() -> None:
    given = config()
    homes = homes_of(given, plan_of(given))
    assert sorted(len(served_at(homes, number)) for number in (0, 1)) == [2, 2]
    assert {name: len(at) for name, at in homes.items()} == dict.fromkeys("abcd", 1)


def test_versions_of_an_application_live_together() -> None:
    versions = [application("a", version=each) for each in (1, 2)]
    given = config(applications=[*versions, application("b")])
    homes = homes_of(given, plan_of(given))
    assert homes["a@1"] == homes["a@2"] != homes["b"]
    own = restricted(given, homes["a@1"][0], served_at(homes, homes["a@1"][0]))
    told = router_config(own, known_profiles(own))
    assert [each.name for each in told.applications] == ["a@1", "a@2"]
    assert told.loads_all


def test_what_is_spread_lives_everywhere() -> None:
    given = config("abc", sub_clusters={"spread": ["b"]})
    homes = homes_of(given, plan_of(given))
    assert homes["b"] == (0, 1)
    assert homes["a"] != homes["c"]


def test_one_application_may_fill_all_sub_clusters() -> None:
    given = config("a", sub_clusters={"spread": ["a"]})
    assert homes_of(given, plan_of(given)) == {"a": (0, 1)}


def test_no_sub_cluster_stays_bare() -> None:
    given = config("abc")
    homes = homes_of(given, Plan({"a": 1, "b": 1, "c": 1}))
    assert homes == {"a": (1,), "b": (1,), "c": (0,)}


def test_memory_of_what_is_spread_counts_everywhere() -> None:
    variant = {"name": "b-1", "model": "emulated", "profile": "h200-eager/resnet101"}
    spread = {"name": "b", "slo_ms": 1000, "variants": [variant]}
    given = config(applications=[application("a"), spread], sub_clusters={"spread": ["b"]})
    given = given.model_copy(
        update={"backend": given.backend.model_copy(update={"memory_mb": 240})}
    )
    problem = starting_problem(given, known_profiles(given))
    assert [each.name for each in problem.models] == ["a"]
    assert all(each.memory_bytes < 240 * 2**20 for each in problem.sub_clusters)


def test_a_later_control_plane_goes_on_with_the_homes_that_routers_know() -> None:
    given = config("abc", sub_clusters={"spread": ["b"]})
    homes = {"a": (1,), "b": (0, 1), "c": (0,)}
    first = first_directory(given, homes, None, 1_000)
    assert first.version == 1_000
    assert known_homes(given, first) == homes
    keeper = DirectoryKeeper(first)
    keeper.on_headroom({0: 0.1, 1: 0.9}, 1_001)
    later = first_directory(given, homes, keeper.directory, 900)
    assert later.version == keeper.directory.version + 1
    assert later.applications["b"] == keeper.directory.applications["b"] != first.applications["b"]


@pytest.mark.parametrize(
    "applications",
    [
        {"a": ((0, 1.0),), "b": ((1, 1.0),)},
        {"a": ((0, 1.0),), "b": ((0, 1.0),), "c": ((0, 1.0),)},
        {"a": ((0, 1.0),), "b": ((1, 1.0),), "c": ((0, 0.5), (1, 0.5))},
        {"a": ((0, 1.0),), "b": ((1, 1.0),), "x": ((0, 1.0),)},
        {"a": ((0, 1.0),), "b": ((2, 1.0),), "c": ((1, 1.0),)},
    ],
)
def test_homes_of_another_configuration_are_not_taken_over(
    applications: dict[str, tuple[tuple[int, float], ...]],
) -> None:
    assert known_homes(config("abc"), Directory(1, (Home(0), Home(1)), applications)) is None


def test_a_new_directory_only_where_something_has_changed() -> None:
    given = config("abc", sub_clusters={"spread": ["b"]})
    homes = {"a": (1,), "b": (0, 1), "c": (0,)}
    keeper = DirectoryKeeper(first_directory(given, homes, None, 5))
    first = keeper.directory
    keeper.on_routers((Home(0), Home(1)), 6)
    keeper.on_headroom({0: 0.50, 1: 0.52}, 6)
    assert keeper.directory is first
    keeper.on_routers((Home(0, "127.0.0.1:1", 7), Home(1)), 6)
    assert keeper.directory.version == 6
    assert keeper.directory.homes[0].term == 7
    assert keeper.directory.applications == first.applications


def test_streams_stay_at_one_home() -> None:
    given = config(applications=[application("a", newest=True), application("b")])
    assert sticky_applications(given) == ("a",)


def test_an_automatic_number_starts_from_declared_rates_and_memory() -> None:
    clients = [{"count": 30, "fps": 30}]
    busy = [application(name, clients=clients) for name in "abcd"]
    epochs = {"rate_max_rps": 2000}
    given = config(applications=busy, count="auto", epochs=epochs)
    assert opened_at_start(given, known_profiles(given)) == 2
    # 3,600 requests a second. A router was tried that carries half of the configured rate.
    assert opened_at_start(given, known_profiles(given), 1000.0) == 4
    assert opened_at_start(given, known_profiles(given), 9000.0) == 2
    quiet = config(count="auto", epochs=epochs)
    assert opened_at_start(quiet, known_profiles(quiet)) == 1
    assert backend_counts(given, 2) == [2, 2, 0, 0]
    large = [
        {"name": f"{name}-1", "model": "emulated", "profile": "h200-eager/resnet101"}
        for name in "abcd"
    ]
    tight = config(
        applications=[
            {"name": each["name"][0], "slo_ms": 100, "variants": [each]} for each in large
        ],
        count="auto",
        epochs={"memory_mb": 600},
    )
    assert opened_at_start(tight, known_profiles(tight)) > 1


def test_what_lives_everywhere_has_no_share_where_a_sub_cluster_is_closed() -> None:
    given = config("ab", count="auto", epochs={}, sub_clusters={"count_max": 3, "spread": ["b"]})
    homes = homes_of(given, Plan({"a": 0}), 1)
    keeper = DirectoryKeeper(first_directory(given, homes, None, 1, 1))
    shares = keeper.directory.applications
    assert shares == {"a": ((0, 1.0),), "b": ((0, 1.0), (1, 0.0), (2, 0.0))}
    assert known_homes(given, keeper.directory) == homes
    keeper.on_open({2}, {0: {"b"}}, 2)
    assert keeper.directory.applications == shares
    # It has loaded, and gets its part; headroom shifts it, and leaves out who is closed.
    keeper.on_open({2}, {0: {"b"}, 1: {"b"}}, 3)
    assert keeper.directory.applications["b"] == ((0, 1.0), (1, 1.0), (2, 0.0))
    keeper.on_headroom({0: 0.1, 1: 0.9}, 4)
    first, second, third = (share for _, share in keeper.directory.applications["b"])
    assert first < second
    assert third == 0.0
    keeper.on_open({1, 2}, {}, 5)
    assert [share for _, share in keeper.directory.applications["b"]] == [first, 0.0, 0.0]
