"""Builds the engine that a scenario describes; from here on nothing sees the scenario."""

import math
from dataclasses import dataclass, replace

from fermata.applications.application import Application
from fermata.applications.variant import Variant
from fermata.router.assembly import Assembly as RouterAssembly
from fermata.router.assembly import RouterConfig
from fermata.router.assembly import assemble as assemble_router
from fermata.router.core.engine import Engine
from fermata.router.policies.application import ApplicationSpec
from fermata.router.policies.family import Family
from fermata.router.policies.ownership import Ownership
from fermata.simulator.scenario.scenario import Scenario

Z_99 = 2.3263
"""The 99th percentile of a standard normal variable."""
BATCH_SIZE_MAX = 1024
"""Where a linear profile has no end of its own."""


@dataclass(frozen=True, slots=True)
class SimulatedAssembly:
    """An engine with its backends, and what a driver needs beside it."""

    engine: Engine
    accuracy: list[float | None]
    """By variant."""
    router: RouterAssembly
    ownership: Ownership
    """Backends that an application's source runs by itself."""
    families: tuple[Family, ...]
    """By application."""


def assemble(scenario: Scenario, weights: dict[int, float]) -> SimulatedAssembly:
    """The router's own engine for this scenario, with every backend up unless their number
    changes: then the control brings them up."""
    built = assemble_router(
        RouterConfig(
            applications=tuple(
                _served(each, weights, scenario.swap) for each in scenario.applications
            ),
            policy=scenario.policy,
            policy_options=scenario.policy_options,
            lead_ns=scenario.dispatch_ns,
            seed=scenario.seed,
            fair_shares=scenario.fair_shares,
            sub_clusters=1 if scenario.epochs is None else scenario.epochs.sub_clusters,
        )
    )
    if not scenario.scales:
        for backend in range(scenario.backends):
            owner = built.ownership.take(backend)
            built.engine.on_backend_up(0, backend, owner=owner, resident=scenario.resident)
    accuracy = [variant.accuracy for each in scenario.applications for variant in each.variants]
    return SimulatedAssembly(built.engine, accuracy, built, built.ownership, built.families)


def _served(application: Application, weights: dict[int, float], swap: bool) -> ApplicationSpec:
    variants = tuple(_variant(each, application.slo_ns_max, swap) for each in application.variants)
    return replace(application, variants=variants, weights=weights)


def _variant(variant: Variant, slo_ns_max: int, swap: bool) -> Variant:
    """The variant with its run times by batch size.

    Where backends hold one model at a time, a swap-in that is not known is a load, as live.
    """
    profile = variant.profile
    assert profile is not None
    p50_ns = tuple(profile.table_ns(batch_size_max(variant, slo_ns_max)))
    p99_ns = None
    if profile.linear_ns is None:
        p99_ns = tuple(profile.table_ns_p99(len(p50_ns)))
    swap_in_ns = variant.swap_in_ns or (max(1, profile.load_ns) if swap else 0)
    return replace(variant, p50_ns=p50_ns, p99_ns=p99_ns, swap_in_ns=swap_in_ns)


def batch_size_max(variant: Variant, slo_ns_max: int) -> int:
    """The largest batch that could be of use: one that alone still meets the loosest SLO."""
    profile = variant.profile
    assert profile is not None
    ends = (profile.batch_size_max, variant.batch_size_max)
    low, high = 1, min([end for end in ends if end] or [BATCH_SIZE_MAX])
    while low < high:
        middle = (low + high + 1) // 2
        if profile.latency_ns(middle) <= slo_ns_max:
            low = middle
        else:
            high = middle - 1
    return low


def spreads(scenario: Scenario) -> list[list[float]]:
    """By the engine's variant and batch size less one: the log-normal spread that takes a run from
    the profile's median to its 99th percentile."""
    of_variants: list[list[float]] = []
    for application in scenario.applications:
        for variant, profile in zip(application.variants, application.profiles, strict=True):
            size_max = batch_size_max(variant, application.slo_ns_max)
            if profile.linear_ns is not None:
                of_variants.append([0.0] * size_max)
                continue
            pairs = zip(profile.table_ns(size_max), profile.table_ns_p99(size_max), strict=True)
            of_variants.append([math.log(p99 / p50) / Z_99 for p50, p99 in pairs])
    return of_variants
