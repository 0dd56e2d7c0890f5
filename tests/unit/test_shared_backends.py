"""Policies with queues for single backends take turns on backends that they share."""

from typing import Any

import numpy as np
import pytest

from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.matching.time_share import TimeShares
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.ramsis.source import Ramsis
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario, read_scenario

LANES = ("routing", "single-queue", "jellyfish", "sneakpeek")


def application(policy: str, number: int = 0, **more: Any) -> dict[str, Any]:
    name = f"{policy}-{number}"
    sizes = (("small", 0.5, 0.70, 160), ("middle", 1.0, 0.76, 192), ("large", 2.0, 0.80, 224))
    variants = [
        {
            "name": f"{name}-{size}",
            "alpha_ms": alpha_ms,
            "beta_ms": 3 * alpha_ms,
            "accuracy": accuracy,
            "input_size": side,
        }
        for size, alpha_ms, accuracy, side in sizes
    ]
    options = {"window_ms": 10} if policy == "sneakpeek" else {}
    given = {"name": name, "slo_ms": 100, "policy": policy, "policy_options": options}
    return {**given, "variants": variants, **more}


def scenario_of(policies: tuple[str, ...], backends: int, rate_rps: float, **top: Any) -> Scenario:
    rows = [application(policy, number) for number, policy in enumerate(policies)]
    given = {"seed": 5, "duration_s": 3, "warmup_s": 1, "backends": backends}
    return read_scenario({**given, "rate_rps": rate_rps, "applications": rows, **top})


def bad_rates(scenario: Scenario) -> list[float]:
    log = simulate(scenario)
    arrivals = log.arrivals
    measured = arrivals.at_ns >= scenario.warmup_ns
    good = (log.end_ns > 0) & (log.end_ns - arrivals.at_ns <= arrivals.slo_ns)
    of = [measured & (arrivals.application == each) for each in range(len(scenario.applications))]
    return [1.0 - float(np.sum(good & mine)) / max(1, int(np.sum(mine))) for mine in of]


# Accounts


def test_the_one_furthest_behind_its_share_goes_first() -> None:
    shares = TimeShares()
    large, small = shares.add(0.75), shares.add(0.25)
    given = {large: 0, small: 0}
    for _ in range(400):
        party = min(shares.parties, key=shares.turn_ns)
        given[party] += 1
        shares.charge(party, ms(10))
    assert given[large] == pytest.approx(300, abs=2)


def test_nobody_saves_time_up_while_away() -> None:
    shares = TimeShares()
    steady, away = shares.add(0.5), shares.add(0.5)
    for _ in range(1000):
        shares.charge(steady, ms(10))
    ahead_ns = shares.turn_ns(steady) - shares.turn_ns(away)
    # One batch, and the time by which it may be ahead.
    assert ahead_ns * steady.share <= shares.rules.ahead_ns + ms(10)


# Policies


@pytest.mark.parametrize("backends", [1, 2])
def test_lane_policies_and_a_pool_share(backends: int) -> None:
    policies = (*LANES, "deferred", "central-queue")
    scenario = scenario_of(policies, backends, 150.0 * backends)
    assert scenario.shared_backends
    assert max(bad_rates(scenario)) <= 0.01


@pytest.mark.parametrize("policy", LANES)
def test_two_of_a_policy_share_one_backend(policy: str) -> None:
    assert max(bad_rates(scenario_of((policy, policy), 1, 150.0))) <= 0.01


def test_an_application_in_overload_costs_the_others_nothing() -> None:
    """Shares hold where there is not time for all."""
    rates = {"routing-0": [100], "deferred-1": [3000], "single-queue-2": [100]}
    arrivals = {"process": "trace", "applications": rates, "step_s": 4}
    policies = ("routing", "deferred", "single-queue")
    scenario = scenario_of(policies, 1, 3200.0, arrivals=arrivals)
    calm, flooded, other = bad_rates(scenario)
    assert flooded > 0.2
    assert max(calm, other) <= 0.02


def test_enough_backends_are_parted_as_ever() -> None:
    scenario = scenario_of(("routing", "deferred"), 2, 100.0)
    assert not scenario.shared_backends


def test_a_backend_that_dies_is_missed_by_all_who_share_it() -> None:
    faults = [{"at_s": 1, "backend": 0, "kind": "crash", "for_s": 1}]
    policies = ("routing", "single-queue", "jellyfish", "deferred")
    assert max(bad_rates(scenario_of(policies, 2, 200.0, faults=faults))) <= 0.02


def spec(name: str, policy: str, share: float = 1.0) -> ApplicationSpec:
    variant = VariantSpec(f"{name}-model", (ms(5), ms(6)), accuracy=0.8)
    return ApplicationSpec(name, ms(100), (variant,), policy=policy, backend_share=share)


def test_ramsis_solves_for_its_share() -> None:
    specs = (spec("a", "ramsis", 3.0), spec("b", "routing"))
    built = assemble(RouterConfig(specs, shared_backends=True))
    assert built.ownership.take(0) is None
    engine = built.engine
    engine.on_backend_up(0, 0)
    engine.on_time(ms(60))
    source = engine.sources[0]
    assert isinstance(source, Ramsis)
    (job,) = [effect.work for effect in engine.take_effects()]  # type: ignore[union-attr]
    assert job.share == 0.75  # type: ignore[union-attr]
    assert job.problem.latency_ns == ((int(ms(5) / 0.75), int(ms(6) / 0.75)),)  # type: ignore[union-attr]


@pytest.mark.parametrize("backends", [1, 2])
def test_the_central_queue_leaves_others_their_share(backends: int) -> None:
    # 60 % of what the backends serve with every request alone on the smallest variant.
    policies = ("routing", "jellyfish", "sneakpeek", "central-queue", "deferred")
    top = {"duration_s": 8, "warmup_s": 2}
    assert max(bad_rates(scenario_of(policies, backends, 300.0 * backends, **top))) <= 0.005


def test_a_policy_of_the_pool_chooses_by_its_share() -> None:
    alone, beside = (
        simulate(scenario_of(policies, 1, 120.0 * len(policies), duration_s=6, warmup_s=1))
        for policies in (("jellyfish-plus",), ("jellyfish-plus", "routing"))
    )
    means = []
    for log in (alone, beside):
        mine = (log.arrivals.application == 0) & (log.end_ns > 0)
        accuracy = np.array([each or 0.0 for each in log.accuracy])
        means.append(float(accuracy[log.variant[mine]].mean()))
    assert 0.70 < means[1] < means[0]
