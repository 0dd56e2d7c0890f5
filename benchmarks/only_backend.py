"""The only backend of a running server killed again and again: with a spare, with one in host
memory, and without."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from benchmarks.figures import Figure
from benchmarks.kills import APPLICATION, SLO_MS, Ledger, is_good, loaded, unanswered
from benchmarks.live_server import Running, fermata
from fermata.deployments.backend.seats import Holder, seats_folder
from fermata.deployments.specs.outcomes import LATE, RefusalReason
from fermata.router.core.events import GOOD, DropReason

LOAD_S, ALONE_S = 6.0, 20.0
"""Lengths of a load: with a spare, and without, where the server must be back before it ends."""
KILL_AFTER_S = 2.0
BACK_S = 90.0
GAP_S, GAP_S_COLD = 0.5, 5.0
Spare = Literal[True, False, "host"]
GOALS: Mapping[str, tuple[Spare, str, float]] = {
    "yes": (True, "with a spare", GAP_S),
    "host": ("host", "with a spare in host memory", GAP_S_COLD),
    "no": (False, "without", GAP_S_COLD),
}
"""Spares by name, each with the longest gap that is allowed."""
REPORT_S = 1.5
"""By then frontends have reported what they have answered."""
AWAY = {DropReason.LOST, DropReason.NO_BACKEND, DropReason.CANCELLED}
TRUE = {GOOD, LATE, RefusalReason.STALLED, *AWAY}
"""Outcomes when the only backend dies: it took the request along, or was away for too long; or the
machine gave the frontend no time, which it has measured itself."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The application that is served, where, and how much of it is asked for."""

    application: Mapping[str, Any]
    rate_rps: float
    backend: Mapping[str, Any]
    frontend: Mapping[str, Any]

    @property
    def model(self) -> str:
        return str(self.application["name"])


EMULATED = Scene(APPLICATION, 30.0, {"device": "emulated", "cpus": 0.1}, {})
"""One backend of 20 + 10 b ms manages some 70 within the SLO: what waited for it is soon served."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Answers and gaps that clients saw at one kill."""

    gap_s: float
    """The longest time for which clients waited and none had a good answer."""
    outcomes: dict[str, int]
    """Requests by how they ended."""
    lost: int
    twice: int

    @property
    def untrue(self) -> int:
        """Refusals for a reason that is not true."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in TRUE)


def config(spare: Spare, scene: Scene = EMULATED) -> Mapping[str, Any]:
    return {
        "applications": [scene.application],
        "backend": {"count": 1, "spare": spare, **scene.backend},
        "frontend": scene.frontend,
    }


def serving_pid(server: Running) -> int:
    """The process that serves: the one that its seat names, or the only one."""
    family = set(server.family())
    for path in seats_folder().glob("*.serving"):
        if text := path.read_bytes():
            holder = msgspec.json.decode(text, type=Holder)
            if holder.pid in family:
                return holder.pid
    (pid,) = server.pids_of((":Backend",))
    return pid


def whole(server: Running, spare: Spare) -> None:
    """Wait until the server has its backend, and its spare."""
    end_s = time.monotonic() + BACK_S
    while time.monotonic() < end_s:
        try:
            status = server.status()
            if (len(status["backends"]), len(status["spares"])) == (1, int(spare is not False)):
                return
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"the server is not whole {BACK_S:g} s after a kill")


def strike(server: Running, spare: Spare, scene: Scene = EMULATED) -> Kill:
    """One kill in the middle of a load."""
    whole(server, spare)
    before = _answered(server, scene)
    load_s = LOAD_S if spare is True else ALONE_S
    with loaded(server, load_s, rate_rps=scene.rate_rps, model=scene.model) as found:
        time.sleep(KILL_AFTER_S)
        os.kill(serving_pid(server), signal.SIGKILL)
    ledger, twice = found[0]
    time.sleep(REPORT_S)
    outcomes = _answered(server, scene) - before
    gap_s = longest_gap_s(ledger, scene.application["slo_ms"])
    return Kill(gap_s, dict(outcomes), unanswered(ledger), twice)


def _answered(server: Running, scene: Scene) -> Counter[str]:
    """Requests so far, by how they ended."""
    return Counter(server.status()["applications"][scene.model]["answered"])


def longest_gap_s(ledger: Ledger, slo_ms: float = SLO_MS) -> float:
    """The longest time for which clients waited and none had a good answer. Where the generator
    itself stands still, nobody waits."""
    sent, answered = ledger["sent_ns"], ledger["answered_ns"]
    ends = np.sort(np.append(answered[is_good(ledger, slo_ms)], answered.max()))
    longest_ns = 0
    for before, after in pairwise(ends):
        waiting = (sent >= 0) & (sent < after) & (answered > before)
        if waiting.any():
            longest_ns = max(longest_ns, int(after - max(before, sent[waiting].min())))
    return longest_ns / 1e9


def measure(
    times: int, spares: Sequence[str] = tuple(GOALS), scene: Scene = EMULATED
) -> Iterator[Figure]:
    """So many kills with each kind of spare."""
    untrue, rate = 0, f"{scene.rate_rps:,g} req/s of {scene.model}"
    for kind in spares:
        spare, which, goal = GOALS[kind]
        found: list[Kill] = []
        with fermata(**config(spare, scene)) as server:
            for _ in range(times):
                found.append(strike(server, spare, scene))
                print(f"only backend, spare={spare}: {found[-1]}", file=sys.stderr)
        name = f"the only backend killed {times} times at {rate}"
        untrue += sum(each.untrue for each in found)
        gap_s = max(each.gap_s for each in found)
        yield Figure(f"{name}: longest gap {which}", gap_s, "s", goal, at_most=True)
        lost = sum(each.lost + each.twice for each in found)
        yield Figure(f"{name}, {which}: lost or answered twice", lost, "", 0, at_most=True)
    yield Figure(f"{name}: refused for a reason that is not true", untrue, "", 0, at_most=True)
