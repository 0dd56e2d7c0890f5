"""The end of `fermata serve` by SIGTERM, as a supervisor asks for it: as quiet as by Ctrl-C."""

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from served import ROOT, STOP_S, Server, serving

pytestmark = pytest.mark.live

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "deployments/emulated.yaml").read_text())


def end(server: Server, sign: signal.Signals) -> tuple[int, str]:
    """The exit code, and all that was said since the server was up."""
    before = len(server.said())
    server.process.send_signal(sign)
    code = server.process.wait(STOP_S)
    return code, server.said()[before:]


def test_a_termination_is_as_quiet_and_clean_as_an_interrupt(tmp_path: Path) -> None:
    ends = []
    for sign in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / sign.name
        folder.mkdir()
        # No process and no shared memory is left afterwards.
        with serving(folder, CONFIG, CONFIG["backend"]["count"]) as server:
            ends.append(end(server, sign))
    assert ends[0] == ends[1]
    assert "SIGTERM" not in ends[1][1]
    assert "Traceback" not in ends[1][1]
