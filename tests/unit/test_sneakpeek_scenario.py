"""Scenarios whose requests hold something: read, drawn, simulated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds
from fermata.router.policies.sneakpeek.penalty import step
from fermata.simulator.reports.report import report
from fermata.simulator.reports.utility import right_answers, utilities
from fermata.simulator.run import Driver, simulate
from fermata.simulator.scenario.scenario import load_scenario, read_scenario

SAMPLE = Path(__file__).parents[2] / "simulator/samples/sneakpeek.yaml"


def scenario(**changes: Any) -> dict[str, Any]:
    """One application of two classes, with these changes to its `classes`."""
    classes = {"frequencies": [0.9, 0.1], "sneakpeek": {"accuracy": 0.8}, **changes}
    variants = [
        {"name": "s", "alpha_ms": 4, "beta_ms": 0, "swap_in_ms": 5, "recall": [0.9, 0.3]},
        {"name": "l", "alpha_ms": 12, "beta_ms": 0, "swap_in_ms": 9, "recall": [1.0, 0.9]},
    ]
    application = {"name": "a", "slo_ms": 150, "classes": classes, "variants": variants}
    return {
        "backends": 1,
        "rate_rps": 40,
        "duration_s": 20,
        "policy": "sneakpeek",
        "swap": True,
        "applications": [application],
    }


def test_contents_are_drawn_as_described() -> None:
    log = simulate(read_scenario(scenario()))
    contents = log.contents
    assert contents is not None
    assert contents.label.mean() == pytest.approx(0.1, abs=0.03)
    votes = np.array(contents.votes)
    assert (votes.argmax(axis=1) == contents.label).mean() == pytest.approx(0.8, abs=0.05)
    assert contents.right[contents.label == 0, 0].mean() == pytest.approx(0.9, abs=0.04)


def test_evidence_takes_each_application_as_long_as_is_said() -> None:
    described = scenario(sneakpeek={"accuracy": 0.8, "delay_ms": 40})
    quick = scenario(sneakpeek={"accuracy": 0.8, "delay_ms": 5})["applications"][0]
    variants = [{**each, "name": "quick-" + each["name"]} for each in quick["variants"]]
    described["applications"].append({**quick, "name": "b", "variants": variants})
    driver = Driver(read_scenario(described))
    assert driver.contents is not None
    slow = driver.arrivals.application == 0
    assert driver.contents.delay_ns[slow].tolist() == [ms(40)] * slow.sum()
    assert driver.contents.delay_ns[~slow].tolist() == [ms(5)] * (~slow).sum()
    there_ns, rids = driver._peeks()
    assert there_ns == sorted(there_ns)
    assert sorted(rids) == list(range(len(slow)))
    expected_ns = driver.arrivals.at_ns[rids] + driver.contents.delay_ns[rids]
    assert there_ns[:-1] == expected_ns.tolist()


def test_frequencies_change_when_they_are_said_to() -> None:
    steps = [{"from_s": 0, "frequencies": [1, 0]}, {"from_s": 10, "frequencies": [0, 1]}]
    described = read_scenario(scenario(frequencies=steps))
    log = simulate(described)
    assert log.contents is not None
    late = log.arrivals.at_ns >= described.warmup_ns + seconds(10)
    assert log.contents.label.tolist() == late.astype(int).tolist()


def test_report_counts_real_answers_and_short_circuits() -> None:
    described = load_scenario(SAMPLE)
    log = simulate(described)
    found = report(described, log)
    right = right_answers(log)
    assert found.short_circuited > 0
    assert found.accuracy is not None
    assert 0.7 < found.accuracy < 1
    worth = utilities(log, right, step)
    in_time = log.end_ns <= log.arrivals.at_ns + log.arrivals.slo_ns
    assert np.array_equal(worth > 0, right & in_time)


def test_same_seed_same_run() -> None:
    one, other = (simulate(load_scenario(SAMPLE)) for _ in range(2))
    assert np.array_equal(one.end_ns, other.end_ns)
    assert one.answers == other.answers


def test_looking_at_requests_is_worth_it() -> None:
    data = scenario()
    data["rate_rps"] = 90
    ours = report(read_scenario(data), simulate(read_scenario(data)))
    data["policy"] = "grouped"
    blind = report(read_scenario(data), simulate(read_scenario(data)))
    assert ours.accuracy is not None
    assert blind.accuracy is not None
    assert ours.good_rps * ours.accuracy > 1.05 * blind.good_rps * blind.accuracy


def test_requests_may_be_drawn_from_real_samples(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    votes = np.array([[5, 0], [1, 4]], float)
    right = np.array([[True, True], [False, True]])
    np.savez(path, labels=np.array([0, 1]), votes=votes, right=right)
    log = simulate(read_scenario(scenario(samples=str(path))))
    assert log.contents is not None
    rare = log.contents.label == 1
    assert not log.contents.right[rare, 0].any()
    assert set(log.contents.votes) == {(5.0, 0.0), (1.0, 4.0)}
    np.savez(path, labels=np.array([0, 1]), votes=votes[:, :1], right=right)
    with pytest.raises(ConfigError, match=r"votes must be \[2, 2\]"):
        read_scenario(scenario(samples=str(path)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frequencies": [1.0]}, "must be 2 shares"),
        ({"frequencies": [0, 0]}, "must be 2 shares"),
        ({"sneakpeek": {}}, "is needed, or confusion"),
        ({"sneakpeek": {"accuracy": 2}}, "accuracy"),
        ({"sneakpeek": {"confusion": [[1.0]]}}, "must have 2 rows"),
        ({"recall_floors": [0, 0.95]}, "no variant is sure to reach it"),
        ({"prior": "guess"}, "must be one of online"),
        ({"samples": "nowhere.npz"}, "cannot be read"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_classes_that_make_no_sense_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_scenario(scenario(**changes))


def test_classes_need_recalls() -> None:
    data = scenario()
    del data["applications"][0]["variants"][0]["recall"]
    with pytest.raises(ConfigError, match="needs recall"):
        read_scenario(data)


@pytest.mark.parametrize("window_ms", [500, 150, 147])
def test_window_that_leaves_no_time_to_run_is_refused_with_the_largest_that_works(
    window_ms: float,
) -> None:
    data = scenario()
    data.update(rate_rps=3, duration_s=40, swap=False, policy_options={"window_ms": window_ms})
    with pytest.raises(ConfigError, match=r"window_ms=.* leaves no time .*; use ") as refused:
        Driver(read_scenario(data))
    largest = float(str(refused.value).split("use ")[1].split()[0])
    assert largest == 146
    data["policy_options"] = {"window_ms": largest}
    read = read_scenario(data)
    assert report(read, simulate(read)).bad_rate == 0


@pytest.mark.parametrize("slo_ms", [20, 60, 100, 101])
def test_window_fits_a_short_slo_where_none_is_set(slo_ms: float) -> None:
    data = scenario()
    data["applications"][0]["slo_ms"] = slo_ms
    data.update(rate_rps=3, duration_s=40, swap=False)
    read = read_scenario(data)
    assert report(read, simulate(read)).bad_rate == 0
