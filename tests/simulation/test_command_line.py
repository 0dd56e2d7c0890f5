"""The command as a user runs it: a process, its exit code and what it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "simulator/samples/resnet50.yaml"
SMALL = """
seed: 3
duration_s: 1
warmup_s: 0.2
backends: 2
rate_rps: 500
applications:
  - {name: a, slo_ms: 50, variants: [{name: a, alpha_ms: 1, beta_ms: 5, accuracy: 0.9}]}
"""
SIMULATE_KEYS = {
    "offered_rps",
    "good_rps",
    "bad_rate",
    "worst_bad_rate",
    "idle_fraction",
    "mean_batch",
    "p50_ms",
    "p99_ms",
    "queue_p50_ms",
    "queue_p99_ms",
    "accuracy",
    "requests",
    "wall_s",
    "requests_per_wall_s",
    "applications",
}


def fermata(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fermata.commands.main", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_simulate_prints_one_json_object(small: Path) -> None:
    result = fermata("simulate", small, "--json")
    assert result.returncode == 0
    figures = json.loads(result.stdout)
    assert set(figures) >= SIMULATE_KEYS
    assert figures["applications"][0]["name"] == "a"
    assert figures["accuracy"] == pytest.approx(0.9)


def test_the_same_seed_gives_the_same_figures(small: Path) -> None:
    first, second = (json.loads(fermata("simulate", small, "--json").stdout) for _ in range(2))
    for figures in (first, second):
        del figures["wall_s"], figures["requests_per_wall_s"]
    assert first == second


def test_goodput_prints_what_it_tried(small: Path) -> None:
    figures = json.loads(fermata("goodput", small, "--json").stdout)
    assert figures["goodput_rps"] in figures["rates_tried"]
    assert figures["worst_bad_rate"] <= 0.01
    assert set(figures) >= SIMULATE_KEYS
    assert set(figures["simulate"]) >= SIMULATE_KEYS


def test_plots_are_drawn(small: Path, tmp_path: Path) -> None:
    for verb in ("simulate", "goodput"):
        picture = tmp_path / f"{verb}.png"
        assert fermata(verb, small, "--plot", picture).returncode == 0
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rate_rps: 500", "rate_rps: -5"), ("rate_rps", "-5", "above 0")),
        (("backends: 2", "backend: 2"), ("backend", "unknown key", "backends")),
        (("seed: 3", "policy: magic"), ("policy", "magic", "deferred")),
        (("slo_ms: 50", "slo_ms: 5"), ("slo_ms", "5", "at least 6 ms")),
        (("warmup_s: 0.2", "warmup_s: -1"), ("warmup_s", "-1")),
        (("seed: 3", "policy_options: {hold: maybe}"), ("hold", "maybe", "auto")),
    ],
)
def test_a_bad_scenario_ends_in_one_line(
    small: Path, change: tuple[str, str], words: tuple[str, ...]
) -> None:
    small.write_text(SMALL.replace(*change))
    result = fermata("simulate", small)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_a_missing_file_ends_in_one_line(tmp_path: Path) -> None:
    result = fermata("goodput", tmp_path / "none.yaml")
    assert result.returncode == 2
    assert "cannot be read" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_help_helps() -> None:
    assert "goodput" in fermata("--help").stdout
    assert "SCENARIO" in fermata("simulate", "--help").stdout


def test_plain_output_is_a_table() -> None:
    result = fermata("simulate", SAMPLE)
    assert result.returncode == 0
    assert "req/s" in result.stdout
