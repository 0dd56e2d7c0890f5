"""A scenario file: what arrives, what runs it, and for how long."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from fermata.autoscaler.options import AutoscalerOptions, EpochOptions
from fermata.foundation.check import check_positive, refuse
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import NEVER, SECOND, ms, seconds
from fermata.foundation.validation import Fields, fields
from fermata.profiles.profile import Profile
from fermata.profiles.reference import find_table
from fermata.router.policies.catalog import POLICIES, check_movable, read_options
from fermata.router.policies.sneakpeek.classes import Classes
from fermata.simulator.scenario.arrival_spec import ArrivalSpec, read_arrivals
from fermata.simulator.scenario.client_spec import (
    CLIENT_KEYS,
    ClientsSpec,
    check_reachable,
    read_clients,
)
from fermata.simulator.scenario.content_spec import CLASSES_KEYS, ContentSpec, read_content
from fermata.simulator.scenario.network_spec import NetworkSpec, read_network
from fermata.simulator.scenario.scaling_spec import read_autoscaler, read_epochs
from fermata.simulator.scenario.variant_spec import VARIANT_KEYS, read_variant

SCENARIO_KEYS = (
    "seed",
    "duration_s",
    "warmup_s",
    "backends",
    "policy",
    "policy_options",
    "execution",
    "dispatch_ms",
    "arrivals",
    "rate_rps",
    "popularity",
    "faults",
    "swap",
    "fair_shares",
    "autoscaler",
    "epochs",
    "applications",
    "zoo",
    "network",
)
APPLICATION_KEYS = (
    "name",
    "slo_ms",
    "hard_limit_ms",
    "weight",
    "copies",
    "newest",
    "clients",
    "variants",
    "serving",
    "policy",
    "policy_options",
    "backend_share",
    "fair_share",
    "accuracy_floor",
    "classes",
)
DRAWS = ("median", "profile")
EXECUTION_KEYS = ("jitter", "variation", "draw")
FAULT_KEYS = ("at_s", "backend", "kind", "factor", "for_s")
FAULT_KINDS = ("crash", "hang", "slow")
ZOO_SETTINGS = ("all", "gt2", "lt2")
ZIPF_MAX = 20.0
STRONG_BATCHING = 2.0
"""Beta over alpha above which Symphony counts a model as batching well (its gt2 and lt2)."""


@dataclass(frozen=True, slots=True)
class Application:
    """A task with an SLO and the variants that can serve it."""

    name: str
    slo_ns: int
    hard_limit_ns: int
    weight: float
    newest: bool
    clients: tuple[ClientsSpec, ...]
    variants: tuple[Profile, ...]
    serving: str = ""
    """The variant that serves where the policy does not choose; empty: the first."""
    policy: str = ""
    """Empty: the scenario's, with the scenario's options."""
    policy_options: Mapping[str, object] = field(default_factory=dict)
    backend_share: float = 1.0
    """Of the backends, where policies need backends of their own."""
    fair_share: float = 1.0
    """Of the backends, relative to other applications, when not everyone can be served."""
    accuracy_floor: float = 0.0
    """Variants below it are never chosen."""
    classes: Classes | None = None
    """Recall by class, and how to read evidence of a request's content."""
    content: ContentSpec | None = None
    """What its requests hold; None: nobody looks."""

    @property
    def slo_ns_max(self) -> int:
        return max([self.slo_ns, self.hard_limit_ns, *(client.slo_ns for client in self.clients)])


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong on one backend; times from the end of the warm-up."""

    at_ns: int
    backend: int
    kind: str
    factor: float
    for_ns: int | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a run needs; two equal scenarios give equal results to the last digit."""

    applications: tuple[Application, ...]
    backends: int
    rate_rps: float | None
    seed: int = 0
    duration_ns: int = seconds(30)
    warmup_ns: int = seconds(2)
    policy: str = "deferred"
    policy_options: Mapping[str, object] = field(default_factory=dict)
    jitter: tuple[tuple[int, float], ...] = ((0, 0.0),)
    """(from, relative spread) of run times, by time from the end of the warm-up."""
    variation: float = 0.0
    """Coefficient of variation of run times about the profiled one, both ways."""
    draw: str = "median"
    """Run times before jitter: the profile's `median`, or `profile`: drawn from it and the p99."""
    dispatch_ns: int = 0
    arrivals: ArrivalSpec = field(default_factory=ArrivalSpec)
    shares: tuple[float, ...] = ()
    """Of each application in the whole rate."""
    faults: tuple[Fault, ...] = ()
    network: NetworkSpec | None = None
    """Between the clients and the server; None: requests are at the server at once."""
    autoscaler: AutoscalerOptions | None = None
    epochs: EpochOptions | None = None
    swap: bool = False
    """A backend holds one model at a time; others have to be swapped in."""
    fair_shares: bool = False
    """Whoever is above the fair share is refused on arrival, as live routers do."""

    @property
    def resident(self) -> frozenset[int] | None:
        """What a backend holds when it comes up; None: every model."""
        return frozenset() if self.swap else None

    @property
    def scales(self) -> bool:
        """Whether backends or models change place while it runs."""
        return self.autoscaler is not None or self.epochs is not None

    def knows_rate(self) -> bool:
        """Whether the arrivals themselves say how many there are, so that no rate is needed."""
        return knows_rate(self.arrivals, self.applications)

    def at_rate(self, rate_rps: float) -> "Scenario":
        return replace(self, rate_rps=rate_rps)

    def lasting(self, duration_ns: int) -> "Scenario":
        return replace(self, duration_ns=duration_ns)


def knows_rate(arrivals: ArrivalSpec, applications: tuple[Application, ...]) -> bool:
    """A trace and a MAP know their rate, and so do periodic clients that all have one."""
    if arrivals.process == "periodic":
        streams = [client for application in applications for client in application.clients]
        covered = all(application.clients for application in applications)
        return covered and all(client.fps is not None for client in streams)
    return arrivals.process in ("trace", "map")


def load_scenario(path: Path | str) -> Scenario:
    """The scenario in a YAML or JSON file, or a ConfigError in one line."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is neither YAML nor JSON ({reason})") from None
    return read_scenario(data, Path(path).parent)


def read_scenario(data: object, beside: Path | None = None) -> Scenario:
    """The scenario that these plain values describe, every one of them checked.

    Profile files that it names lie in the folder `beside`.
    """
    top = fields("", "scenario", data, SCENARIO_KEYS)
    applications = _read_applications(top, beside)
    backends = top.integer("backends", low=1)
    policy = top.choice("policy", POLICIES, "deferred")
    options = top.mapping("policy_options")
    read_options(policy, options)
    arrivals = read_arrivals(top)
    for name in arrivals.rps_of:
        if name not in {each.name for each in applications}:
            refuse(f"arrivals.applications.{name}", arrivals.rps_of[name], "names no application")
    rate_rps = top.positive("rate_rps")
    if rate_rps is None and not knows_rate(arrivals, applications):
        refuse("rate_rps", None, f"is needed with process {arrivals.process}; requests per second")
    autoscaler, epochs = read_autoscaler(top), read_epochs(top)
    if (autoscaler or epochs) and top.items("faults"):
        refuse("faults", top.items("faults"), "need a fixed fleet; leave autoscaler and epochs out")
    if epochs:
        check_movable(each.policy or policy for each in applications)
    duration_s = top.positive("duration_s")
    duration_ns = seconds(30 if duration_s is None else duration_s)
    if duration_ns < 1:
        refuse("duration_s", duration_s, "must be at least a nanosecond")
    return Scenario(
        applications=applications,
        backends=backends,
        rate_rps=rate_rps,
        seed=top.integer("seed", 0),
        duration_ns=duration_ns,
        warmup_ns=seconds(top.number("warmup_s", 2)),
        policy=policy,
        policy_options=options,
        jitter=_read_jitter(top),
        variation=top.inner("execution", EXECUTION_KEYS).number("variation", 0.0),
        draw=top.inner("execution", EXECUTION_KEYS).choice("draw", DRAWS, "median"),
        dispatch_ns=ms(top.number("dispatch_ms", 0)),
        arrivals=arrivals,
        shares=_read_shares(top, applications),
        faults=_read_faults(top, backends),
        swap=top.flag("swap"),
        fair_shares=top.flag("fair_shares"),
        network=_read_network(top, applications),
        autoscaler=autoscaler,
        epochs=epochs,
    )


def _read_network(top: Fields, applications: tuple[Application, ...]) -> NetworkSpec | None:
    """The network, which every application's clients must be able to use."""
    network = read_network(top)
    groups = [group for application in applications for group in application.clients]
    for group in groups:
        if group.trace and (network is None or group.trace not in network.traces):
            refuse("clients.trace", group.trace, "is not among network.traces")
    if network is None:
        return None
    for application in applications:
        sides = [variant.input_size or 0 for variant in application.variants]
        if not application.clients or not set(sides) & set(network.frame_bits):
            refuse(
                f"application {application.name!r}",
                sides,
                "with a network needs clients, and variants whose input_size is in network.frames",
            )
    return network


def _read_applications(top: Fields, beside: Path | None) -> tuple[Application, ...]:
    if top.has("zoo") == top.has("applications"):
        refuse("applications", top.data.get("applications"), "give either applications or zoo")
    if top.has("zoo"):
        return _read_zoo(top.inner("zoo", ("table", "setting")), beside)
    rows = top.rows("applications", APPLICATION_KEYS)
    if not rows:
        refuse("applications", [], "must hold at least one application")
    applications: list[Application] = []
    for row in rows:
        application = _read_application(row, beside)
        copies = row.integer("copies", 1, low=1)
        for copy in range(copies):
            name = application.name if copies == 1 else f"{application.name}-{copy}"
            applications.append(replace(application, name=name))
    names = [application.name for application in applications]
    for index, name in enumerate(names):
        if name in names[:index]:
            refuse("applications", name, "is the name of two applications; rename one")
    return tuple(applications)


def _read_zoo(row: Fields, beside: Path | None) -> tuple[Application, ...]:
    setting = row.choice("setting", ZOO_SETTINGS, "all")
    applications: list[Application] = []
    for profile in find_table(row.text("table"), beside, row.name("table")).profiles:
        if profile.slo_ns is None or profile.linear_ns is None:
            refuse(
                row.name("table"), row.text("table"), "has no SLOs; use symphony-1080ti or -a100"
            )
        alpha_ns, beta_ns = profile.linear_ns
        strong = beta_ns / alpha_ns > STRONG_BATCHING
        if setting == "all" or strong == (setting == "gt2"):
            applications.append(
                Application(
                    profile.name, profile.slo_ns, profile.slo_ns, 1.0, False, (), (profile,)
                )
            )
    return tuple(applications)


def _read_application(row: Fields, beside: Path | None) -> Application:
    name = row.text("name")
    rows = row.rows("variants", VARIANT_KEYS)
    variants = tuple(read_variant(variant, beside) for variant in rows)
    if not variants:
        refuse(row.name("variants"), [], "must hold at least one variant")
    slo_ms = row.positive("slo_ms")
    if slo_ms is None:
        refuse(row.name("slo_ms"), None, "is needed; milliseconds")
    slo_ns = ms(slo_ms)
    fastest = min(variant.latency_ns(1) for variant in variants)
    clients = tuple(
        read_clients(client, slo_ms, variants) for client in row.rows("clients", CLIENT_KEYS)
    )
    check_reachable(row.name("slo_ms"), slo_ms, fastest)
    hard_limit_ms = row.positive("hard_limit_ms") or slo_ms
    if hard_limit_ms < slo_ms:
        refuse(row.name("hard_limit_ms"), hard_limit_ms, f"must be at least slo_ms, {slo_ms:g}")
    weight = row.number("weight", 1)
    newest = row.flag("newest")
    if newest and not clients:
        refuse(row.name("newest"), True, "needs clients, whose frames supersede one another")
    serving = row.text("serving", "")
    if serving and serving not in [variant.name for variant in variants]:
        refuse(row.name("serving"), serving, "is not among the variants")
    classes, content = None, None
    if row.has("classes"):
        classes, content = read_content(row.inner("classes", CLASSES_KEYS), variants)
    backend_share = row.number("backend_share", 1)
    check_positive(row.name("backend_share"), backend_share)
    fair_share = row.number("fair_share", 1)
    check_positive(row.name("fair_share"), fair_share)
    return Application(
        name=name,
        slo_ns=slo_ns,
        hard_limit_ns=ms(hard_limit_ms),
        weight=weight,
        newest=newest,
        clients=clients,
        variants=variants,
        serving=serving,
        policy=_read_policy(row),
        policy_options=row.mapping("policy_options"),
        backend_share=backend_share,
        fair_share=fair_share,
        accuracy_floor=row.fraction("accuracy_floor") or 0.0,
        classes=classes,
        content=content,
    )


def _read_policy(row: Fields) -> str:
    if not row.has("policy"):
        if row.has("policy_options"):
            refuse(row.name("policy_options"), row.data["policy_options"], "needs policy beside it")
        return ""
    policy = row.choice("policy", POLICIES)
    read_options(policy, row.mapping("policy_options"))
    return policy


def _read_jitter(top: Fields) -> tuple[tuple[int, float], ...]:
    execution = top.inner("execution", EXECUTION_KEYS)
    jitter = execution.data.get("jitter", 0.0)
    if not isinstance(jitter, list):
        return ((0, execution.number("jitter", 0.0)),)
    steps = [
        (seconds(step.number("from_s", 0)), step.number("jitter"))
        for step in execution.rows("jitter", ("from_s", "jitter"))
    ]
    for before, after in itertools.pairwise(steps):
        if after[0] <= before[0]:
            refuse(execution.name("jitter"), after[0] / 1e9, "from_s must rise from step to step")
    return tuple(steps) or ((0, 0.0),)


def _read_shares(top: Fields, applications: tuple[Application, ...]) -> tuple[float, ...]:
    popularity = top.data.get("popularity", "equal")
    count = len(applications)
    if popularity == "equal":
        weights = [1.0] * count
    elif popularity == "weights":
        weights = [application.weight for application in applications]
    elif isinstance(popularity, dict):
        zipf = top.inner("popularity", ("zipf",)).number("zipf")
        if zipf > ZIPF_MAX:
            refuse("popularity.zipf", zipf, f"must be at most {ZIPF_MAX:g}")
        weights = [1.0 / rank**zipf for rank in range(1, count + 1)]
    else:
        refuse("popularity", popularity, "must be equal, weights or {zipf: exponent}")
    total = sum(weights)
    if total <= 0:
        refuse("applications", "weight", "must be above 0 for at least one application")
    return tuple(weight / total for weight in weights)


def _read_faults(top: Fields, backends: int) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    for row in top.rows("faults", FAULT_KEYS):
        backend = row.integer("backend")
        if backend >= backends:
            refuse(
                row.name("backend"), backend, f"must be below {backends}, the backends there are"
            )
        factor = row.number("factor", 1)
        check_positive(row.name("factor"), factor)
        for_s = row.positive("for_s")
        faults.append(
            Fault(
                at_ns=seconds(row.number("at_s")),
                backend=backend,
                kind=row.choice("kind", FAULT_KINDS),
                factor=factor,
                for_ns=None if for_s is None else seconds(for_s),
            )
        )
    faults.sort(key=lambda fault: (fault.at_ns, fault.backend))
    _check_crashes(faults)
    return tuple(faults)


def _check_crashes(faults: list[Fault]) -> None:
    """Refuse the crash of a backend that is down already."""
    down_until_ns: dict[int, int] = {}
    for fault in faults:
        if fault.at_ns < down_until_ns.get(fault.backend, 0):
            refuse("faults", fault.at_ns / SECOND, f"backend {fault.backend} is down then")
        if fault.kind == "crash":
            ends_at_ns = NEVER if fault.for_ns is None else fault.at_ns + fault.for_ns
            down_until_ns[fault.backend] = ends_at_ns
