"""Logs of a live server: silent while all is well, and joined by ids where every request counts."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from served import ROOT, Server, load, serving, wait_until

pytestmark = pytest.mark.live


def said(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_a_server_that_is_well_says_nothing(server: Server) -> None:
    load(server, "emulated", rate=20, seconds=1)
    events = {line["event"] for line in said(Path(server.config["logs"]["folder"]))}
    assert not events & {"request", "dispatched", "ran", "done", "dropped", "router linked"}


def test_a_request_is_found_in_every_process(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    config = yaml.safe_load((ROOT / "deployments/emulated.yaml").read_text())
    config["logs"] = {"level": "debug", "folder": str(folder)}
    with serving(tmp_path, config, backends=2) as server:
        sent = load(server, "emulated", rate=50, seconds=1)
        wait_until(lambda: count(folder, "request") >= sent["requests"], 10)
        wait_until(lambda: count(folder, "done") == count(folder, "dispatched"), 10)
    told = said(folder)
    batches = {line["batch"]: line for line in told if line["event"] == "dispatched"}
    ran = {line["batch"]: line for line in told if line["event"] == "ran"}
    requests = [line for line in told if line["event"] == "request"]
    # Those of the warm-up are there too; each once.
    assert len({line["request"] for line in requests}) == len(requests) >= sent["requests"]
    served = [line for line in requests if line["outcome"] == "good"]
    assert served
    for line in served:
        assert line["request"] in batches[line["batch"]]["requests"]
        assert ran[line["batch"]]["process"] == f"backend-{line['backend']}"
        assert ran[line["batch"]]["run_ms"] == line["run_ms"]
    processes = {line["process"].partition("-")[0] for line in told}
    assert {"frontend", "router", "backend"} <= processes


def count(folder: Path, event: str) -> int:
    return sum(line["event"] == event for line in said(folder))
