"""Groups of backends as kinds: which applications each can serve, and within which limits. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fermata.applications.application import Application
from fermata.autoscaler.options import KindLimit
from fermata.deployments.config.backend_groups import are_apart, limits_of, own_config
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.resolve import variants
from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import ANY_KIND, PlacedModel
from fermata.profiles.profile import Profile
from fermata.router.policies.catalog import POLICIES

Profiles = Mapping[str, Profile]
"""Run times by variant."""
WAITS = 2
"""Run times of one request that an SLO should hold: it may come just after a batch has begun."""


def kind_of(config: DeploymentConfig, number: int) -> str:
    """The kind of a sub-cluster's backends, in plans. Groups of one device may differ in what else
    is theirs, so each counts as a kind."""
    return f"group {number}" if are_apart(config) else ANY_KIND


def kind_limits(config: DeploymentConfig) -> tuple[KindLimit, ...]:
    """Limits by kind; none where sub-clusters are alike."""
    if not are_apart(config):
        return ()
    limits = [limits_of(config, group) for group in config.backends]
    return tuple(KindLimit((at,), most, least) for at, (least, most) in enumerate(limits))


def shares_of(config: DeploymentConfig) -> tuple[float, ...]:
    """By sub-cluster: how many backends it may have, where they are kinds."""
    return tuple(float(each.maximum) for each in kind_limits(config))


def on_kinds(
    config: DeploymentConfig, by_group: Sequence[Mapping[str, PlacedModel]]
) -> dict[str, PlacedModel]:
    """Applications with their run times on each kind that can hold their SLO. `by_group` has those
    that may live on each group, as measured there."""
    found: dict[str, PlacedModel] = {}
    names = {name: None for own in by_group for name in own}
    for name in names:
        own = {at: each[name] for at, each in enumerate(by_group) if name in each}
        first = next(iter(own.values()))
        found[name] = replace(
            first,
            static_bytes=max(each.static_bytes for each in own.values()),
            dynamic_bytes=max(each.dynamic_bytes for each in own.values()),
            profiles={
                kind_of(config, at): own[at].profiles[ANY_KIND] for at in _holding(name, own)
            },
        )
    return found


def in_time_by(
    application: Application, model: PlacedModel, profiles: Profiles, policy: str
) -> PlacedModel:
    """An application on one group, with the run times of its first variant that is in time there.
    A policy that chooses none runs the first one, whatever that takes."""
    own = [profiles[each.name] for each in application.variants]
    for waits in (WAITS, 1) if POLICIES[policy].chooses else ():
        held = [each for each in own if waits * each.latency_ns(1) <= model.slo_ns]
        if held:
            return replace(model, profiles={ANY_KIND: held[0]})
    return model


def _holding(name: str, own: Mapping[int, PlacedModel]) -> list[int]:
    """Groups that serve an application in time: with room to wait, else without."""
    for waits in (WAITS, 1):
        held = [
            at
            for at, each in own.items()
            if waits * each.profiles[ANY_KIND].latency_ns(1) <= each.slo_ns
        ]
        if held:
            return held
    slo_ms = next(iter(own.values())).slo_ns / 1e6
    raise ConfigError(f"slo_ms={slo_ms:g} of {name} is below its run time on every group; raise it")


def in_time(config: DeploymentConfig, profiles: Profiles) -> frozenset[str]:
    """Applications of a group that it can serve in time at all: its router knows no others."""
    late = set[str]()
    for application in config.served:
        fastest = min(profiles[each.name].latency_ns(1) for each in application.variants)
        if fastest > application.slo_ns:
            late.add(application.name)
    return frozenset(each.name for each, _ in variants(config)) - late


def able_on(config: DeploymentConfig, by_group: Sequence[Profiles]) -> list[frozenset[str]]:
    """By sub-cluster: applications that may live there and are served in time. Its router knows no
    others, so nothing else may have a home there. `by_group` is empty where sub-clusters are
    alike, or run times are not known yet."""
    own = [own_config(config, each) for each in range(config.sub_clusters.routers)]
    if not by_group:
        return [frozenset(each.name for each in own_one.applications) for own_one in own]
    return [in_time(each, profiles) for each, profiles in zip(own, by_group, strict=True)]
