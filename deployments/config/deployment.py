"""The one configuration of a deployment: read strictly here, handed inwards as plain values.

Secrets are named in it, not held; see `fermata.deployments.config.security`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fermata.deployments.config.base import Fraction, Positive, Section
from fermata.deployments.config.observability import LogsConfig, TracesConfig
from fermata.deployments.config.scaling import AutoscalerConfig, EpochsConfig
from fermata.deployments.config.security import (
    CertificateConfig,
    ClientTlsConfig,
    LinkTlsConfig,
    TenantConfig,
    TokenConfig,
)
from fermata.foundation.check import in_one_line
from fermata.foundation.errors import ConfigError
from fermata.profiles.profile import Profile, from_table_ms, linear
from fermata.profiles.reference import find_profile, names_file, read_inline, write_inline
from fermata.router.policies.catalog import POLICIES, check_movable, read_options


class VariantConfig(Section):
    """One model that can serve an application."""

    name: str
    """Unique in the deployment; clients see it in answers."""
    model: str = "emulated"
    """The model to load: `digits:small`, `imagenet:lite0@224`, `torchvision:resnet50`,
    `transformers:distilbert@128`, a path to a TorchScript, exported or ONNX file,
    `module:function`, or `emulated` (runs for the profiled time and returns zeros)."""
    profile: str | dict[str, object] | None = None
    """Its run times: a name in the zoo (`TABLE/NAME`), or a file of `fermata profile` as
    `./FILE#NAME`, relative to this file; measured at start where absent."""
    alpha_ms: Positive | None = None
    """Run time of one more request in a batch, with `beta_ms`, in place of a profile."""
    beta_ms: Annotated[float, Field(ge=0)] | None = None
    """Fixed run time of a batch."""
    latency_ms: list[Positive] | None = None
    """Run times of batches of 1, 2, 3, ..., in place of a profile."""
    accuracy: Fraction | None = None
    """Share of right answers; measured where the model knows its own."""
    recall: list[Fraction] = []
    """Share of right answers by class; measured where the model knows its own."""
    swap_in_ms: Positive | None = None
    """To bring it back where backends hold one model at a time; its load time where absent."""
    batch_size_max: Annotated[int, Field(ge=1)] = 64
    """No batch is larger."""
    input_size: Annotated[int, Field(ge=1)] | None = None
    """Side of its pictures, where variants differ in it; as in its name (`@160`) where absent."""

    @field_validator("profile")
    @classmethod
    def _inline(
        cls, given: str | dict[str, object] | None, info: ValidationInfo
    ) -> str | dict[str, object] | None:
        """A profile of a file goes along, since other machines do not have the file."""
        if not isinstance(given, str) or not names_file(given):
            return given
        return write_inline(find_profile(given, info.context))

    @model_validator(mode="after")
    def _one_cost(self) -> "VariantConfig":
        line = self.alpha_ms is not None or self.beta_ms is not None
        if line and (self.alpha_ms is None or self.beta_ms is None):
            raise ValueError("alpha_ms and beta_ms come together")
        given = [self.profile is not None, line, self.latency_ms is not None]
        if sum(given) > 1:
            raise ValueError("give one of profile, alpha_ms with beta_ms, latency_ms")
        if self.model == "emulated" and not any(given):
            raise ValueError("an emulated model needs profile, alpha_ms with beta_ms or latency_ms")
        return self

    def known_profile(self) -> Profile | None:
        """Its run times, where the configuration says them."""
        if isinstance(self.profile, str):
            return find_profile(self.profile)
        if self.profile is not None:
            return read_inline("profile", self.profile)
        if self.alpha_ms is not None and self.beta_ms is not None:
            return linear(self.name, self.alpha_ms, self.beta_ms, accuracy=self.accuracy)
        if self.latency_ms is not None:
            return from_table_ms(self.name, self.latency_ms, accuracy=self.accuracy)
        return None


Resources = dict[str, Positive]


class InputConfig(Section):
    """The input of one request."""

    name: str = "input"
    """Tensor name in requests."""
    dtype: Literal["FP32", "FP16", "UINT8", "INT64"] = "FP32"
    """As the model takes it, after preprocessing."""
    shape: list[Annotated[int, Field(ge=1)]] = [1]
    """Without the batch dimension."""
    image: bool = False
    """Encoded JPEG in a BYTES tensor is decoded, resized to `shape` and normalised."""
    fit: Literal["stretch", "crop", "centre", "whole"] = "stretch"
    """How a picture gets that size: `stretch` ignores its proportions, `crop` is torchvision's
    middle, `centre` EfficientNet's, `whole` keeps all of it in the top left of a square."""
    sized: bool = False
    """Variants differ in the side of their pictures: each frame keeps the size it comes with, and
    is fitted to the variant that runs it; `fit` is `whole` or `centre`."""
    mean: list[float] = [0.485, 0.456, 0.406]
    """Subtracted from each channel of an image, on a scale of 0 to 1."""
    std: list[Positive] = [0.229, 0.224, 0.225]
    """Then divided by this."""


def check_policy(policy: str, given: dict[str, Any]) -> None:
    """Refuse a policy that there is not, and options that it has not."""
    if policy not in POLICIES:
        raise ValueError(f"policy={policy!r} must be one of {', '.join(POLICIES)}")
    read_options(policy, given)


class ClassesConfig(Section):
    """How an application's classes count, and who peeks at its requests."""

    sneakpeek: str | None = None
    """SneakPeek model that frontends look at requests with: a file of `fermata sneakpeek build`, or
    `digits` for the embedded digits."""
    data: str | None = None
    """The labelled data it must have been built from; refused where it was not."""
    weights: list[Annotated[float, Field(ge=0)]] = []
    """The worth of a right answer, by class; 1 where absent."""
    recall_floors: list[Fraction] = []
    """The least recall that answers must have, by class; 0 where absent."""
    prior: Literal["online", "even", "jeffreys"] | list[Positive] = "online"
    """Class frequencies: estimated from the stream, even, or Dirichlet weights on raw votes."""


class CanaryConfig(Section):
    """A new version that is tried out on some requests before it gets them all."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of requests that name no version; the others go to the version before it."""
    bad_rate_max: Fraction = 0.05
    """Above it the version is withdrawn: nobody is sent to it until a client loads it anew."""
    requests_min: Annotated[int, Field(ge=1)] = 100
    """Nobody judges before so many have ended."""


class ApplicationConfig(Section):
    """A task with an SLO: what clients call a model."""

    name: str
    """The model name that clients use."""
    version: Annotated[int, Field(ge=1)] = 1
    """Versions of one name serve side by side; requests that name none go to the highest one that
    is loaded."""
    canary: CanaryConfig | None = None
    """Try it out first; absent: it gets every request that names no version."""
    load: Literal["start", "asked"] = "start"
    """`asked`: not before a client asks for it (RepositoryModelLoad; needs `repository: open`)."""
    slo_ms: Positive
    """Target from arrival to answer, unless a request asks for less with `timeout`."""
    hard_limit_ms: Positive | None = None
    """An answer after it is worthless and not computed; `slo_ms` where absent."""
    newest: bool = False
    """A new frame of a stream replaces the queued one."""
    input: InputConfig | None = None
    """The input of a request; an embedded model knows its own."""
    labels: list[str] = []
    """Names of the classes of the first output, for clients that ask for them; an embedded model
    knows its own."""
    variants: Annotated[list[VariantConfig], Field(min_length=1)]
    """Models that can serve it."""
    serving: str | None = None
    """The variant that serves unless the policy chooses; the first where absent."""
    policy: str | None = None
    """A policy of its own, in place of the router's; see docs/scenarios.md."""
    policy_options: dict[str, Any] = {}
    """Options of that policy."""
    backend_share: Positive = 1
    """Its part of the backends, where policies need backends of their own."""
    fair_share: Positive = 1
    """Its part of the backends, relative to others, when not everyone can be served."""
    accuracy_floor: Fraction = 0
    """Variants below it never run; refused at the start where the only one that may does not
    reach it."""
    classes: ClassesConfig | None = None
    """Its classes, for policies that look at what a request holds; see docs/data-aware.md."""

    @model_validator(mode="after")
    def _limits(self) -> "ApplicationConfig":
        if self.hard_limit_ms is not None and self.hard_limit_ms < self.slo_ms:
            raise ValueError(f"hard_limit_ms={self.hard_limit_ms} is below slo_ms={self.slo_ms}")
        return self

    @model_validator(mode="after")
    def _policy(self) -> "ApplicationConfig":
        names = [variant.name for variant in self.variants]
        if self.serving is not None and self.serving not in names:
            raise ValueError(f"serving={self.serving!r} must be one of {', '.join(names)}")
        if self.policy is not None:
            check_policy(self.policy, self.policy_options)
        elif self.policy_options:
            raise ValueError("policy_options needs policy beside it")
        return self


class FrontendConfig(Section):
    """Processes that clients talk to."""

    processes: Annotated[int, Field(ge=1)] = 1
    """In the whole cluster; on one machine they share the ports by SO_REUSEPORT."""
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
    streams_per_client_max: Annotated[int, Field(ge=1)] = 1024
    """Streams that one tenant, or where there are none one address, may have open in a process."""
    connections_max: Annotated[int, Field(ge=1)] = 4096
    """gRPC connections that a process keeps open, and as many of HTTP; more are refused."""
    connections_per_client_max: Annotated[int, Field(ge=1)] = 1024
    """HTTP connections from one address."""
    receive_s: Positive = 30
    """A request over HTTP has to come within this, an answer has to be read, and a handshake to
    end."""
    idle_s: Positive = 120
    """A stream without a request, or a gRPC connection without a call, is ended after this."""
    tls: ClientTlsConfig | None = None
    """Absent: plain connections."""
    reply_ms: Annotated[float, Field(ge=0)] = 2
    """Taken off each deadline for the way back from the backend to the client."""

    @model_validator(mode="after")
    def _ports(self) -> "FrontendConfig":
        if self.grpc_port == self.http_port != 0:
            raise ValueError(f"grpc_port and http_port are both {self.grpc_port}; set two")
        return self


class BackendConfig(Section):
    """Processes that run batches, one for each accelerator."""

    count: Annotated[int, Field(ge=1)] = 1
    """How many."""
    device: Literal["auto", "cpu", "cuda", "emulated"] = "auto"
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


class RouterSection(Section):
    """The process that decides."""

    policy: str = "deferred"
    """See docs/scenarios.md for the policies and their options."""
    policy_options: dict[str, Any] = {}
    """Options of that policy; `hold` is `auto` unless set, right on a fixed fleet."""
    fair_shares: bool = True
    """Refuse on arrival what is above an application's or a client's fair share of the backends,
    when not everyone can be served; see docs/reliability.md."""
    standby: bool = False
    """A second router waits to take its place within a tenth of a second, on another machine where
    `resources` say so."""
    cpus: Annotated[float, Field(ge=0)] = 0
    """CPU cores that Ray sets aside for it; more than 0 keeps it off machines that offer none, such
    as the head of a cluster."""
    resources: Resources = {}
    """Custom resources of Ray that it needs."""

    @model_validator(mode="after")
    def _policy(self) -> "RouterSection":
        check_policy(self.policy, self.policy_options)
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
    applications: Annotated[list[ApplicationConfig], Field(min_length=1)]
    """The applications to serve."""
    frontend: FrontendConfig = FrontendConfig()
    """Processes that clients talk to."""
    backend: BackendConfig = BackendConfig()
    """Processes that run batches."""
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
    """Sub-clusters; absent: every backend holds every model."""

    @model_validator(mode="after")
    def _names(self) -> "DeploymentConfig":
        if self.epochs is not None and self.repository == "open":
            raise ValueError("epochs and repository: open both place models; use one of them")
        if self.epochs is not None:
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
            ("application", [f"{each.name}@{each.version}" for each in self.applications]),
            ("variant", [one.name for each in self.applications for one in each.variants]),
            ("tenant", [each.name for each in self.tenants]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"two {kind}s are named {name!r}; rename one")
        known = {each.name for each in self.applications}
        for tenant in self.tenants:
            if strange := set(tenant.applications) - known:
                raise ValueError(f"tenant {tenant.name}: application {min(strange)!r} is unknown")
        return self


def load_config(path: Path | str) -> DeploymentConfig:
    """The configuration in a YAML file, or a ConfigError in one line."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML ({' '.join(str(error).split())})") from None
    return read_config(data, str(path), Path(path).parent)


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
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "config"
        # A secret that was written into the file by mistake must not reach the log too.
        secret = any("token" in str(part) for part in first["loc"])
        shown = "..." if secret else repr(first["input"])[:80]
        message = f"{source}: {where}={shown}: {first['msg']}"
        allowed = _allowed_keys(first["loc"]) if first["type"] == "extra_forbidden" else ""
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
