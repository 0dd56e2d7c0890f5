"""Dashboard and alert rules: current, and about metrics that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fermata.deployments.metrics.families import FAMILIES
from fermata.deployments.metrics.grafana import PANELS, dashboard

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "k8s/monitoring"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
NAMES = {f"{family.full_name}{suffix}" for family in FAMILIES for suffix in SUFFIXES[family.kind]}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian: prometheus)"
)


def rules() -> list[dict[str, str]]:
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_dashboard_is_current() -> None:
    assert json.loads((MONITORING / "dashboard.json").read_text()) == dashboard(), (
        "python -m fermata.deployments.metrics.grafana > k8s/monitoring/dashboard.json"
    )


def test_only_metrics_that_there_are_stand_in_expressions() -> None:
    asked = [text for panel in PANELS for text, _ in panel.queries]
    asked += [rule["expr"] for rule in rules()]
    for text in asked:
        used = set(re.findall(r"\bfermata_\w+", text))
        assert used <= NAMES, used - NAMES


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    assert len({(place["x"], place["y"]) for place in places}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_every_alert_says_what_it_is_about() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["annotations"]["summary"]  # type: ignore[index]
            assert rule["labels"]["severity"] in ("page", "ticket")  # type: ignore[index]


@needs_promtool
def test_prometheus_takes_rules_and_configuration() -> None:
    for words in (("rules", "rules.yaml"), ("config", "prometheus.yaml")):
        done = subprocess.run(
            ["promtool", "check", *words], cwd=MONITORING, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    path = Path(__file__).with_name("rules_test.yaml")
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
