"""Other policies, or other options of them, for the applications of a router that serves.

Sources are built anew where an application's policy, its options or its share of backends change.
All others stay as they are, with whatever they have learnt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fermata.foundation.errors import ConfigError
from fermata.router.assembly import (
    Assembly,
    RouterConfig,
    build_all,
    check,
    policy_of,
    shares_of,
    successor_of,
)
from fermata.router.core.fairness.admission import StreamAdmission
from fermata.router.core.replacement import Successor, replace_sources
from fermata.router.core.source import Source
from fermata.router.policies.catalog import group_of
from fermata.router.policies.family import Family
from fermata.router.policies.ownership import Ownership


@dataclass(frozen=True, slots=True)
class GivenPolicy:
    """A policy with its options."""

    policy: str
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AppliedPolicy(GivenPolicy):
    """The policy of one application; empty: that of the router."""

    backend_share: float


@dataclass(frozen=True, slots=True)
class PolicySet(GivenPolicy):
    """The policies of a router; all that may change while it serves."""

    shared_backends: bool
    applications: Mapping[str, AppliedPolicy]


def policies_of(config: RouterConfig) -> PolicySet:
    """The policies in a configuration."""
    applied = {
        each.name: AppliedPolicy(each.policy, each.policy_options, each.backend_share)
        for each in config.applications
    }
    return PolicySet(config.policy, config.policy_options, config.shared_backends, applied)


def with_policies(config: RouterConfig, wanted: PolicySet) -> RouterConfig:
    """The same configuration with these policies; they must be of the same applications."""
    names = {each.name for each in config.applications}
    if names != set(wanted.applications):
        raise ConfigError("applications come and go with a new router, not with new policies")
    applications = tuple(
        replace(
            each,
            policy=wanted.applications[each.name].policy,
            policy_options=wanted.applications[each.name].options,
            backend_share=wanted.applications[each.name].backend_share,
        )
        for each in config.applications
    )
    return replace(
        config,
        applications=applications,
        policy=wanted.policy,
        policy_options=wanted.options,
        shared_backends=wanted.shared_backends,
    )


def change_policies(now_ns: int, built: Assembly, wanted: PolicySet) -> list[str]:
    """Serve by these policies from now on; returns the applications that are served otherwise.
    The engine's effects must have been taken."""
    config = with_policies(built.config, wanted)
    check(config)
    families = [
        Family(each.application, spec, each.variants)
        for each, spec in zip(built.families, config.applications, strict=True)
    ]
    sources = build_all(config, families, built.served)
    changed = _changed(built, config, sources)
    successors: dict[int, Successor] = {}
    for number in sorted(changed):
        each = successor_of(config, families[number], sources[number], built.engine)
        successors[number] = _keep_streams(built, number, each)
    ownership = Ownership(shares_of(config, sources, built.served))
    built.ownership = _owners(built, ownership, changed)
    built.config = config
    built.families = tuple(
        families[number] if number in changed else each
        for number, each in enumerate(built.families)
    )
    if successors:
        replace_sources(built.engine, now_ns, successors, built.ownership.owner)
    return [config.applications[number].name for number in sorted(changed)]


def serve_only(now_ns: int, built: Assembly, served: frozenset[int]) -> None:
    """Have backends belong to the policies of these applications alone: others live at other
    routers. Where policies share all backends, those whose part is another one are built anew. The
    engine's effects must have been taken."""
    built.served = served
    if built.config.shared_backends:
        change_policies(now_ns, built, policies_of(built.config))
    else:
        built.ownership.serve(shares_of(built.config, built.engine.sources, served))


def _changed(built: Assembly, config: RouterConfig, sources: list[Source]) -> set[int]:
    """Applications that need another source. Those that one source serves change together."""
    served, changed = built.engine.sources, set[int]()
    for number, then in enumerate(config.applications):
        now = built.config.applications[number]
        same = group_of(*policy_of(built.config, now)) == group_of(*policy_of(config, then))
        if not same or served[number].share != sources[number].share:
            changed.add(number)
    while True:
        gone = {served[number] for number in changed}
        came = {sources[number] for number in changed}
        pairs = enumerate(zip(served, sources, strict=True))
        more = {number for number, (now, then) in pairs if now in gone or then in came}
        if more == changed:
            return changed
        changed = more


def _owners(built: Assembly, ownership: Ownership, changed: set[int]) -> Ownership:
    """The new owners of backends. Those whose sources stay keep what they have, also where nothing
    of theirs is served here: others get it once it is idle. The rest goes to who has least."""
    stay = [each for number, each in enumerate(built.engine.sources) if number not in changed]
    pooled = None in ownership.shares or not changed or any(not each.owns_backends for each in stay)
    homeless: list[int] = []
    for backend, owner in sorted(built.ownership.owner.items()):
        if pooled if owner is None else owner not in changed:
            ownership.keep(backend, owner)
        else:
            homeless.append(backend)
    for backend in homeless:
        ownership.take(backend)
    return ownership


def _keep_streams(built: Assembly, number: int, each: Successor) -> Successor:
    """Streams of clients go on, whatever the policy."""
    before = built.engine.admissions[number]
    if isinstance(before, StreamAdmission) and isinstance(each.admission, StreamAdmission):
        return replace(each, admission=before)
    return each
