"""Live: a real detector at several input sizes, and an uplink that drops from 20 to 7.5 Mbit/s.

Client and server run in two network namespaces of their own: needs root, `ip` and `tc`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import yaml

from benchmarks.face_wall import DISTINCT, SIDE, frame
from benchmarks.figures import Figure, run
from benchmarks.namespaces import Link, inside, joined, missing
from fermata.clients.network.adaptation import shrink
from fermata.deployments.models.detector import load
from fermata.deployments.models.pictures.picture import whole_frame

SIDES = (128, 160, 224, 288, 352)
FPS, SLO_MS = 8.0, 250.0
QUALITY = 100
"""So that the uplink matters whatever the CPU can do: eight frames of the largest side need 7.6
Mbit/s."""
MBPS_BEFORE, MBPS_AFTER = 20.0, 7.5
STEP_S = 20.0
SETTLE_S = 3.0
"""The client finds its bandwidth and the server its size: told apart, not left out."""
RUNS = 7
OVERLAP = 0.5
"""Of a face and its reference, as intersection over union."""
ROOT = Path(__file__).parents[1]
START_S, STOP_S = 150.0, 40.0
READY = "import json,urllib.request as u;s=json.load(u.urlopen('http://127.0.0.1:8000/status'));"
READY += "raise SystemExit(not (s['backends'] and s['frontends']))"


def config(accuracy: Sequence[float], latency_ms: Sequence[list[float]]) -> dict[str, Any]:
    """Faces at every side, mapped by Jellyfish."""
    return {
        "name": "network",
        "applications": [
            {
                "name": "faces",
                "slo_ms": SLO_MS,
                "policy": "jellyfish",
                "input": {
                    "dtype": "UINT8",
                    "shape": [3, SIDES[-1], SIDES[-1]],
                    "image": True,
                    "fit": "whole",
                    "sized": True,
                },
                "variants": [
                    {
                        "name": f"faces-{side}",
                        "model": f"faces:centerface@{side}",
                        "accuracy": share,
                        "batch_size_max": 2,
                        "latency_ms": table,
                    }
                    for side, share, table in zip(SIDES, accuracy, latency_ms, strict=True)
                ],
            }
        ],
        "frontend": {"host": "0.0.0.0"},
        "backend": {"count": 1, "device": "cpu", "cpus": 0.5},
    }


@contextmanager
def serving(link: Link, folder: Path, given: dict[str, Any]) -> Iterator[None]:
    """A server within its namespace, up and ready."""
    path = folder / "network.yaml"
    path.write_text(yaml.safe_dump(given))
    log = (folder / "server.log").open("w+")
    command = [sys.executable, "-m", "fermata.commands.main", "serve", str(path)]
    process = subprocess.Popen(
        inside(link.server, command),
        cwd=ROOT,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        until_s = time.monotonic() + START_S
        probe = inside(link.server, [sys.executable, "-c", READY])
        while subprocess.run(probe, capture_output=True, check=False).returncode:
            if process.poll() is not None or time.monotonic() > until_s:
                log.seek(0)
                raise RuntimeError(f"the server did not start: {log.read()[-2000:]}")
            time.sleep(1.0)
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        log.close()


def stream(link: Link, frames: int, drop_at_s: float) -> tuple[list[dict[str, Any]], float]:
    """Every frame's outcome, and when, on the client's clock, the uplink became slow."""
    command = [sys.executable, "-m", "benchmarks.jellyfish_client"]
    command += ["--server", f"{link.address}:8001", "--fps", str(FPS), "--slo-ms", str(SLO_MS)]
    command += ["--quality", str(QUALITY), "--frames", str(frames)]
    command += ["--sides", ",".join(map(str, SIDES))]
    rows: list[dict[str, Any]] = []
    dropped_at_s = 0.0
    within = inside(link.client, command)
    with subprocess.Popen(within, cwd=ROOT, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        for line in client.stdout:
            rows.append(json.loads(line))
            at_s = rows[-1]["at_s"] - rows[0]["at_s"]
            if not dropped_at_s and at_s >= drop_at_s:
                link.shape(MBPS_AFTER)
                dropped_at_s = rows[-1]["at_s"] + rows[-1]["latency_ms"] / 1e3
    return rows, dropped_at_s


def detections(side: int) -> list[np.ndarray[Any, Any]]:
    """What the detector finds in each frame at that side, in pixels of the frame as it was."""
    model = load(size=side)
    found: list[np.ndarray[Any, Any]] = []
    for index in range(DISTINCT):
        small, scale = shrink(frame(index), side)
        rows = np.asarray(model(whole_frame(small, side)[None])[0])[:, :4] * scale
        found.append(rows)
    return found


def run_times_ms(side: int) -> list[float]:
    """CPU time of batches of 1 and 2, the least of a few: whoever else uses the machine does not
    count. The router learns how much longer it really takes."""
    model = load(size=side)
    times: list[float] = []
    for size in (1, 2):
        batch = model.card.make_batch(size)
        spent = []
        for _ in range(RUNS):
            started_s = time.process_time()
            model(batch)
            spent.append(time.process_time() - started_s)
        times.append(max(min(spent) * 1e3, times[-1] if times else 0.0))
    return times


def f1(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """Harmonic mean of precision and recall, each box matched at most once."""
    left = list(wanted)
    hits = 0
    for box in found:
        best = max(left, key=lambda other: overlap(box, other), default=None)
        if best is not None and overlap(box, best) >= OVERLAP:
            hits += 1
            left = [other for other in left if other is not best]
    total = len(found) + len(wanted)
    return 2 * hits / total if total else 1.0


def overlap(one: Any, other: Any) -> float:
    """Intersection over union of two boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0.0, width) * max(0.0, height)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(shared / (sum(areas) - shared)) if shared else 0.0


def accuracies(wanted: Sequence[Any]) -> list[float]:
    """F1 of each side against full resolution, made to rise as the zoo's must."""
    shares: list[float] = []
    for side in SIDES:
        share = mean(f1(a, b) for a, b in zip(detections(side), wanted, strict=True))
        shares.append(min(1.0, max(share, shares[-1] + 0.001 if shares else 0.0)))
    return shares


def measure(quick: bool) -> Iterator[Figure]:
    # Ended from outside, it still takes the server and the namespaces down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lacking = missing()
    if lacking:
        raise SystemExit(f"skipped: {lacking}")
    wanted = detections(SIDE)
    shares = accuracies(wanted)
    step_s = 8.0 if quick else STEP_S
    with (
        tempfile.TemporaryDirectory() as name,
        joined(MBPS_BEFORE) as link,
        serving(link, Path(name), config(shares, [run_times_ms(side) for side in SIDES])),
    ):
        rows, dropped_at_s = stream(link, int(2 * step_s * FPS), step_s)
    yield from figures(rows, dropped_at_s, int(2 * step_s * FPS), wanted)


def figures(
    rows: Sequence[dict[str, Any]], dropped_at_s: float, due: int, wanted: Sequence[Any]
) -> Iterator[Figure]:
    """Every frame that was due counts, from the first on; one without an outcome is a miss."""
    before = [row["side"] for row in rows if row["at_s"] < dropped_at_s]
    after = [row for row in rows if row["at_s"] >= dropped_at_s]
    usual = max(set(before), key=before.count)
    answered = [row for row in rows if row["ok"]]
    scores = [
        f1(np.array(row["boxes"], float).reshape(-1, 5)[:, :4], wanted[row["index"] % DISTINCT])
        for row in answered
    ]
    for name, key in (("sent", "side"), ("asked for", "asked")):
        smaller = (row["at_s"] - dropped_at_s for row in after if 0 < row[key] < usual)
        yield Figure(f"size {name} falls from {usual}, after", next(smaller, 1e9), "s", 1.5, True)
    misses = 1 - len(answered) / due
    why = Counter(row["status"] for row in rows if not row["ok"])
    said = ", ".join(f"{count} {status}" for status, count in sorted(why.items()))
    yield Figure("misses over the run", misses, f"of {due} frames ({said})", 0.02, True)
    settled = [row["ok"] for row in rows if row["at_s"] - rows[0]["at_s"] >= SETTLE_S]
    unit = f"of the frames after the first {SETTLE_S:g} s"
    yield Figure("misses once it has settled", 1 - mean(settled), unit, 0.02, True)
    yield Figure("F1 of the answers against full resolution", mean(scores), "", 0.0)
    for name, shown in (("before", before), ("after", [row["side"] for row in after])):
        yield Figure(f"side sent {name} the drop, mean", mean(shown), "px", 0)


def progress() -> None:
    """Nothing for half a minute looks like nothing at all."""
    print("  reference answers at full resolution, then the server ...", file=sys.stderr)


if __name__ == "__main__":
    progress()
    run("Jellyfish live: an uplink that drops", measure)
