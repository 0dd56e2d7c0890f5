"""Variants that RAMSIS leaves out: none that some batch size is better off with."""

from collections.abc import Sequence

import pytest

from fermata.router.policies.ramsis.latency import undominated
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

STEEP = [5.0 * size for size in range(1, 17)]
FLAT = [6.0 + 0.5 * (size - 1) for size in range(1, 17)]
GPU = [6.5] * 8 + [6.5 + 0.7 * size for size in range(1, 9)]


def test_variant_stays_that_is_faster_at_any_size() -> None:
    assert undominated(((5, 10, 15), (6, 7, 8)), (0.7, 0.7)) == [0, 1]
    # Larger batches count, though the other is faster and more accurate.
    assert undominated(((5, 10), (6, 11, 16)), (0.8, 0.7)) == [0, 1]


def test_variant_goes_that_another_matches_everywhere() -> None:
    assert undominated(((6, 8), (5, 8), (9, 9)), (0.7, 0.7, 0.8)) == [1, 2]
    assert undominated(((6, 8), (6, 8, 10)), (0.7, 0.7)) == [1]
    assert undominated(((6, 8), (6, 8), (6, 8)), (0.7, 0.7, 0.6)) == [0]


def served(
    tables: Sequence[tuple[Sequence[float], float]], rate_rps: float, slo_ms: float, backends: int
) -> RunReport:
    variants = [
        {"name": f"v{index}", "latency_ms": list(table), "accuracy": accuracy}
        for index, (table, accuracy) in enumerate(tables)
    ]
    scenario = read_scenario(
        {
            "seed": 3,
            "backends": backends,
            "policy": "ramsis",
            "policy_options": {"bins": 40, "load_rps": rate_rps},
            "rate_rps": rate_rps,
            "duration_s": 4,
            "applications": [{"name": "task", "slo_ms": slo_ms, "variants": variants}],
        }
    )
    return report(scenario, simulate(scenario))


@pytest.mark.parametrize("slo_ms", [30.0, 60.0])
@pytest.mark.parametrize(("added", "kept"), [(STEEP, FLAT), (STEEP, GPU), (FLAT, GPU)])
def test_one_more_variant_never_costs_goodput(
    added: Sequence[float], kept: Sequence[float], slo_ms: float
) -> None:
    alone = served([(kept, 0.7)], 600.0, slo_ms, 2)
    both = served([(added, 0.7), (kept, 0.7)], 600.0, slo_ms, 2)
    assert alone.bad_rate < 0.005
    assert both.bad_rate <= alone.bad_rate + 0.002


def test_one_more_variant_never_costs_accuracy() -> None:
    cheap, good = (STEEP, 0.7), (GPU, 0.8)
    alone = served([good], 600.0, 40.0, 2)
    both = served([cheap, good], 600.0, 40.0, 2)
    assert both.bad_rate <= alone.bad_rate + 0.002
    assert both.accuracy == pytest.approx(0.8)


def test_backlog_runs_on_what_is_quick_in_large_batches() -> None:
    # More than there is time for: without tables and beyond them, the flat variant carries most.
    alone = served([(FLAT, 0.7)], 3000.0, 30.0, 2)
    both = served([(STEEP, 0.7), (FLAT, 0.7)], 3000.0, 30.0, 2)
    assert both.bad_rate <= alone.bad_rate + 0.005
