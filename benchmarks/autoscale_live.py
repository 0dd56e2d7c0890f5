"""Autoscaling and re-placement of a running server, judged by the client's ledger."""

import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from benchmarks.figures import Figure
from benchmarks.heavy_digits import ALPHA_MS, BETA_MS
from benchmarks.kills import is_good
from benchmarks.live_server import ROOT, Running, fermata

SLO_MS = 400.0
INPUT = {"name": "input", "dtype": "FP32", "shape": [64]}
LOOK_S = 0.5
CAPACITY_RPS = 45.0
"""Of one backend: batches of 16 take 308 ms, and some are smaller."""
Ledger = Mapping[str, npt.NDArray[Any]]


def application(name: str, model: str = "emulated") -> dict[str, object]:
    variant = {"name": f"{name}-1", "model": model, "batch_size_max": 16}
    variant |= {"alpha_ms": ALPHA_MS, "beta_ms": BETA_MS}
    return {"name": name, "slo_ms": SLO_MS, "input": INPUT, "variants": [variant]}


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the server."""

    at_s: float
    backends: int
    home: dict[str, int]
    moved: int
    broken: int
    """Requests so far that ended for a reason that a move or a drain could give."""


class Watch:
    """Looks at the server while a load runs."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.seen: list[Seen] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.began_s = time.monotonic()

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.ended.wait(LOOK_S):
            try:
                status = self.server.status()
            except OSError:
                continue
            up = sum(not each["draining"] for each in status["backends"].values())
            at_s = time.monotonic() - self.began_s
            home, moved = status["placement"]["applications"], status["scaling"]["moved"]
            self.seen.append(Seen(at_s, up, home, moved, sum(_broken(status).values())))


def send(
    server: Running, traces: Mapping[str, Sequence[float]], step_s: float, slo_ms: float = SLO_MS
) -> Ledger:
    """A load that changes step by step; what became of each request."""
    steps = len(next(iter(traces.values())))
    scenario = {
        "seed": 5,
        "backends": 1,
        "warmup_s": 0,
        "duration_s": steps * step_s,
        "arrivals": {
            "process": "trace",
            "step_s": step_s,
            "applications": {name: list(trace) for name, trace in traces.items()},
        },
        "applications": [
            {
                "name": name,
                "slo_ms": slo_ms,
                "variants": [{"name": name, "alpha_ms": ALPHA_MS, "beta_ms": BETA_MS}],
            }
            for name in traces
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        path, kept = Path(folder) / "load.yaml", Path(folder) / "ledger.npz"
        path.write_text(yaml.safe_dump(scenario))
        command = [sys.executable, "-m", "fermata.commands.main", "load", "--scenario", str(path)]
        command += ["--server", server.address, "--ledger", str(kept), "--json"]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        json.loads(done.stdout)
        with np.load(kept) as ledger:
            return {name: ledger[name] for name in ledger.files}


def lost(ledger: Ledger) -> int:
    """Requests that never had an answer."""
    return int((ledger["outcome"] == "LOST").sum() + (ledger["outcome"] == "OPEN").sum())


def goodput(ledger: Ledger, from_s: float, to_s: float, slo_ms: float = SLO_MS) -> float:
    """Share of the requests due in a span that were answered in time."""
    return float(is_good(ledger, slo_ms)[due_in(ledger, from_s, to_s)].mean())


def due_in(ledger: Ledger, from_s: float, to_s: float) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (ledger["scheduled_ns"] >= from_s * 1e9) & (
        ledger["scheduled_ns"] < to_s * 1e9
    )
    return found


def broken(server: Running) -> dict[str, int]:
    """Requests that ended for a reason that a move or a drain could give."""
    return _broken(server.status())


def _broken(status: Mapping[str, Any]) -> dict[str, int]:
    counts = status["applications"].values()
    ended = {
        reason: sum(each["dropped"].get(reason, 0) for each in counts)
        for reason in ("failed", "backend-lost")
    }
    return {reason: count for reason, count in ended.items() if count}


def scale_both_ways() -> tuple[list[Seen], Ledger, dict[str, int]]:
    """Load for one backend, then for three, then for one again."""
    autoscaler = {"minimum": 1, "maximum": 5, "window_s": 3, "startup_s": 6}
    with fermata(
        applications=[application("digits")],
        backend={"count": 1, "device": "emulated", "cpus": 0.1},
        autoscaler=autoscaler,
    ) as server:
        low, high = 0.5 * CAPACITY_RPS, 2.2 * CAPACITY_RPS
        with Watch(server) as watch:
            ledger = send(server, {"digits": [low, high, high, high, low, low, low]}, 10.0)
        return watch.seen, ledger, broken(server)


def move_models() -> tuple[list[Seen], Ledger, dict[str, int], float]:
    """Two sub-clusters of one backend each, both at 80 % of what they can and more; rates turn
    out unequal, and the next epoch moves models. Returns the mean load too."""
    names = [f"digits-{letter}" for letter in "abcd"]
    with fermata(
        applications=[application(name, "benchmarks.heavy_digits:load") for name in names],
        backend={"count": 2, "device": "cpu", "cpus": 0.1},
        epochs={"sub_clusters": 2, "every_s": 12, "solve_s": 1, "imbalance": 0.1},
    ) as server:
        home = server.status()["placement"]["applications"]
        first = [name for name in names if home[name] == 0]
        second = [name for name in names if home[name] == 1]
        # 0.95 and 0.7 of a backend; after the move 0.825 each.
        shares = dict(zip((*first, *second), (0.6, 0.35, 0.475, 0.225), strict=True))
        traces = {name: [share * CAPACITY_RPS] * 4 for name, share in shares.items()}
        with Watch(server) as watch:
            ledger = send(server, traces, 10.0)
        return watch.seen, ledger, broken(server), sum(shares.values()) / 2


def measure(quick: bool) -> Iterator[Figure]:
    seen, ledger, failed = scale_both_ways()
    most = max(each.backends for each in seen)
    yield Figure("live: most backends in the high load, from 1", most, "", 3)
    yield Figure("live: backends at the end", seen[-1].backends, "", 2, at_most=True)
    yield Figure("live: requests lost, by the ledger", lost(ledger), "", 0, at_most=True)
    yield Figure("live: requests failed by a drain", sum(failed.values()), "", 0, at_most=True)
    yield Figure("live: goodput in the last 8 s of high load", goodput(ledger, 32, 40), "", 0.9)
    yield Figure("live: goodput while scaling down", goodput(ledger, 42, 70), "", 0.9)
    seen, ledger, failed, load = move_models()
    moved = [after.at_s for before, after in itertools.pairwise(seen) if after.home != before.home]
    yield Figure("live: models moved, with their weights", seen[-1].moved, "", 1)
    yield Figure("live: mean load of backends at the move", load, "", 0.8)
    yield Figure(
        "live: requests lost in the move, by the ledger", lost(ledger), "", 0, at_most=True
    )
    yield Figure("live: requests failed by the move", sum(failed.values()), "", 0, at_most=True)
    if moved:
        during = goodput(ledger, moved[0] - 3, moved[-1] + 1)
        yield Figure("live: goodput during the move", during, "", 0.9)
