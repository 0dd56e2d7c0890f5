"""Ten times the capacity for a minute: who is served, who is refused how soon, and what is left."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from benchmarks.figures import Figure
from benchmarks.live_server import ROOT, Running, fermata, resident_mb
from benchmarks.workloads import RESNET50
from fermata.foundation.units import SECOND
from fermata.simulator.goodput import find_goodput
from fermata.simulator.run import DROPPED, simulate
from fermata.simulator.scenario.scenario import Scenario, read_scenario

STEP_S = 5
QUIET, NOISY = "quiet", "noisy"
QUIET_SHARE = 0.25
"""Of the capacity: what the application that must not suffer asks for, all the time."""
CALM_SHARE = 0.1
"""What a well-behaved client of the noisy application asks for while another one floods it."""
FLOOD = 10.0
BEFORE = 0.5
"""What the noisy application asks for before and after."""
LATE_MS = 10.0
SLOW = {"alpha_ms": 40, "beta_ms": 100, "batch_size_max": 16}
SLOW_SLO_MS = 1_500.0
SLOW_RPS = 64.0
"""Three backends with batches of 16 in 740 ms."""
STEADY_SHARES = (0.9, 0.95, 1.0, 1.1)
STEADY_S = 30.0
"""Live: loads among which the peak is looked for, and how long each lasts."""
REFUSED = "shed"
SEEDS = (11, 12, 13)
"""Of what is simulated: constants tuned on one seed alone may please no other."""
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of each request, by client or by simulator."""

    due_s: Floats
    application: npt.NDArray[np.int64]
    client: npt.NDArray[np.int64]
    good: Mask
    refused_ms: Floats
    """Until it was refused; NaN where it was not."""


def scenario(
    variant: Mapping[str, object],
    slo_ms: float,
    backends: int,
    capacity_rps: float,
    flood_s: int,
    seed: int = SEEDS[0],
) -> dict[str, Any]:
    """A scenario file: calm, a flood by one client of one application, calm again."""
    steps = max(1, flood_s // STEP_S)
    noisy = [BEFORE, *[FLOOD] * steps, BEFORE, BEFORE]
    calm = CALM_SHARE / FLOOD
    clients = {QUIET: [{"count": 2, "fps": 1}], NOISY: [{"fps": 1 - calm}, {"fps": calm}]}
    return {
        "seed": seed,
        "backends": backends,
        "warmup_s": 0,
        "duration_s": STEP_S * len(noisy),
        "fair_shares": True,
        "policy_options": {"hold": "auto"},
        "arrivals": {
            "process": "trace",
            "step_s": STEP_S,
            "applications": {
                QUIET: [QUIET_SHARE * capacity_rps] * len(noisy),
                NOISY: [share * capacity_rps for share in noisy],
            },
        },
        "applications": [
            {
                "name": name,
                "slo_ms": slo_ms,
                "clients": clients[name],
                "variants": [{"name": f"{name}-model", **variant}],
            }
            for name in (QUIET, NOISY)
        ],
    }


def at_peak(given: dict[str, Any], rate_rps: float, duration_s: float) -> dict[str, Any]:
    """The same applications at a steady rate, in the proportions that fair shares come to."""
    applications = [
        {**each, "weight": QUIET_SHARE if each["name"] == QUIET else 1 - QUIET_SHARE}
        for each in given["applications"]
    ]
    steady = {"arrivals": {"process": "poisson"}, "popularity": "weights", "rate_rps": rate_rps}
    return {**given, **steady, "duration_s": duration_s, "applications": applications}


def judge(where: str, seen: Seen, peak_rps: float, slo_ms: float, end_s: float) -> Iterator[Figure]:
    """The flood lasts from the first step to `end_s`."""
    due_s = seen.due_s
    # Once the first of them have had the time to end.
    flood = (due_s >= STEP_S + slo_ms / 1e3) & (due_s < end_s)
    length_s = end_s - STEP_S - slo_ms / 1e3
    served_rps = float((seen.good & flood).sum()) / length_s
    name = f"{where}, {FLOOD:g} times the capacity for {end_s - STEP_S:g} s: "
    yield Figure(name + "goodput over the peak", served_rps / peak_rps, "x", 0.95)
    quiet = flood & (seen.application == 0)
    yield Figure(name + "bad, the other application", _bad(seen, quiet), "", 0.05, at_most=True)
    calm = flood & (seen.application == 1) & (seen.client == seen.client.max())
    yield Figure(name + "bad, the other client", _bad(seen, calm), "", 0.05, at_most=True)
    refused_ms = seen.refused_ms[flood & ~np.isnan(seen.refused_ms)]
    soon = float((refused_ms <= LATE_MS).mean())
    yield Figure(name + f"of refusals, within {LATE_MS:g} ms", soon, "", 0.99)
    after = due_s >= end_s + slo_ms / 1e3
    name += "bad, from one SLO after its end"
    yield Figure(name, _bad(seen, after), "", 0.01, at_most=True)


def _bad(seen: Seen, which: Mask) -> float:
    return float(1.0 - seen.good[which].mean())


# Simulated


def simulated(quick: bool) -> Iterator[Figure]:
    """Eight GPUs of Symphony's Table 4: some 55,000 requests a second; the worst of all seeds."""
    for found in zip(*(_simulated(quick, seed) for seed in SEEDS), strict=True):
        worst = max if found[0].at_most else min
        yield worst(found, key=lambda figure: figure.value)


def _simulated(quick: bool, seed: int) -> Iterator[Figure]:
    slo_ms, backends, capacity_rps = 25.0, 8, 5_000.0
    flood_s = STEP_S if quick else 60
    given = scenario(RESNET50, slo_ms, backends, capacity_rps, flood_s, seed)
    steady = read_scenario(at_peak(given, capacity_rps, 2 if quick else 10))
    peak_rps = find_goodput(steady).goodput_rps
    yield Figure("simulated: peak", peak_rps, "req/s", 0.0)
    flood = read_scenario(given)
    yield from judge("simulated", outcome(flood), peak_rps, slo_ms, STEP_S + flood_s)


def outcome(of: Scenario) -> Seen:
    """What becomes of a simulated load."""
    log = simulate(of)
    arrivals = log.arrivals
    refused = log.end_ns == DROPPED
    reasons = log.reasons
    # What admission refuses, it refuses on arrival; of others the log knows no time.
    refused_ms = np.where(refused, np.inf, np.nan)
    refused_ms[[index for index, reason in reasons.items() if reason == REFUSED]] = 0.0
    return Seen(
        arrivals.at_ns / SECOND,
        arrivals.application,
        arrivals.client,
        ~refused & (log.end_ns <= arrivals.at_ns + arrivals.slo_ns),
        refused_ms,
    )


# Live


def live(quick: bool) -> Iterator[Figure]:
    """Three slow emulated backends, so that one load generator can exceed them tenfold."""
    flood_s = 2 * STEP_S if quick else 60
    given = scenario(SLOW, SLOW_SLO_MS, 3, SLOW_RPS, flood_s)
    with fermata(**_deployment()) as server:
        steady_s = STEADY_S / 3 if quick else STEADY_S
        peak_rps = 0.0
        for share in STEADY_SHARES:
            seen = _play(server, at_peak(given, share * SLOW_RPS, steady_s))
            # As the flood is judged: not the first ones, which find empty queues.
            held = seen.good & (seen.due_s >= SLOW_SLO_MS / 1e3)
            peak_rps = max(peak_rps, float(held.sum()) / (steady_s - SLOW_SLO_MS / 1e3))
        yield Figure("live: peak", peak_rps, "req/s", 0.0)
        with _memory(server) as grown_mb:
            seen = _play(server, given)
        yield from judge("live", seen, peak_rps, SLOW_SLO_MS, STEP_S + flood_s)
        name = f"live, {FLOOD:g} times the capacity: memory of router and frontend, growth"
        yield Figure(name, grown_mb[-1], "MB", 64, at_most=True)


def _deployment() -> dict[str, Any]:
    applications = [
        {
            "name": name,
            "slo_ms": SLOW_SLO_MS,
            "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
            "variants": [{"name": f"{name}-model", "model": "emulated", **SLOW}],
        }
        for name in (QUIET, NOISY)
    ]
    return {
        "applications": applications,
        "backend": {"count": 3, "device": "emulated", "cpus": 0.1},
    }


def _play(server: Running, given: dict[str, Any]) -> Seen:
    """Send a scenario's load; the client's ledger tells what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        path, kept = Path(folder) / "scenario.yaml", Path(folder) / "ledger.npz"
        path.write_text(yaml.safe_dump(_without_sizes(given)))
        command = [sys.executable, "-m", "fermata.commands.main", "load", "--scenario", str(path)]
        command += ["--server", server.address, "--ledger", str(kept), "--json"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        with np.load(kept) as found:
            ledger = {name: found[name] for name in found.files}
    took_ms = (ledger["answered_ns"] - ledger["scheduled_ns"]) / 1e6
    answered = ledger["answered_ns"] >= 0
    ok = ledger["outcome"] == "OK"
    return Seen(
        ledger["scheduled_ns"] / SECOND,
        ledger["target"],
        ledger["client"],
        ok & (took_ms <= SLOW_SLO_MS),
        np.where(answered & ~ok, took_ms, np.nan),
    )


def _without_sizes(given: dict[str, Any]) -> dict[str, Any]:
    """As the simulator reads it: a line of run times has no largest batch there."""
    applications = [
        {
            **each,
            "variants": [
                {key: value for key, value in variant.items() if key != "batch_size_max"}
                for variant in each["variants"]
            ],
        }
        for each in given["applications"]
    ]
    return {**given, "applications": applications}


@contextmanager
def _memory(server: Running) -> Iterator[list[float]]:
    """A list whose last entry is how much router and frontends have grown, at most, in MB."""
    pids = server.pids_of((":Frontend", "RouterActor"))
    first, grown, done = sum(map(resident_mb, pids)), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            grown.append(max(grown[-1], sum(map(resident_mb, pids)) - first))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield grown
    finally:
        done.set()
        thread.join()
