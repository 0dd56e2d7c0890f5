"""A 99th percentile measured three times too high: ten seconds later nothing is lost by it."""

from itertools import accumulate

import pytest

from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

Variant = dict[str, object]


def variant(name: str, accuracy: float, p50_ms: list[float], bad: int = 0) -> Variant:
    """A variant whose 99th percentile of one batch size is three times too high; 0: of none. As
    profiles are, it never falls."""
    tails = [3.15 if size == bad else 1.05 for size in range(1, len(p50_ms) + 1)]
    p99_ms = accumulate((each * tail for each, tail in zip(p50_ms, tails, strict=True)), max)
    found = {"name": name, "accuracy": accuracy, "latency_ms": p50_ms, "p99_ms": list(p99_ms)}
    return dict(found)


def run(
    policy: str, variants: list[Variant], rate_rps: float, slo_ms: float, **values: object
) -> RunReport:
    scenario = read_scenario(
        {
            "seed": 3,
            "duration_s": 10,
            "warmup_s": 10,
            "backends": 2,
            "policy": policy,
            "rate_rps": rate_rps,
            "applications": [{"name": "app", "slo_ms": slo_ms, "variants": variants}],
            **values,
        }
    )
    return report(scenario, simulate(scenario))


def alone(bad: int) -> list[Variant]:
    """Variants that run one request at a time."""
    return [variant("small", 0.70, [10.0]), variant("large", 0.80, [40.0], bad)]


def batched(bad: int) -> list[Variant]:
    sizes = range(1, 17)
    small = variant("small", 0.70, [2 + 0.1 * size for size in sizes])
    return [small, variant("large", 0.80, [8 + 0.2 * size for size in sizes], bad)]


@pytest.mark.parametrize(
    "policy", ["auto", "central-queue", "routing", "single-queue", "jellyfish-plus"]
)
def test_a_variant_of_one_size_comes_back(policy: str) -> None:
    exact, wrong = (run(policy, alone(bad), 20, 100) for bad in (0, 1))
    assert wrong.accuracy == pytest.approx(exact.accuracy, abs=0.002)
    assert wrong.bad_rate <= exact.bad_rate + 0.001


@pytest.mark.parametrize("bad", [1, 3, 16])
@pytest.mark.parametrize("policy", ["auto", "routing", "jellyfish-plus", "ramsis"])
def test_a_variant_with_one_wrong_size_runs_as_if_it_were_right(policy: str, bad: int) -> None:
    exact, wrong = (run(policy, batched(each), 300, 25) for each in (0, bad))
    assert wrong.accuracy == pytest.approx(exact.accuracy, abs=0.002)
    assert wrong.bad_rate <= exact.bad_rate + 0.001


@pytest.mark.parametrize("policy", ["auto", "central-queue", "ramsis", "jellyfish-plus"])
def test_the_zoo_s_resnets_carry_what_the_smallest_does(policy: str) -> None:
    zoo: list[Variant] = [
        {"profile": "h200-graph/resnet18", "accuracy": 0.6976},
        {"profile": "h200-graph/resnet50", "accuracy": 0.7613},
        {"profile": "h200-graph/resnet152", "accuracy": 0.7831},
    ]
    served = run(policy, zoo, 16_000, 10, backends=1, duration_s=1, warmup_s=1)
    assert served.bad_rate < 0.001


@pytest.mark.parametrize("policy", ["auto", "central-queue", "routing", "single-queue"])
def test_a_tail_that_is_real_is_tried_at_hardly_anyone_s_cost(policy: str) -> None:
    served = run(policy, alone(1), 20, 100, duration_s=100, execution={"draw": "profile"})
    assert served.bad_rate < 0.004
