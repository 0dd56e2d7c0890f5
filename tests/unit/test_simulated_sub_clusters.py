"""Simulations of serving files whose sub-clusters have a router each."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fermata.commands.files.sub_clusters import load_played
from fermata.commands.files.workload import LoadOptions
from fermata.commands.main import app
from fermata.foundation.errors import ConfigError
from fermata.simulator.run import Driver, simulate
from fermata.simulator.scenario.scenario import read_scenario

RATED = LoadOptions(rate_rps=300.0, duration_s=2.0)
APART = {
    "backend": {"device": "emulated"},
    "backends": [{"count": 3, "models": ["little"]}, {"count": 2, "kind": "old", "slower": 2.0}],
    "sub_clusters": {},
}
"""Groups that each have a router, in a file that says nothing of `sub_clusters`."""


def application(name: str, weight: float, **more: Any) -> dict[str, Any]:
    """One that a backend serves at 100 requests a second, batches or not."""
    variant = {"name": f"{name}-1", "model": "emulated", "alpha_ms": 10, "beta_ms": 0.001}
    return {"name": name, "slo_ms": 50, "weight": weight, "variants": [variant], **more}


def file(tmp_path: Path, **changes: Any) -> Path:
    told = {
        "applications": [application("much", 2), application("little", 1)],
        "backend": {"count": 4, "device": "emulated", "cpus": 0.1},
        "sub_clusters": {"count": 2},
        **changes,
    }
    path = tmp_path / "several.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


def test_backends_of_one_sub_cluster_serve_no_application_of_another(tmp_path: Path) -> None:
    scenario = load_played(file(tmp_path), RATED)
    log = simulate(scenario)
    much, little = scenario.homes
    assert {much, little} == {0, 1}
    served = log.end_ns > 0
    backends = [log.batches[batch][0] for batch in log.batch[served]]
    homes = [scenario.homes[number] for number in log.arrivals.application[served]]
    assert [scenario.places[backend] for backend in backends] == homes
    assert len(set(backends)) == 4


def test_an_idle_sub_cluster_does_not_help_a_full_one(tmp_path: Path) -> None:
    # 300 of the 400 requests a second that four backends do in one pool; two of them do at most
    # 200, and 290 come to the one application.
    uneven = [application("much", 29), application("little", 1)]
    split = simulate(load_played(file(tmp_path, applications=uneven), RATED))
    one = simulate(
        load_played(file(tmp_path, applications=uneven, sub_clusters={"count": 1}), RATED)
    )
    assert len(one.reasons) < 0.02 * len(one.end_ns)
    assert len(split.reasons) > 0.25 * len(split.end_ns)


def test_groups_are_shared_out_as_they_are_live(tmp_path: Path) -> None:
    groups = [{"count": 3}, {"count": 2, "kind": "old", "slower": 2.0}]
    backend = {"device": "emulated", "cpus": 0.1}
    scenario = load_played(file(tmp_path, backend=backend, backends=groups), RATED)
    assert scenario.places == (0, 0, 1, 0, 1)
    fewer = LoadOptions(rate_rps=300.0, duration_s=1.0, backends=3)
    scenario = load_played(file(tmp_path, backend=backend, backends=groups), fewer)
    assert scenario.places == (0, 0, 1)


def test_groups_with_models_of_their_own_are_played_apart(tmp_path: Path) -> None:
    given = file(tmp_path, **APART)
    scenario = load_played(given, RATED)
    assert scenario.places == (0, 0, 0, 1, 1)
    # Nobody else may serve the first one, and the second one is left to the others.
    assert scenario.homes == (1, 0)
    fewer = LoadOptions(rate_rps=300.0, duration_s=1.0, backends=3)
    with pytest.raises(ConfigError, match="--backends=3: takes the place of groups"):
        load_played(given, fewer)


def test_buckets_live_with_their_application(tmp_path: Path) -> None:
    shapes = {"buckets": [16, 64]}
    sized = application("sized", 1, shapes=shapes, input={"dtype": "UINT8", "shape": [-1]})
    rows = [sized, application("much", 1)]
    driver = Driver(load_played(file(tmp_path, applications=rows), RATED))
    first, second, other = driver.scenario.homes
    assert first == second != other


def test_applications_that_move_do_so_between_as_many(tmp_path: Path) -> None:
    path = file(tmp_path, sub_clusters={"count": 2}, epochs={"every_s": 1})
    scenario = load_played(path, RATED)
    assert scenario.epochs is not None
    assert (scenario.epochs.sub_clusters, scenario.homes) == (2, ())
    four = file(
        tmp_path,
        applications=[application(name, 1) for name in "abcd"],
        sub_clusters={"count": 4},
        epochs={"every_s": 1},
    )
    assert len(Driver(load_played(four, RATED)).engine.ranks) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sub_clusters": {"count": "auto"}, "epochs": {}}, "sub_clusters.count='auto'"),
        ({"sub_clusters": {"count": 2, "spread": ["much"]}}, "sub_clusters.spread=['much']"),
        ({"autoscaler": {"maximum": 8}}, "sub_clusters.count=2: with autoscaler"),
        (
            {**APART, "backends": [{"count": 3}, {"count": 2}], "autoscaler": {"maximum": 8}},
            "backends (2 groups, a router each): with autoscaler is simulated with epochs alone",
        ),
        ({"router": {"policy": "partitioned"}}, "policy='partitioned'"),
    ],
)
def test_what_is_not_played_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = file(tmp_path, **changes)
    for command in (["simulate", str(path), "--rate-rps", "10"], ["goodput", str(path)]):
        with pytest.raises(ConfigError) as caught:
            CliRunner().invoke(app, command, catch_exceptions=False)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_fewer_backends_than_sub_clusters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--backends=1: sub_clusters\.count=2 needs as many"):
        load_played(file(tmp_path), LoadOptions(rate_rps=10.0, backends=1))


def test_fewer_backends_than_groups_are_refused_by_what_the_file_has(tmp_path: Path) -> None:
    said = r"--backends=1: backends \(2 groups, a router each\) needs as many backends"
    with pytest.raises(ConfigError, match=said):
        load_played(file(tmp_path, **APART), LoadOptions(rate_rps=10.0, backends=1))


def test_a_backend_that_crashed_comes_back_where_it_was() -> None:
    stage = {"slo_ms": 100, "variants": [{"name": "v", "alpha_ms": 1, "beta_ms": 2}]}
    told = {
        "applications": [{"name": "first", **stage}, {"name": "second", **stage}],
        "pipelines": [
            {
                "name": "both",
                "slo_ms": 200,
                "stages": [{"application": "first"}, {"application": "second"}],
            }
        ],
        "pipeline_rule": "inferline",
        "backends": 2,
        "rate_rps": 50,
        "duration_s": 2,
        "faults": [{"at_s": 0.5, "backend": 1, "kind": "crash", "for_s": 0.1}],
    }
    driver = Driver(read_scenario(told))
    driver.run()
    assert driver.engine.backend_rank[1] is driver.engine.ranks[1]
