"""Policies change under load, by a redeployment: no process is replaced and no request lost."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from served import ROOT, START_S, descendants, get, wait_until

from benchmarks.ledger_load import finished, start
from benchmarks.ports import free_port

pytestmark = pytest.mark.live

OURS = ("ControlPlane", "Frontend", "Backend", "RouterActor")
LOAD_S = 25
REDEPLOY = """
import logging, sys
import ray
from ray import serve
from fermata.deployments.app import build

ray.init(address="local", log_to_driver=False, logging_level=logging.ERROR)
serve.start(http_options={"port": int(sys.argv[1])})
for path in iter(sys.stdin.readline, ""):
    serve.run(build({"config": path.strip()}), name="fermata")
    print("deployed", flush=True)
serve.shutdown()
ray.shutdown()
"""


def config(folder: Path, ports: tuple[int, int, int], policy: str, **options: Any) -> Path:
    """The same deployment with another policy; the SLO leaves time on a machine that is busy."""
    variants = [
        {"name": "e-1", "model": "emulated", "alpha_ms": 1, "beta_ms": 5, "accuracy": 0.7},
        {"name": "e-2", "model": "emulated", "alpha_ms": 2, "beta_ms": 9, "accuracy": 0.8},
    ]
    application = {
        "name": "emulated",
        "slo_ms": 20_000,
        "input": {"name": "input", "dtype": "UINT8", "shape": [64]},
        "variants": variants,
        "policy": policy,
        "policy_options": options,
    }
    grpc_port, http_port, port = ports
    given = {
        "applications": [application],
        "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
        "frontend": {"processes": 1, "grpc_port": grpc_port, "http_port": http_port},
        "control": {"port": port},
    }
    path = folder / f"{policy}.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


def processes(root: int) -> dict[int, str]:
    """Ours among those that Ray has started, by number."""
    found: dict[int, str] = {}
    for pid in descendants(root):
        path = Path(f"/proc/{pid}/cmdline")
        words = path.read_bytes().decode(errors="replace") if path.exists() else ""
        if any(each in words for each in OURS):
            # Ray appends what a process is doing.
            found[pid] = words.split("\0")[0].partition(".")[0]
    return found


def test_policies_change_under_load_without_new_processes(tmp_path: Path) -> None:
    ports = (free_port(), free_port(), free_port())
    command = [sys.executable, "-c", REDEPLOY, str(ports[2])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as server:  # type: ignore[call-overload]

        def deploy(policy: str, **options: Any) -> None:
            print(config(tmp_path, ports, policy, **options), file=server.stdin, flush=True)
            assert server.stdout.readline() == "deployed\n"

        def status() -> Any:
            return yaml.safe_load(get(f"http://127.0.0.1:{ports[2]}/status"))

        def serves_by(policy: str, requests: int) -> bool:
            """So many requests have come, and this policy serves them."""
            told = status()
            if told["applications"]["emulated"]["requests"] < requests:
                return False
            up = len(told["backends"]) == 2 and len(told["frontends"]) == 1
            return up and bool(told["policies"]["emulated"]["name"] == policy)

        try:
            deploy("deferred", hold="deferred")
            wait_until(lambda: serves_by("deferred", 0), START_S)
            before = processes(server.pid)
            assert len(before) >= 5
            loading = start(f"127.0.0.1:{ports[0]}", "emulated", 60, LOAD_S)
            serving = "deferred"
            for number, policy in enumerate(("central-queue", "routing", "deferred"), 1):
                wait_until(partial(serves_by, serving, 200 * number), LOAD_S)
                # Its own limit of 15 a backend is for short deadlines: what a busy machine holds up
                # for a second comes at once.
                deploy(policy, **({"buffer": 1000} if policy == "routing" else {}))
                serving = policy
                wait_until(partial(serves_by, serving, 200 * number), LOAD_S)
            seen = finished(loading)
            assert processes(server.pid) == before
        finally:
            server.stdin.close()
            server.wait(60)
    assert seen["requests"] > 1000
    assert seen["good"] == seen["requests"], f"{seen}"
