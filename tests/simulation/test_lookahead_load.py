"""The policy that looks ahead, on loads beside those that policies were tuned on."""

from dataclasses import replace

import pytest

from fermata.foundation.json_types import Json, JsonObject
from fermata.simulator.arrivals import generate
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import read_scenario
from fermata.simulator.tournament.bound import fluid_bound
from fermata.simulator.tournament.draw import draw
from fermata.simulator.tournament.play import earned, play

RESNETS: list[Json] = [
    {"name": name, "profile": f"h200-graph/{name}", "accuracy": accuracy}
    for name, accuracy in (("resnet18", 0.6976), ("resnet50", 0.7613), ("resnet152", 0.7831))
]


def played(document: JsonObject) -> tuple[float, float, float]:
    """Utility, violations and the bound."""
    scenario = replace(read_scenario(document), policy="lookahead")
    arrivals = generate(scenario)
    utility, violations = earned(scenario, Driver(scenario, arrivals=arrivals).run(), True)
    return utility, violations, fluid_bound(scenario, arrivals)


@pytest.mark.parametrize(
    ("backends", "slo_ms", "rate_rps"),
    [(1, 100, 500), (1, 25, 2000), (4, 25, 8000), (1, 15, 500), (1, 50, 6000), (1, 25, 9000)],
)
def test_profiles_of_gpus_give_what_the_bound_allows(
    backends: int, slo_ms: int, rate_rps: int
) -> None:
    utility, violations, bound = played(
        {
            "backends": backends,
            "rate_rps": rate_rps,
            "duration_s": min(6.0, 10_000 / rate_rps),
            "warmup_s": 1,
            "applications": [{"name": "resnet", "slo_ms": slo_ms, "variants": RESNETS}],
        }
    )
    assert utility >= bound - 0.001
    assert violations <= 0.001


@pytest.mark.parametrize("policy", ["lookahead", "central-queue"])
@pytest.mark.parametrize(
    ("lead_ms", "input_us", "rate_rps"), [(8.0, 200, 4000), (8.0, 50, 4000), (3.0, 500, 4000)]
)
def test_inputs_that_take_long_do_not_end_in_small_batches(
    policy: str, lead_ms: float, input_us: int, rate_rps: int
) -> None:
    """A request that waits long leaves room for few others, which then wait long themselves."""
    document: JsonObject = {
        "backends": 1,
        "policy": policy,
        "rate_rps": rate_rps,
        "duration_s": 3,
        "warmup_s": 1,
        "dispatch_ms": lead_ms,
        "execution": {"jitter": 0.4},
        "applications": [{"name": "resnet", "slo_ms": 25, "variants": RESNETS}],
    }
    scenario = read_scenario(document)
    driver = Driver(scenario)
    for rank in driver.engine.ranks:
        rank.lead_per_request_ns = input_us * 1000
    utility, violations = earned(scenario, driver.run(), True)
    # The cheapest network alone would have 0.6976, and no violation.
    assert utility >= 0.69
    assert violations <= 0.01


def applications(rates: list[float]) -> JsonObject:
    rows: list[Json] = [
        {"name": f"app-{place}", "slo_ms": 50, "variants": RESNETS, "weight": rate}
        for place, rate in enumerate(rates)
    ]
    return {
        "backends": 2,
        "rate_rps": sum(rates),
        "duration_s": 2,
        "warmup_s": 1,
        "popularity": "weights",
        "applications": rows,
    }


def test_one_application_fares_as_two_halves_of_it() -> None:
    whole, _, _ = played(applications([12_000.0]))
    halves, violations, _ = played(applications([6_000.0, 6_000.0]))
    assert halves == pytest.approx(whole, abs=0.003)
    assert violations <= 0.001


def test_a_variant_of_equal_accuracy_costs_nothing() -> None:
    steep = [5.0 * size for size in range(1, 33)]
    flat = [6.0 + 0.5 * (size - 1) for size in range(1, 33)]
    variants: list[Json] = [
        {"name": "steep", "latency_ms": list(steep), "accuracy": 0.8},
        {"name": "flat", "latency_ms": list(flat), "accuracy": 0.8},
    ]
    _, violations, _ = played(
        {
            "backends": 2,
            "rate_rps": 600,
            "duration_s": 5,
            "warmup_s": 1,
            "applications": [{"name": "twins", "slo_ms": 60, "variants": variants}],
        }
    )
    assert violations <= 0.001


@pytest.mark.parametrize("seed", [2, 13, 24, 41])
def test_it_is_far_above_the_price_of_time_on_drawn_loads(seed: int) -> None:
    """Draws on which the central queue lost ten points and more, or one on bursts."""
    match = play(draw(seed, (2, 12), 8_000), ("central-queue", "lookahead", "deferred"))
    assert match.regret("lookahead") <= 0.005
