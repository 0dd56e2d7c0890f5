"""Starts a server for a benchmark, and stops it with all that it started, whatever happens."""

import compileall
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from benchmarks.ports import free_port

ROOT = Path(__file__).parents[1]
START_S = 180.0
STOP_S = 30.0
LINGER_S = 5.0
"""For what the server has left behind to go by itself."""
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

    def __init__(self, process: subprocess.Popen[bytes], port: int, status_port: int) -> None:
        self.process = process
        self.port = port
        """Of its gRPC server."""
        self.status_port = status_port
        """Of its HTTP server."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def family(self) -> list[int]:
        """Process ids of the server and of whatever it started."""
        children: dict[int, list[int]] = {}
        for pid, parent in _parents():
            children.setdefault(parent, []).append(pid)
        found = [self.process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found

    def cpu_s(self) -> dict[str, float]:
        """CPU time so far of the processes that requests pass, by role."""
        return {role: self.cpu_of((mark,)) for role, mark in ROLES.items()}

    def pids_of(self, marks: Sequence[str]) -> list[int]:
        """Those of Ray's processes whose title holds one of these."""
        titles = {pid: title_of(pid) for pid in self.family()}
        return [
            pid
            for pid, title in titles.items()
            if title.startswith("ray::") and any(mark in title for mark in marks)
        ]

    def cpu_of(self, marks: Sequence[str]) -> float:
        """CPU time so far of those."""
        return sum(_cpu_s(pid) for pid in self.pids_of(marks))

    def status(self) -> dict[str, Any]:
        """Counters and signals of the router."""
        url = f"http://127.0.0.1:{self.status_port}/status"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return dict(json.loads(answer.read()))


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; none where the process is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (fields := _stat(int(folder.name))):
            yield int(folder.name), int(fields[1])


def title_of(pid: int) -> str:
    """The command line of a process, as Ray sets it; empty where it is gone."""
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def resident_mb(pid: int) -> float:
    """Memory of a process; OSError where it is gone."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def fermata(**changes: Any) -> Iterator[Running]:
    """`fermata serve` on two emulated backends; `changes` replace sections of its configuration."""
    port, status_port = free_port(), free_port()
    config: dict[str, Any] = {
        "applications": [EMULATED],
        "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
        "frontend": {"grpc_port": port, "http_port": free_port()},
        "control": {"port": status_port},
    }
    # Its ports stay.
    config["frontend"] |= changes.pop("frontend", {})
    config.update(changes)
    groups = config.get("backends") or [config["backend"]]
    backends = sum(each["count"] for each in groups)

    def ready(running: Running) -> bool:
        status = running.status()
        return len(status["backends"]) == backends and bool(status["frontends"])

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "fermata.commands.main", "serve", str(path)]
        with started(command, port, ready, status_port=status_port) as running:
            yield running


@contextmanager
def started(
    command: list[str],
    port: int,
    ready: Any,
    environment: Mapping[str, str] | None = None,
    status_port: int = 0,
    *,
    together: bool = True,
    wait_s: float = START_S,
) -> Iterator[Running]:
    """Run a server until the block ends; `ready` says when it may be used.

    At the end all its processes get Ctrl-C, as in a terminal, or where not `together` the first
    alone, which then ends the others.
    """
    _compile_sources()
    # Being told to end is no reason to leave a server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A cluster of its own: never one that somebody else runs here.
            env={**os.environ, "RAY_ADDRESS": "local", **(environment or {})},
            # Not a session: Linux shares cores equally between sessions, whatever is nice in one.
            process_group=0,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        running = Running(process, port, status_port)
        try:
            _wait(running, ready, log, wait_s)
            yield running
        finally:
            stop(running, together)


def _compile_sources() -> None:
    """Have processes start as installed ones do, also where Python must write no bytecode."""
    for folder in (ROOT / "fermata").iterdir():
        if folder.is_dir():
            compileall.compile_dir(folder, quiet=2)


def _wait(running: Running, ready: Any, log: Any, wait_s: float) -> None:
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s and running.process.poll() is None:
        with suppress(OSError, ValueError, KeyError):
            if ready(running):
                return
        time.sleep(LOOK_S)
    log.seek(0)
    said = log.read().decode(errors="replace")[-2000:]
    raise ServerError(f"the server is not up after {wait_s:g} s: {said}")


def stop(running: Running, together: bool, number: int = signal.SIGINT) -> None:
    """Ctrl-C, as a user would; then by force whoever is left of its family."""
    family = running.family()
    if running.process.poll() is None:
        (os.killpg if together else os.kill)(running.process.pid, number)
    with suppress(subprocess.TimeoutExpired):
        running.process.wait(STOP_S)
    end_s = time.monotonic() + LINGER_S
    while (left := [pid for pid in family if _alive(pid)]) and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    running.process.wait(LINGER_S)
    for pid in family:
        for segment in SHARED.glob(f"fermata-{pid}-*"):
            segment.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"
