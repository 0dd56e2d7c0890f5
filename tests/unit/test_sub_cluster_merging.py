"""Status and page of several routers as one."""

import json
from dataclasses import replace
from typing import Any

import pytest
import snapshots

from fermata.autoscaler.readings import PipelineReading
from fermata.deployments.control.scaling import reading_of
from fermata.deployments.control.sub_clusters.merging import (
    merged_frame,
    merged_snapshot,
    merged_status,
)
from fermata.deployments.control.sub_clusters.scaled_routers import in_parts
from fermata.deployments.specs.status import DeploymentStatus
from fermata.foundation.units import ms
from fermata.router.links.directory import Directory
from fermata.router.links.unavailability import LOADING
from fermata.router.telemetry.dashboard_frames import (
    ApplicationFrame,
    BackendFrame,
    BatchFrame,
    DashboardFrame,
    PipelineFrame,
    SubClusterFrame,
)
from fermata.router.telemetry.snapshot import (
    BackendSnapshot,
    PipelineSnapshot,
    RouterSnapshot,
    StageSnapshot,
    VariantSnapshot,
)


def told(number: int, alone: str, requests: int, **more: Any) -> RouterSnapshot:
    """A router with one application of its own, and one that lives in both."""
    return snapshots.router(
        {
            alone: snapshots.application(requests=5, good=5),
            "both": snapshots.application(
                requests=requests, good=requests, dropped={"late": number}
            ),
        },
        term=10 + number,
        queued=number,
        frontends=[7],
        variants=[VariantSnapshot("both", "both-1", None, 1.0, {8: number + 1})],
        backends={number: BackendSnapshot(0, "gpu", [], False, False, False, 1.0)},
        ranks=[snapshots.sub_cluster(backends=1)],
        busy_ns={"both": 100},
        **more,
    )


def test_counts_add_up_and_backends_have_their_sub_cluster() -> None:
    merged = merged_snapshot({0: told(0, "a", 10), 1: told(1, "b", 30)})
    assert sorted(merged.applications) == ["a", "b", "both"]
    assert merged.applications["both"].requests == 40
    assert merged.applications["both"].dropped == {"late": 1}
    assert merged.applications["a"].requests == 5
    assert (merged.term, merged.queued, merged.frontends) == (21, 1, [7])
    assert {number: each.sub_cluster for number, each in merged.backends.items()} == {0: 0, 1: 1}
    assert merged.placement.applications == {"a": 0, "b": 1, "both": 0}
    assert [each.batch_sizes for each in merged.variants] == [{8: 3}]
    assert (len(merged.ranks), merged.busy_ns) == (2, {"both": 200})


def test_an_application_is_absent_where_no_home_serves_it() -> None:
    first, second = told(0, "a", 1, absent={"a": LOADING, "both": LOADING}), told(1, "b", 1)
    assert merged_snapshot({0: first, 1: second}).absent == {"a": LOADING}


def test_bad_rates_are_weighted_by_requests() -> None:
    statuses = {
        0: DeploymentStatus(told(0, "a", 10), {"a": 0.5, "both": 0.4}, [0.1]),
        1: DeploymentStatus(told(1, "b", 30), {"b": 0.0, "both": 0.0}, [0.9]),
    }
    found = merged_status(statuses)
    assert found.bad_rates == {"a": 0.5, "b": 0.0, "both": pytest.approx(0.1)}
    assert found.idle_fractions == [0.1, 0.9]


def chain(open_: int, queries: int, door: float) -> PipelineSnapshot:
    stages = [StageSnapshot("a", open_, queries, 7 * queries, 3 * queries)]
    ended = {"good": queries, "shed": 1}
    return PipelineSnapshot(ms(100), ended, door, stages, 5, ended)


def test_queries_of_a_pipeline_add_up_and_the_busier_door_is_told() -> None:
    first = told(0, "a", 10, pipelines={"p": chain(1, 10, 0.9)})
    second = told(1, "b", 30, pipelines={"p": chain(2, 30, 0.4), "q": chain(0, 1, 1.0)})
    found = merged_snapshot({0: first, 1: second}).pipelines
    assert found["p"].stages == [StageSnapshot("a", 3, 40, 280, 120)]
    assert found["p"].answered == found["p"].ended == {"good": 40, "shed": 2}
    assert (found["p"].wasted_ns, found["p"].door_share) == (10, 0.4)
    assert found["q"] == chain(0, 1, 1.0)


def test_the_autoscaler_counts_queries_where_they_ended() -> None:
    first = told(0, "a", 10, pipelines={"p": chain(1, 10, 0.9)})
    second = told(1, "a", 30, pipelines={"p": chain(2, 30, 0.4)})
    found = reading_of(in_parts([first, second])).pipelines
    assert found["0/p"] == PipelineReading(frozenset(("0/a",)), 10, 1)
    assert found["1/p"] == PipelineReading(frozenset(("1/a",)), 30, 1)


def frame(at_s: float, *names: str, pipelines: tuple[str, ...] = ()) -> str:
    applications = tuple(
        ApplicationFrame(name, 50, 1, 1, {}, 1, 1, 0, None, None, None, None, 0, 0, {})
        for name in names
    )
    batch = BatchFrame(at_s - 1, at_s, "v", 1, at_s + 1, 0)
    backend = BackendFrame("5", 0, "gpu", "idle", ("v",), (batch,))
    sub_cluster = SubClusterFrame(1, 0.5, None, None)
    rows = tuple(PipelineFrame(name, 100, 1, 0, 0, ()) for name in pipelines)
    shown = DashboardFrame(at_s, "here", 2, 1, applications, (sub_cluster,), (backend,))
    return replace(shown, pipelines=rows).to_json()


def test_the_page_shows_all_sub_clusters_on_one_clock() -> None:
    found = json.loads(merged_frame({0: frame(10, "a", "both"), 1: frame(4, "b", "both")}))
    names = [each["name"] for each in found["applications"]]
    assert names == ["a", "both (0)", "b", "both (1)"]
    assert (found["queued"], found["at_s"], len(found["sub_clusters"])) == (4, 10, 2)
    assert [each["sub_cluster"] for each in found["backends"]] == [0, 1]
    assert [each["batches"][0]["end_s"] for each in found["backends"]] == [10, 10]


def test_the_page_shows_a_pipeline_where_it_lives() -> None:
    frames = {at: frame(10, "a", pipelines=("p", "q")) for at in range(2)}
    rows = {"a": ((0, 1.0),), "p": ((1, 1.0),), "q": ((0, 0.5), (1, 0.5))}
    found = json.loads(merged_frame(frames, Directory(1, (), rows)))
    assert [each["name"] for each in found["pipelines"]] == ["q (0)", "p", "q (1)"]
    assert [each["name"] for each in found["applications"]] == ["a"]


def test_the_page_is_empty_before_a_router_has_told_anything() -> None:
    assert merged_frame({0: "{}", 1: "{}"}) == "{}"
