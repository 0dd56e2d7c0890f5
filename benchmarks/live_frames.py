"""Encoded frames on the CPU: 640x360 JPEG to EfficientNet-lite0 with its real weights.

Answers against offline inference, the highest rate served within the SLO, and where the CPU goes.
"""

import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from PIL import Image

from benchmarks.calm import undisturbed
from benchmarks.figures import Figure, run
from benchmarks.live_load import Load
from benchmarks.live_server import Running, fermata
from benchmarks.search import highest
from fermata.clients.frames import encode_jpeg
from fermata.clients.load.arrivals import poisson, single
from fermata.clients.load.report import report
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import SenderOptions, Target
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import (
    RawTensor,
    add_input,
    join_bytes,
    response_tensors,
    to_array,
)
from fermata.deployments.models.catalog import open_model
from fermata.deployments.models.pictures.decoding import decode
from fermata.deployments.models.pictures.picture import centre_square
from fermata.foundation.units import ms, seconds

MODEL = "imagenet:lite0@224"
SLO_MS = 250
"""One lite0 takes about 25 ms on one core of the machines at hand, and four a good 80."""
BAD_RATE_MAX = 0.01
WARMUP_S = 1.5
WIDTH, HEIGHT = 640, 360
FIRST_RPS = 12
ASK_S = 20.0


def frames() -> list[bytes]:
    """Photographs that ship with scikit-learn, cut into 640x360 pieces."""
    from sklearn.datasets import load_sample_images

    pieces: list[bytes] = []
    for photo in load_sample_images().images:
        whole = np.asarray(Image.fromarray(photo).resize((WIDTH * 3 // 2, HEIGHT * 3 // 2)))
        for top in (0, HEIGHT // 4, HEIGHT // 2):
            for left in (0, WIDTH // 4, WIDTH // 2):
                pieces.append(encode_jpeg(whole[top : top + HEIGHT, left : left + WIDTH]))
    return pieces


def tensor(frame: bytes) -> RawTensor:
    return RawTensor("input", "BYTES", (1,), join_bytes([frame]))


def answers(server: Running, given: list[bytes]) -> Any:
    """Scores of each frame, through the whole path."""
    rows = []
    with grpc.insecure_channel(server.address) as channel:
        stub = InferenceStub(channel)
        for frame in given:
            request = pb.ModelInferRequest(model_name="imagenet")
            # A frame that a busy machine makes late is no wrong answer.
            request.parameters["timeout"].int64_param = round(ASK_S * 1e6)
            add_input(request, tensor(frame))
            response = stub.ModelInfer(request, timeout=ASK_S)
            rows.append(to_array(response_tensors(response)[0]).reshape(-1))
    return np.stack(rows)


def load(server: Running, frame: bytes, rate_rps: float, seconds_s: float) -> Load:
    total_ns = seconds(WARMUP_S + seconds_s)
    target = Target("imagenet", tensor(frame), ms(SLO_MS))
    due = single(poisson(rate_rps, total_ns, np.random.default_rng(int(rate_rps))))

    def probe() -> Load:
        found = run_load(SenderOptions(server.address, 4), [target], due)
        return Load(report(found, np.array([target.slo_ns]), seconds(WARMUP_S), total_ns), found)

    return undisturbed(probe)


def compare(server: Running) -> Iterator[Figure]:
    given = frames()
    offline = open_model(MODEL)
    side = offline.card.input_shape[1]
    pixels = [centre_square(decode(frame, WIDTH * HEIGHT), side) for frame in given]
    wanted = np.stack([np.asarray(offline(each[None])[0]) for each in pixels])
    found = answers(server, given)
    same = float((found.argmax(axis=1) == wanted.argmax(axis=1)).mean())
    yield Figure("labels as offline", same, "share", 1.0)
    gap = float(np.abs(found - wanted).max())
    yield Figure("scores off offline by", gap, "", 1e-3, at_most=True)


def measure(quick: bool) -> Iterator[Figure]:
    seconds_s = 3.0 if quick else 8.0
    application = {
        "name": "imagenet",
        "slo_ms": SLO_MS,
        "variants": [{"name": "lite0", "model": MODEL, "batch_size_max": 4}],
    }
    with fermata(
        applications=[application], backend={"count": 1, "device": "cpu", "cpus": 1}
    ) as server:
        yield from compare(server)
        frame = frames()[0]

        def good(rate_rps: float) -> bool:
            return load(server, frame, rate_rps, seconds_s).report.bad_rate <= BAD_RATE_MAX

        best_rps = highest(good, FIRST_RPS, 0.3 if quick else 0.1, probes=4 if quick else 10)
        yield Figure(f"frames within {SLO_MS} ms", best_rps, "req/s", 0)
        before, from_s = server.cpu_s(), time.monotonic()
        found = load(server, frame, max(best_rps, 1.0), seconds_s)
        length_s = time.monotonic() - from_s
        answered = max(1, len(found.ledger.scheduled_ns))
        for role, spent_s in server.cpu_s().items():
            cpu_ms = (spent_s - before[role]) / answered * 1e3
            yield Figure(f"  CPU of {role} over {length_s:.0f} s", cpu_ms, "ms a frame", 0)


if __name__ == "__main__":
    run(f"Encoded frames: {WIDTH}x{HEIGHT} JPEG, EfficientNet-lite0 on the CPU", measure)
