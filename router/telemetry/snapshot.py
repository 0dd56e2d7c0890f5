"""The counters and signals of a live router at one moment, as plain typed values.

Metrics, autoscaler, page and `/status` read it; differences over time are the reader's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fermata.router.core.events import is_bad
from fermata.router.core.signals import Promise
from fermata.router.links.unavailability import Unavailability
from fermata.router.telemetry.histogram import HistogramSnapshot
from fermata.router.telemetry.meters import RecentBatch

Figure = float | int | str | bool | None | list["Figure"] | dict[str, "Figure"]


@dataclass(frozen=True, slots=True)
class StreamsSnapshot:
    """Streams of one application in the last seconds."""

    seen: int
    worst: int
    """Client whose stream fared worst."""
    worst_bad_rate: float


@dataclass(frozen=True, slots=True)
class LookSnapshot:
    """Looks at the requests of one application, since the router started."""

    looked: int
    short_circuits: int
    """Requests that a look was the answer to."""
    alarms: int
    """Changes of class frequencies that were found."""
    truths: int
    """True classes told by clients, of those that counted."""
    truths_refused: int
    """Those beyond their tenant's share."""
    judged: int
    """Short circuits whose true class was told."""
    right: int
    """Those of them that were right."""
    frequencies: Mapping[int, float]
    """Share of the most frequent classes, as learnt."""


@dataclass(frozen=True, slots=True)
class ApplicationSnapshot:
    """One application, since the router started."""

    slo_ns: int
    lead_ns: int
    """Time from a decision to the start of a batch of one."""
    requests: int
    """Received."""
    good: int
    late: int
    dropped: Mapping[str, int]
    """By reason."""
    answered: Mapping[str, int]
    """Outcomes that frontends have reported; their own refusals are among them."""
    expected_right: float
    rated: int
    """Answers whose accuracy is known."""
    latency: HistogramSnapshot
    queue_delay: HistogramSnapshot
    slack: HistogramSnapshot
    streams: StreamsSnapshot
    policy: Mapping[str, float]
    """The policy's own description of itself."""
    looks: LookSnapshot | None = None
    """None where nothing looks at its requests."""
    parts_good: int = 0
    """Good ones that are parts of queries."""
    parts_bad: int = 0

    @property
    def bad(self) -> int:
        """Requests that the router ended without a result in time."""
        return self.late + sum(count for reason, count in self.dropped.items() if is_bad(reason))

    @property
    def answered_bad(self) -> int:
        """Answers that were bad for their clients."""
        return sum(count for outcome, count in self.answered.items() if is_bad(outcome))


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """The policy of one application."""

    figures: Mapping[str, float]
    trouble: str
    """The failure of its last computation, until one succeeds."""
    promise: Promise | None = None
    """The outcome that it expects now, where it can tell."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class VariantSnapshot:
    """One variant."""

    application: str
    name: str
    accuracy: float | None
    margin_factor: float
    batch_sizes: Mapping[int, int]
    """Batches, by size."""

    @property
    def requests(self) -> int:
        return sum(size * batches for size, batches in self.batch_sizes.items())


@dataclass(frozen=True, slots=True)
class FrontendSnapshot:
    """The last report of a frontend."""

    node: str
    open: int
    payload_bytes: int
    memory_bytes: int
    loop_late_ns: int
    tasks: int


@dataclass(frozen=True, slots=True)
class BackendProcessSnapshot:
    """The last report of a backend; negative figures are unknown."""

    node: str
    models_bytes: int
    memory_bytes: int
    gpu_memory_bytes: int
    gpu_memory_bytes_max: int
    gpu_used: float


@dataclass(frozen=True, slots=True)
class ProcessesSnapshot:
    """The last reports of processes, by their numbers."""

    frontends: Mapping[int, FrontendSnapshot]
    backends: Mapping[int, BackendProcessSnapshot]


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """One backend as the router sees it."""

    sub_cluster: int
    kind: str
    models: list[str]
    running: bool
    queued: bool
    draining: bool
    factor: float
    """Its run times over those of its peers."""
    runs_in: Mapping[str, str] = field(default_factory=dict)
    """By variant: library and device that run it, where its backend chose between several."""


@dataclass(frozen=True, slots=True)
class SpareSnapshot:
    """A process that waits for the end of a backend."""

    first: int
    """Number of that backend."""
    kind: str
    models: list[str]


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Backends that some applications share, or that one policy has for itself."""

    applications: list[str]
    untold: list[str]
    """Those of them whose policy does not tell how many backends it needs."""
    share: float
    """Its part of the backends, relative to other pools."""
    backends: int
    backend_up_ns: int
    backend_busy_ns: int
    least: float
    """Backends that the policies which tell need at least."""


@dataclass(frozen=True, slots=True)
class SubClusterSnapshot:
    """Signals of one sub-cluster."""

    backends: int
    backend_up_ns: int
    backend_busy_ns: int
    demand: float
    least: float
    """Backends that the sources need at least."""
    load: float
    grants: int
    ripe_wait_ns: int
    pools: list[PoolSnapshot] = field(default_factory=list)
    """In the order in which they are given backends."""
    router_cpu_ns: int = 0
    """CPU time of the event loop of a router of its own; 0: not known. Below, the requests that
    this has taken."""
    router_requests: int = 0
    settled_requests: int = 0
    """Those of them for applications that do not move."""


@dataclass(frozen=True, slots=True)
class PlacementSnapshot:
    """Sub-cluster of each application and backend."""

    applications: Mapping[str, int]
    backends: Mapping[int, int]
    on_their_way: list[str]
    """Applications that are moving."""
    closed: tuple[int, ...] = ()
    """Sub-clusters about which nothing is decided for now, such as one whose router is silent."""
    bare: tuple[int, ...] = ()
    """Sub-clusters that nothing can move to, since they have no backends."""
    planned: bool = True
    """Whether it goes by a plan. A router that knows only what backends hold loads nothing."""


@dataclass(frozen=True, slots=True)
class CameraSnapshot:
    """A client that reports its network, and is mapped to a variant or left out."""

    application: str
    client: str
    """Its name, or its number where it has none."""
    bandwidth_bps: float
    """As it measures its uplink; 0: not yet."""
    declared_fps: float
    fps: float
    """Frames a second that came in the last full second."""
    size_asked: int
    """Side that it was told to send; 0: not yet."""
    size_sent: int
    """Side of its last frame."""
    source_size: int
    """The largest side that its source fills; 0: it does not say."""
    variant: str
    """The DNN that serves it; empty: none."""
    backend: int
    frames: int
    """Frames of the last half to one minute, and those of them that were late or refused."""
    missed: int
    served: bool
    reason: str
    """Reason why it is left out; empty while it is served."""

    @property
    def missed_share(self) -> float:
        """Missed ones of its frames; 0 while there are none."""
        return self.missed / self.frames if self.frames else 0.0


def worst_first(cameras: Iterable[CameraSnapshot]) -> list[CameraSnapshot]:
    """Cameras in the order in which their operator wants to see them."""
    return sorted(cameras, key=lambda each: (-each.missed_share, each.served, each.client))


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """One stage of a pipeline, since the router started."""

    application: str
    open: int
    """Requests that wait, run, or whose results are being handed on."""
    results: int
    """Requests that backends have run."""
    took_ns: int
    """Their time from their coming to the end of their batch, together."""
    busy_ns: int = 0
    """Backend time that they took: the stage with most of it is the bottleneck."""


@dataclass(frozen=True, slots=True)
class PipelineSnapshot:
    """One pipeline, since the router started."""

    slo_ns: int
    answered: Mapping[str, int]
    """Queries by outcome, as frontends count them."""
    door_share: float
    """Share of the SLO by which a query must be estimated to end, as learnt."""
    stages: list[StageSnapshot]
    wasted_ns: int = 0
    """Backend time of queries that ended without a good answer, and of what ran on after them."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """Queries by outcome, as the router has ended them."""


@dataclass(frozen=True, slots=True)
class RouterSnapshot:
    """All of it."""

    term: int
    """Term of the router."""
    stale: str
    """Reason why it must not go on; empty while it may."""
    up_ns: int
    frontends: list[int]
    queued: int
    dispatched: int
    unknown_application: int
    stray_messages: int
    hung_backends: list[int]
    lost_backends: list[str]
    retired_backends: Mapping[int, str]
    ejected_backends: Mapping[int, str]
    """Backends that failed by their own fault and are to be given back, with the reason."""
    next_wake_in_ns: int | None
    lead_ns: int
    link_ns: int
    timer_late_ns: Mapping[str, int]
    timer_late: HistogramSnapshot
    link_round_trip: HistogramSnapshot
    loads: Mapping[str, list[int]]
    failures: int
    applications: Mapping[str, ApplicationSnapshot]
    tenants: Mapping[str, Mapping[str, int]]
    absent: Mapping[str, Unavailability]
    """Applications that are not served."""
    policies: Mapping[str, PolicySnapshot]
    variants: list[VariantSnapshot]
    busy_ns: Mapping[str, int]
    """Backend time of each application."""
    target: int | None
    wanted: list[int]
    """Backends that each sub-cluster should have; empty until the control plane has decided."""
    placement: PlacementSnapshot
    processes: ProcessesSnapshot
    backends: Mapping[int, BackendSnapshot]
    ranks: list[SubClusterSnapshot]
    pid: int = 0
    standby: bool = False
    """Another router waits to take its place."""
    tasks: int = 0
    links_refused: int = 0
    """Connections that did not prove in time that they belong to the deployment."""
    recent: Mapping[str, list[RecentBatch]] | None = None
    """Batches of the last seconds on each backend, where they were asked for."""
    non_finite: Mapping[str, int] = field(default_factory=dict)
    """Requests whose outputs held a NaN or an infinity, by variant. Last, as the next three: the
    control plane of the version before reads these by their place."""
    spares: Mapping[int, SpareSnapshot] = field(default_factory=dict)
    """By their own numbers; none of them is among the backends."""
    cameras: list[CameraSnapshot] = field(default_factory=list)
    """Clients that report their network."""
    pipelines: Mapping[str, PipelineSnapshot] = field(default_factory=dict)
