"""A long load with a kill every two minutes: what is bad beside the kills, and what grows."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Figure
from benchmarks.kills import CONFIG, LEADS, is_good, loaded, recovered, unanswered, victim_of
from benchmarks.live_server import ROLES, SHARED, Running, fermata, resident_mb
from benchmarks.open_files import own_files

CYCLE_S = 120.0
"""From one kill to the next, as far as the minutes can be cut so."""
STRUCK_AT_S = 20.0
WINDOW_S = 12.0
"""After a kill: what is bad then is the kill's."""
MARGIN_S = 1.0
"""As far as the beginning of a load can be told."""
VICTIMS = ("backend", LEADS, "control plane", "frontend", "backend", "Serve controller")
WARM_CYCLES = 2
"""A process grows until everything in it has been used once."""
REST_S = 6.0
"""After a load, until what processes say of themselves was counted after it."""
FRONTENDS = 2
GROWTH_MAX = 0.02
WORST = 5
"""Seconds of a load that are told."""
WATCHED = {**ROLES, "control plane": ":ControlPlane"}


@dataclass(slots=True)
class Process:
    """One process of the server, looked at after each cycle of its life."""

    role: str
    memory_mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Held:
    """What the server has held of the machine so far."""

    processes: dict[int, Process] = field(default_factory=dict)
    """All there ever were, by process id."""
    actors: list[int] = field(default_factory=list)
    """After each cycle: Ray's processes at work."""
    segments: list[int] = field(default_factory=list)
    """Of shared memory, of processes dead or alive."""
    tasks: list[int] = field(default_factory=list)
    """Of the event loops of router and frontends."""

    def look(self, server: Running) -> None:
        for role, mark in WATCHED.items():
            for pid in server.pids_of((mark,)):
                process = self.processes.setdefault(pid, Process(role))
                with suppress(OSError):
                    process.files.append(own_files(pid))
                    process.memory_mb.append(resident_mb(pid))
        idle = len(server.pids_of(("IDLE",)))
        self.actors.append(len(server.pids_of(("ray::",))) - idle)
        left = [name for pid in self.processes for name in SHARED.glob(f"fermata-{pid}-*")]
        self.segments.append(len(left))
        status = server.status()
        frontends = status["processes"]["frontends"].values()
        self.tasks.append(status["tasks"] + sum(each["tasks"] for each in frontends))

    def grown(self) -> float:
        """Memory of those that have lived for longer than the warm-up, against after it."""
        old = [
            each.memory_mb for each in self.processes.values() if len(each.memory_mb) > WARM_CYCLES
        ]
        warm_mb = sum(each[WARM_CYCLES - 1] for each in old)
        return sum(each[-1] for each in old) / warm_mb - 1.0

    def more_files(self) -> int:
        """The most that one of those has open, over the most that any of its role had after the
        warm-up."""
        more = []
        for role in WATCHED:
            files = [each.files for each in self.processes.values() if each.role == role]
            old = [each for each in files if len(each) > WARM_CYCLES]
            if old:
                warm = max(max(each[:WARM_CYCLES]) for each in old)
                more.append(max(each[-1] for each in old) - warm)
        return max(more)


def _seconds(due_s: npt.NDArray[Any]) -> str:
    """How many, and in which seconds of a load: one stall, or all along."""
    seconds, counts = np.unique(due_s.astype(int), return_counts=True)
    most = sorted(zip(counts.tolist(), seconds.tolist(), strict=True), reverse=True)[:WORST]
    told = ", ".join(f"{count} at {second} s" for count, second in most)
    return f"{len(due_s)} ({told})" if told else "0"


def measure(minutes: float) -> Iterator[Figure]:
    cycles = max(WARM_CYCLES + 1, round(60 * minutes / CYCLE_S))
    cycle_s = 60 * minutes / cycles
    bad = asked = lost = twice = 0
    held = Held()
    with fermata(**CONFIG, router={"standby": True}, frontend={"processes": FRONTENDS}) as server:
        recovered(server, standby=True, frontends=FRONTENDS)
        for number in range(cycles):
            role = VICTIMS[number % len(VICTIMS)]
            with loaded(server, cycle_s) as found:
                time.sleep(STRUCK_AT_S)
                os.kill(victim_of(server, role), signal.SIGKILL)
            ledger, again = found[0]
            recovered(server, standby=True, frontends=FRONTENDS)
            time.sleep(REST_S)
            held.look(server)
            due_s, failed = ledger["scheduled_ns"] / 1e9, ~is_good(ledger)
            outside = (due_s < STRUCK_AT_S - MARGIN_S) | (due_s > STRUCK_AT_S + WINDOW_S)
            bad += int((failed & outside).sum())
            asked += int(outside.sum())
            lost += unanswered(ledger)
            twice += again
            told = f"{bad} of {asked} bad beside the kills, {_seconds(due_s[failed])} in all"
            print(
                f"cycle {number + 1} of {cycles}, {role} killed: {told}; {held.actors[-1]} actors,"
                f" {held.segments[-1]} segments, {held.tasks[-1]} tasks",
                file=sys.stderr,
            )
    for pid, each in held.processes.items():
        if len(each.memory_mb) > WARM_CYCLES:
            told = " ".join(f"{mb:.1f}" for mb in each.memory_mb)
            print(f"{each.role} {pid}: {told} MB; {each.files} files", file=sys.stderr)
    name = f"soak, {minutes:g} minutes, {cycles} kills: "
    yield Figure(name + "bad beside them", bad / asked, "", 0.01, at_most=True)
    yield Figure(name + "requests without an answer", lost, "", 0, at_most=True)
    yield Figure(name + "answered twice", twice, "", 0, at_most=True)
    grown = held.grown()
    yield Figure(name + "memory grown after the warm-up", grown, "", GROWTH_MAX, at_most=True)
    more = {"files": held.more_files()}
    for what in ("actors", "segments", "tasks"):
        after = getattr(held, what)
        more[what] = after[-1] - max(after[:WARM_CYCLES])
    for what, count in more.items():
        yield Figure(f"{name}more {what} than after the warm-up", count, "", 0, at_most=True)
