"""Builds the engine that a scenario describes; from here on nothing sees the scenario."""

import random
from dataclasses import dataclass

from profiles.profile import Profile
from router.core.admission import StreamAdmission
from router.core.costs import Costs
from router.core.engine import Engine
from router.policies.catalog import build_sources
from simulator.scenario import Scenario

BATCH_SIZE_MAX = 1024
"""Where a linear profile has no end of its own."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine and what a driver needs to emulate its backends."""

    engine: Engine
    accuracy: list[float | None]
    """By variant."""


def assemble(scenario: Scenario, weights: dict[int, float]) -> Assembly:
    """An engine with every application, variant and backend of the scenario."""
    costs = Costs()
    engine = Engine(costs)
    accuracy: list[float | None] = []
    serving: list[int] = []
    for application in scenario.applications:
        serving.append(len(accuracy))
        for profile in application.variants:
            p50_ns = profile.table_ns(_batch_size_max(profile, application.slo_ns_max))
            p99_ns = None
            if profile.linear_ns is None:
                p99_ns = profile.table_ns_p99(len(p50_ns))
            costs.add(len(accuracy), p50_ns, p99_ns, swap_in_ns=profile.swap_in_ns)
            accuracy.append(profile.accuracy)
    rng = random.Random(f"{scenario.seed} policy")
    sources = build_sources(scenario.policy, scenario.policy_options, serving, rng)
    for application, source in zip(scenario.applications, sources, strict=True):
        admission = None
        if application.clients:
            admission = StreamAdmission(engine.outbox, application.newest, weights)
        engine.add_application(source, admission=admission)
    engine.ranks[0].lead_start_ns = scenario.dispatch_ns
    owner = 0 if sources[0].owns_backends else None
    for backend in range(scenario.backends):
        engine.on_backend_up(0, backend, owner=owner)
    return Assembly(engine, accuracy)


def _batch_size_max(profile: Profile, slo_ns_max: int) -> int:
    """The largest batch that could be of use: one that alone still meets the loosest SLO."""
    low, high = 1, profile.batch_size_max or BATCH_SIZE_MAX
    while low < high:
        middle = (low + high + 1) // 2
        if profile.latency_ns(middle) <= slo_ns_max:
            low = middle
        else:
            high = middle - 1
    return low
