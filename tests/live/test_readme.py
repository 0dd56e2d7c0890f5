"""The README's commands against a running server, and its way to serve one's own model."""

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

pytest.importorskip("ray")
from served import ROOT, Server, serving

pytestmark = pytest.mark.live

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """What `make serve` serves, with the README's own model beside it."""
    folder = tmp_path_factory.mktemp("readme")
    (own,) = [block for block in blocks("python") if "def load" in block]
    (folder / "my_models.py").write_text(own)
    config = yaml.safe_load((ROOT / "deployments/local.yaml").read_text())
    (entry,) = blocks("yaml")
    config["applications"] += yaml.safe_load(entry)["applications"]
    with serving(folder, config, backends=1) as one:
        yield one


def commands() -> list[str]:
    lines = [line[2:] for block in blocks("console") for line in block.splitlines()]
    return [line for line in lines if line.startswith("curl ") or " load " in line]


@pytest.mark.parametrize("command", commands())
def test_commands_for_a_running_server_work(server: Server, command: str) -> None:
    command = command.replace("localhost:8080", f"localhost:{server.http_port}")
    command = command.replace("localhost:8000", f"localhost:{server.port}")
    words = shlex.split(command.replace(".venv/bin/fermata", f"{sys.executable} -m commands.main"))
    if "load" in words:
        words += ["--server", f"127.0.0.1:{server.grpc_port}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "digits" in done.stdout or "req/s" in done.stdout


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
