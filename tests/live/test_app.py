"""The whole system as a user starts it: `fermata serve`, a load, Ctrl-C, and nothing left."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("ray")
from served import ROOT, Server, get, load

pytestmark = pytest.mark.live


def test_every_request_is_answered_once(server: Server) -> None:
    result = load(server, "emulated", rate=200, seconds=4)
    assert result["lost"] == result["duplicates"] == result["strangers"] == 0
    # The machine that runs tests is small and busy; most are in time all the same.
    assert result["good"] > 0.8 * result["requests"]


def test_the_router_counts_what_it_served(server: Server) -> None:
    load(server, "emulated", rate=50, seconds=1)
    counts = server.status()["applications"]["emulated"]
    assert counts["requests"] == counts["good"] + counts["late"] + sum(counts["dropped"].values())
    text = server.page("metrics")
    assert f'fermata_requests_total{{application="emulated"}} {counts["requests"]}' in text


def test_rest_answers_too(server: Server) -> None:
    described = json.loads(get(f"http://127.0.0.1:{server.http_port}/v2/models/emulated"))
    assert described["inputs"][0]["datatype"] == "UINT8"
    tensor = {"name": "input", "datatype": "UINT8", "shape": [1, 20000], "data": [7] * 20000}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 2_000_000}}).encode()
    url = f"http://127.0.0.1:{server.http_port}/v2/models/emulated/infer"
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        parameters = json.loads(answer.read())["parameters"]
    assert parameters["variant"] == "emulated-1"


def test_a_bad_configuration_ends_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("applications: [{name: a, slo_ms: -1, variants: []}]\n")
    command = [sys.executable, "-m", "commands.main", "serve", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "slo_ms" in done.stderr
