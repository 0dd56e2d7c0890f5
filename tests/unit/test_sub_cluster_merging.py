"""Status and page of several routers as one."""

import json
from typing import Any

import pytest
import snapshots

from fermata.deployments.control.sub_clusters.merging import (
    merged_frame,
    merged_snapshot,
    merged_status,
)
from fermata.deployments.specs.status import DeploymentStatus
from fermata.router.links.unavailability import LOADING
from fermata.router.telemetry.dashboard_frames import (
    ApplicationFrame,
    BackendFrame,
    BatchFrame,
    DashboardFrame,
    SubClusterFrame,
)
from fermata.router.telemetry.snapshot import BackendSnapshot, RouterSnapshot, VariantSnapshot


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


def frame(at_s: float, *names: str) -> str:
    applications = tuple(
        ApplicationFrame(name, 50, 1, 1, {}, 1, 1, 0, None, None, None, None, 0, 0, {})
        for name in names
    )
    batch = BatchFrame(at_s - 1, at_s, "v", 1, at_s + 1, 0)
    backend = BackendFrame("5", 0, "gpu", "idle", ("v",), (batch,))
    sub_cluster = SubClusterFrame(1, 0.5, None, None)
    return DashboardFrame(at_s, "here", 2, 1, applications, (sub_cluster,), (backend,)).to_json()


def test_the_page_shows_all_sub_clusters_on_one_clock() -> None:
    found = json.loads(merged_frame({0: frame(10, "a", "both"), 1: frame(4, "b", "both")}))
    names = [each["name"] for each in found["applications"]]
    assert names == ["a", "both (0)", "b", "both (1)"]
    assert (found["queued"], found["at_s"], len(found["sub_clusters"])) == (4, 10, 2)
    assert [each["sub_cluster"] for each in found["backends"]] == [0, 1]
    assert [each["batches"][0]["end_s"] for each in found["backends"]] == [10, 10]


def test_the_page_is_empty_before_a_router_has_told_anything() -> None:
    assert merged_frame({0: "{}", 1: "{}"}) == "{}"
