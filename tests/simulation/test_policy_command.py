"""`fermata policy ramsis`, as a user calls it."""

import json

import pytest
from typer.testing import CliRunner, Result

from fermata.commands.main import app
from fermata.foundation.errors import ConfigError

SAMPLE = "simulator/samples/variants.yaml"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["policy", "ramsis", *words])


def test_solve_prints_the_whole_table_as_json() -> None:
    result = call("solve", SAMPLE, "--bins", "20", "--json")
    assert result.exit_code == 0
    table = json.loads(result.stdout)
    assert table["load_rps"] == 300
    assert table["workers"] == 12
    assert 0.7 < table["accuracy"] < 0.84
    assert len(table["slack_ms"]) == 21
    assert {len(row) for row in table["choice"]} == {21}
    used = {variant for row in table["choice"] for variant in row}
    assert used <= set(range(len(table["variants"])))


def test_solve_shows_from_which_slack_on_a_variant_runs() -> None:
    result = call("solve", SAMPLE, "--load", "100", "--bins", "20")
    assert result.exit_code == 0
    assert "0: small" in result.stdout
    assert "huge" in result.stdout


def test_bursts_promise_less_than_independent_arrivals() -> None:
    words = ["solve", SAMPLE, "--bins", "20", "--load", "400", "--json"]
    even, bursty = (
        json.loads(call(*words, *more).stdout)
        for more in ([], ["--law", "bursty", "--burst-ms", "20"])
    )
    assert bursty["violation"] > even["violation"]


def test_solve_for_every_load_ends_at_the_peak() -> None:
    result = call("solve", SAMPLE, "--bins", "10", "--every-load", "--json")
    tables = json.loads(result.stdout)["tables"]
    rates = [each["load_rps"] for each in tables]
    assert rates == sorted(rates)
    assert rates[-1] > 1000


def test_plan_counts_workers_and_cost() -> None:
    words = ["--accuracy", "0.75", "--by", "ramsis", "--bins", "20", "--cost-per-hour", "0.5"]
    result = call("plan", SAMPLE, *words, "--json")
    assert result.exit_code == 0
    fleet = json.loads(result.stdout)["plans"]["ramsis"]
    assert fleet["accuracy"] >= 0.75
    assert fleet["violation"] <= 0.001
    assert fleet["cost_per_hour"] == pytest.approx(0.5 * fleet["workers"])


def test_plan_says_when_no_fleet_is_large_enough() -> None:
    words = ["--accuracy", "0.83", "--by", "ramsis", "--bins", "10", "--workers-max", "3"]
    result = call("plan", SAMPLE, *words)
    assert result.exit_code == 1
    assert "> 3" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["solve", SAMPLE, "--load", "-3"], "--load"),
        (["solve", SAMPLE, "--reward", "both"], "reward"),
        (["solve", SAMPLE, "--law", "weekly"], "module:name"),
        (["solve", SAMPLE, "--law", "bursty"], "burst_ms"),
        (["plan", SAMPLE, "--accuracy", "76"], "divide a percentage"),
        (["plan", SAMPLE, "--accuracy", "0.7", "--by", "magic"], "must be one of"),
        (["solve", "simulator/samples/cameras.yaml"], "accuracy"),
    ],
)
def test_impossible_wishes_are_refused_in_one_line(words: list[str], message: str) -> None:
    result = call(*words)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
