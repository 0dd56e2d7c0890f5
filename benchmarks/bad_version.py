"""A new version of a model that turns out bad, on trial under load: it goes, and nobody is lost."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Figure
from benchmarks.ledger_load import load
from benchmarks.live_server import Running, fermata

RATE_RPS = 60.0
WITHDRAWN_S = 10.0
GOOD_CALLS = 30
"""It is well while it is warmed up, and for its first few batches."""
VARIANT = {"alpha_ms": 1, "beta_ms": 2}
COMMON = {"name": "m", "slo_ms": 100, "input": {"shape": [4]}}
OLD = {**VARIANT, "name": "m-1", "model": "emulated"}
NEW = {**VARIANT, "name": "m-2", "model": "benchmarks.bad_version:bad_model", "batch_size_max": 4}
TRIAL = {"share": 0.3, "bad_rate_max": 0.1, "requests_min": 20}
Array = npt.NDArray[Any]


def bad_model() -> Callable[[Array], Array]:
    """What the new version loads."""
    calls = 0

    def run(batch: Array) -> Array:
        nonlocal calls
        calls += 1
        if calls > GOOD_CALLS:
            raise RuntimeError("the weights are of another model")
        return np.asarray(batch)

    return run


def withdrawn(server: Running) -> bool:
    end_s = time.monotonic() + WITHDRAWN_S
    while time.monotonic() < end_s:
        if "m@2" in server.status()["absent"]:
            return True
        time.sleep(0.2)
    return False


def measure(quick: bool) -> Iterator[Figure]:
    applications = [
        {**COMMON, "version": 1, "variants": [OLD]},
        {**COMMON, "version": 2, "canary": TRIAL, "variants": [NEW]},
    ]
    with fermata(
        applications=applications,
        backend={"count": 1, "device": "emulated", "cpus": 0.1},
    ) as server:
        during = load(server.address, "m", RATE_RPS, 6)
        gone = withdrawn(server)
        after = load(server.address, "m", RATE_RPS, 2 if quick else 6)
    sent = during["requests"]
    yield Figure("bad canary withdrawn (1: yes)", float(gone), "", 1)
    yield Figure(f"requests lost of {sent} while it went", during["lost"], "", 0, at_most=True)
    failed = after["refused"].get("INTERNAL", 0)
    yield Figure(f"failed of {after['requests']} afterwards", failed, "", 0, at_most=True)
    yield Figure("lost of those", after["lost"], "", 0, at_most=True)
