"""Backends of several kinds in one serving file."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fermata.commands.files.scenario_server import serve_scenario
from fermata.commands.files.workload import LoadOptions, load_workload
from fermata.deployments.config.backend_groups import groups_of
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.processes.process_options import store_options
from fermata.deployments.config.resolve import known_profiles, measured_costs
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms

VARIANT = {"name": "v", "model": "emulated", "latency_ms": [10, 12, 14]}


def document(**more: Any) -> dict[str, Any]:
    application = {"name": "a", "slo_ms": 100, "variants": [VARIANT]}
    return {
        "applications": [application],
        "backend": {"device": "emulated", "cpus": 0.1, "memory_mb": 1000},
        **more,
    }


def groups(*given: dict[str, Any]) -> tuple[DeploymentConfig, ...]:
    return groups_of(read_config(document(backends=list(given))))


def test_a_file_without_groups_is_one_group() -> None:
    config = read_config(document())
    assert groups_of(config) == (config,)
    assert store_options(config).kind == ""
    assert measured_costs(config, known_profiles(config)) == ()


def test_a_group_says_only_what_differs() -> None:
    fast, slow = groups({"count": 2}, {"count": 3, "cpus": 0.2, "memory_mb": 500, "slower": 3})
    assert (fast.backend.count, fast.backend.cpus, fast.backend.memory_mb) == (2, 0.1, 1000)
    assert (slow.backend.count, slow.backend.cpus, slow.backend.memory_mb) == (3, 0.2, 500)
    assert {each.backend.device for each in (fast, slow)} == {"emulated"}
    # What a process is given is read anew there.
    assert groups_of(read_config(slow.model_dump())) == (read_config(slow.model_dump()),)


def test_slower_backends_have_a_kind_and_run_times_of_their_own() -> None:
    fast, slow = groups({"count": 2}, {"count": 3, "slower": 3})
    assert (store_options(fast).kind, store_options(slow).kind) == ("", "emulated x 3")
    assert known_profiles(fast)["v"].table_ns(3) == [ms(10), ms(12), ms(14)]
    assert known_profiles(slow)["v"].table_ns(3) == [ms(30), ms(36), ms(42)]
    assert store_options(slow).specs[0].table_ns == (ms(30), ms(36), ms(42))
    # The router plans with the first group's until backends of another kind bring theirs.
    assert measured_costs(fast, known_profiles(fast)) == ()
    ((name, p50_ns, _),) = measured_costs(slow, known_profiles(slow))
    assert (name, p50_ns) == ("v", (ms(30), ms(36), ms(42)))


def test_the_whole_fleet_counts() -> None:
    config = read_config(document(backends=[{"count": 2}, {"count": 3}]))
    assert config.backend.count == 5
    # As Serve hands it to the processes.
    assert read_config(config.model_dump()) == config


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"backends": [{"count": 2}], "backend": {"count": 3}},
            "backend.count=3 and backends, which has 2: leave one of them out",
        ),
        (
            {"backends": [{"count": 1}, {"count": 1, "slower": 2, "device": "cpu"}]},
            "backends.1.slower=2 needs device: emulated, not cpu, whose run times are measured",
        ),
        ({"backends": [{"count": 0}]}, "backends.0.count=0"),
        ({"backends": [{"kind": "t4"}]}, "backends.0.count"),
        (
            {"backends": [{"count": 2}], "autoscaler": {"maximum": 4}},
            "backends has one group: say it in backend, with autoscaler or epochs",
        ),
    ],
)
def test_a_bad_fleet_is_refused_in_one_line(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read_config(document(**more))
    assert "\n" not in str(caught.value)


def test_a_scenario_is_served_on_its_kinds_and_simulated_as_it_is_served(tmp_path: Path) -> None:
    scenario = {
        "backends": [{"count": 2}, {"count": 4, "slower": 3.0}],
        "rate_rps": 100,
        "duration_s": 1,
        "applications": [{"name": "a", "slo_ms": 100, "variants": [VARIANT]}],
    }
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario))
    served = serve_scenario(path)
    assert [(each.backend.count, each.backend.slower) for each in groups_of(served)] == [
        (2, 1.0),
        (4, 3.0),
    ]
    file = tmp_path / "serving.yaml"
    file.write_text(yaml.safe_dump(document(backends=[{"count": 2}, {"count": 4, "slower": 3.0}])))
    simulated = load_workload(file, LoadOptions(rate_rps=100, duration_s=1))
    assert [(each.count, each.slower) for each in simulated.groups] == [(2, 1.0), (4, 3.0)]
