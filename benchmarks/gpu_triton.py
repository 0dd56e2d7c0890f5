"""Triton on the same GPU, at its best: our runner in its Python backend, its knobs swept.

All settings are loaded at once. One of them meets ever higher rates, by streams and over HTTP. Then
all take turns in one load the better way, at a rate that grows until one is left, and the rate of
that one is searched.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gpu_figures as gpu
from benchmarks.figures import Figure
from benchmarks.gpu_models import CACHE, SHAPE, Offline, pixels
from benchmarks.gpu_server import Spent
from benchmarks.peer_servers.knobs import HTTP, STREAM
from benchmarks.peer_servers.launch import Served
from benchmarks.peer_servers.triton_gpu import (
    STREAMS,
    Network,
    Setting,
    TritonGpu,
    grid,
    triton_gpu,
)
from fermata.clients.load.arrivals import SendTimes, Times, poisson
from fermata.clients.load.ledger import LoadLedger
from fermata.clients.load.report import report
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import Target
from fermata.clients.wire.tensors import RawTensor
from fermata.deployments.backend.kernels.choice import Choice, save_choice
from fermata.foundation.units import seconds

ONE = grid(waits_ms=(0.5, 2, 5), batches=(32, 64), instances=(1, 2))
THREE = grid(waits_ms=(2, 5), batches=(32,), instances=(1, 2))
"""Three models fill batches more slowly; a part of the others, so that nothing is loaded twice."""
QUICK = grid(waits_ms=(2,), batches=(32, 64), instances=(1, 2))
FIRST_ONE, FIRST_THREE = 3_000.0, 2_000.0
"""The lowest total rate."""
RAMP = 6
"""Rates that one setting meets first."""
TURN_S, SETTLE_S, GAP_S = 1.6, 0.4, 0.2
"""A turn in a load: its beginning is not counted, and at its end nothing is sent."""
ROUNDS = 4
PROBE_S = 3.0
TOLERANCE = 0.08
AIM = 2.0
"""Times what Triton serves."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Models whose settings are swept together."""

    name: str
    """Name of our own figure that this one stands beside."""
    networks: Sequence[Network]
    settings: Sequence[Setting]
    middle: Setting
    """The setting that ways and rates are first tried with."""
    first: float


Round = Callable[[Sequence[Setting], Sequence[float]], Sequence[float]]
"""Shares of good answers of settings, each at a rate."""


def last_good(rates: Sequence[float], shares: Sequence[float]) -> float:
    """The rate before the first that is not good; 0 where none is."""
    good = takewhile(lambda each: each[1] >= gpu.GOOD, zip(rates, shares, strict=True))
    return max((rate for rate, _ in good), default=0.0)


def best_of(settings: Sequence[Setting], first: float, ask: Round) -> tuple[Setting, float]:
    """The setting that stays good the longest, and the rate from which it is to be searched."""
    left, rate = list(settings), first
    for _ in range(ROUNDS):
        shares = ask(left, [rate] * len(left))
        best = left[int(np.argmax(shares))]
        good = [each for each, share in zip(left, shares, strict=True) if share >= gpu.GOOD]
        if not good:
            return best, rate
        left, rate = good, rate * gpu.STEP
        if len(left) == 1:
            break
    return best, rate


def clients_of(target: Times, targets: int, rng: np.random.Generator) -> Times:
    """Numbers by which no stream has requests of two models: its answers keep their order."""
    if targets == 1:
        return np.zeros_like(target)
    # Senders and streams are told apart by remainders.
    return targets * rng.integers(1, 1 + gpu.SENDERS * STREAMS, len(target)) + target


def turns(rates: Sequence[float], each: int) -> SendTimes:
    """Poisson arrivals of one turn after the other, at equal rates of its `each` models."""
    rng = np.random.default_rng(round(rates[0]))
    parts = []
    for turn, rate in enumerate(rates):
        at_ns = seconds(turn * TURN_S) + poisson(rate, seconds(TURN_S - GAP_S), rng)
        which = rng.integers(0, each, len(at_ns))
        parts.append((at_ns, turn * each + which, clients_of(which, each, rng)))
    return SendTimes(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def turn_shares(ledger: LoadLedger, targets: Sequence[Target], count: int) -> list[float]:
    """Share of good answers in each turn, of the model that fared worst."""
    each = len(targets) // count
    shares = []
    for turn in range(count):
        # Others' turns have none of its requests.
        from_ns = seconds(turn * TURN_S + SETTLE_S)
        own = range(turn * each, (turn + 1) * each)
        shares.append(gpu.worst_share(ledger, targets, from_ns, own))
    return shares


def asked(server: TritonGpu, sweep: Sweep, way: str, given: bytes) -> Round:
    """Settings that take turns in one load."""

    def ask(settings: Sequence[Setting], rates: Sequence[float]) -> Sequence[float]:
        of_each = [server.targets(setting, sweep.networks, given) for setting in settings]
        targets = [target for each in of_each for target in each]
        served = server.served(way, targets)
        arrivals = turns(rates, len(sweep.networks))
        ledger = run_load(served.options, targets, arrivals, gpu.SENDERS, served.kind)
        shares = turn_shares(ledger, targets, len(settings))
        for setting, rate, share in zip(settings, rates, shares, strict=True):
            gpu.say(f"  Triton by {way}, {setting}: {rate:,.0f}/s: {share:.2%} good")
        return shares

    return ask


def probe(served: Served, rate: float, duration_s: float) -> gpu.Probe:
    """One setting at one rate."""
    from_ns, total_ns = seconds(gpu.WARMUP_S), seconds(gpu.WARMUP_S + duration_s)
    targets = served.targets
    due = gpu.due(rate, total_ns, len(targets), seed=round(rate))
    clients = clients_of(due.target, len(targets), np.random.default_rng(round(rate)))
    arrivals = SendTimes(due.at_ns, due.target, clients)
    ledger = run_load(served.options, targets, arrivals, gpu.SENDERS, served.kind)
    load = report(ledger, np.array([each.slo_ns for each in targets]), from_ns, total_ns)
    found = gpu.Probe(rate, load, gpu.worst_share(ledger, targets, from_ns), Spent())
    gpu.say("  Triton: " + found.line())
    for status, message in load.messages.items():
        gpu.say(f"    {status}: {message}")
    return found


def highest_of(server: TritonGpu, sweep: Sweep, given: bytes, quick: bool) -> tuple[str, float]:
    """(setting and way, good answers a second) at the highest rate that is good."""
    rates = [sweep.first * gpu.STEP**step for step in range(RAMP)]
    ramps = {
        way: last_good(rates, asked(server, sweep, way, given)([sweep.middle] * RAMP, rates))
        for way in (STREAM, HTTP)
    }
    way = max(ramps, key=lambda way: ramps[way])
    first = ramps[way] or sweep.first / gpu.STEP
    setting, rate = best_of(sweep.settings, first, asked(server, sweep, way, given))
    served = server.served(way, server.targets(setting, sweep.networks, given))
    duration_s = PROBE_S / 2 if quick else PROBE_S
    best = gpu.highest(lambda rate: probe(served, rate, duration_s), rate, TOLERANCE)
    return f"{setting}, by {way}", best.load.goodput_rps if best else 0.0


def sweeps_of(networks: Sequence[Network], parts: Sequence[str], quick: bool) -> list[Sweep]:
    """One network alone, and all of them."""
    found = []
    if "triton" in parts:
        found.append(
            Sweep(
                gpu.ONE_SERVED, networks[:1], QUICK if quick else ONE, Setting(2, 64, 2), FIRST_ONE
            )
        )
    if "triton-three" in parts:
        settings = QUICK[:2] if quick else THREE
        found.append(Sweep(gpu.THREE_SERVED, networks, settings, Setting(2, 32, 2), FIRST_THREE))
    return found


def held_by(sweeps: Sequence[Sweep]) -> list[tuple[Setting, Network]]:
    """All that a server must hold, each once."""
    pairs = [
        (setting, network)
        for sweep in sweeps
        for setting in sweep.settings
        for network in sweep.networks
    ]
    return list(dict.fromkeys(pairs))


def networks_of(folder: Path, choices: Mapping[str, Choice]) -> list[Network]:
    """With the kernels that our own server would run."""
    found = []
    for name, choice in choices.items():
        path = folder / f"choice-{name}.json"
        save_choice(path, choice)
        found.append(Network(name, f"torchvision:{name}", SHAPE, "cuda", path))
    return found


def answers(server: TritonGpu, sweep: Sweep) -> Any:
    """Scores that the first network gives to the same inputs as our own server gets."""
    network = sweep.networks[0]
    tensors = [
        RawTensor("input", "UINT8", (1, network.size), gpu.raw(seed).data)
        for seed in range(gpu.IMAGES)
    ]
    return gpu.answers(server, sweep.settings[0].of(network.name), tensors)


def triton_figures(
    folder: Path, parts: Sequence[str], choices: Mapping[str, Choice], offline: Offline,
    ours: Mapping[str, float], quick: bool,
) -> Iterator[Figure]:  # fmt: skip
    """`ours` are our own rates by name, where they were measured."""
    sweeps = sweeps_of(networks_of(folder, choices), parts, quick)
    environment = {
        "TORCH_HOME": os.fspath(folder),
        "XDG_CACHE_HOME": os.fspath(folder / CACHE),
    }
    given = pixels(1, seed=0).tobytes()
    with triton_gpu(folder / "triton", held_by(sweeps), gpu.SLO_MS, environment) as server:
        yield from gpu.compare("Triton, raw pixels", answers(server, sweeps[0]), offline.raw)
        for sweep in sweeps:
            setting, served_rps = highest_of(server, sweep, given, quick)
            yield Figure(f"{sweep.name}: Triton, {setting}", served_rps, "req/s", 0)
            if served_rps and sweep.name in ours:
                yield Figure("  ours over Triton", ours[sweep.name] / served_rps, "x", AIM)
