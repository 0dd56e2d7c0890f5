"""Starts a server for a benchmark, and stops it with all that it started, whatever happens."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parents[1]
STATUS = "http://127.0.0.1:8000/status"
START_S = 90.0
STOP_S = 30.0
LOOK_S = 0.2
SHARED = Path("/dev/shm")
EMULATED = {
    "name": "emulated",
    "slo_ms": 50,
    "input": {"name": "input", "dtype": "UINT8", "shape": [20_000]},
    "variants": [{"name": "emulated-1", "model": "emulated", "alpha_ms": 1, "beta_ms": 5}],
}
"""l(b) = 5 + b ms, SLO 50 ms, inputs of 20 KB."""
ROLES = {"frontend": ":Frontend", "router": "RouterActor", "backend": ":Backend"}
"""What Ray calls the processes that requests pass."""


class ServerError(RuntimeError):
    """A server did not start; says what it printed last."""


class Running:
    """A server under way, in a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        """Of its gRPC server."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def family(self) -> list[psutil.Process]:
        """The server and whatever it started."""
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def cpu_s(self) -> dict[str, float]:
        """CPU time so far of the processes that requests pass, by role."""
        spent = dict.fromkeys(ROLES, 0.0)
        for one in self.family():
            title = " ".join(one.cmdline())
            for role, mark in ROLES.items():
                if title.startswith("ray::") and mark in title:
                    times = one.cpu_times()
                    spent[role] += times.user + times.system
        return spent

    def status(self) -> dict[str, Any]:
        """Counters and signals of the router."""
        with urllib.request.urlopen(STATUS, timeout=5) as answer:
            return dict(json.loads(answer.read()))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def fermata(**changes: Any) -> Iterator[Running]:
    """`fermata serve` on two emulated backends; `changes` replace sections of its configuration."""
    port = free_port()
    config: dict[str, Any] = {
        "applications": [EMULATED],
        "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
        "frontend": {"grpc_port": port, "http_port": free_port()},
    }
    config.update(changes)

    def ready(running: Running) -> bool:
        status = running.status()
        return len(status["backends"]) == config["backend"]["count"] and bool(status["frontends"])

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "commands.main", "serve", str(path)]
        with started(command, port, ready) as running:
            yield running


@contextmanager
def started(
    command: list[str], port: int, ready: Any, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Run a server until the block ends; `ready` says when it may be used."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A cluster of its own: never one that somebody else runs here.
            env={**os.environ, "RAY_ADDRESS": "local", **(environment or {})},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        running = Running(process, port)
        try:
            _wait(running, ready, log)
            yield running
        finally:
            _stop(running)


def _wait(running: Running, ready: Any, log: Any) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and running.process.poll() is None:
        with suppress(OSError, ValueError, KeyError):
            if ready(running):
                return
        time.sleep(LOOK_S)
    log.seek(0)
    said = log.read().decode(errors="replace")[-2000:]
    raise ServerError(f"the server is not up after {START_S:g} s: {said}")


def _stop(running: Running) -> None:
    """Ctrl-C, as a user would; then by force whoever is left of its family."""
    family = running.family()
    if running.process.poll() is None:
        os.killpg(running.process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        running.process.wait(STOP_S)
    _, alive = psutil.wait_procs(family, timeout=5)
    for one in alive:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    running.process.wait(5)
    for one in family:
        for segment in SHARED.glob(f"fermata-{one.pid}-*"):
            segment.unlink(missing_ok=True)
