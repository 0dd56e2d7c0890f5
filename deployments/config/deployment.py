"""The one configuration of a deployment: read strictly here, handed inwards as plain values.

Secrets are named in it, not held; see `fermata.deployments.config.security`.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from fermata.applications.accuracy_goal import check_accuracy
from fermata.applications.application import Application
from fermata.applications.reader import bucketed, owners_of, read_applications, router_names
from fermata.applications.variant import EMULATED, RUN_TIMES
from fermata.deployments.config.backend_groups import (
    BackendGroupConfig,
    Device,
    Resources,
    check_apart,
    counted,
    groups_of,
)
from fermata.deployments.config.base import Positive, Section
from fermata.deployments.config.observability import LogsConfig, TracesConfig
from fermata.deployments.config.pipelines import PipelineConfig, check_pipelines, with_stages
from fermata.deployments.config.scaling import AutoscalerConfig, EpochsConfig
from fermata.deployments.config.security import (
    CertificateConfig,
    ClientTlsConfig,
    LinkTlsConfig,
    TenantConfig,
    TokenConfig,
)
from fermata.deployments.config.sub_clusters import (
    SubClustersConfig,
    check_sub_clusters,
    epochs_inside,
    fewest_backends,
)
from fermata.deployments.specs.frontend import Edge
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import in_one_line, refuse
from fermata.foundation.sections import Mark, write_section
from fermata.foundation.validation import Fields, read_yaml
from fermata.router.policies.auto import AUTO, unnamed
from fermata.router.policies.catalog import (
    POLICIES,
    AppliedPolicy,
    check_backends,
    check_movable,
    read_options,
    shares_backends,
)

BATCH_SIZE_MAX = 64
"""Limit of variants that name none of their own."""


def _read_applications(given: object, info: ValidationInfo) -> tuple[Application, ...]:
    """The applications as a server needs them; `info` holds the folder of the file."""
    if isinstance(given, tuple):
        found = given
    else:
        found = read_applications(Fields("", {"applications": given}, info.context))
    return tuple(_served(f"applications[{index}]", each) for index, each in enumerate(found))


def _served(where: str, application: Application) -> Application:
    for index, variant in enumerate(application.variants):
        if variant.model == EMULATED and variant.profile is None:
            name = f"{where}.variants[{index}]"
            refuse(name, variant.name, f"an emulated model needs run times: {RUN_TIMES}")
    variants = [
        replace(each, batch_size_max=each.batch_size_max or BATCH_SIZE_MAX)
        for each in application.variants
    ]
    return replace(application, variants=tuple(variants))


def _write_applications(applications: tuple[Application, ...]) -> list[object]:
    """As plain values; what only simulations use stays behind."""
    return [write_section(each, without=Mark.SIMULATED) for each in applications]


Applications = Annotated[
    tuple[Application, ...],
    PlainValidator(_read_applications),
    PlainSerializer(_write_applications),
]


TWO_FROM_CORES, CORES_EACH, PROCESSES_MAX = 4, 4, 8


def usual_processes() -> int:
    """one for four cores, 2 to 8; 1 below four"""
    cores = len(os.sched_getaffinity(0))
    if cores < TWO_FROM_CORES:
        return 1
    return min(PROCESSES_MAX, max(2, cores // CORES_EACH))


class FrontendConfig(Section):
    """Processes that clients talk to."""

    processes: Annotated[int, Field(ge=1)] = Field(default_factory=usual_processes)
    """In the whole cluster; on one machine they share the ports by SO_REUSEPORT. With two, clients
    reconnect at once where one has died."""
    per_node: Annotated[int, Field(ge=1)] | None = None
    """No machine gets more of them."""
    cpus: Annotated[float, Field(ge=0)] = 0.1
    """CPU cores that Ray sets aside for each."""
    resources: Resources = {}
    """Custom resources of Ray that each needs: only machines that offer them get one."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every network."""
    grpc_port: Annotated[int, Field(ge=0, le=65535)] = 8001
    """Open Inference Protocol v2 over gRPC; 0 takes a free one."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """The same over REST, and health; 0 takes a free one."""
    payload_mb: Positive = 512
    """Memory for inputs of requests under way in one process; more is refused."""
    message_mb: Positive = 16
    """Largest message a client may send."""
    picture_megapixels_max: Positive = 64
    """A picture whose header claims more is refused before anything is decoded."""
    decoders: Annotated[int, Field(ge=1)] | None = None
    """Threads of each that decode pictures; absent: the cores of its machine, shared among the
    frontends there, and two at the least."""
    streams_per_client_max: Annotated[int, Field(ge=1)] = 1024
    """Streams that one tenant, or where there are none one address, may have open in a process."""
    connections_max: Annotated[int, Field(ge=1)] = 4096
    """gRPC connections that a process keeps open, and as many of HTTP; more are refused."""
    connections_per_client_max: Annotated[int, Field(ge=1)] = 1024
    """gRPC connections from one address, and as many of HTTP."""
    calls_per_client_max: Annotated[int, Field(ge=1)] = 16_384
    """gRPC calls under way from one address; more are refused."""
    held_per_client_max: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the memory for bytes that have come and were not read yet, which connections from
    one address may hold. Two messages may be held in any case."""
    proxies: list[str] = []
    """Addresses that stand for many clients, such as a load balancer's: no limit counts them as
    one client."""
    receive_s: Positive = 30
    """A request has to come within this, an answer over HTTP has to be read, and a handshake to
    end."""
    idle_s: Positive = 120
    """A stream without a request, or a gRPC connection without a call, is ended after this."""
    client_memory: bool = False
    """Clients on the same machine may pass tensors in shared memory of their own, under /dev/shm,
    which a frontend then reads and writes for them."""
    tls: ClientTlsConfig | None = None
    """Absent: plain connections."""
    edge: Edge = "grpc"
    """The gRPC server: Python's `grpc`, or `native` for less CPU where `make edge` has built it,
    without TLS."""
    reply_ms: Annotated[float, Field(ge=0)] = 2
    """Taken off each deadline for the way back from the backend to the client."""

    @model_validator(mode="after")
    def _ports(self) -> "FrontendConfig":
        if self.grpc_port == self.http_port != 0:
            raise ValueError(f"grpc_port and http_port are both {self.grpc_port}; set two")
        if self.edge == "native" and self.tls is not None:
            raise ValueError("edge: native takes no tls; leave edge out, or let a proxy do TLS")
        return self


class BackendConfig(Section):
    """Processes that run batches, one for each accelerator."""

    count: Annotated[int, Field(ge=1)] = 1
    """How many."""
    device: Device = "auto"
    """`auto` takes a GPU where there is one."""
    memory_mb: Positive | None = None
    """Budget for models on one accelerator; what does not fit is refused by name."""
    cpus: Annotated[float, Field(ge=0)] = 1
    """CPU cores that Ray sets aside for each."""
    resources: Resources = {}
    """Custom resources of Ray that each needs: only machines that offer them get one."""
    measure: Literal["once", "always", "never"] = "once"
    """Run times of variants without any: `once` at their first start on a machine, kept in the
    cache; `always` at every start; `never` refuses such variants."""
    swap: bool = False
    """Hold one model at a time; a batch of another one waits until it is loaded."""
    spare: Literal[True, False, "host", "auto"] = "auto"
    """A second process for each, with the same models loaded, that takes its place when it dies;
    see docs/reliability.md. `host`: it waits in host memory, and takes seconds. `auto`, on a GPU:
    `true` where its memory holds the models twice, with room, else `host`."""
    kind: str = ""
    """Name of this kind of device, under which its run times are known; absent: as it is called."""
    slower: Positive = 1.0
    """Run times over those of the profiles, for emulated devices; others are measured."""
    kernels: Literal["auto", "compiled", "plain"] = "auto"
    """`auto`: on a GPU, other ways to run a network are tried while it serves, and used where they
    are faster and agree; see docs/gpu.md. `compiled`: the same, and networks are compiled for their
    batch sizes as well, at low priority. `plain`: the network as it is."""


class RouterSection(Section):
    """The process that decides."""

    policy: str = AUTO
    """See docs/scenarios.md for the policies and their options; `deferred` where options alone are
    given."""
    policy_options: Mapping[str, object] = {}
    """Options of that policy; `hold` is `auto` unless set, right on a fixed fleet."""
    fair_shares: bool = True
    """Refuse on arrival what is above an application's or a client's fair share of the backends,
    when not everyone can be served; see docs/reliability.md."""
    standby: bool = False
    """A second router waits to take its place within a tenth of a second, on another machine where
    `resources` say so."""
    compiled: bool = False
    """Run it as native code where `make compiled` has built that of the same sources."""
    cpus: Annotated[float, Field(ge=0)] = 0
    """CPU cores that Ray sets aside for it; more than 0 keeps it off machines that offer none, such
    as the head of a cluster."""
    resources: Resources = {}
    """Custom resources of Ray that it needs."""

    @model_validator(mode="before")
    @classmethod
    def _unnamed(cls, data: object) -> object:
        if isinstance(data, dict) and "policy" not in data:
            return {**data, "policy": unnamed(data.get("policy_options"))}
        return data

    @model_validator(mode="after")
    def _policy(self) -> "RouterSection":
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r} must be one of {', '.join(POLICIES)}")
        read_options(self.policy, self.policy_options)
        return self


class ControlConfig(TokenConfig):
    """The control plane's page for operators, served by Ray Serve's own proxy."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """For `/status` and `/metrics`; `serve run` and `serve deploy` have options of their own."""
    resources: Resources = {}
    """Custom resources of Ray that it needs."""
    tls: CertificateConfig | None = None
    """For `fermata serve`; `serve deploy` has `http_options` of its own. Absent: plain HTTP."""
    reading: Literal["open", "token"] = "open"
    """`token`: page, `/status` and `/metrics` ask for the token too, not only what changes
    something."""

    @model_validator(mode="after")
    def _token(self) -> "ControlConfig":
        if self.reading == "token" and not self.is_given:
            raise ValueError("reading=token needs token_file or token_env")
        return self


class LinksConfig(Section):
    """How the processes of a deployment reach one another."""

    host: str = "127.0.0.1"
    """Address that router and frontends take links on; `node` is each one's own in the Ray cluster,
    for clusters of several machines."""
    tls: LinkTlsConfig | None = None
    """Absent: plain TCP, for networks that are closed to others."""


class DeploymentConfig(Section):
    """A whole deployment."""

    name: str = "fermata"
    """Names the router actor; two deployments on one cluster need two names."""
    applications: Applications
    """The applications to serve."""
    pipelines: list[PipelineConfig] = []
    """Applications in a row or a tree, under one deadline."""
    frontend: FrontendConfig = FrontendConfig()
    """Processes that clients talk to."""
    backend: BackendConfig = BackendConfig()
    """Processes that run batches."""
    backends: list[BackendGroupConfig] = []
    """Groups of backends, where they are of several kinds; each is a Serve deployment of its own.
    Absent: `backend.count` that are all alike."""
    router: RouterSection = RouterSection()
    """The process that decides."""
    control: ControlConfig = ControlConfig()
    """Where operators look."""
    links: LinksConfig = LinksConfig()
    """Between the processes."""
    traces: TracesConfig | None = None
    """Traces of some requests; absent: none."""
    logs: LogsConfig = LogsConfig()
    """Logs of all processes."""
    tenants: list[TenantConfig] = []
    """Tenants that may send requests; empty: everybody who reaches the port. See
    docs/security.md."""
    repository: Literal["fixed", "open"] = "fixed"
    """`open` lets clients load and unload what is configured here."""
    autoscaler: AutoscalerConfig | None = None
    """How many backends; absent: `backend.count`, always."""
    epochs: EpochsConfig | None = None
    """Sub-clusters inside one router, or moves between those of `sub_clusters`; absent: every
    backend of a router holds every model there."""
    sub_clusters: SubClustersConfig = SubClustersConfig()
    """Routers, each with models and backends of its own."""

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, data: object) -> object:
        staged = with_stages(data)
        return counted(staged) if isinstance(staged, dict) else staged

    @model_validator(mode="after")
    def _pipelines(self) -> "DeploymentConfig":
        check_pipelines(self)
        return self

    @model_validator(mode="after")
    def _groups(self) -> "DeploymentConfig":
        check_apart(self)
        for index, each in enumerate(groups_of(self)):
            if each.backend.slower != 1.0 and each.backend.device != "emulated":
                where = f"backends.{index}" if self.backends else "backend"
                raise ValueError(
                    f"{where}.slower={each.backend.slower:g} needs device: emulated, not "
                    f"{each.backend.device}, whose run times are measured"
                )
        return self

    @model_validator(mode="after")
    def _backends(self) -> "DeploymentConfig":
        check_sub_clusters(self)
        # A file that does not say a count is refused once it is started.
        self.check_backends(pooled="count" in self.backend.model_fields_set)
        return self

    @property
    def served(self) -> tuple[Application, ...]:
        """The applications as the router has them: each shape bucket is one of its own."""
        return bucketed(self.applications)

    def check_backends(self, pooled: bool = True) -> None:
        """Refuse fewer backends at the start than owners, where one of them cannot share."""
        fewest, where = fewest_backends(self), "backend.count"
        if fewest < self.backend.count:
            where = "backend.count / sub_clusters.count_max"
        check_backends(where, fewest, self._owners(), pooled)

    @property
    def shares_backends(self) -> bool:
        """Whether policies with queues for single backends have to share them."""
        return shares_backends(fewest_backends(self), self._owners())

    def _owners(self) -> list[AppliedPolicy]:
        router = self.router
        return owners_of(self.served, router.policy, router.policy_options)

    @model_validator(mode="after")
    def _accuracy(self) -> "DeploymentConfig":
        if self.autoscaler is not None:
            router = self.router
            asked = self.autoscaler.accuracy
            check_accuracy(asked, self.applications, router.policy, router.policy_options)
        return self

    @model_validator(mode="after")
    def _names(self) -> "DeploymentConfig":
        if self.epochs is not None and self.repository == "open":
            raise ValueError("epochs and repository: open both place models; use one of them")
        if epochs_inside(self) is not None:
            check_movable(each.policy or self.router.policy for each in self.applications)
        closed = [each.name for each in self.applications if each.load == "asked"]
        if closed and self.repository == "fixed":
            raise ValueError(f"load=asked of {closed[0]} needs repository: open")
        for each in self.applications:
            versions = [one.version for one in self.applications if one.name == each.name]
            if each.canary is not None and each.version == min(versions):
                raise ValueError(
                    f"canary of {each.name} version {each.version} needs a lower version beside it"
                )
        for kind, names in (
            ("application", router_names(self.served)),
            ("variant", [one.name for each in self.served for one in each.variants]),
            ("tenant", [each.name for each in self.tenants]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"two {kind}s are named {name!r}; rename one")
        known = {each.name for each in self.applications}
        known |= {each.name for each in self.pipelines}
        for tenant in self.tenants:
            if strange := set(tenant.applications) - known:
                raise ValueError(f"tenant {tenant.name}: application {min(strange)!r} is unknown")
        return self


def load_config(path: Path | str) -> DeploymentConfig:
    """The configuration in a YAML file, or a ConfigError in one line."""
    return read_config(read_yaml(path), str(path), Path(path).parent)


def read_config(
    data: object, source: str = "config", beside: Path | None = None
) -> DeploymentConfig:
    """The configuration that these plain values describe, or a ConfigError in one line.

    Profile files that it names lie in the folder `beside`.
    """
    try:
        return DeploymentConfig.model_validate(data, context=beside)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except ValidationError as error:
        at, given, reason, kind = itemgetter("loc", "input", "msg", "type")(error.errors()[0])
        where = ".".join(str(part) for part in at)
        # A secret that was written into the file by mistake must not reach the log too.
        secret = any("token" in str(part) for part in at)
        shown = "..." if secret else repr(given)[:80]
        reason = reason.removeprefix("Value error, ")
        if kind == "model_type" and not at:
            held = "nothing" if given is None else f"a {type(given).__name__}"
            message = f"{source}: holds {held}; write keys and values, applications at least"
        elif kind == "missing":
            message = f"{source}: {where} is missing"
        else:
            # What is wrong with a file as a whole is told by its parts.
            message = f"{source}: {where}={shown}: {reason}" if at else f"{source}: {reason}"
        allowed = _allowed_keys(at) if kind == "extra_forbidden" else ""
        raise ConfigError(in_one_line(message + allowed)) from None


def _allowed_keys(where: tuple[int | str, ...]) -> str:
    """The keys of the section in which an unknown one stood."""
    section: Any = DeploymentConfig
    for part in where[:-1]:
        if isinstance(part, int):
            continue
        annotation = section.model_fields[part].annotation
        inner = getattr(annotation, "__args__", (annotation,))
        section = inner[0]
    return f"; allowed: {', '.join(section.model_fields)}"
