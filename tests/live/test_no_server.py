"""Our clients where nobody serves: one line, with what to do."""

import subprocess
import sys
import time

import pytest

pytest.importorskip("grpc")
from served import ROOT

from benchmarks.ports import free_port

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    "words", [("stream", str(ROOT / "docs/images")), ("load", "--model", "digits")]
)
def test_commands_without_a_server_say_how_to_start_one(words: tuple[str, ...]) -> None:
    server = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "fermata.commands.main", *words, "--server", server]
    started_at = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - started_at < 20
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f"no server answers at {server}" in line
    assert "fermata serve" in line
