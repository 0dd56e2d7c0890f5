"""How long a newcomer waits from `make serve` to the first answer."""

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from benchmarks.figures import Figure
from benchmarks.live_server import ROOT, Running, ServerError, started
from benchmarks.ports import free_port

WARM_S = 60.0
COLD_S = 600.0
"""A newcomer's ten minutes, of which this is the most part."""
SAMPLE = "deployments/local.yaml"
READY = Path(".venv/.models")
"""Made by `make models`, which `make serve` asks for."""
DIGIT = {"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [8.0] * 64}


def on_free_ports(folder: Path) -> tuple[Path, int]:
    """What `make serve` serves, on ports that nobody else has; and that of REST."""
    config = yaml.safe_load((ROOT / SAMPLE).read_text())
    port = free_port()
    config["frontend"] = {"grpc_port": free_port(), "http_port": port}
    config["control"] = {"port": free_port()}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path, port


def answers(port: int) -> bool:
    """Whether a digit is read; a server that is not up yet raises, or refuses."""
    body = json.dumps({"inputs": [DIGIT], "parameters": {"timeout": 5_000_000}}).encode()
    url = f"http://127.0.0.1:{port}/v2/models/digits/infer"
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return len(json.loads(answer.read())["outputs"][0]["data"]) == 10
    except urllib.error.HTTPError:
        return False


def first_answer_s(
    checkout: Path, environment: Mapping[str, str] | None = None, wait_s: float = COLD_S
) -> float:
    """From `make serve` there to an answer."""
    with tempfile.TemporaryDirectory() as folder:
        config, port = on_free_ports(Path(folder))
        command = ["make", "--directory", str(checkout), "serve", f"CONFIG={config}"]
        from_s = time.monotonic()

        def ready(running: Running) -> bool:
            return answers(port)

        with started(command, port, ready, environment, wait_s=2 * wait_s):
            return time.monotonic() - from_s


def measure_here() -> Iterator[Figure]:
    if not (ROOT / READY).exists():
        raise ServerError(f"{ROOT} is not set up: `make models` first, or `--only cold`")
    # Once to have run times measured and digits trained.
    first_answer_s(ROOT)
    yield _figure("warm", first_answer_s(ROOT, wait_s=WARM_S), WARM_S)


def measure_in_a_clone() -> Iterator[Figure]:
    """No environment, no packages kept, nothing trained or measured; then again, warm."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = {
            "PIP_NO_CACHE_DIR": "1",
            "XDG_CACHE_HOME": str(Path(folder) / "cache"),
            "PYTHONPATH": "",
            "PATH": os.environ["PATH"],
        }
        yield _figure("cold", first_answer_s(clone, environment), COLD_S)
        yield _figure("warm, in the same place", first_answer_s(clone, environment), WARM_S)


def _figure(name: str, took_s: float, goal_s: float) -> Figure:
    told = f"`make serve` to the first answer, {name}"
    return Figure(told, took_s, "s", goal_s, at_most=True)
