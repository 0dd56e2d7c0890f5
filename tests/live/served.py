"""A `fermata serve` for tests: started as a user starts it, stopped by Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from benchmarks.ports import free_port
from fermata.deployments.config.deployment import usual_processes

ROOT = Path(__file__).parents[2]
START_S = 180
STOP_S = 40


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def wait_until(ready: Callable[[], bool], seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            if ready():
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"not ready within {seconds} s")


def descendants(root: int) -> set[int]:
    """Every process that this one has started, and theirs."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            found.add(child)
            todo.append(child)
    return found


def segments() -> set[str]:
    """Shared memory whose process is gone; the name says which it was."""
    names = {path.name for path in Path("/dev/shm").glob("fermata-*")}
    return {name for name in names if not Path(f"/proc/{name.split('-')[1]}").exists()}


class Server:
    """A `fermata serve` of its own, on ports of its own."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        ports: tuple[int, int, int] | None = None,
        cwd: Path = ROOT,
        installed: Path | None = None,
    ) -> None:
        """`ports` for gRPC, REST and the page; free ones where absent. `installed` is a folder that
        a wheel was installed into, to be used in place of `cwd`."""
        self.ports = ports or (free_port(), free_port(), free_port())
        self.grpc_port, self.http_port, self.port = self.ports
        config = {
            **config,
            "frontend": {
                **config.get("frontend", {}),
                "grpc_port": self.grpc_port,
                "http_port": self.http_port,
            },
            "control": {"port": self.port},
        }
        self.config = config
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        self.log = (folder / "log").open("w+")
        # A session of its own, and Ctrl-C as a terminal gives it.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fermata.commands.main", "serve", str(path)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": "" if installed is None else str(installed)},
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.page("status")))

    def page(self, name: str) -> str:
        """What the control plane says."""
        return get(f"http://127.0.0.1:{self.port}/{name}")

    def wait(self, backends: int) -> None:
        def up() -> bool:
            assert self.process.poll() is None, self.said()
            status = self.status()
            frontends = self.config["frontend"].get("processes", usual_processes())
            return len(status["backends"]) == backends and len(status["frontends"]) == frontends

        wait_until(up, START_S)

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-3000:]

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        finally:
            self.log.close()


@contextmanager
def serving(
    folder: Path,
    config: dict[str, Any],
    backends: int,
    ports: tuple[int, int, int] | None = None,
    cwd: Path = ROOT,
    installed: Path | None = None,
) -> Iterator[Server]:
    """A server that is up; afterwards no process and no shared memory of it is left."""
    held = segments()
    one = Server(folder, config, ports, cwd, installed)
    started: set[int] = set()
    try:
        one.wait(backends)
        started = descendants(one.process.pid)
        yield one
    finally:
        one.stop()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), STOP_S)
    assert segments() <= held


def load(server: Server, model: str, rate: float, seconds: float) -> dict[str, Any]:
    """What `fermata load` says."""
    command = [
        *(sys.executable, "-m", "fermata.commands.main", "load", "--model", model, "--json"),
        *("--server", f"127.0.0.1:{server.grpc_port}"),
        *("--rate", str(rate), "--duration-s", str(seconds)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))
