"""`fermata load` as a process of its own, and what its ledger says."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.live_server import ROOT


def start(address: str, model: str, rate_rps: float, seconds_s: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "fermata.commands.main", "load", "--json", "--model", model]
    command += ["--server", address, "--rate", str(rate_rps), "--duration-s", str(seconds_s)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finished(loading: "subprocess.Popen[str]") -> dict[str, Any]:
    """Its figures, once it has ended."""
    said, _ = loading.communicate()
    assert loading.returncode == 0, said
    return dict(json.loads(said))


def load(address: str, model: str, rate_rps: float, seconds_s: float) -> dict[str, Any]:
    return finished(start(address, model, rate_rps, seconds_s))
