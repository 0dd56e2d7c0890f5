"""`fermata policy ramsis solve`: one SLO of several, and what variable batching would gain."""

import json
from pathlib import Path
from typing import Any

import pytest

from fermata.commands.policy.ramsis import solve_tables
from fermata.foundation.errors import ConfigError

SCENARIO = """
duration_s: 1
backends: 6
policy: ramsis
policy_options: {bins: 10, queue_max: 6, slos_ms: [150, 75], slo_shares: [1, 2]}
rate_rps: 150
applications:
  - name: classifier
    slo_ms: 100
    variants:
      - {name: small, alpha_ms: 9, beta_ms: 12, accuracy: 0.60}
      - {name: large, alpha_ms: 35, beta_ms: 20, accuracy: 0.80}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def solved(capsys: pytest.CaptureFixture[str], scenario: Path, **options: Any) -> Any:
    solve_tables(scenario, as_json=True, **options)
    return json.loads(capsys.readouterr().out)


def test_the_tightest_slo_is_solved_with_its_part(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = solved(capsys, scenario)
    assert (told["workers"], told["load_rps"]) == (4, pytest.approx(100))
    assert told["slack_ms"][-1] == 75
    other = solved(capsys, scenario, slo_ms=150.0)
    assert (other["workers"], other["slack_ms"][-1]) == (2, 150)
    with pytest.raises(ConfigError, match=r"--slo-ms=100.0: must be one of 75, 150"):
        solve_tables(scenario, slo_ms=100.0)
    with pytest.raises(ConfigError, match=r"--workers=1: leaves none for the SLO of 150 ms"):
        solve_tables(scenario, workers=1, slo_ms=150.0)


def test_variable_batching_names_batch_sizes_and_loses_nothing(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, split = solved(capsys, scenario), solved(capsys, scenario, variable_batching=True)
    assert split["accuracy"] >= whole["accuracy"]
    for length, row in enumerate(split["choice"], 1):
        assert all(1 <= size <= length for _, size in row)
    with pytest.raises(ConfigError, match="--every-load=True: goes without"):
        solve_tables(scenario, every_load=True, variable_batching=True)
    solve_tables(scenario, variable_batching=True)
    assert "large x 1" in capsys.readouterr().out
