"""Kills real processes of a running server under load; the client's ledger is the judge."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Figure
from benchmarks.live_server import ROOT, Running, fermata, title_of

SLO_MS = 400.0
RATE_RPS = 170.0
"""Three backends of 20 + 10 b ms manage some 210 within the SLO."""
LOAD_S = 9.0
KILL_AT_S = 3.0
STOP_S = 2.0
"""For which a process is stopped rather than killed."""
BACK_S = 60.0
APPLICATION = {
    "name": "emulated",
    "slo_ms": SLO_MS,
    "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
    "variants": [
        {
            "name": "emulated-1",
            "model": "emulated",
            "alpha_ms": 10,
            "beta_ms": 20,
            "batch_size_max": 16,
        }
    ],
}
CONFIG: Mapping[str, Any] = {
    "applications": [APPLICATION],
    "backend": {"count": 3, "device": "emulated", "cpus": 0.1},
}
PROCESSES = {
    "backend": ":Backend",
    "frontend": ":Frontend",
    "router": "RouterActor",
    "control plane": ":ControlPlane",
    "Serve controller": "ServeController",
    "GCS": "gcs_server",
}
"""What names of processes hold."""
WITH_STANDBY = "router with standby"
KILLS: dict[str, tuple[signal.Signals, ...]] = {
    "backend": (signal.SIGKILL, signal.SIGSTOP),
    "router": (signal.SIGKILL, signal.SIGSTOP),
    WITH_STANDBY: (signal.SIGKILL, signal.SIGSTOP),
    "frontend": (signal.SIGKILL, signal.SIGSTOP),
    "control plane": (signal.SIGKILL,),
    "Serve controller": (signal.SIGKILL,),
    "GCS": (signal.SIGSTOP,),
}
"""A cluster whose GCS dies for good ends, unless it keeps its state elsewhere."""
GAPS_S = {WITH_STANDBY: 0.1}
"""From the first bad request to the last, at most; 2.5 unless said."""
Ledger = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What clients saw of one fault."""

    lost: int
    """Sent on a connection that lived on, and never answered."""
    late_answers: int
    """Answered more than 50 ms after they had expired, though their frontend was up."""
    duplicates: int
    bad: int
    """In the whole run: refused, late, unsent."""
    gap_s: float
    """From the first bad request to the last."""
    refused: dict[str, int]


def pids(server: Running, role: str) -> list[int]:
    mark = PROCESSES[role]
    return sorted(pid for pid in server.family() if mark in title_of(pid))


def victim_of(server: Running, role: str) -> int:
    """Of two routers, the one that leads."""
    return int(server.status()["pid"]) if role == WITH_STANDBY else pids(server, role)[0]


def send(server: Running, folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a load; its ledger is written at its end."""
    kept = folder / "ledger.npz"
    command = [sys.executable, "-m", "commands.main", "load", "--model", "emulated"]
    command += ["--server", server.address, "--rate", str(RATE_RPS), "--warmup-s", "0"]
    command += ["--duration-s", str(LOAD_S), "--ledger", str(kept), "--json"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True), kept


def strike(server: Running, role: str, sign: signal.Signals) -> Verdict:
    """One fault in the middle of a load."""
    with tempfile.TemporaryDirectory() as folder:
        loading, kept = send(server, Path(folder))
        # The generator takes a second or two of that to be ready.
        time.sleep(KILL_AT_S)
        victim = victim_of(server, role)
        os.kill(victim, sign)
        if sign == signal.SIGSTOP:
            time.sleep(STOP_S)
            os.kill(victim, signal.SIGCONT)
        said, _ = loading.communicate(timeout=LOAD_S + 60)
        assert loading.returncode == 0, said
        with np.load(kept) as ledger:
            found = {name: ledger[name] for name in ledger.files}
    return judge(found, json.loads(said)["duplicates"])


def judge(ledger: Ledger, duplicates: int) -> Verdict:
    outcome, due = ledger["outcome"], ledger["scheduled_ns"]
    latency_ns = ledger["answered_ns"] - due
    good = (outcome == "OK") & (latency_ns <= SLO_MS * 1e6)
    bad = ~good
    gap_s = float(due[bad].max() - due[bad].min()) / 1e9 if bad.any() else 0.0
    names, counts = np.unique(outcome[bad], return_counts=True)
    return Verdict(
        lost=int(((outcome == "LOST") | (outcome == "OPEN")).sum()),
        late_answers=int((latency_ns > (SLO_MS + 50) * 1e6).sum()),
        duplicates=duplicates,
        bad=int(bad.sum()),
        gap_s=gap_s,
        refused={str(name): int(count) for name, count in zip(names, counts, strict=True)},
    )


def recovered(server: Running, standby: bool = False) -> None:
    """Wait until the server is whole again."""
    end_s = time.monotonic() + BACK_S
    while time.monotonic() < end_s:
        try:
            status = server.status()
            here = len(status["backends"]), len(status["frontends"]), status["standby"]
            if here == (3, 1, standby):
                return
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"the server is not whole {BACK_S:g} s after a fault")


def measure(role: str, times: int) -> Iterator[Figure]:
    """Each signal so often; says how each went."""
    standby = role == WITH_STANDBY
    for sign in KILLS[role]:
        found: list[Verdict] = []
        with fermata(**CONFIG, router={"standby": standby}) as server:
            recovered(server, standby)
            for _ in range(times):
                found.append(strike(server, role, sign))
                print(f"{role}, {sign.name}, {len(found)}: {found[-1]}", file=sys.stderr)
                recovered(server, standby)
        name = f"{role}, {sign.name}, {len(found)} times: "
        lost, twice = sum(each.lost for each in found), sum(each.duplicates for each in found)
        gap_s, goal_s = max(each.gap_s for each in found), GAPS_S.get(role, 2.5)
        yield Figure(name + "requests without an answer", lost, "", 0, at_most=True)
        yield Figure(name + "answered twice", twice, "", 0, at_most=True)
        yield Figure(name + "bad", sum(each.bad for each in found), "", float("inf"), at_most=True)
        yield Figure(name + "from first bad to last, at most", gap_s, "s", goal_s, at_most=True)
