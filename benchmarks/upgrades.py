"""New code under load: a deployment is replaced by one of another source tree, process by process,
while a client counts what becomes of its requests."""

import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.ledger_load import finished, load, start
from benchmarks.live_server import EMULATED, ROOT, Running, started
from benchmarks.old_code import unpack
from benchmarks.ports import free_port
from fermata.router.links.messages import PROTOCOL

HEAD = """
import os, sys, time, ray
os.chdir("/")
ray.init(include_dashboard=True, dashboard_port=int(sys.argv[1]), logging_level="ERROR")
open(sys.argv[2], "w").close()
time.sleep(1e6)
"""
"""A cluster that runs what it is sent, as KubeRay sends it, and finds no code by itself."""
RATE_RPS = 50.0
UPGRADE_S = 45.0
BEGIN_S = 3.0
REPLACED_S = 120.0
SLO_MS = 200
"""Several times what processes that start on the same cores take from one that serves."""
GOOD_MIN = 0.99
"""Share of the requests during an upgrade that should be in time."""
OURS = (":ControlPlane", ":Frontend", ":Backend", "RouterActor")
MARK = "<!-- the next version -->"


@dataclass(frozen=True, slots=True)
class Step:
    """An upgrade: from which code to which."""

    name: str
    is_from_before: bool = False
    """From code of the version before, whose links speak the protocol before ours."""
    is_raised: bool = False
    """To code whose links speak a protocol after ours."""


SAME = Step("the same protocol of links")
FROM_BEFORE = Step("another protocol of links", is_from_before=True)
TO_NEXT = Step("the next protocol of links", is_raised=True)


def next_version(folder: Path, is_raised: bool = False) -> Path:
    """A copy of this source tree that says so on its page; `is_raised`: it speaks a protocol after
    ours too."""
    keep = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "tests", "docs")
    code = folder / "next"
    shutil.copytree(ROOT, code, ignore=keep, symlinks=True)
    page = code / "deployments/control/page/index.html"
    page.write_text(page.read_text() + MARK)
    if is_raised:
        _raise_protocol(code / "router/links/messages.py")
    return code


def _raise_protocol(messages: Path) -> None:
    """Have links speak a protocol of the next number, and ours as the one before."""
    now = f"PROTOCOL = {PROTOCOL}\n", f"PROTOCOLS = (PROTOCOL, {PROTOCOL - 1})\n"
    then = f"PROTOCOL = {PROTOCOL + 1}\n", f"PROTOCOLS = (PROTOCOL, {PROTOCOL})\n"
    text = messages.read_text()
    for before, after in zip(now, then, strict=True):
        assert text.count(f"\n{before}") == 1, f"{messages} has no line {before!r}"
        text = text.replace(f"\n{before}", f"\n{after}")
    messages.write_text(text)


@dataclass(frozen=True, slots=True)
class Deployed:
    """A cluster, and where to send it what it is to serve."""

    server: Running
    client: Any
    config: Mapping[str, Any]

    def deploy(self, code: Path) -> None:
        """As `serve deploy` and KubeRay do it."""
        control = self.config["control"]
        application = {
            "name": "fermata",
            "import_path": "fermata.deployments.app:build",
            "route_prefix": "/",
            "args": {"config": dict(self.config)},
            "runtime_env": {"env_vars": {"PYTHONPATH": str(code)}},
        }
        self.client.deploy_applications(
            {
                "proxy_location": "HeadOnly",
                "http_options": {"host": "127.0.0.1", "port": control["port"]},
                "applications": [application],
            }
        )

    def processes(self) -> set[int]:
        return {pid for marks in OURS for pid in self.server.pids_of((marks,))}

    def is_whole(self) -> bool:
        try:
            status = self.server.status()
        except (OSError, ValueError):
            return False
        wanted = self.config["frontend"]["processes"], self.config["backend"]["count"]
        return (len(status["frontends"]), len(status["backends"])) == wanted

    def shows_the_next(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.status_port}/") as answer:
            return MARK in answer.read().decode()


@contextmanager
def cluster(folder: Path, code: Path = ROOT) -> Iterator[Deployed]:
    """A Ray cluster with the deployment of a source tree, whole."""
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    dashboard, port, status_port = free_port(), free_port(), free_port()
    config = {
        "applications": [{**EMULATED, "slo_ms": SLO_MS}],
        "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
        # One serves on while the other is replaced.
        "frontend": {"processes": 2, "grpc_port": port, "http_port": free_port()},
        # One leads while the other is replaced.
        "router": {"standby": True},
        "control": {"port": status_port},
    }
    # A token that lies about on this machine would have the cluster ask for it; we have none.
    environment = {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"}
    up = folder / "up"
    command = [sys.executable, "-c", HEAD, str(dashboard), str(up)]

    with started(command, port, lambda _: up.exists(), environment, status_port) as server:
        client: Any = ServeSubmissionClient(f"http://127.0.0.1:{dashboard}")
        deployed = Deployed(server, client, config)
        deployed.deploy(code)
        _wait(deployed.is_whole, "up")
        try:
            yield deployed
        finally:
            client.delete_applications()


def _wait(ready: Any, what: str) -> None:
    end_s = time.monotonic() + REPLACED_S
    while not ready():
        if time.monotonic() > end_s:
            raise AssertionError(f"the deployment is not {what} after {REPLACED_S:g} s")
        time.sleep(0.2)


def upgraded(step: Step) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Outcomes of requests during an upgrade and after it, and the time it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = unpack(folder) if step.is_from_before else ROOT
        with cluster(folder, first) as deployed:
            return _upgrade(deployed, next_version(folder, step.is_raised))


def _upgrade(deployed: Deployed, code: Path) -> tuple[dict[str, Any], dict[str, Any], float]:
    before = deployed.processes()
    loading = start(deployed.server.address, "emulated", RATE_RPS, UPGRADE_S)
    time.sleep(BEGIN_S)
    from_s = time.monotonic()
    deployed.deploy(code)

    def replaced() -> bool:
        return not before & deployed.processes() and deployed.is_whole()

    _wait(replaced, "replaced")
    took_s = time.monotonic() - from_s
    assert deployed.shows_the_next()
    during = finished(loading)
    return during, load(deployed.server.address, "emulated", RATE_RPS, 3), took_s


def measure(step: Step) -> Iterator[Figure]:
    during, after, took_s = upgraded(step)
    sent = during["requests"]
    name = f"new code, {step.name}"
    yield Figure(f"{name}: requests lost of {sent:,}", during["lost"], "", 0, at_most=True)
    refused = sum(during["refused"].values())
    for status, count in during["refused"].items():
        example = during["messages"].get(status, "")
        print(f"{name}: {count} refused as {status}, such as {example!r}", file=sys.stderr)
    yield Figure(f"{name}: refused", refused, "", 0, at_most=True)
    good = during["good"] / sent
    yield Figure(f"{name}: in time meanwhile", 100 * good, "%", 100 * GOOD_MIN)
    yield Figure(f"{name}: until all is replaced", took_s, "s", UPGRADE_S, at_most=True)
    yield Figure(f"{name}: lost afterwards", after["lost"], "", 0, at_most=True)
