"""A scenario file: what arrives, what runs it, and for how long."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fermata.applications.accuracy_goal import check_accuracy
from fermata.applications.application import Application
from fermata.applications.backends import BackendGroup, kind_numbers, kinds_of, read_backends
from fermata.applications.reader import (
    numbered,
    owners_of,
    read_applications,
    router_names,
)
from fermata.autoscaler.options import AutoscalerOptions, EpochOptions
from fermata.foundation.refusals import check_positive, refuse
from fermata.foundation.units import NEVER, SECOND, ms, seconds
from fermata.foundation.validation import Fields, fields, read_yaml
from fermata.profiles.reference import find_table
from fermata.router.policies.auto import AUTO, unnamed
from fermata.router.policies.catalog import (
    POLICIES,
    check_backends,
    check_movable,
    read_options,
    shares_backends,
)
from fermata.simulator.scenario.arrival_spec import ArrivalSpec, read_arrivals
from fermata.simulator.scenario.network_spec import NetworkSpec, read_network
from fermata.simulator.scenario.pipeline_spec import (
    OWN_BACKENDS,
    PIPELINE_RULES,
    PipelineSpec,
    as_stages,
    read_pipelines,
    shares_of,
)
from fermata.simulator.scenario.popularity import read_shares
from fermata.simulator.scenario.scaling_spec import read_autoscaler, read_epochs
from fermata.simulator.scenario.simulated import read_zoo, simulated

SCENARIO_KEYS = (
    "seed",
    "duration_s",
    "warmup_s",
    "backends",
    "policy",
    "policy_options",
    "execution",
    "dispatch_ms",
    "fetch_ms",
    "hand_on_ms",
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
    "pipelines",
    "pipeline_rule",
)
DRAWS = ("median", "profile")
EXECUTION_KEYS = ("jitter", "variation", "draw", "slow_share", "slow_factor")
FAULT_KEYS = ("at_s", "backend", "kind", "factor", "for_s")
FAULT_KINDS = ("crash", "hang", "slow")
ZOO_SETTINGS = ("all", "gt2", "lt2")


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
    policy: str = AUTO
    policy_options: Mapping[str, object] = field(default_factory=dict)
    jitter: tuple[tuple[int, float], ...] = ((0, 0.0),)
    """(from, relative spread) of run times, by time from the end of the warm-up."""
    variation: float = 0.0
    """Coefficient of variation of run times about the profiled one, both ways."""
    draw: str = "median"
    """Run times before jitter: the profile's `median`, or `profile`: drawn from it and the p99."""
    slow_share: float = 0.0
    """Share of the runs that something else on the machine holds up."""
    slow_factor: float = 2.5
    """These take so many times as long."""
    dispatch_ns: int = 0
    fetch_ns: int = 0
    """Time that each input of a batch takes on its way, beside the batch that runs."""
    hand_on_ns: int = 0
    """From a result to the requests that a pipeline makes of it."""
    arrivals: ArrivalSpec = field(default_factory=ArrivalSpec)
    shares: tuple[float, ...] = ()
    """Share of each application in the whole rate."""
    faults: tuple[Fault, ...] = ()
    network: NetworkSpec | None = None
    """Between the clients and the server; None: requests are at the server at once."""
    autoscaler: AutoscalerOptions | None = None
    epochs: EpochOptions | None = None
    swap: bool = False
    """A backend holds one model at a time; others have to be swapped in."""
    fair_shares: bool = False
    """Refuse on arrival what is above a fair share, as live routers do."""
    groups: tuple[BackendGroup, ...] = ()
    """The backends by kind, in order; empty: all are alike."""
    pipelines: tuple[PipelineSpec, ...] = ()
    pipeline_shares: tuple[float, ...] = ()
    """Share of each pipeline in the whole rate."""
    pipeline_rule: str = PIPELINE_RULES[0]
    """The rule by which queries are admitted, batched and dropped."""
    homes: tuple[int, ...] = ()
    """By application: the sub-cluster that it stays in; empty: all live in one, or move."""
    places: tuple[int, ...] = ()
    """By backend: the sub-cluster that has it, where applications have homes."""

    @property
    def kinds(self) -> tuple[BackendGroup, ...]:
        """A group of each kind of backends, by the kind's number."""
        return kinds_of(self.groups) or (BackendGroup(self.backends),)

    @property
    def kind_of(self) -> tuple[int, ...]:
        """By backend: the number of its kind."""
        return kind_numbers(self.groups) or (0,) * self.backends

    def place_of(self, backend: int) -> int:
        """The sub-cluster that a backend is in when it comes up."""
        return self.places[backend] if self.places else 0

    @property
    def resident(self) -> frozenset[int] | None:
        """Models that a backend holds when it comes up; None: all."""
        return frozenset() if self.swap else None

    @property
    def shared_backends(self) -> bool:
        """Whether policies with queues for single backends have to share them."""
        applied = owners_of(self.applications, self.policy, self.policy_options)
        return shares_backends(self.backends, applied)

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
    return arrivals.process in ("trace", "map") or sets_rates(arrivals, applications)


def sets_rates(arrivals: ArrivalSpec, applications: tuple[Application, ...]) -> bool:
    """Whether the arrivals say how many requests each application has, so that none are shared."""
    if arrivals.process == "periodic":
        streams = [client for application in applications for client in application.clients]
        covered = all(application.clients for application in applications)
        return covered and all(client.fps is not None for client in streams)
    return bool(arrivals.rps_of)


def load_scenario(path: Path | str) -> Scenario:
    """The scenario in a YAML or JSON file, or a ConfigError in one line."""
    return read_scenario(read_yaml(path), Path(path).parent)


def read_scenario(data: object, beside: Path | None = None) -> Scenario:
    """The scenario that these plain values describe, every one of them checked.

    Profile files that it names lie in the folder `beside`.
    """
    top = fields("", "scenario", data, SCENARIO_KEYS, beside)
    return build_scenario(top, declared(top))


def build_scenario(
    top: Fields, given: tuple[Application, ...], needs_rate: bool = True
) -> Scenario:
    """The scenario of these options and these applications, as files declare them."""
    pipeline_rule = top.choice("pipeline_rule", PIPELINE_RULES, PIPELINE_RULES[0])
    applications, pipelines = _pipelined(top, _simulated(given), pipeline_rule)
    groups = read_backends(top, "backends")
    backends = sum(group.count for group in groups)
    options = top.mapping("policy_options")
    policy = top.choice("policy", POLICIES, unnamed(options))
    read_options(policy, options)
    arrivals = read_arrivals(top)
    for name in arrivals.rps_of:
        if name not in {each.name for each in applications}:
            refuse(f"arrivals.applications.{name}", arrivals.rps_of[name], "names no application")
    rate_rps = top.positive("rate_rps")
    if needs_rate and rate_rps is None and not knows_rate(arrivals, applications):
        refuse("rate_rps", None, f"is needed with process {arrivals.process}; requests per second")
    autoscaler, epochs = read_autoscaler(top), read_epochs(top)
    if autoscaler or epochs:
        _check_scales(top, groups)
    if autoscaler:
        check_accuracy(autoscaler.accuracy, applications, policy, options)
    if epochs:
        check_movable(each.policy or policy for each in applications)
    check_backends("backends", backends, owners_of(applications, policy, options))
    shares = _read_shares(top, applications, pipelines, arrivals, pipeline_rule)
    execution = top.inner("execution", EXECUTION_KEYS)
    return Scenario(
        applications=applications,
        backends=backends,
        rate_rps=rate_rps,
        seed=top.integer("seed", 0),
        duration_ns=_read_duration_ns(top),
        warmup_ns=seconds(top.number("warmup_s", 2)),
        policy=policy,
        policy_options=options,
        jitter=_read_jitter(execution),
        variation=execution.number("variation", 0.0),
        draw=execution.choice("draw", DRAWS, "median"),
        slow_share=execution.fraction("slow_share") or 0.0,
        slow_factor=execution.positive("slow_factor") or 2.5,
        dispatch_ns=ms(top.number("dispatch_ms", 0)),
        fetch_ns=ms(top.number("fetch_ms", 0)),
        hand_on_ns=ms(top.number("hand_on_ms", 0)),
        arrivals=arrivals,
        shares=shares[: len(applications)],
        faults=_read_faults(top, backends),
        swap=top.flag("swap"),
        fair_shares=top.flag("fair_shares"),
        network=_read_network(top, applications),
        autoscaler=autoscaler,
        epochs=epochs,
        groups=() if _is_plain(groups) else groups,
        pipelines=pipelines,
        pipeline_shares=shares[len(applications) :],
        pipeline_rule=pipeline_rule,
    )


def _check_scales(top: Fields, groups: tuple[BackendGroup, ...]) -> None:
    if faults := top.items("faults"):
        refuse("faults", faults, "need a fixed fleet; leave autoscaler and epochs out")
    if len(kinds_of(groups)) > 1:
        rule = "has several kinds, and only one can be scaled; leave autoscaler and epochs out"
        refuse("backends", top.data["backends"], rule)


def _read_duration_ns(top: Fields) -> int:
    duration_s = top.positive("duration_s")
    duration_ns = seconds(30 if duration_s is None else duration_s)
    if duration_ns < 1:
        refuse("duration_s", duration_s, "must be at least a nanosecond")
    return duration_ns


def _pipelined(
    top: Fields, applications: tuple[Application, ...], rule: str
) -> tuple[tuple[Application, ...], tuple[PipelineSpec, ...]]:
    """The applications, those that are stages as such, and the pipelines."""
    pipelines = read_pipelines(top, applications)
    return as_stages(top, applications, pipelines, rule), pipelines


def _read_shares(
    top: Fields,
    applications: tuple[Application, ...],
    pipelines: tuple[PipelineSpec, ...],
    arrivals: ArrivalSpec,
    rule: str,
) -> tuple[float, ...]:
    """Parts of the whole rate, those of pipelines last."""
    if not pipelines:
        return read_shares(top, applications, sets_rates(arrivals, applications))
    for key in ("popularity", "network", "epochs"):
        if top.has(key):
            refuse(key, top.data[key], "does not go with pipelines; leave one of them out")
    if top.has("autoscaler") and rule in OWN_BACKENDS:
        refuse("pipeline_rule", rule, "gives stages backends of their own; leave autoscaler out")
    if arrivals.process == "periodic" or arrivals.rps_of:
        refuse(
            "arrivals", top.data.get("arrivals"), "must be shared by weight, as poisson ones are"
        )
    return shares_of(applications, pipelines)


def _is_plain(groups: tuple[BackendGroup, ...]) -> bool:
    """Whether every backend has the run times that variants say."""
    return {group.same_as for group in groups} == {("", 1.0)}


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
        sides = [variant.input_size for variant in application.variants]
        if not application.clients or not set(sides) & set(network.frame_bits):
            refuse(
                f"application {application.name!r}",
                sides,
                "with a network needs clients, and variants whose input_size is in network.frames",
            )
    return network


def declared(top: Fields) -> tuple[Application, ...]:
    """The applications of a scenario, or of the zoo in their place, as the file has them."""
    if top.has("zoo") == top.has("applications"):
        refuse("applications", top.data.get("applications"), "give either applications or zoo")
    if not top.has("zoo"):
        return read_applications(top)
    row = top.inner("zoo", ("table", "setting"))
    setting = row.choice("setting", ZOO_SETTINGS, "all")
    table = find_table(row.text("table"), top.beside, row.name("table"))
    return read_zoo(row.name("table"), table, setting)


def _simulated(given: tuple[Application, ...]) -> tuple[Application, ...]:
    found = [simulated(f"applications[{index}]", each) for index, each in enumerate(given)]
    applications = numbered(tuple(found))
    versions = [(application.name, application.version) for application in applications]
    for index, version in enumerate(versions):
        if version in versions[:index]:
            refuse("applications", version[0], "is the name of two applications; rename one")
    named = zip(applications, router_names(applications), strict=True)
    return tuple(replace(application, name=name) for application, name in named)


def _read_jitter(execution: Fields) -> tuple[tuple[int, float], ...]:
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
