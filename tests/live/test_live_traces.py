"""A request whose caller traces it, through a live server and into a file for Perfetto."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("ray")
from served import ROOT, Server, wait_until

pytestmark = pytest.mark.live
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_callers_trace_goes_on_here(server: Server, tmp_path: Path) -> None:
    tensor = {"name": "input", "datatype": "UINT8", "shape": [1, 20000], "data": [7] * 20000}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 2_000_000}}).encode()
    headers = {"Content-Type": "application/json", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    url = f"http://127.0.0.1:{server.http_port}/v2/models/emulated/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
        assert answer.status == 200
    folder = Path(server.config["traces"]["folder"])
    wait_until(lambda: any(TRACE in path.read_text() for path in folder.glob("*.jsonl")), 10)
    out = tmp_path / "trace.json"
    command = [
        sys.executable,
        "-m",
        "fermata.commands.main",
        "trace",
        str(folder),
        "--out",
        str(out),
    ]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    events = json.loads(out.read_text())["traceEvents"]
    names = {each["name"] for each in events if each["pid"] == 2}
    assert {"emulated", "queue", "run"} <= names
    assert any(each["name"] == "emulated-1 x1" for each in events if each["pid"] == 1)
