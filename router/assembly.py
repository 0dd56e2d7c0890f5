"""A router's applications, live or simulated, and the engine built from them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.core.admission import Admission, StreamAdmission
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Request
from fermata.router.core.shares import FairAdmission
from fermata.router.core.source import Outbox, Source
from fermata.router.policies.catalog import POLICIES, build_sources, check_movable
from fermata.router.policies.family import Family
from fermata.router.policies.ownership import Ownership
from fermata.router.policies.sneakpeek.classes import Classes, check_classes, sharpened
from fermata.router.policies.sneakpeek.estimator import Estimator


@dataclass(frozen=True, slots=True)
class ServedVariant:
    """A model as backends know it, and what it costs."""

    name: str
    p50_ns: tuple[int, ...]
    """Median run time of batches of 1, 2, 3 and so on; its length is the largest batch."""
    p99_ns: tuple[int, ...] | None = None
    """Seeds the margin until execution has taught a better one."""
    swap_in_ns: int = 0
    accuracy: float | None = None
    """Fraction of right answers; policies that choose need it."""
    input_size: int = 0
    """The side of the picture it takes; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class ServedApplication:
    """A task with an SLO and the variants that can serve it."""

    name: str
    slo_ns: int
    variants: tuple[ServedVariant, ...]
    serving: str = ""
    """The variant that serves under policies which do not choose; empty: the first."""
    streams: bool = False
    """Share overload evenly among the clients' streams."""
    newest: bool = False
    """A new frame replaces the queued one of its stream."""
    weights: Mapping[int, float] = field(default_factory=dict)
    """Weights of streams, by client; 1 where absent."""
    policy: str = ""
    """Empty: the router's, with the router's options."""
    policy_options: Mapping[str, object] = field(default_factory=dict)
    share: float = 1.0
    """Share of the backends, where policies need backends of their own."""
    fair_share: float = 1.0
    """Share of the backends, relative to other applications, when not all can be served."""
    accuracy_floor: float = 0.0
    """Variants below it are never chosen."""
    classes: Classes | None = None
    """Recall by class, and how to read evidence of a request's content."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything a router is told at its start."""

    applications: tuple[ServedApplication, ...]
    policy: str = "deferred"
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
    sub_clusters: int = 1
    """RankThreads; every application starts on the first, a plan moves it."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine, and the names of what it counts."""

    engine: Engine
    applications: dict[str, int]
    variants: tuple[str, ...]
    """By the engine's number."""
    families: tuple[Family, ...]
    """By application."""
    ownership: Ownership
    """Backends that an application's source runs by itself."""
    estimators: tuple[Estimator | None, ...]
    """By application: makes estimates of evidence; None where there is none."""

    def expected(self, request: Request, variant: int) -> float | None:
        """How likely a variant is to answer this very request right, without class weights;
        None where no evidence has come in."""
        classes = self.families[request.application].classes
        if request.estimate is None or classes is None:
            return None
        local = self.families[request.application].variants.index(variant)
        return sharpened(classes.recall[local], request.estimate.classes)

    def on_votes(self, now_ns: int, rid: int, votes: Sequence[float]) -> bool:
        """Evidence for a queued request has come in; false if it came too late to matter."""
        request = self.engine.outbox.queued.get(rid)
        if request is None:
            return False
        estimator = self.estimators[request.application]
        if estimator is None or len(votes) != estimator.classes.count:
            return False
        estimate = estimator.on_votes(votes)
        return self.engine.on_update(now_ns, rid, estimate.accuracies, estimate)


def assemble(config: RouterConfig) -> Assembly:
    """The engine that a driver drives; it has no backends yet."""
    check(config)
    costs = Costs()
    engine = Engine(costs, config.sub_clusters)
    names: list[str] = []
    families: list[Family] = []
    for application in config.applications:
        families.append(_family(len(families), application, len(names)))
        for variant in application.variants:
            p99_ns = None if variant.p99_ns is None else list(variant.p99_ns)
            costs.add(len(names), list(variant.p50_ns), p99_ns, swap_in_ns=variant.swap_in_ns)
            names.append(variant.name)
    sources = _build_all(config, families)
    for application, source in zip(config.applications, sources, strict=True):
        family = families[len(engine.sources)]
        runs = _what_runs(config, application, source, family)
        admission = _admission(config, application, source, family, engine.outbox)
        engine.add_application(source, admission=admission, runs=runs)
    for rank in engine.ranks:
        rank.lead_start_ns = config.lead_ns
    return Assembly(
        engine,
        {application.name: number for number, application in enumerate(config.applications)},
        tuple(names),
        tuple(families),
        _ownership(config, sources),
        tuple(_estimator(family) for family in families),
    )


def _admission(
    config: RouterConfig,
    application: ServedApplication,
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
    config: RouterConfig, application: ServedApplication, source: Source, family: Family
) -> frozenset[int] | None:
    """Variants that any request of the application may meet with; None where its policy runs
    each request only on what that request allows."""
    if source.heeds_clients:
        return None
    policy, _ = policy_of(config, application)
    if not POLICIES[policy].chooses:
        return frozenset((family.serving,))
    return family.above(family.accuracy_floor)


def _estimator(family: Family) -> Estimator | None:
    if family.classes is None or family.classes.peek is None:
        return None
    return Estimator(family.classes, family.accuracy, family.accuracy_floor)


def _family(number: int, application: ServedApplication, first: int) -> Family:
    """The application's variants have the engine's numbers from `first` on."""
    names = [variant.name for variant in application.variants]
    known = [variant.accuracy for variant in application.variants if variant.accuracy is not None]
    classes = application.classes
    if classes is not None and len(known) < len(names):
        known = [sum(recall) / len(recall) for recall in classes.recall]
    return Family(
        application=number,
        name=application.name,
        slo_ns=application.slo_ns,
        variants=tuple(range(first, first + len(names))),
        serving=first + (names.index(application.serving) if application.serving else 0),
        accuracy=tuple(known) if len(known) == len(names) else (),
        input_sizes=tuple(variant.input_size for variant in application.variants),
        accuracy_floor=application.accuracy_floor,
        classes=classes,
    )


def _build_all(config: RouterConfig, families: list[Family]) -> list[Source]:
    """Applications with the same policy and options are built together."""
    groups: dict[str, list[int]] = {}
    for number, application in enumerate(config.applications):
        policy, options = policy_of(config, application)
        groups.setdefault(f"{policy} {sorted(options.items())}", []).append(number)
    rng = random.Random(config.seed)
    sources: dict[int, Source] = {}
    for numbers in groups.values():
        policy, options = policy_of(config, config.applications[numbers[0]])
        built = build_sources(policy, options, [families[number] for number in numbers], rng)
        sources.update(zip(numbers, built, strict=True))
    return [sources[number] for number in range(len(families))]


def policy_of(
    config: RouterConfig, application: ServedApplication
) -> tuple[str, Mapping[str, object]]:
    """The policy that serves an application, and its options as users write them."""
    if application.policy:
        return application.policy, application.policy_options
    return config.policy, config.policy_options


def _ownership(config: RouterConfig, sources: list[Source]) -> Ownership:
    shares: dict[int | None, float] = {}
    for application, source in zip(config.applications, sources, strict=True):
        owner = sources.index(source) if source.owns_backends else None
        shares[owner] = shares.get(owner, 0.0) + application.share
    return Ownership(shares)


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
        _check_policy(config, application)


def _check_policy(config: RouterConfig, application: ServedApplication) -> None:
    policy, options = policy_of(config, application)
    if policy not in POLICIES:
        raise ConfigError(f"policy={policy!r} is unknown; one of {', '.join(POLICIES)}")
    if config.sub_clusters > 1:
        check_movable((policy,))
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


def _check_serving(application: ServedApplication, policy: str) -> None:
    """Refuse an accuracy floor that the one variant that runs does not reach."""
    names = [variant.name for variant in application.variants]
    place = names.index(application.serving) if application.serving else 0
    accuracy = application.variants[place].accuracy
    if accuracy is None and application.classes is not None:
        accuracy = _family(0, application, 0).accuracy[place]
    floor = application.accuracy_floor
    if floor <= 0.0 or (accuracy is not None and accuracy >= floor):
        return
    found = "has no accuracy" if accuracy is None else f"has {accuracy:g}"
    raise ConfigError(
        f"application {application.name!r}: accuracy_floor={floor:g}, but {names[place]!r} {found} "
        f"and policy {policy} runs no other; lower it, serve a better variant, or let a policy "
        "choose (central-queue)"
    )


def _check_floor(application: ServedApplication, options: Mapping[str, object]) -> None:
    """Refuse an accuracy floor that what may run does not reach."""
    floor, family = application.accuracy_floor, _family(0, application, 0)
    where = f"application {application.name!r}: accuracy_floor={floor:g} is above"
    best = max(family.accuracy)
    if floor > best:
        raise ConfigError(f"{where} {best:g}, its best variant's; lower it or add a better variant")
    serving = family.accuracy[family.serving]
    if options.get("pinned") and floor > serving:
        raise ConfigError(
            f"{where} {serving:g} of {application.variants[family.serving].name!r}, which is "
            "pinned; lower it or serve a better variant"
        )


def _check_application(application: ServedApplication) -> None:
    where = f"application {application.name!r}"
    names = [variant.name for variant in application.variants]
    for share, value in (("share", application.share), ("fair_share", application.fair_share)):
        if not value > 0:
            raise ConfigError(f"{where}: {share}={value}; must be above 0")
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
