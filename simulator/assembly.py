"""Builds the engine that a scenario describes; from here on nothing sees the scenario."""

import math
from dataclasses import dataclass, replace

from fermata.applications.application import Application
from fermata.applications.backends import BackendGroup
from fermata.applications.variant import Variant
from fermata.profiles.profile import Profile, slowed
from fermata.router.assembly import Assembly as RouterAssembly
from fermata.router.assembly import RouterConfig
from fermata.router.assembly import assemble as assemble_router
from fermata.router.core.engine import Engine
from fermata.router.policies.application import ApplicationSpec, RunTimes
from fermata.router.policies.family import Family
from fermata.router.policies.ownership import Ownership
from fermata.simulator.scenario.scenario import Scenario

Z_99 = 2.3263
"""The 99th percentile of a standard normal variable."""
BATCH_SIZE_MAX = 1024
"""Where a linear profile has no end of its own."""
PLAIN = BackendGroup(1)
"""A backend on which run times are what variants say."""


@dataclass(frozen=True, slots=True)
class SimulatedAssembly:
    """An engine with its backends, and what a driver needs beside it."""

    engine: Engine
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
            applications=tuple(_served(each, weights, scenario) for each in scenario.applications),
            policy=scenario.policy,
            policy_options=scenario.policy_options,
            lead_ns=scenario.dispatch_ns,
            seed=scenario.seed,
            fair_shares=scenario.fair_shares,
            shared_backends=scenario.shared_backends,
            sub_clusters=_sub_clusters(scenario),
        )
    )
    for each in built.engine.ranks:
        each.lead_per_request_ns = scenario.fetch_ns
    for application, home in enumerate(scenario.homes):
        built.engine.move_application(0, application, home)
    if not scenario.scales:
        for backend, kind in enumerate(scenario.kind_of):
            owner = built.ownership.take(backend)
            rank = scenario.place_of(backend)
            resident = scenario.resident
            built.engine.on_backend_up(0, backend, kind, rank, owner=owner, resident=resident)
    return SimulatedAssembly(built.engine, built, built.ownership, built.families)


def _sub_clusters(scenario: Scenario) -> int:
    if scenario.homes:
        return 1 + max(*scenario.homes, *scenario.places)
    return 1 if scenario.epochs is None else scenario.epochs.sub_clusters


def _served(
    application: Application, weights: dict[int, float], scenario: Scenario
) -> ApplicationSpec:
    slo_ns_max = application.slo_ns_max
    variants = tuple(_variant(each, slo_ns_max, scenario) for each in application.variants)
    return replace(application, variants=variants, weights=weights)


def _variant(variant: Variant, slo_ns_max: int, scenario: Scenario) -> Variant:
    """The variant with its run times by batch size, on each kind of backend.

    Where backends hold one model at a time, a swap-in that is not known is a load, as live.
    """
    profile = variant.profile
    assert profile is not None
    first, *others = (_run_times(variant, slo_ns_max, group) for group in scenario.kinds)
    swap_in_ns = variant.swap_in_ns or (max(1, profile.load_ns) if scenario.swap else 0)
    return replace(
        variant,
        p50_ns=first.p50_ns,
        p99_ns=first.p99_ns,
        other_kinds=tuple(others),
        swap_in_ns=swap_in_ns,
    )


def _run_times(variant: Variant, slo_ns_max: int, group: BackendGroup) -> RunTimes:
    profile = profile_on(variant, group)
    p50_ns = tuple(profile.table_ns(batch_size_max(variant, slo_ns_max, group)))
    p99_ns = None
    if profile.linear_ns is None:
        p99_ns = tuple(profile.table_ns_p99(len(p50_ns)))
    return RunTimes(p50_ns, p99_ns)


def profile_on(variant: Variant, group: BackendGroup) -> Profile:
    """Run times on a kind of backend: its own profile, or the variant's, so much slower."""
    if group.kind in variant.profiles:
        return variant.profiles[group.kind]
    assert variant.profile is not None
    return slowed(variant.profile, group.slower)


def batch_size_max(variant: Variant, slo_ns_max: int, group: BackendGroup = PLAIN) -> int:
    """The largest batch that could be of use: one that alone still meets the loosest SLO."""
    profile = profile_on(variant, group)
    ends = (profile.batch_size_max, variant.batch_size_max)
    low, high = 1, min([end for end in ends if end] or [BATCH_SIZE_MAX])
    while low < high:
        middle = (low + high + 1) // 2
        if profile.latency_ns(middle) <= slo_ns_max:
            low = middle
        else:
            high = middle - 1
    return low


def spreads(scenario: Scenario) -> list[list[list[float]]]:
    """By kind, the engine's variant and batch size less one: the log-normal spread that takes a
    run from the profile's median to its 99th percentile."""
    return [
        [
            _spreads(variant, application.slo_ns_max, group)
            for application in scenario.applications
            for variant in application.variants
        ]
        for group in scenario.kinds
    ]


def _spreads(variant: Variant, slo_ns_max: int, group: BackendGroup) -> list[float]:
    times = _run_times(variant, slo_ns_max, group)
    if times.p99_ns is None:
        return [0.0] * len(times.p50_ns)
    pairs = zip(times.p50_ns, times.p99_ns, strict=True)
    return [math.log(p99 / p50) / Z_99 for p50, p99 in pairs]
