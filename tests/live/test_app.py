"""The whole system as a user starts it: `fermata serve`, a load, Ctrl-C, and nothing left."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("ray")
pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
START_S = 90
STOP_S = 40


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def wait_until(ready: object, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            if ready():  # type: ignore[operator]
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"not ready within {seconds} s")


def ray_processes() -> set[str]:
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    marks = ("ray::", "raylet", "gcs_server")
    return {line for line in listed.stdout.splitlines() if any(mark in line for mark in marks)}


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("fermata-*")}


class Server:
    """A `fermata serve` of its own, on ports of its own."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.grpc_port, self.http_port = free_port(), free_port()
        config = yaml.safe_load((ROOT / "deployments/emulated.yaml").read_text())
        config["frontend"] = {"grpc_port": self.grpc_port, "http_port": self.http_port}
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump({**config, **changes}))
        self.log = (folder / "log").open("w+")
        # A session of its own, and Ctrl-C as a terminal gives it.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "commands.main", "serve", str(path)],
            cwd=ROOT,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def status(self) -> dict[str, object]:
        return dict(json.loads(get("http://127.0.0.1:8000/status")))

    def wait(self, backends: int) -> None:
        def up() -> bool:
            assert self.process.poll() is None, self.said()
            status = self.status()
            return len(status["backends"]) == backends and bool(status["frontends"])  # type: ignore[arg-type]

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    before, held = ray_processes(), segments()
    one = Server(tmp_path_factory.mktemp("serve"))
    try:
        one.wait(backends=2)
        yield one
    finally:
        one.stop()
    wait_until(lambda: ray_processes() <= before, STOP_S)
    assert segments() <= held


def load(server: Server, rate: float, seconds: float) -> dict[str, object]:
    command = [
        *(sys.executable, "-m", "commands.main", "load", "--model", "emulated", "--json"),
        *("--server", f"127.0.0.1:{server.grpc_port}"),
        *("--rate", str(rate), "--duration-s", str(seconds)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_every_request_is_answered_once(server: Server) -> None:
    result = load(server, rate=200, seconds=4)
    assert result["lost"] == result["duplicates"] == result["strangers"] == 0
    # The machine that runs tests is small and busy; most are in time all the same.
    assert result["good"] > 0.8 * result["requests"]  # type: ignore[operator]


def test_the_router_counts_what_it_served(server: Server) -> None:
    load(server, rate=50, seconds=1)
    counts = server.status()["applications"]["emulated"]  # type: ignore[index]
    assert counts["requests"] == counts["good"] + counts["late"] + sum(counts["dropped"].values())
    text = get("http://127.0.0.1:8000/metrics")
    assert f'fermata_requests_total{{application="emulated"}} {counts["requests"]}' in text


def test_rest_answers_too(server: Server) -> None:
    described = json.loads(get(f"http://127.0.0.1:{server.http_port}/v2/models/emulated"))
    assert described["inputs"][0]["datatype"] == "UINT8"
    tensor = {"name": "input", "datatype": "UINT8", "shape": [1, 20000], "data": [7] * 20000}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 2_000_000}}).encode()
    url = f"http://127.0.0.1:{server.http_port}/v2/models/emulated/infer"
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        parameters = json.loads(answer.read())["parameters"]
    assert parameters["variant"] == "emulated-1"


def test_a_bad_configuration_ends_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("applications: [{name: a, slo_ms: -1, variants: []}]\n")
    command = [sys.executable, "-m", "commands.main", "serve", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "slo_ms" in done.stderr
