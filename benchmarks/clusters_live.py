"""Running sub-clusters with little memory, on emulated GPUs; the client's ledger is the judge.

`tight` has one server through its start, the death of every router, a scale-up and moves. Each
backend has room for half of the models. `killed` kills one router of several, again and again.
Both are sized for two cores: models are slow, so that few requests keep backends busy.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.autoscale_live import Ledger, due_in, send
from benchmarks.figures import Figure, parts_parser, run
from benchmarks.kills import is_good, unanswered
from benchmarks.live_server import Running, fermata
from fermata.partitioner.backends import backends_at
from fermata.profiles.profile import slowed
from fermata.profiles.store import BYTES_PER_MB, load_table

PARTS = {
    "tight": "start, failover, scale-up and moves with room for half of the models",
    "killed": "one router of several is killed, again and again",
}
ROUTERS, MODELS = 4, 20
TABLE, MODEL, SLOWER, BATCH_MAX = "h200-eager", "resnet101", 30.0, 8
"""Batches of eight take 0.44 s."""
SLO_MS = 3000.0
FIRST, MORE = 4, 8
"""Backends at the start, and those that come."""
LOAD = 0.8
"""Load, as a share of what backends can do by Eqns 2 and 3."""
UNEVEN = 0.25
"""By how much the rates of half of the models are above the mean in the last phases, and those of
the others below it."""
STEP_S, WINDOW_S, EPOCH_S = 5.0, 4.0, 10.0
START_STEPS, GROWTH_STEPS, HELD_STEPS, MOVE_STEPS = 4, 20, 4, 8
MOVED_MIN = 10
BEGIN_S, BACK_S, LOOK_S = 90.0, 60.0, 0.2
GOOD_MIN = 0.9
LATE = ("OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
"""Ends of requests for which there were too few backends: they count against the goodput alone."""
KILLS, QUICK_KILLS, KILLED_RPS, KILLED_SLO_MS = 20, 1, 40.0, 1000.0
KILLED_STEPS, KILLED_STEP_S, KILL_AFTER_S = 4, 2.0, 3.0
GAP_S_MAX = 0.6


def names() -> list[str]:
    return [f"m{number:02d}" for number in range(MODELS)]


def tight_config() -> dict[str, Any]:
    variant = {"model": "emulated", "profile": f"{TABLE}/{MODEL}", "batch_size_max": BATCH_MAX}
    (profile,) = (each for each in load_table(TABLE).profiles if each.name == MODEL)
    # Ten and a half fit, beside what a batch needs.
    room = (0.5 * MODELS + 0.5) * profile.static_bytes / BYTES_PER_MB
    return {
        "applications": [
            {
                "name": name,
                "slo_ms": SLO_MS,
                "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
                "variants": [{"name": f"{name}-1", **variant}],
            }
            for name in names()
        ],
        "frontend": {"processes": 1},
        "backend": {
            "count": FIRST,
            "device": "emulated",
            "cpus": 0.1,
            "slower": SLOWER,
            "memory_mb": room,
        },
        "router": {"standby": True},
        "sub_clusters": {"count": ROUTERS},
        "epochs": {"every_s": EPOCH_S, "solve_s": 2, "move_s": 20},
        "autoscaler": {
            "minimum": FIRST,
            "maximum": FIRST + MORE,
            "window_s": WINDOW_S,
            "startup_s": 12,
        },
    }


def rate_at(backends: float) -> float:
    """Requests a second of each model at which all together need so many backends."""
    (profile,) = (each for each in load_table(TABLE).profiles if each.name == MODEL)
    run_ns = (0, *slowed(profile, SLOWER).table_ns(BATCH_MAX))
    low, high = 0.0, 1000.0
    for _ in range(40):
        middle = (low + high) / 2
        need = MODELS * backends_at(run_ns, int(SLO_MS * 1e6), middle)
        low, high = (middle, high) if need < backends else (low, middle)
    return low


@dataclass(slots=True)
class Phases:
    """Rates of all models step by step, and the span of each phase."""

    traces: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in names()})
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, phase: str, rates: Sequence[Mapping[str, float]]) -> None:
        """Rates of each step of the next phase."""
        from_s = self.length_s
        for step in rates:
            for name, trace in self.traces.items():
                trace.append(step[name])
        self.spans[phase] = from_s, self.length_s

    @property
    def length_s(self) -> float:
        return STEP_S * len(next(iter(self.traces.values())))


def even(backends: float) -> dict[str, float]:
    return dict.fromkeys(names(), rate_at(LOAD * backends))


def phases_of(home: Mapping[str, int]) -> Phases:
    """The load. In the end those that live in the first half of the sub-clusters have more than
    the others, and then the other way round."""
    last = FIRST + MORE
    growth = np.linspace(FIRST, last, GROWTH_STEPS).tolist()
    found = Phases()
    found.add("start", [even(FIRST)] * START_STEPS)
    found.add("failover", [even(FIRST)] * (ROUTERS + 1))
    found.add("scale-up", [even(each) for each in growth] + [even(last)] * HELD_STEPS)
    side = {name: 1 if at < ROUTERS / 2 else -1 for name, at in home.items()}
    # As busy at the most as before: what is uneven is below that elsewhere.
    mean = rate_at(LOAD * last) / (1 + UNEVEN)
    for turn, phase in ((1, "moves"), (-1, "moves back")):
        rates = {name: mean * (1 + turn * UNEVEN * side[name]) for name in names()}
        found.add(phase, [rates] * MOVE_STEPS)
    return found


def wait_for(ready: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        try:
            if ready():
                return
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(LOOK_S)
    raise AssertionError(f"not so within {limit_s:g} s")


def homes(server: Running) -> dict[str, int]:
    return {
        name: each["sub_cluster"]
        for each in server.status()["routers"]
        for name in each["applications"]
    }


def received(server: Running) -> int:
    return sum(int(each["requests"]) for each in server.status()["applications"].values())


class Watch:
    """Looks at the server while a load runs, and does what is due."""

    def __init__(self, server: Running, due: Sequence[tuple[float, Callable[[], None]]]) -> None:
        self.server, self.due = server, sorted(due, key=lambda each: each[0])
        self.backends: list[tuple[float, int]] = []
        self.moved: list[tuple[float, int]] = []
        self.ended = threading.Event()
        self.pool = ThreadPoolExecutor(1)

    def __enter__(self) -> "Watch":
        self.before = received(self.server)
        self.running = self.pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.pool.shutdown()
        # What it has not done, it says here.
        self.running.result()

    def _has_begun(self) -> bool:
        """Whether requests come. What a router has counted falls away with it."""
        count = received(self.server)
        self.before = min(self.before, count)
        return count > self.before

    def _run(self) -> None:
        wait_for(self._has_begun, BEGIN_S)
        began_s, told_s = time.monotonic(), 0.0
        while not self.ended.wait(LOOK_S):
            at_s = time.monotonic() - began_s
            while self.due and self.due[0][0] <= at_s:
                self.due.pop(0)[1]()
            if at_s - told_s >= 1.0:
                told_s = at_s
                self._look(at_s)

    def _look(self, at_s: float) -> None:
        try:
            status = self.server.status()
        except OSError:
            return
        up = [not each["draining"] for each in status["backends"].values()]
        self.backends.append((at_s, sum(up)))
        scaling = status.get("scaling") or {}
        self.moved.append((at_s, int(scaling.get("moved", 0))))
        if int(at_s) % 10 == 0 and "scaling" in status:
            about = [(each["target"], each["reason"]) for each in status["scaling"]["advice"]]
            print(
                f"  {at_s:.0f} s: {sum(up)} backends, {self.moved[-1][1]} moved, {about}",
                file=sys.stderr,
            )


def kill_router(server: Running, sub_cluster: int) -> None:
    (pid,) = (
        each["pid"] for each in server.status()["routers"] if each["sub_cluster"] == sub_cluster
    )
    os.kill(pid, signal.SIGKILL)


def ends(ledger: Ledger, chosen: Any) -> dict[str, int]:
    kinds, counts = np.unique(ledger["outcome"][chosen], return_counts=True)
    return {str(kind): int(count) for kind, count in zip(kinds, counts, strict=True)}


def measure_tight(quick: bool) -> Iterator[Figure]:
    with fermata(**tight_config()) as server:
        wait_for(
            lambda: (
                len(homes(server)) == MODELS
                and sum(len(each["models"]) for each in server.status()["backends"].values())
                == MODELS
            ),
            BACK_S,
        )
        phases = phases_of(homes(server))
        failover_s, _ = phases.spans["failover"]
        kills = [
            (failover_s + (number + 0.5) * STEP_S, partial(kill_router, server, number))
            for number in range(ROUTERS)
        ]
        with Watch(server, kills) as watch:
            ledger = send(server, phases.traces, STEP_S, SLO_MS)
    title = f"{MODELS} models in {ROUTERS} sub-clusters, room for half of them on a backend"
    good, lost = is_good(ledger, SLO_MS), np.isin(ledger["outcome"], ("LOST", "OPEN"))
    refused = ~np.isin(ledger["outcome"], (*LATE, "LOST", "OPEN"))
    for phase, span in phases.spans.items():
        due = due_in(ledger, *span)
        print(f"  {phase}: {ends(ledger, due)}", file=sys.stderr)
        about = f"{title}: {phase} at a load of {LOAD:g}:"
        yield Figure(f"{about} requests lost", int(lost[due].sum()), "", 0, True)
        yield Figure(f"{about} requests refused", int(refused[due].sum()), "", 0, True)
        yield Figure(f"{about} good", float(good[due].mean()), "", GOOD_MIN)
    most = max(count for _, count in watch.backends)
    yield Figure(f"{title}: backends at the most, from {FIRST}", most, "", FIRST + MORE)
    yield Figure(f"{title}: models moved under load", watch.moved[-1][1], "", MOVED_MIN)


def killed_config(routers: int, standby: bool) -> dict[str, Any]:
    variant = {"model": "emulated", "alpha_ms": 2, "beta_ms": 10}
    return {
        "applications": [
            {
                "name": f"own{number}",
                "slo_ms": KILLED_SLO_MS,
                "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
                "variants": [{"name": f"own{number}-1", **variant}],
            }
            for number in range(routers)
        ],
        "frontend": {"processes": 1},
        "backend": {"count": routers, "device": "emulated", "cpus": 0.1},
        "router": {"standby": standby},
        "sub_clusters": {"count": routers},
    }


@dataclass(frozen=True, slots=True)
class Killed:
    """Bad requests around the end of a router."""

    own: int
    others: int
    lost: int
    gap_s: float
    """From the first bad one to the last."""


def kill_once(server: Running, routers: int) -> Killed:
    own = "own0"
    victim = homes(server)[own]
    traces = {f"own{number}": [KILLED_RPS] * KILLED_STEPS for number in range(routers)}
    with Watch(server, [(KILL_AFTER_S, lambda: kill_router(server, victim))]):
        ledger = send(server, traces, KILLED_STEP_S, KILLED_SLO_MS)
    bad, due_ns = ~is_good(ledger, KILLED_SLO_MS), ledger["scheduled_ns"]
    mine = ledger["target"] == list(traces).index(own)
    gap_s = float(np.ptp(due_ns[bad & mine])) / 1e9 if (bad & mine).any() else 0.0
    return Killed(int((bad & mine).sum()), int((bad & ~mine).sum()), unanswered(ledger), gap_s)


def is_whole(server: Running, routers: int) -> bool:
    """Whether all routers lead, and each has its backend with its model."""
    status = server.status()
    loaded = [len(each["models"]) for each in status["backends"].values()]
    addresses = [each["address"] for each in status["routers"]]
    return len(addresses) == routers and all(addresses) and loaded == [1] * routers


def measure_killed(routers: int, times: int) -> Iterator[Figure]:
    for standby in (True, False):
        found: list[Killed] = []
        with fermata(**killed_config(routers, standby)) as server:
            for _ in range(times):
                wait_for(lambda: is_whole(server, routers), BACK_S)
                found.append(kill_once(server, routers))
                print(f"  {found[-1]}", file=sys.stderr)
        title = f"one of {routers} routers killed {times} times" + ", with standby" * standby
        others, own = sum(each.others for each in found), sum(each.own for each in found)
        yield Figure(f"{title}: bad requests of other sub-clusters", others, "", 0, True)
        goal = 0 if standby else float("inf")
        yield Figure(f"{title}: bad requests of its own", own, "", goal, True)
        yield Figure(f"{title}: requests lost", sum(each.lost for each in found), "", 0, True)
        gap_s = max(each.gap_s for each in found)
        goal = float("inf") if standby else GAP_S_MAX
        yield Figure(f"{title}: longest from the first bad to the last", gap_s, "s", goal, True)


def measure(parts: Sequence[str], routers: int, times: int, quick: bool) -> Iterator[Figure]:
    if "tight" in parts:
        yield from measure_tight(quick)
    if "killed" in parts:
        yield from measure_killed(routers, times or (QUICK_KILLS if quick else KILLS))


def main() -> None:
    parser = parts_parser(PARTS)
    parser.add_argument("--routers", type=int, default=ROUTERS, help="for `killed`")
    parser.add_argument("--times", type=int, default=0, help="for `killed`: kills of each kind")
    given = parser.parse_known_args()[0]
    parts = given.only or list(PARTS)
    run(
        "Running sub-clusters",
        lambda quick: measure(parts, given.routers, given.times, quick),
        parser,
    )


if __name__ == "__main__":
    main()
