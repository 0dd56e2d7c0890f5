"""Digits served live by what is in each request: real looks, real swaps, a drifting stream."""

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("ray")
pytest.importorskip("faiss")
from served import ROOT, Server, serving

from fermata.deployments.models.digits import held_out, load

pytestmark = [pytest.mark.live, pytest.mark.long]

EACH = 60
GAP_S = 0.03


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = yaml.safe_load((ROOT / "deployments/sneakpeek.yaml").read_text())
    # The machine that runs tests is small and busy: time for everything, and nothing is measured.
    application = config["applications"][0]
    application.update(slo_ms=1000, hard_limit_ms=2000)
    for variant in application["variants"]:
        card = load(variant["model"].removeprefix("digits:")).card
        variant.update(alpha_ms=0.5, beta_ms=5, swap_in_ms=20)
        variant.update(accuracy=card.accuracy, recall=list(card.recall))
    with serving(tmp_path_factory.mktemp("serve"), config, backends=1) as one:
        yield one


def ask(server: Server, image: np.ndarray, answers: list[dict[str, Any]], label: int) -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": [64], "data": image.tolist()}
    url = f"http://127.0.0.1:{server.http_port}/v2/models/digits/infer"
    body = json.dumps({"inputs": [tensor]}).encode()
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as reply:
        answer = json.loads(reply.read())
    scores = answer["outputs"][0]["data"]
    answers.append(
        {**answer["parameters"], "right": int(np.argmax(scores)) == label, "label": label}
    )


def test_a_skewed_drifting_stream_is_answered_by_what_it_holds(server: Server) -> None:
    images, labels = held_out()
    rng = np.random.default_rng(1)
    answers: list[dict[str, Any]] = []
    threads: list[threading.Thread] = []
    # Mostly zeros at first, mostly eights then: the easiest and the hardest of the ten.
    for frequent in (0, 8):
        for _ in range(EACH):
            label = frequent if rng.random() < 0.8 else int(rng.integers(10))
            image = images[rng.choice(np.flatnonzero(labels == label))]
            threads.append(threading.Thread(target=ask, args=(server, image, answers, label)))
            threads[-1].start()
            time.sleep(GAP_S)
    for thread in threads:
        thread.join()
    assert len(answers) == 2 * EACH
    assert np.mean([answer["right"] for answer in answers]) > 0.85
    # Answers say how sure they are, unless the look came too late to matter.
    looked = [answer for answer in answers if "estimate" in answer]
    assert len(looked) > EACH
    assert all({"variant", "short_circuit"} <= set(answer) for answer in looked)
    assert all(0 <= answer["estimate"] <= 1 for answer in looked)
    # There is time for a model, so whoever is unsure gets one; eights are harder than zeros.
    assert any(not answer["short_circuit"] for answer in looked)
    zeros = [answer["estimate"] for answer in looked if answer["label"] == 0]
    eights = [answer["estimate"] for answer in looked if answer["label"] == 8]
    assert np.mean(zeros) > np.mean(eights)
    assert all((answer["variant"] == "sneakpeek") == answer["short_circuit"] for answer in looked)
    # Estimates are honest: in the mean they are what came out.
    estimates = np.mean([answer["estimate"] for answer in looked])
    assert abs(estimates - np.mean([answer["right"] for answer in answers])) < 0.12
