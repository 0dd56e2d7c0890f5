"""A real Prometheus scrapes a live server: every expression of the dashboard finds data."""

import json
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from served import ROOT, Server, get, load, wait_until

from benchmarks.ports import free_port

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="no Prometheus here (Debian: prometheus)"
    ),
]
MONITORING = ROOT / "k8s/monitoring"


class Prometheus:
    """One that looks once a second, with our rules."""

    def __init__(self, folder: Path, target: str) -> None:
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(MONITORING / "rules.yaml")],
            "scrape_configs": [{"job_name": "fermata", "static_configs": [{"targets": [target]}]}],
        }
        path = folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        told = json.loads(get(url))
        assert told["status"] == "success", told
        return told["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        return list(self.ask("query", query=text)["result"])

    def up(self) -> bool:
        return [each["value"][1] for each in self.query("up")] == ["1"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    one = Prometheus(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{server.port}")
    try:
        wait_until(one.up, 30)
        load(server, "emulated", rate=60, seconds=3)
        load(server, "digits", rate=20, seconds=2)
        # Frontends tell the router once a second, and Prometheus looks once a second.
        time.sleep(3)
        yield one
    finally:
        one.stop()


ABSENT = ("fermata_tenant_", "fermata_promised_", "fermata_observed_", "fermata_camera")
"""This server has no tenants, no mapped cameras, and no policy that promises anything."""


def expressions() -> list[str]:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_expression_of_the_dashboard_finds_data(prometheus: Prometheus) -> None:
    empty = []
    for text in expressions():
        asked = text.replace("$__rate_interval", "30s").replace("$application", ".*")
        if not prometheus.query(asked) and not any(each in text for each in ABSENT):
            empty.append(text)
    assert not empty


def test_rules_are_evaluated_without_errors(prometheus: Prometheus) -> None:
    groups = prometheus.ask("rules")["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len(found) == 16
    assert {rule["health"] for rule in found} <= {"ok"}
    assert prometheus.query("fermata:bad:ratio_rate5m")


def test_what_prometheus_counts_is_what_the_client_sent(
    server: Server, prometheus: Prometheus
) -> None:
    def answered() -> float:
        text = 'sum(fermata_answered_total{application="emulated"})'
        return float(prometheus.query(text)[0]["value"][1])

    before = answered()
    sent = load(server, "emulated", rate=40, seconds=2)
    assert sent["lost"] == 0
    # The client starts with a few requests of its own that it does not report.
    wait_until(lambda: answered() >= before + sent["requests"], 10)
