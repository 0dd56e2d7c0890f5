"""The README's commands against a running server, and its way to serve one's own model."""

import json
import shlex
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("ray")
from conftest import blocks
from served import ROOT, Server

pytestmark = pytest.mark.live


def commands() -> list[str]:
    lines = [line[2:] for block in blocks("console") for line in block.splitlines()]
    verbs = ("load", "stream", "top")
    asked = ("curl ", *(f".venv/bin/fermata {verb}" for verb in verbs))
    return [line for line in lines if line.startswith(asked)]


@pytest.mark.parametrize("command", commands())
def test_commands_for_a_running_server_work(server: Server, command: str) -> None:
    command = command.replace("localhost:8080", f"localhost:{server.http_port}")
    command = command.replace("localhost:8000", f"localhost:{server.port}")
    words = shlex.split(command.replace(".venv/bin/fermata", f"{sys.executable} -m commands.main"))
    if "load" in words or "stream" in words:
        words += ["--server", f"127.0.0.1:{server.grpc_port}"]
    if "top" in words:
        words += ["--control", f"127.0.0.1:{server.port}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert any(said in done.stdout for said in ("digits", "req/s", "frames within"))


def infer(server: Server, model: str, data: list[float]) -> dict[str, list[float]]:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, len(data)], "data": data}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 5_000_000}}).encode()
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/infer"
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return dict(json.loads(answer.read())["outputs"][0])


def test_ones_own_model_answers(server: Server) -> None:
    assert infer(server, "doubler", [1, 2, 3, 4])["data"] == [2, 4, 6, 8]


def test_digits_are_read_as_offline(server: Server) -> None:
    from deployments.models import digits

    images, labels = digits.held_out()
    model = digits.load("xl")
    for image, label in list(zip(images, labels, strict=True))[:5]:
        scores = infer(server, "digits", image.reshape(64).tolist())["data"]
        assert scores == pytest.approx(model(image.reshape(1, 64))[0].tolist(), abs=1e-3)
        assert max(range(10), key=scores.__getitem__) == int(label)


def test_the_page_of_metrics_names_every_application(server: Server) -> None:
    text = server.page("metrics")
    for name in ("digits", "doubler"):
        assert f'application="{name}"' in text
