"""The H200's grid: two families of measured models, at many loads and SLOs."""

from collections.abc import Iterator
from math import exp, log

from fermata.foundation.json_types import Json, JsonObject
from fermata.profiles.store import find
from fermata.simulator.tournament.draw import Draw

FAMILIES: dict[str, dict[str, float]] = {
    "resnet": {"resnet18": 0.69758, "resnet50": 0.7613, "resnet152": 0.78312},
    "efficientnet": {
        "efficientnet_b0": 0.77692,
        "efficientnet_b2": 0.80608,
        "efficientnet_b4": 0.83384,
    },
}
"""Accuracies as torchvision publishes them, of its first weights."""
SLOS_MS = (15, 25, 50, 100)
LOADS = 12
LOAD = (0.03, 1.1)
"""The lowest and the highest, over what the cheapest full batches could serve."""
BACKENDS = 8
REQUESTS = 10_000


def grid() -> Iterator[Draw]:
    """Every point, as a draw without a seed of its own."""
    for name, accuracies in FAMILIES.items():
        for slo_ms in SLOS_MS:
            for step in range(LOADS):
                low, high = log(LOAD[0]), log(LOAD[1])
                load = exp(low + (high - low) * step / (LOADS - 1))
                yield _point(name, accuracies, slo_ms, load)


def _point(name: str, accuracies: dict[str, float], slo_ms: int, load: float) -> Draw:
    rate_rps = load * BACKENDS * 1e9 / min(_each_ns(model, slo_ms) for model in accuracies)
    variants: list[Json] = [
        {"name": model, "profile": f"h200-graph/{model}", "accuracy": accuracy}
        for model, accuracy in accuracies.items()
    ]
    document: JsonObject = {
        "backends": BACKENDS,
        "rate_rps": rate_rps,
        "duration_s": REQUESTS / rate_rps,
        "warmup_s": max(1.0, REQUESTS / rate_rps / 4.0),
        "execution": {"jitter": 0.02},
        "applications": [{"name": name, "slo_ms": slo_ms, "variants": variants}],
    }
    traits = (f"{BACKENDS} backends", name, f"SLO {slo_ms} ms", f"load {load:.2f}")
    return Draw(0, document, traits, load, 0.0)


def _each_ns(model: str, slo_ms: int) -> float:
    """Time for each request in the best batch within the SLO."""
    profile = find(f"h200-graph/{model}")
    table = profile.table_ns(profile.batch_size_max or 64)
    fits = [run_ns / size for size, run_ns in enumerate(table, 1) if run_ns <= slo_ms * 1e6]
    return min(fits, default=float(table[0]))
