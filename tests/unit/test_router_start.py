"""Imports of a router that starts anew, before it serves."""

import subprocess
import sys

MODULES = "fermata.router.assembly", "fermata.router.leadership.process"
SPARED = "numpy", "scipy", "highspy", "pulp"


def test_a_router_waits_for_no_numpy() -> None:
    """A tenth of the CPU time that a restart takes."""
    code = f"import sys, {', '.join(MODULES)}\nprint(*set({SPARED}) & sys.modules.keys())"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == []
