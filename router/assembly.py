"""What a router serves, live or simulated, and the engine built from it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.errors import ConfigError
from router.core.admission import StreamAdmission
from router.core.costs import Costs
from router.core.engine import Engine
from router.core.units import ms
from router.policies.catalog import POLICIES, build_sources


@dataclass(frozen=True, slots=True)
class ServedVariant:
    """A model as backends know it, and what it costs."""

    name: str
    p50_ns: tuple[int, ...]
    """Median run time of batches of 1, 2, 3 and so on; its length is the largest batch."""
    p99_ns: tuple[int, ...] | None = None
    """Seeds the margin until execution has taught a better one."""
    swap_in_ns: int = 0


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
    """Of streams, by client; 1 where absent."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything a router is told at its start."""

    applications: tuple[ServedApplication, ...]
    policy: str = "deferred"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    """As users write them."""
    lead_ns: int = ms(1)
    """Dispatch and fetch, until they have been measured."""
    lead_ns_max: int = ms(20)
    """Inputs that take longer than this to fetch are late by themselves."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine, and the names of what it counts."""

    engine: Engine
    applications: dict[str, int]
    variants: tuple[str, ...]
    """By the engine's number."""
    serving: tuple[int, ...]
    """The serving variant's number, by application."""
    owner: int | None
    """The application whose source runs every backend by itself; None for the pool."""


def assemble(config: RouterConfig) -> Assembly:
    """The engine that a driver drives; it has no backends yet."""
    check(config)
    costs = Costs()
    engine = Engine(costs)
    names: list[str] = []
    serving: list[int] = []
    for application in config.applications:
        served = application.serving or application.variants[0].name
        for variant in application.variants:
            if variant.name == served:
                serving.append(len(names))
            p99_ns = None if variant.p99_ns is None else list(variant.p99_ns)
            costs.add(len(names), list(variant.p50_ns), p99_ns, swap_in_ns=variant.swap_in_ns)
            names.append(variant.name)
    rng = random.Random(config.seed)
    sources = build_sources(config.policy, config.policy_options, serving, rng)
    for application, source in zip(config.applications, sources, strict=True):
        admission = None
        if application.streams or application.newest:
            weights = dict(application.weights)
            admission = StreamAdmission(engine.outbox, application.newest, weights)
        engine.add_application(source, admission=admission)
    for rank in engine.ranks:
        rank.lead_start_ns = config.lead_ns
    return Assembly(
        engine,
        {application.name: number for number, application in enumerate(config.applications)},
        tuple(names),
        tuple(serving),
        0 if sources[0].owns_backends else None,
    )


def check(config: RouterConfig) -> None:
    """Refuse what cannot work, in the operator's words."""
    if not config.applications:
        raise ConfigError("applications is empty; serve at least one")
    if config.policy not in POLICIES:
        raise ConfigError(f"policy={config.policy!r} is unknown; one of {', '.join(POLICIES)}")
    seen: set[str] = set()
    for application in config.applications:
        if application.name in seen:
            raise ConfigError(f"application {application.name!r} is there twice; rename one")
        seen.add(application.name)
        _check_application(application)


def _check_application(application: ServedApplication) -> None:
    where = f"application {application.name!r}"
    names = [variant.name for variant in application.variants]
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
