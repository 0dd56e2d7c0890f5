"""Figures of one GPU: rates served within 25 ms, and answers against offline inference."""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
from rich.console import Console

from benchmarks.figures import Figure
from benchmarks.gpu_models import SHAPE, Offline, frames, need_gpu, pixels, prepare
from benchmarks.gpu_server import SENDERS as SENDERS_ROLE
from benchmarks.gpu_server import GpuServer, Spent
from benchmarks.natives import with_natives
from fermata.clients.frames import encode_jpeg
from fermata.clients.load.arrivals import SendTimes, poisson
from fermata.clients.load.ledger import OK, LoadLedger
from fermata.clients.load.report import LoadReport, report
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import SenderOptions, Target
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import (
    RawTensor,
    add_input,
    from_array,
    join_bytes,
    response_tensors,
    to_array,
)
from fermata.deployments.backend.execution.cuda.captured import PLAIN
from fermata.deployments.backend.kernels.choice import Choice
from fermata.foundation.units import ms, seconds

MODELS = ("resnet50", "mobilenet_v3_large", "vit_b_16")
SLO_MS = 25.0
GOOD = 0.99
BATCH = 128
SHOWN = (1, 8, 64, 128)
"""Batch sizes whose kernels are shown."""
COMPILED_SIZES = (128, 64, 32, 16, 8, 4, 2, 1)
PROBE_S = 4.0
LESS = 0.96
"""Share of a rate that is tried where the rate is not confirmed."""
CONFIRM_S = 30.0
JPEG_FIRST = 9_000
"""Rate with which the search for JPEG begins."""
FRONTENDS = 10
"""On 16 cores: each sends about 1,600 requests a second on, of 150 KB each."""
SENDERS = 6
STREAMS = 32
"""Of each sender: the kernel spreads connections over frontends by chance, so there are many."""
WARMUP_S = 1.0
STEP = 1.3
IMAGES = 32
ONE_SERVED = f"ResNet-50 fp16, SLO {SLO_MS:g} ms, 150 KB pixels"
THREE_SERVED = f"{', '.join(MODELS)}, equal rates, SLO {SLO_MS:g} ms"
PLAIN_ONE = 950
"""req/s of plain Ray Serve with ResNet-50 at its best on an H200 (docs/gpu.md)."""
ASK_S = 20.0


class HasGrpc(Protocol):
    """A server that speaks the Open Inference Protocol."""

    @property
    def grpc(self) -> str:
        """Host and port."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one rate gave."""

    rate: float
    load: LoadReport
    worst: float
    """Share of good answers of the model that fared worst."""
    spent: Spent

    @property
    def good(self) -> bool:
        return self.worst >= GOOD

    def line(self) -> str:
        load, spent = self.load, self.spent
        p50, p99 = load.latency_ms["p50"] or 0.0, load.latency_ms["p99"] or 0.0
        cores = ", ".join(f"{name} {value:.2f}" for name, value in spent.cores.items())
        busiest = ", ".join(f"{name} {value:.2f}" for name, value in spent.busiest.items())
        return (
            f"{self.rate:,.0f}/s: {self.worst:.2%} good, p50 {p50:.1f}, p99 {p99:.1f} ms, batch "
            f"{load.mean_batch or 0:.1f}, late {load.late}, unsent {load.unsent}, "
            f"lost {load.lost}, refused {load.refused}, "
            f"sent late {load.pacing_ms_p99 or 0:.1f} ms; "
            f"cores: {cores}; busiest thread: {busiest}; {spent.router}"
        )


def say(text: str) -> None:
    Console(stderr=True, width=400).print(text, highlight=False)


def target(model: str, tensor: RawTensor) -> Target:
    return Target(model, tensor, ms(SLO_MS))


def raw(index: int) -> RawTensor:
    return from_array("input", pixels(1, seed=index)[0])


def encoded(index: int) -> RawTensor:
    frame = frames(1, seed=index)[0]
    return RawTensor("input", "BYTES", (1,), join_bytes([encode_jpeg(frame)]))


def due(rate: float, total_ns: int, targets: int, seed: int) -> SendTimes:
    """Poisson arrivals, each of which goes to any target with the same chance."""
    rng = np.random.default_rng(seed)
    at_ns = poisson(rate, total_ns, rng)
    return SendTimes(at_ns, rng.integers(0, targets, len(at_ns)), np.zeros(len(at_ns), np.int64))


def worst_share(
    ledger: LoadLedger, targets: Sequence[Target], from_ns: int, own: Sequence[int] = ()
) -> float:
    """Share of good answers at the target that fared worst, among all or the `own` ones."""
    latency_ns = ledger.answered_ns - ledger.scheduled_ns
    counted = ledger.scheduled_ns >= from_ns
    shares: list[float] = []
    for number in own or range(len(targets)):
        target = targets[number]
        mine = counted & (ledger.target == number)
        good = mine & ledger.mask(OK) & (latency_ns <= target.slo_ns)
        shares.append(float(good.sum() / max(1, mine.sum())))
    return min(shares)


def probe(server: GpuServer, targets: list[Target], duration_s: float, rate: float) -> Probe:
    from_ns, total_ns = seconds(WARMUP_S), seconds(WARMUP_S + duration_s)
    options = SenderOptions(server.grpc, STREAMS)
    arrivals = due(rate, total_ns, len(targets), seed=round(rate))
    with server.watch(rate, duration_s) as spent:
        ledger = run_load(options, targets, arrivals, SENDERS)
    slo_ns = np.array([target.slo_ns for target in targets])
    load = report(ledger, slo_ns, from_ns, total_ns)
    found = Probe(rate, load, worst_share(ledger, targets, from_ns), spent)
    say("  " + found.line())
    return found


def highest(ask: Any, first: float, tolerance: float) -> Probe | None:
    """The highest rate that is still good, to within `tolerance`; None where none is."""
    low: Probe | None = None
    rate, failed = first, 0.0
    while not failed or (low is None and rate > first / 8):
        found: Probe = ask(rate)
        if found.good:
            low = found
            rate *= STEP
        else:
            failed = rate
            if low is None:
                rate /= STEP
    while low is not None and failed / low.rate > 1 + tolerance:
        found = ask((low.rate * failed) ** 0.5)
        if found.good:
            low = found
        else:
            failed = found.rate
    return low


def config(models: Sequence[str], batch: int = BATCH, kernels: str = "auto") -> dict[str, Any]:
    """A deployment of these models, whose backend measures their run times at its start."""
    applications = [
        {
            "name": model,
            "slo_ms": SLO_MS,
            "input": {"dtype": "UINT8", "shape": list(SHAPE), "image": True},
            "variants": [
                {
                    "name": f"{model}-fp16",
                    "model": f"torchvision:{model}",
                    "batch_size_max": batch,
                }
            ],
        }
        for model in models
    ]
    return with_natives(
        {
            "applications": applications,
            "frontend": {"processes": FRONTENDS},
            "backend": {"count": 1, "device": "cuda", "cpus": 1, "kernels": kernels},
        }
    )


def answers(server: HasGrpc, model: str, tensors: list[RawTensor]) -> Any:
    """Scores of each input, through the whole path."""
    rows = []
    with grpc.insecure_channel(server.grpc) as channel:
        stub = InferenceStub(channel)
        for tensor in tensors:
            request = pb.ModelInferRequest(model_name=model)
            add_input(request, tensor)
            for attempt in range(3):
                try:
                    response = stub.ModelInfer(request, timeout=ASK_S)
                    break
                except grpc.RpcError:
                    # The first requests meet cold caches; a missed deadline is no wrong answer.
                    if attempt == 2:
                        raise
            rows.append(to_array(response_tensors(response)[0]).reshape(-1))
    return np.stack(rows)


def softmax(logits: Any) -> Any:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def compare(name: str, got: Any, offline: tuple[Any, Any]) -> Iterator[Figure]:
    wanted, half = offline
    same = float((got.argmax(axis=1) == wanted.argmax(axis=1)).mean())
    gap = float(np.abs(softmax(got) - softmax(wanted)).max())
    gap_half = float(np.abs(softmax(got) - softmax(half)).max())
    say(f"  {name}: largest score {softmax(wanted).max():.3f}, logits within "
        f"{np.abs(got - wanted).max():.4f} of up to {np.abs(wanted).max():.2f}")  # fmt: skip
    yield Figure(f"{name}: same class as offline fp32", same, "share", 1.0)
    yield Figure(f"{name}: scores off offline fp16 by", gap_half, "", 1e-2, at_most=True)
    yield Figure(f"{name}: scores off offline fp32 by", gap, "", 1e-2, at_most=True)


Ask = Callable[..., Probe]


def confirmed(ask: Ask, best: Probe | None, quick: bool) -> Probe | None:
    """The rate that is good twice for long, at most `best`; a short probe may be lucky."""
    while best is not None and not quick:
        again = [ask(best.rate, CONFIRM_S) for _ in range(2)]
        if all(each.good for each in again):
            return min(again, key=lambda each: each.worst)
        best = again[0] if best.rate > 100 else None
        if best is not None:
            best = replace(best, rate=LESS * best.rate)
    return best


def search(
    server: GpuServer, targets: list[Target], first: float, tolerance: float, quick: bool
) -> Probe | None:
    """The highest rate that is good, by short probes, confirmed by long ones."""

    def ask(rate: float, duration_s: float = PROBE_S) -> Probe:
        return probe(server, targets, duration_s / 2 if quick else duration_s, rate)

    return confirmed(ask, highest(ask, first, tolerance), quick)


def cpu_figures(best: Probe, goal: float) -> Iterator[Figure]:
    """CPU time of a request, by role, and of the server together."""
    server = [role for role in best.spent.cores if role != SENDERS_ROLE]
    for role, cores in best.spent.cores.items():
        if role == SENDERS_ROLE:
            continue
        yield Figure(f"  CPU of {role}", 1e6 * cores / best.rate, "us/request", goal, at_most=True)
    total = sum(best.spent.cores[role] for role in server)
    yield Figure("  CPU of the server", 1e6 * total / best.rate, "us/request", goal, at_most=True)


def one_model(
    folder: Path, choice: Choice, offline: Offline, quick: bool, kernels: str
) -> Iterator[Figure]:
    model = MODELS[0]
    with GpuServer(folder, config([model], kernels=kernels)) as server:
        server.wait(FRONTENDS)
        yield from compare(
            "raw pixels", answers(server, model, [raw(n) for n in range(IMAGES)]), offline.raw
        )
        yield from compare(
            "640x360 JPEG", answers(server, model, [encoded(n) for n in range(IMAGES)]),
            offline.encoded,
        )  # fmt: skip
        targets = [target(model, raw(0))]
        calm = probe(server, targets, PROBE_S, 1_000)
        for name, goal in (("p50", 2.5), ("p99", 4.5)):
            found = calm.load.latency_ms[name] or 0.0
            yield Figure(f"ResNet-50 at 1,000 req/s, {name}", found, "ms", goal, at_most=True)
        lead = probe(server, targets, PROBE_S, 10_000).spent.lead_ms
        yield Figure("ResNet-50 at 10,000 req/s, lead", lead, "ms", 2, at_most=True)
        best = search(server, targets, 15_000, 0.15 if quick else 0.05, quick)
        served = best.load.goodput_rps if best else 0.0
        yield Figure(ONE_SERVED, served, "req/s", 15_000)
        yield Figure("  over plain Ray Serve", served / PLAIN_ONE, "x", 8)
        yield Figure("  over its kernels offline", served / fastest(choice), "share", 0.53)
        if best is not None:
            yield from cpu_figures(best, 400)
        targets = [target(model, encoded(0))]
        best = search(server, targets, JPEG_FIRST, 0.2 if quick else 0.05, quick)
        name = f"ResNet-50 fp16, SLO {SLO_MS:g} ms, 640x360 JPEG"
        yield Figure(name, best.load.goodput_rps if best else 0.0, "req/s", 12_000)
        if best is not None:
            yield from cpu_figures(best, 330)


def fastest(choice: Choice) -> float:
    """Images a second of the fastest way at its best batch."""
    rates = [
        1e9 * size / took_ns
        for found in choice.times_ns.values()
        for size, took_ns in found.items()
    ]
    return max(rates)


def kernel_figures(model: str, choice: Choice) -> Iterator[Figure]:
    """Images a second of every way that agreed with the plain one."""
    plain = choice.times_ns[PLAIN]
    for way, found in choice.times_ns.items():
        for size in sorted(set(found) & set(SHOWN)):
            rate, goal = 1e9 * size / found[size], 1e9 * size / plain[size]
            yield Figure(f"{model}, {way}, batch {size}", rate, "images/s", goal)


def three_models(folder: Path, quick: bool, kernels: str) -> float:
    """The highest total rate at which each of them is good."""
    with GpuServer(folder, config(MODELS, kernels=kernels)) as server:
        server.wait(FRONTENDS)
        targets = [target(model, raw(0)) for model in MODELS]
        probe(server, targets, PROBE_S, 1_000)
        best = search(server, targets, 9_000, 0.15 if quick else 0.05, quick)
    return best.load.goodput_rps if best else 0.0


def three_plain(folder: Path, quick: bool) -> float:
    """The same of plain Ray Serve, over its replicas."""
    from benchmarks.gpu_plain import sweep

    best = 0.0
    replicas, rates = (2, 4), (600, 800, 1_000)
    found = sweep(folder, MODELS, replicas[:1] if quick else replicas, rates, SLO_MS, 3.0)
    for count, rate, share in found:
        say(f"  plain Ray Serve, {count} replicas each: {rate:,.0f}/s: {share:.2%} good")
        if share >= GOOD:
            best = max(best, rate)
    return best


def three_figures(
    folder: Path, parts: Sequence[str], quick: bool, kernels: str
) -> Iterator[Figure]:
    ours = plain = 0.0
    if "three" in parts:
        ours = three_models(folder, quick, kernels)
        yield Figure(THREE_SERVED, ours, "req/s", 12_000)
    if "plain" in parts:
        plain = three_plain(folder, quick)
        yield Figure(f"{THREE_SERVED}, plain Ray Serve through handles", plain, "req/s", 0)
    if ours and plain:
        yield Figure("  over plain Ray Serve", ours / plain, "x", 5)


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    need_gpu()
    ours: dict[str, float] = {}
    for figure in _measure(parts, quick, ours):
        ours[figure.figure] = figure.value
        yield figure


def _measure(parts: Sequence[str], quick: bool, ours: Mapping[str, float]) -> Iterator[Figure]:
    """`ours` are the figures so far, by name."""
    alone = {"ways", "compiling"}
    if alone & set(parts):
        from benchmarks.gpu_ways import ways_figures

        yield from ways_figures(parts, quick)
    if not set(parts) - alone:
        return
    # A server looks for choices among the ways that it would try itself.
    kernels = "compiled" if "compiled" in parts else "auto"
    models = MODELS if {"kernels", "three", "triton-three"} & set(parts) else MODELS[:1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A process of its own: what it holds of the GPU goes when it ends.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            sizes = COMPILED_SIZES if "compiled" in parts else ()
            given = (folder, models, config(models), IMAGES, sizes)
            choices, offline = pool.apply(prepare, given)
        if {"kernels", "compiled"} & set(parts):
            for model, choice in choices.items():
                yield from kernel_figures(model, choice)
        if "one" in parts:
            yield from one_model(folder, choices[MODELS[0]], offline, quick, kernels)
        yield from three_figures(folder, parts, quick, kernels)
        if {"triton", "triton-three"} & set(parts):
            from benchmarks.gpu_triton import triton_figures

            yield from triton_figures(folder, parts, choices, offline, ours, quick)
