"""A live server whose router is native code, and one whose router is told not to be."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from served import ROOT, Server, descendants, load, serving, wait_until

from fermata.router.compiled import build, reason_not

# To compile takes minutes, where nobody has done so before.
pytestmark = [pytest.mark.live, pytest.mark.long]


def emulated(folder: Path, **router: Any) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "deployments/emulated.yaml").read_text())
    return {**config, "logs": {"level": "info", "folder": str(folder / "logs")}, "router": router}


def started(folder: Path) -> list[str]:
    """By each start of a router: whether it was compiled, or why not."""
    files = sorted((folder / "logs").glob("router*.jsonl"))
    said = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [line["compiled"] for line in said if line["event"] == "router listens"]


def router_of(server: Server) -> int:
    """The router's process, as Ray names it."""
    found = []
    for pid in descendants(server.process.pid):
        with suppress(OSError):
            found += [pid] * (b"RouterActor" in Path(f"/proc/{pid}/cmdline").read_bytes())
    (router,) = found
    return router


def serves(server: Server) -> bool:
    result = load(server, "emulated", rate=50, seconds=1)
    return bool(result["good"] > 0.9 * result["requests"] > 0)


@pytest.mark.skipif(bool(reason_not()), reason="nothing can be compiled here")
def test_a_compiled_router_serves_and_comes_back(tmp_path: Path) -> None:
    build()
    with serving(tmp_path, emulated(tmp_path, compiled=True), backends=2) as server:
        assert serves(server)
        assert started(tmp_path) == ["yes"]
        os.kill(router_of(server), signal.SIGKILL)
        wait_until(lambda: started(tmp_path) == ["yes", "yes"], 30)
        wait_until(lambda: serves(server), 30)


def test_a_router_that_is_not_to_be_compiled_is_not(tmp_path: Path) -> None:
    with serving(tmp_path, emulated(tmp_path, compiled=False), backends=2) as server:
        assert serves(server)
        assert started(tmp_path) == ["not asked for"]
