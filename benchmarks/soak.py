"""A long load with a kill every two minutes: what is bad beside the kills, and what grows."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from benchmarks.kills import (
    CONFIG,
    RATE_RPS,
    SLO_MS,
    WITH_STANDBY,
    Ledger,
    recovered,
    victim_of,
)
from benchmarks.live_server import ROLES, ROOT, SHARED, Running, fermata, title_of

CYCLE_S = 120.0
"""From one kill to the next."""
STRUCK_AT_S = 20.0
WINDOW_S = 12.0
"""After a kill, or a little before, as far as the generator's start can be told: what is bad then
is the kill's."""
MARGIN_S = 3.0
VICTIMS = ("backend", WITH_STANDBY, "control plane", "backend", "frontend", "Serve controller")
WARM_CYCLES = 2
"""Processes grow until everything in them has been used once."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the server holds of the machine."""

    memory_mb: float
    """Of the processes that requests pass; each role's mean, since some have just been started."""
    files: int
    processes: int
    segments: int
    """Of shared memory."""


def look(server: Running) -> Held:
    found = server.family()
    named = {pid: title for pid in found if (title := title_of(pid)).startswith("ray::")}
    memory_mb, files = 0.0, 0
    for mark in ROLES.values():
        pids = [pid for pid, title in named.items() if mark in title]
        memory_mb += sum(resident_mb(pid) for pid in pids) / max(1, len(pids))
        files += max((open_files(pid) for pid in pids), default=0)
    segments = len([each for pid in found for each in SHARED.glob(f"fermata-{pid}-*")])
    serving = [title for title in named.values() if "IDLE" not in title]
    return Held(memory_mb, files, len(serving), segments)


def resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def cycle(server: Running, role: str) -> tuple[Ledger, int]:
    """Two minutes of load with one kill: the client's ledger, and answers that came twice."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "ledger.npz"
        command = [sys.executable, "-m", "commands.main", "load", "--model", "emulated"]
        command += ["--server", server.address, "--rate", str(RATE_RPS), "--warmup-s", "0"]
        command += ["--duration-s", str(CYCLE_S), "--ledger", str(kept), "--json"]
        loading = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        time.sleep(STRUCK_AT_S)
        os.kill(victim_of(server, role), 9)
        said, _ = loading.communicate(timeout=CYCLE_S + 60)
        assert loading.returncode == 0, said
        with np.load(kept) as ledger:
            return {name: ledger[name] for name in ledger.files}, json.loads(said)["duplicates"]


def measure(minutes: float) -> Iterator[Figure]:
    cycles = max(WARM_CYCLES + 1, round(60 * minutes / CYCLE_S))
    bad = asked = lost = twice = 0
    held: list[Held] = []
    with fermata(**CONFIG, router={"standby": True}) as server:
        recovered(server, standby=True)
        for number in range(cycles):
            role = VICTIMS[number % len(VICTIMS)]
            ledger, duplicates = cycle(server, role)
            recovered(server, standby=True)
            held.append(look(server))
            due_s = ledger["scheduled_ns"] / 1e9
            outside = (due_s < STRUCK_AT_S - MARGIN_S) | (due_s > STRUCK_AT_S + WINDOW_S)
            took_ms = (ledger["answered_ns"] - ledger["scheduled_ns"]) / 1e6
            good = (ledger["outcome"] == "OK") & (took_ms <= SLO_MS)
            bad += int((~good & outside).sum())
            asked += int(outside.sum())
            lost += int(np.isin(ledger["outcome"], ("LOST", "OPEN")).sum())
            twice += duplicates
            told = f"{bad} of {asked} bad beside the kills, {held[-1]}"
            print(f"cycle {number + 1} of {cycles}, {role} killed: {told}", file=sys.stderr)
    name = f"soak, {cycles * CYCLE_S / 60:g} minutes, {cycles} kills: "
    yield Figure(name + "bad beside them", bad / asked, "", 0.01, at_most=True)
    yield Figure(name + "requests without an answer", lost, "", 0, at_most=True)
    yield Figure(name + "answered twice", twice, "", 0, at_most=True)
    warm, last = held[WARM_CYCLES - 1], held[-1]
    grown = last.memory_mb / warm.memory_mb - 1.0
    yield Figure(name + "memory grown after the warm-up", grown, "", 0.02, at_most=True)
    for what in ("files", "processes", "segments"):
        more = getattr(last, what) - getattr(warm, what)
        yield Figure(f"{name}more {what} than after the warm-up", more, "", 0, at_most=True)
