"""One application in lasting overload: its batches are full, and backends are never idle."""

from typing import Any

import pytest

from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

ALPHA_MS, BETA_MS, LARGEST = 0.4, 12.0, 64
FULL_MS = ALPHA_MS * LARGEST + BETA_MS


def share_of_limit(
    backends: int,
    slo_ms: float,
    load: float,
    arrivals: dict[str, Any],
    slower: tuple[int, float] = (0, 1.0),
) -> float:
    """Goodput over what backends do that run full batches all the time; `slower` are so many more,
    and the factor by which they take longer."""
    more, factor = slower
    limit_rps = (backends + more / factor) * LARGEST * 1e3 / FULL_MS
    kinds = [{"count": backends}, {"count": more, "kind": "slow", "slower": factor}]
    run_ms = {"alpha_ms": ALPHA_MS, "beta_ms": BETA_MS, "batch_size_max": LARGEST}
    document = {
        "seed": 1,
        "duration_s": 3,
        "warmup_s": 0.5,
        "rate_rps": load * limit_rps,
        "backends": kinds if more else backends,
        "policy": "auto",
        "policy_options": {"hold": "auto"},
        "arrivals": arrivals,
        "applications": [
            {"name": "one", "slo_ms": slo_ms, "variants": [{"name": "net", **run_ms}]}
        ],
    }
    scenario = read_scenario(document)
    return report(scenario, simulate(scenario)).good_rps / limit_rps


@pytest.mark.parametrize("backends", [2, 8, 24])
@pytest.mark.parametrize("slo_ms", [80.0, 200.0])
def test_full_batches_are_run_in_lasting_overload(backends: int, slo_ms: float) -> None:
    assert share_of_limit(backends, slo_ms, 1.3, {"process": "poisson"}) > 0.97


@pytest.mark.parametrize(
    ("backends", "slo_ms", "slower", "least"),
    [(1, 120.0, (1, 1.9), 0.98), (4, 60.0, (4, 2.0), 0.91), (4, 120.0, (4, 3.0), 0.98)],
)
def test_slower_kinds_run_full_batches_too(
    backends: int, slo_ms: float, slower: tuple[int, float], least: float
) -> None:
    assert share_of_limit(backends, slo_ms, 1.25, {"process": "poisson"}, slower) > least


@pytest.mark.parametrize("load", [0.85, 0.9])
def test_below_the_limit_nobody_goes_for_a_full_batch(load: float) -> None:
    assert share_of_limit(8, 80.0, load, {"process": "poisson"}) > 0.995 * load


def test_who_hardly_fits_makes_no_batch_small_where_few_wait() -> None:
    """While a batch runs, fewer come than the window has. The first of them have time for a batch
    of three, and all the others for one of their own."""
    run_ms = [8.8, 9.9, 11.9, 11.9, 13.2, *[14.6] * 59]
    document = {
        "seed": 1,
        "duration_s": 3,
        "warmup_s": 0.5,
        "rate_rps": 4_400,
        "backends": 1,
        "policy": "auto",
        "policy_options": {"hold": "auto"},
        "execution": {"jitter": 0.05},
        "arrivals": {"process": "gamma", "shape": 0.1},
        "applications": [
            {"name": "one", "slo_ms": 29.3, "variants": [{"name": "net", "latency_ms": run_ms}]}
        ],
    }
    scenario = read_scenario(document)
    assert report(scenario, simulate(scenario)).good_rps > 0.7 * 4_400
