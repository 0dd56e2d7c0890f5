"""Loading, unloading and versions on the real server, by a client that nobody here wrote."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tritonclient.grpc")
from served import Server

pytestmark = pytest.mark.live

SCRIPT = Path(__file__).with_name("repository_script.py")


def test_triton_loads_unloads_and_chooses_versions(server: Server) -> None:
    target = f"127.0.0.1:{server.grpc_port}"
    command = [sys.executable, str(SCRIPT), target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["asked", "loaded", "unloaded", "whole", "refused"]
