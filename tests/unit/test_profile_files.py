"""A profile file is found wherever one is named, with everything that it holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from fermata.deployments.config.deployment import load_config, read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.partitioner.problem_file import load_problem
from fermata.profiles.profile import Profile
from fermata.profiles.reference import find_profile
from fermata.simulator.scenario.scenario import load_scenario

SMALL = {
    "name": "digits:small",
    "batches": [1, 4],
    "p50_ms": [2.0, 5.0],
    "p99_ms": [2.5, 6.0],
    "static_mb": 12,
    "load_ms": 30,
    "accuracy": 0.8,
    "recall": [0.9, 0.7],
    "confusion": [[9, 1], [6, 14]],
}
LARGE = {**SMALL, "name": "large", "accuracy": 0.9, "p50_ms": [4.0, 9.0], "p99_ms": [4.0, 9.0]}


def write_profiles(path: Path, *rows: dict[str, Any]) -> Path:
    head = {"schema": 1, "table": path.stem, "device": "a box", "source": "by hand"}
    path.write_text(json.dumps({**head, "profiles": list(rows)}))
    return path


def write_file(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of files beside a profile file; commands are run in another one."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "box"
    folder.mkdir()
    write_profiles(folder / "mine.json", SMALL, LARGE)
    write_profiles(folder / "one.json", SMALL)
    return folder


def refusal(reference: str, beside: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        find_profile(reference, beside)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_profile_is_named_by_file_and_name(elsewhere: Path) -> None:
    for reference in ("mine.json#large", "./mine.json#large", f"{elsewhere}/mine.json#large"):
        assert find_profile(reference, elsewhere).accuracy == 0.9
    assert find_profile("../box/mine.json#digits:small", elsewhere).accuracy == 0.8
    assert find_profile("box/mine.json#large").accuracy == 0.9


def test_a_file_with_one_profile_needs_no_name(elsewhere: Path) -> None:
    for reference in ("one.json", "./one.json", "one.json#", "one.json#digits:small"):
        assert find_profile(reference, elsewhere).name == "digits:small"


@pytest.mark.parametrize(
    ("file", "name"), [("any.profile", "a"), ("a#b.json", "a"), ("plain", "with#mark")]
)
def test_odd_names_are_found(elsewhere: Path, file: str, name: str) -> None:
    write_profiles(elsewhere / file, {**SMALL, "name": name}, LARGE)
    assert find_profile(f"./{file}#{name}", elsewhere).name == name


def test_the_zoo_is_still_found_by_name(elsewhere: Path) -> None:
    assert find_profile("h200-graph/resnet50", elsewhere).name == "resnet50"
    assert find_profile("bert_mini", elsewhere) == find_profile("h200-eager/bert_mini")


def test_home_folders_are_known(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    assert find_profile("~/one.json").name == "digits:small"


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("none.json#large", ["none.json#large", "no file", "fermata profile MODEL -o"]),
        ("mine.json", ["mine.json", "2 profiles", "#digits:small", "#large"]),
        ("mine.json#huge", ["mine.json#huge", "huge", "digits:small, large"]),
        ("./broken.json#large", ["broken.json", "is not JSON"]),
        ("./other.json#large", ["other.json", "unknown key"]),
        (".#large", ["no file"]),
    ],
)
def test_mistakes_are_refused_in_one_line(
    elsewhere: Path, reference: str, parts: list[str]
) -> None:
    (elsewhere / "broken.json").write_text("applications: []")
    write_file(elsewhere / "other.json", {"applications": []})
    message = refusal(reference, elsewhere)
    for part in parts:
        assert part in message


def scenario_file(folder: Path, **application: Any) -> Path:
    application = {"name": "a", "slo_ms": 50, **application}
    data = {"backends": 1, "rate_rps": 10, "duration_s": 1, "applications": [application]}
    return write_file(folder / "scenario.yaml", data)


def test_a_scenario_names_a_file_beside_it(elsewhere: Path) -> None:
    rows = [{"name": "s", "profile": "./mine.json#digits:small"}, {"profile": "mine.json#large"}]
    classes = {"recall_floors": [0, 0.5]}
    scenario = load_scenario(scenario_file(elsewhere, variants=rows, classes=classes))
    (application,) = scenario.applications
    small, large = application.profiles
    assert (small.name, small.latency_ns(4), small.latency_ns_p99(1)) == ("s", ms(5), ms(2.5))
    assert (small.accuracy, small.load_ns, large.name) == (0.8, ms(30), "large")
    assert application.classes is not None
    assert application.classes.recall == ((0.9, 0.7), (0.9, 0.7))
    # Samples of each class: the rows of the confusion matrix.
    assert application.classes.counts == (10, 20)


def test_what_the_row_says_goes_before_the_profile(elsewhere: Path) -> None:
    row = {"profile": "mine.json#large", "accuracy": 0.0, "recall": [0.5, 0.5, 0.5]}
    scenario = load_scenario(scenario_file(elsewhere, variants=[row], classes={}))
    (application,) = scenario.applications
    assert application.variants[0].accuracy == 0.0
    assert application.classes is not None
    # Counts of two classes say nothing of three.
    assert application.classes.counts == ()


def test_a_zoo_may_be_a_file_too(elsewhere: Path) -> None:
    write_profiles(elsewhere / "zoo.json", {**SMALL, "slo_ms": 20}, {**LARGE, "slo_ms": 30})
    line = {"name": "line", "alpha_ms": 1, "beta_ms": 2, "slo_ms": 20}
    write_profiles(elsewhere / "lines.json", line)
    data = {"backends": 1, "rate_rps": 10, "zoo": {"table": "./lines.json"}}
    scenario = load_scenario(write_file(elsewhere / "scenario.yaml", data))
    assert [each.name for each in scenario.applications] == ["line"]


def serving_file(folder: Path, *variants: dict[str, Any], **application: Any) -> Path:
    application = {"name": "a", "slo_ms": 50, "variants": list(variants), **application}
    return write_file(folder / "serving.yaml", {"applications": [application]})


def test_a_serving_file_names_a_file_beside_it(elsewhere: Path) -> None:
    rows = [
        {"name": "s", "model": "digits:small", "profile": "./mine.json#digits:small"},
        {"name": "l", "model": "digits:large", "profile": f"{elsewhere}/mine.json#large"},
    ]
    config = load_config(serving_file(elsewhere, *rows, classes={"recall_floors": [0, 0.5]}))
    known = known_profiles(config)
    assert known["s"].latency_ns(4) == ms(5)
    (served,) = router_config(config, known).applications
    assert [each.accuracy for each in served.variants] == [0.8, 0.9]
    assert served.variants[0].p50_ns == (ms(2), ms(3), ms(4), ms(5))
    assert served.classes is not None
    assert (served.classes.recall[0], served.classes.counts) == ((0.9, 0.7), (10, 20))


def test_processes_on_other_machines_need_no_profile_file(elsewhere: Path) -> None:
    row = {"name": "l", "model": "digits:large", "profile": "mine.json#large"}
    config = load_config(serving_file(elsewhere, row))
    plain = config.model_dump()
    known: Profile = known_profiles(config)["l"]
    (elsewhere / "mine.json").unlink()
    again = read_config(plain)
    assert known_profiles(again) == {"l": known}
    assert again.model_dump() == plain
    assert json.loads(json.dumps(config.model_dump(mode="json"))) == json.loads(json.dumps(plain))


def test_a_missing_profile_file_is_said_when_the_file_is_read(elsewhere: Path) -> None:
    path = serving_file(elsewhere, {"name": "l", "model": "m:f", "profile": "gone.json#x"})
    with pytest.raises(ConfigError, match=r"serving\.yaml.*gone\.json.*no file.*fermata profile"):
        load_config(path)


def test_a_problem_names_a_file_beside_it(elsewhere: Path) -> None:
    models = [
        {"profile": "./mine.json#large", "rate_rps": 10},
        {"name": "b", "profiles": {"box": "one.json"}, "rate_rps": 5},
    ]
    data = {"sub_clusters": 1, "rate_max_rps": 1000, "memory_mb": 1000, "models": models}
    large, small = load_problem(write_file(elsewhere / "problem.yaml", data)).models
    assert (large.name, large.static_bytes, large.load_cost) == ("large", 12 << 20, 30)
    assert (small.name, small.profiles["box"].accuracy) == ("b", 0.8)
