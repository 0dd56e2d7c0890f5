"""Short circuits on digits, served live: how many there are, and how many of them are right."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.figures import Figure
from benchmarks.live_server import fermata
from benchmarks.ports import free_port

FILE = Path(__file__).parents[1] / "deployments" / "sneakpeek.yaml"
CLIENTS = 8
SLOWER = (1, 10)
"""Times of the sample configuration are multiplied by it: as shipped, and for a busy machine."""


@dataclass(frozen=True, slots=True)
class Told:
    """One answer."""

    short_circuit: bool
    right: bool
    took_s: float


def post(port: int, path: str, body: object) -> bytes:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v2/models/digits/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=30) as reply:
        answer: bytes = reply.read()
    return answer


def ask(port: int, image: NDArray[np.float32], label: int) -> Told | None:
    """Ask, and feed the truth back; None where the request was refused."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [64], "data": image.tolist()}
    from_s = time.monotonic()
    try:
        answer = json.loads(post(port, "infer", {"inputs": [tensor]}))
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return None
        raise
    took_s = time.monotonic() - from_s
    named = int(np.argmax(answer["outputs"][0]["data"]))
    about = answer["parameters"]
    post(port, "feedback", {"label": label, "answer": named, "variant": about["variant"]})
    return Told(bool(about.get("short_circuit", False)), named == label, took_s)


def short_circuits(quick: bool) -> Iterator[Figure]:
    """The sample configuration as it is, and with all times tenfold: the machine may be busy."""
    for slower in SLOWER:
        yield from _short_circuits(slower, 700 if quick else 1500)


def _short_circuits(slower: int, count: int) -> Iterator[Figure]:
    from fermata.deployments.models.digits import held_out

    config = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    applications = config["applications"]
    for told in (applications[0], config["router"]["policy_options"]):
        told |= {name: slower * told[name] for name in told if name.endswith("_ms")}
    slo_s = applications[0]["slo_ms"] / 1000
    images, labels = held_out()
    rows = np.random.default_rng(5).integers(0, len(labels), count)
    http_port = free_port()
    changes = {"applications": applications, "router": config["router"]}
    changes |= {"backend": config["backend"], "frontend": {"http_port": http_port}}
    with fermata(**changes) as server, ThreadPoolExecutor(CLIENTS) as pool:
        asked = pool.map(lambda row: ask(http_port, images[row], int(labels[row])), rows)
        answers = [each for each in asked if each is not None]
        looks = server.status()["applications"]["digits"]["looks"]
    short = [each for each in answers if each.short_circuit]
    scene = "as shipped" if slower == 1 else f"all times x{slower}"
    name = f"digits live, {scene}"
    part = f"of {len(answers)} answered, {looks['looked']} looked at in time"
    yield Figure(f"{name}: by a look alone", len(short) / max(1, len(answers)), part, 0.8)
    right = float(np.mean([each.right for each in short])) if short else 0.0
    yield Figure(f"{name}: short circuits that were right", right, "", 0.97)
    by_truth = looks["right"] / max(1, looks["judged"])
    part = f"of {looks['judged']} fed back, {looks['alarms']} alarms"
    yield Figure(f"{name}: the same as the server tells it", by_truth, part, 0.97)
    late = sum(each.took_s > slo_s for each in answers) + count - len(answers)
    took_ms = [1000 * each.took_s for each in answers]
    part = f"of {count} (p50 {np.median(took_ms):.0f}, p99 {np.quantile(took_ms, 0.99):.0f} ms)"
    yield Figure(f"{name}: late or refused", late / count, part, 0.01, True)
