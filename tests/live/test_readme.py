"""What `make serve` serves, and the README's way to serve one's own model."""

import json
import urllib.request

import pytest

pytest.importorskip("ray")
from served import Server

pytestmark = pytest.mark.live


def infer(server: Server, model: str, data: list[float]) -> tuple[list[float], str]:
    """Its answer, and the variant that gave it."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, len(data)], "data": data}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 5_000_000}}).encode()
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/infer"
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        told = json.loads(answer.read())
        return told["outputs"][0]["data"], told["parameters"]["variant"]


def test_ones_own_model_answers(server: Server) -> None:
    assert infer(server, "doubler", [1, 2, 3, 4])[0] == [2, 4, 6, 8]


def test_digits_are_read_as_offline(server: Server) -> None:
    from fermata.deployments.models import digits

    images, labels = digits.held_out()
    for image, label in list(zip(images, labels, strict=True))[:5]:
        # On a busy machine, a smaller one than the best may answer.
        scores, variant = infer(server, "digits", image.reshape(64).tolist())
        model = digits.load(variant.removeprefix("digits-"))
        assert scores == pytest.approx(model(image.reshape(1, 64))[0].tolist(), abs=1e-3)
        assert max(range(10), key=scores.__getitem__) == int(label)


def test_the_page_of_metrics_names_every_application(server: Server) -> None:
    text = server.page("metrics")
    for name in ("digits", "doubler"):
        assert f'application="{name}"' in text
