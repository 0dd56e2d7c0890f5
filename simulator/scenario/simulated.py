"""Applications of a file as a simulation needs them: run times known, SLOs within reach."""

from dataclasses import replace

from fermata.applications.application import Application
from fermata.applications.clients import ClientsSpec
from fermata.applications.variant import (
    EMULATED,
    RUN_TIMES,
    Variant,
    measured_by,
    merged,
    with_profile,
)
from fermata.foundation.refusals import refuse
from fermata.profiles.profile import Profile
from fermata.profiles.store import Table
from fermata.simulator.scenario.content_spec import resolve_content

STRONG_BATCHING = 2.0
"""Beta over alpha above which Symphony counts a model as batching well (its gt2 and lt2)."""


def simulated(where: str, application: Application) -> Application:
    """The application with everything that a simulation fills in, or a ConfigError in one line."""
    variants = tuple(
        _variant(f"{where}.variants[{index}]", each)
        for index, each in enumerate(application.variants)
    )
    profiles = [each.profile for each in variants if each.profile is not None]
    fastest_ns = min(profile.latency_ns(1) for profile in profiles)
    _check_reachable(f"{where}.slo_ms", application.slo_ns, fastest_ns)
    clients = tuple(
        _clients(f"{where}.clients[{index}]", each, application.slo_ns, fastest_ns)
        for index, each in enumerate(application.clients)
    )
    if application.newest and not clients:
        refuse(f"{where}.newest", True, "needs clients, whose frames supersede one another")
    if application.sequences and not clients:
        refuse(f"{where}.sequences", True, "needs clients, each with a sequence at a time")
    classes, content = None, None
    if application.class_options is not None:
        classes, content = resolve_content(f"{where}.classes", application.class_options, profiles)
    return replace(
        application,
        variants=variants,
        hard_limit_ns=application.limit_ns,
        clients=clients,
        streams=bool(clients),
        classes=classes,
        content=content,
    )


def _variant(where: str, variant: Variant) -> Variant:
    profile = merged(variant)
    if profile is None:
        if variant.model == EMULATED:
            refuse(where, [], f"has no run times; give one of {RUN_TIMES}")
        refuse(where, variant.name, f"has no run times; {measured_by([variant])}")
    return with_profile(variant, profile)


def _clients(where: str, clients: ClientsSpec, slo_ns: int, fastest_ns: int) -> ClientsSpec:
    found = replace(clients, slo_ns=clients.slo_ns or slo_ns)
    _check_reachable(f"{where}.slo_ms", found.slo_ns, fastest_ns)
    return found


def _check_reachable(name: str, slo_ns: int, fastest_ns: int) -> None:
    """Refuse an SLO that the fastest variant cannot meet."""
    if slo_ns < fastest_ns:
        rule = f"no batch of 1 can meet it; must be at least {fastest_ns / 1e6:g} ms"
        refuse(name, slo_ns / 1e6, rule)


def read_zoo(where: str, table: Table, setting: str) -> tuple[Application, ...]:
    """An application for each profile of a table, with the SLO that the table gives it."""
    found: list[Application] = []
    for profile in table.profiles:
        if profile.slo_ns is None or profile.linear_ns is None:
            refuse(where, table.name, "has no SLOs; use symphony-1080ti or -a100")
        alpha_ns, beta_ns = profile.linear_ns
        strong = beta_ns / alpha_ns > STRONG_BATCHING
        if setting == "all" or strong == (setting == "gt2"):
            found.append(_alone(profile, profile.slo_ns))
    return tuple(found)


def _alone(profile: Profile, slo_ns: int) -> Application:
    variant = Variant(profile.name, source=profile, profile=profile)
    return Application(profile.name, slo_ns, (variant,))
