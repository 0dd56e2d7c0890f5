"""A router's applications, live or simulated, and the engine built from them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Request
from fermata.router.core.fairness.admission import Admission, StreamAdmission
from fermata.router.core.fairness.shares import FairAdmission
from fermata.router.core.outbox import Outbox
from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.core.replacement import Successor
from fermata.router.core.source import Source
from fermata.router.policies.application import ApplicationSpec
from fermata.router.policies.auto import AUTO, resolved
from fermata.router.policies.catalog import (
    POLICIES,
    build_sources,
    check_movable,
    group_of,
    read_options,
)
from fermata.router.policies.family import Family
from fermata.router.policies.ownership import Ownership
from fermata.router.policies.sequences import SEQUENCES
from fermata.router.policies.sneakpeek.classes import LOOK, check_classes, sharpened
from fermata.router.policies.sneakpeek.options import SneakPeekOptions, room_ns

if TYPE_CHECKING:
    from fermata.router.policies.sneakpeek.estimator import Estimator


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything that a router is configured with at its start."""

    applications: tuple[ApplicationSpec, ...]
    policy: str = AUTO
    policy_options: Mapping[str, object] = field(default_factory=dict)
    """As users write them."""
    kind: str = ""
    """Kind of the backends whose run times these are; empty: the kind of the first to come."""
    lead_ns: int = ms(1)
    """Dispatch and fetch, until they have been measured."""
    seed: int = 0
    swap: bool = False
    """A backend holds one model at a time; others are swapped in."""
    fair_shares: bool = False
    """Refuse on arrival what is above an application's or a client's fair share of backends."""
    shared_backends: bool = False
    """Policies with queues of their own for each backend share all backends by `backend_share`,
    rather than having some for themselves."""
    sub_clusters: int = 1
    """RankThreads; every application starts on the first, a plan moves it."""
    loads_all: bool = False
    """Backends come without models, and are told to load those of every application here."""
    moves: bool = False
    """Applications come here and leave for other routers, as the control plane says. Until then
    those are here that backends hold."""
    pipelines: Mapping[str, Pipeline] = field(default_factory=dict)
    """By name; applications of their stages are numbered as above."""


@dataclass(slots=True)
class Assembly:
    """An engine, and the names of what it counts. Policies may change, the rest stays."""

    config: RouterConfig

    engine: Engine
    applications: dict[str, int]
    variants: tuple[str, ...]
    """By the engine's number."""
    families: tuple[Family, ...]
    """By application."""
    ownership: Ownership
    """Backends that an application's source runs by itself."""
    estimators: "tuple[Estimator | None, ...]"
    """By application: makes estimates of evidence; None where there is none."""
    served: frozenset[int] | None = None
    """Applications that live here, by number, where that is not all of them: those elsewhere have
    no part of the backends."""

    def unused_variants(self) -> list[str]:
        """Names of the variants that no policy will ever run."""
        unused = {each for source in self.engine.sources for each in source.unused_variants}
        return [self.variants[each] for each in sorted(unused)]

    def expected(self, request: Request, variant: int) -> float | None:
        """How likely a variant is to answer this very request right, without class weights;
        None where no evidence has come in."""
        classes = self.families[request.application].classes
        if request.estimate is None or classes is None:
            return None
        local = self.families[request.application].variants.index(variant)
        return sharpened(classes.recall[local], request.estimate.classes)

    def on_votes(self, now_ns: int, rid: int, votes: Sequence[float], answers: bool = True) -> bool:
        """Evidence for a queued request has come in; false if it came too late to matter. Without
        `answers` it is no answer by itself."""
        request = self.engine.outbox.queued.get(rid)
        if request is None:
            return False
        estimator = self.estimators[request.application]
        if estimator is None or len(votes) != estimator.classes.count:
            return False
        estimate = estimator.on_votes(votes)
        if not answers:
            estimate.label = -1
        return self.engine.on_update(now_ns, rid, estimate.accuracies, estimate)

    def on_truth(
        self, application: str, label: int, variant: str, answer: int, tenant: int
    ) -> bool:
        """A client has told the true class of an earlier request; false where that says nothing."""
        number = self.applications.get(application)
        estimator = None if number is None else self.estimators[number]
        if number is None or estimator is None or not 0 <= label < estimator.classes.count:
            return False
        own = [self.variants[each] for each in self.families[number].variants]
        local = own.index(variant) if variant in own else -1
        right = None if answer < 0 else answer == label
        return estimator.on_truth(label, local, variant == LOOK, right, tenant)


def assemble(config: RouterConfig) -> Assembly:
    """The engine that a driver drives; it has no backends yet."""
    check(config)
    costs = Costs()
    engine = Engine(costs, config.sub_clusters)
    names: list[str] = []
    families: list[Family] = []
    for application in config.applications:
        first = len(names)
        for variant in application.variants:
            p99_ns = None if variant.p99_ns is None else list(variant.p99_ns)
            swap_in_ns = variant.swap_in_ns or 0
            costs.add(len(names), list(variant.p50_ns), p99_ns, swap_in_ns=swap_in_ns)
            for kind, times in enumerate(variant.other_kinds, 1):
                p99_ns = None if times.p99_ns is None else list(times.p99_ns)
                costs.add(len(names), list(times.p50_ns), p99_ns, kind)
            names.append(variant.name)
        families.append(Family(len(families), application, tuple(range(first, len(names)))))
    sources = build_all(config, families)
    for family, source in zip(families, sources, strict=True):
        each = successor_of(config, family, source, engine)
        engine.add_application(each.source, admission=each.admission, runs=each.runs)
    for rank in engine.ranks:
        rank.lead_start_ns = config.lead_ns
    return Assembly(
        config,
        engine,
        {application.name: number for number, application in enumerate(config.applications)},
        tuple(names),
        tuple(families),
        Ownership(shares_of(config, sources)),
        tuple(_estimator(family) for family in families),
    )


def successor_of(config: RouterConfig, family: Family, source: Source, engine: Engine) -> Successor:
    """A source with what belongs to it."""
    if POLICIES[policy_of(config, family.spec)[0]].chooses:
        engine.costs.add_siblings([family.variants[place] for place in family.choices()])
    return Successor(
        source,
        _admission(config, family.spec, source, family, engine.outbox),
        _what_runs(config, family.spec, source, family),
    )


def _admission(
    config: RouterConfig,
    application: ApplicationSpec,
    source: Source,
    family: Family,
    outbox: Outbox,
) -> Admission | None:
    weights = dict(application.weights)
    if application.newest:
        return StreamAdmission(outbox, True, weights)
    # Where clients are mapped, the mapping says who is served.
    if source.maps_clients:
        return None
    if config.fair_shares:
        policy, _ = policy_of(config, application)
        places = family.choices() if POLICIES[policy].chooses else []
        lightest = min(each.fair_share for each in config.applications)
        variants = tuple(family.variants[place] for place in places) or (family.serving,)
        weight = application.fair_share / lightest
        return FairAdmission(source, variants, application.slo_ns, weight, weights)
    return StreamAdmission(outbox, False, weights) if application.streams else None


def _what_runs(
    config: RouterConfig, application: ApplicationSpec, source: Source, family: Family
) -> frozenset[int] | None:
    """Variants that any request of the application may meet with; None where its policy runs
    each request only on what that request allows."""
    if source.respects_client_limits:
        return None
    policy, _ = policy_of(config, application)
    if not POLICIES[policy].chooses:
        return frozenset((family.serving,))
    return family.above(family.accuracy_floor)


def _estimator(family: Family) -> "Estimator | None":
    if family.classes is None or family.classes.peek is None:
        return None
    from fermata.router.policies.sneakpeek.estimator import Estimator

    return Estimator(family.classes, family.accuracy, family.accuracy_floor)


def build_all(
    config: RouterConfig, families: list[Family], served: frozenset[int] | None = None
) -> list[Source]:
    """A source for each application; those with the same policy and options are built together.
    Only those that are `served` share backends; all unless given."""
    groups: dict[str, list[int]] = {}
    for number, application in enumerate(config.applications):
        policy, options = policy_of(config, application)
        groups.setdefault(group_of(policy, options), []).append(number)
    rng = random.Random(config.seed)
    sources: dict[int, Source] = {}
    for numbers in groups.values():
        policy, options = policy_of(config, config.applications[numbers[0]])
        built = build_sources(policy, options, [families[number] for number in numbers], rng)
        sources.update(zip(numbers, built, strict=True))
    found = [sources[number] for number in range(len(families))]
    if config.shared_backends:
        _share_backends(config, found, served)
    return found


def policy_of(
    config: RouterConfig, application: ApplicationSpec
) -> tuple[str, Mapping[str, object]]:
    """The policy that serves an application, and its options as users write them."""
    if application.policy:
        return resolved(application, application.policy, application.policy_options)
    return resolved(application, config.policy, config.policy_options)


def _share_backends(
    config: RouterConfig, sources: list[Source], served: frozenset[int] | None
) -> None:
    """Give every source its part of the backends' time; those of the pool have theirs together."""
    shares = shares_of(config, sources, served)
    if len(shares) < 2:
        return
    total = sum(shares.values())
    lone = {number: source.owns_backends for number, source in enumerate(sources)}
    for number, source in enumerate(sources):
        first = sources.index(source)
        owner = first if lone[first] else None
        if first == number and owner in shares:
            source.share_backends(shares[owner] / total)


def shares_of(
    config: RouterConfig, sources: list[Source], served: frozenset[int] | None = None
) -> dict[int | None, float]:
    """Shares of the owners of backends, by the first application of each; None is the pool. Only
    those that are `served` count; all unless given."""
    shares: dict[int | None, float] = {}
    for number, source in enumerate(sources):
        if served is None or number in served:
            owner = sources.index(source) if source.owns_backends else None
            share = config.applications[number].backend_share
            shares[owner] = shares.get(owner, 0.0) + share
    return shares


def check(config: RouterConfig) -> None:
    """Refuse what cannot work, in the operator's words."""
    if not config.applications:
        raise ConfigError("applications is empty; serve at least one")
    seen: set[str] = set()
    for application in config.applications:
        if application.name in seen:
            raise ConfigError(f"application {application.name!r} is there twice; rename one")
        seen.add(application.name)
        _check_application(application)
        if application.sequences and config.swap:
            raise ConfigError(
                f"application {application.name!r}: sequences need their model to stay loaded; "
                "leave backend.swap out, or sequences"
            )
        _check_policy(config, application)


def _check_policy(config: RouterConfig, application: ApplicationSpec) -> None:
    policy, options = policy_of(config, application)
    if policy not in POLICIES:
        raise ConfigError(f"policy={policy!r} is unknown; one of {', '.join(POLICIES)}")
    if config.sub_clusters > 1:
        check_movable((policy,))
    _check_window(config, application)
    if application.classes is not None:
        where = f"application {application.name!r}: classes."
        check_classes(where, application.classes, len(application.variants))
    if not POLICIES[policy].chooses:
        _check_serving(application, policy)
        return
    for variant in application.variants:
        if variant.accuracy is None and application.classes is None:
            raise ConfigError(
                f"application {application.name!r}: variant {variant.name!r} has no accuracy; "
                f"policy {policy} chooses by it, so give one"
            )
    _check_floor(application, options)


def _check_window(config: RouterConfig, application: ApplicationSpec) -> None:
    """Refuse windows that leave no time to run a request that arrives as one begins."""
    policy, given = policy_of(config, application)
    options = read_options(policy, given)
    if not isinstance(options, SneakPeekOptions) or not options.window_ns:
        return
    left_ns = room_ns(application) - config.lead_ns
    if options.window_ns > left_ns:
        largest_ms = max(0, left_ns) // 100_000 / 10
        remedy = f"use {largest_ms:g} at most" if largest_ms else "raise slo_ms"
        raise ConfigError(
            f"application {application.name!r}: window_ms={options.window_ns / 1e6:g} leaves no "
            f"time to run within slo_ms={application.slo_ns / 1e6:g}; {remedy}"
        )


def _check_serving(application: ApplicationSpec, policy: str) -> None:
    """Refuse an accuracy floor that the one variant that runs does not reach."""
    serving = application.variants[application.serving_place]
    accuracy = serving.accuracy
    if accuracy is None and application.accuracies:
        accuracy = application.accuracies[application.serving_place]
    floor = application.accuracy_floor
    if floor <= 0.0 or (accuracy is not None and accuracy >= floor):
        return
    found = "has no accuracy" if accuracy is None else f"has {accuracy:g}"
    raise ConfigError(
        f"application {application.name!r}: accuracy_floor={floor:g}, but {serving.name!r} {found} "
        f"and policy {policy} runs no other; lower it, serve a better variant, or let a policy "
        "choose (central-queue)"
    )


def _check_floor(application: ApplicationSpec, options: Mapping[str, object]) -> None:
    """Refuse an accuracy floor that what may run does not reach."""
    floor, accuracies = application.accuracy_floor, application.accuracies
    where = f"application {application.name!r}: accuracy_floor={floor:g} is above"
    best = max(accuracies)
    if floor > best:
        raise ConfigError(f"{where} {best:g}, its best variant's; lower it or add a better variant")
    place = application.serving_place
    if options.get("pinned") and floor > accuracies[place]:
        raise ConfigError(
            f"{where} {accuracies[place]:g} of {application.variants[place].name!r}, which is "
            "pinned; lower it or serve a better variant"
        )


def _check_sequences(application: ApplicationSpec, where: str) -> None:
    """Refuse options that would run requests of a sequence out of order, or elsewhere."""
    if not application.sequences:
        return
    if application.policy not in ("", SEQUENCES):
        raise ConfigError(
            f"{where}: policy={application.policy!r}, but its sequences run where their state is; "
            "leave policy out, or sequences"
        )
    if application.newest:
        raise ConfigError(f"{where}: newest would drop parts of its sequences; leave one out")


def _check_application(application: ApplicationSpec) -> None:
    where = f"application {application.name!r}"
    names = [variant.name for variant in application.variants]
    for share, value in (
        ("backend_share", application.backend_share),
        ("fair_share", application.fair_share),
    ):
        if not value > 0:
            raise ConfigError(f"{where}: {share}={value}; must be above 0")
    _check_sequences(application, where)
    if not names:
        raise ConfigError(f"{where} has no variants; give at least one")
    if application.serving and application.serving not in names:
        raise ConfigError(f"{where}: serving={application.serving!r}; one of {', '.join(names)}")
    for variant in application.variants:
        if not variant.p50_ns or min(variant.p50_ns) <= 0:
            raise ConfigError(f"{where}: variant {variant.name!r} has no run times; profile it")
        if variant.p99_ns is not None and len(variant.p99_ns) != len(variant.p50_ns):
            raise ConfigError(
                f"{where}: variant {variant.name!r} has {len(variant.p50_ns)} medians and "
                f"{len(variant.p99_ns)} 99th percentiles; give as many of both"
            )
