"""A server for a GPU benchmark, and what its processes spend."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from benchmarks.gpu_models import CACHE
from benchmarks.ports import free_port

ROOT = Path(__file__).parent.parent
STATUS = "http://127.0.0.1:8000/status"
START_S = 150
STOP_S = 40
TICKS = os.sysconf("SC_CLK_TCK")
ROLES = {"Frontend": "frontends", "Backend": "backend", "Router": "router"}
SENDERS = "senders"
SENDERS_S = 40
SETTLE_S = 0.8
"""From the first requests to where the load is steady."""


@dataclass(slots=True)
class Spent:
    """In the steady part of a load."""

    cores: dict[str, float] = field(default_factory=dict)
    busiest: dict[str, float] = field(default_factory=dict)
    """Share of a core that the busiest thread of a role had."""
    router: str = ""
    lead_ms: float = 0.0
    """Lead time that the router has learnt."""


def _threads(pid: int) -> dict[tuple[int, int], int]:
    """CPU ticks by thread."""
    found: dict[tuple[int, int], int] = {}
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            found[pid, int(path.parent.name)] = int(fields[11]) + int(fields[12])
    return found


def _roles() -> dict[str, list[int]]:
    """Processes of each role: Ray names its workers after their class."""
    found: dict[str, list[int]] = {}
    mine = os.getpid()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            pid = int(path.parent.name)
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if line.startswith("ray::"):
                for mark, role in ROLES.items():
                    if mark in line:
                        found.setdefault(role, []).append(pid)
                        break
            elif "spawn_main" in line:
                stat = (path.parent / "stat").read_text().rpartition(")")[2].split()
                if int(stat[1]) == mine:
                    found.setdefault(SENDERS, []).append(pid)
    return found


def _ticks() -> dict[str, dict[tuple[int, int], int]]:
    return {
        role: {key: value for pid in pids for key, value in _threads(pid).items()}
        for role, pids in _roles().items()
    }


class GpuServer:
    """`serve run` of a configuration, on ports of its own; stopped as by Ctrl-C."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        ports = {"grpc_port": free_port(), "http_port": free_port()}
        config = {**config, "frontend": {**config["frontend"], **ports}}
        self.grpc = f"127.0.0.1:{ports['grpc_port']}"
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        self.log = (folder / "log").open("w+")
        paths = os.pathsep.join(filter(None, (os.fspath(ROOT), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [*(sys.executable, "-m", "ray.serve.scripts", "run"),
             *("fermata.deployments.app:build", f"config={path}")],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "TORCH_HOME": os.fspath(folder),
                "XDG_CACHE_HOME": os.fspath(folder / CACHE),
                "RAY_worker_niceness": "0",
                # Without its web pages, as packed for a box, Ray's dashboard is waited for in vain.
                "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "1",
            },
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip

    def __enter__(self) -> "GpuServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.said(), file=sys.stderr)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-6000:]

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(STATUS, timeout=5) as answer:
            return dict(json.loads(answer.read()))

    def wait(self, frontends: int) -> None:
        """Until a backend and that many frontends are linked."""
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                raise RuntimeError("the server has ended")
            with suppress(OSError, ValueError):
                status = self.status()
                if status["backends"] and len(status["frontends"]) == frontends:
                    return
            time.sleep(0.3)
        raise RuntimeError(f"the server is not ready within {START_S} s")

    @contextmanager
    def watch(self, rate: float, duration_s: float) -> Iterator[Spent]:
        """What the processes spend in the steady part of a load."""
        spent = Spent()
        arguments = (spent, rate, duration_s)
        watcher = threading.Thread(target=self._watch, args=arguments, daemon=True)
        watcher.start()
        try:
            yield spent
        finally:
            watcher.join()

    def _requests(self) -> int:
        return sum(each["requests"] for each in self.status()["applications"].values())

    def _watch(self, spent: Spent, rate: float, duration_s: float) -> None:
        # Senders take seconds to start: wait until they are at work.
        first, end_s = self._requests(), time.monotonic() + SENDERS_S
        while self._requests() < first + 0.2 * rate and time.monotonic() < end_s:
            time.sleep(0.1)
        time.sleep(SETTLE_S)
        before, from_s, status = _ticks(), time.monotonic(), self.status()
        time.sleep(max(0.5, duration_s - 1))
        after, taken_s = _ticks(), time.monotonic() - from_s
        scale = 1 / (TICKS * taken_s)
        for role, ticks in sorted(after.items()):
            old = before.get(role, {})
            used = [scale * (value - old.get(key, value)) for key, value in ticks.items()]
            spent.cores[role] = sum(used)
            spent.busiest[role] = max(used, default=0.0)
        now = self.status()
        spent.router = _difference(status, now)
        spent.lead_ms = now["lead_ns"] / 1e6


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """How busy the GPU was by the router's own books, and what it learnt."""
    old, new = before["ranks"][0], after["ranks"][0]
    up_ns = new["backend_up_ns"] - old["backend_up_ns"]
    busy_ns = new["backend_busy_ns"] - old["backend_busy_ns"]
    factors = ", ".join(f"{each['margin_factor']:.2f}" for each in after["variants"])
    late = after["timer_late_ns"]
    return (
        f"GPU busy {busy_ns / max(1, up_ns):.0%}, lead {after['lead_ns'] / 1e6:.2f} ms, "
        f"link {after['link_ns'] / 1e6:.2f} ms, timer late p99 {late['p99'] / 1e6:.2f} ms, "
        f"margin x{factors}"
    )
