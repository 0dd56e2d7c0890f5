"""Messages on links. Times on the wire are durations: monotonic clocks differ between hosts.

A frame is a list of messages, everything that one loop tick has to say to one peer. Requests are
known by `rid`, unique in the cluster: the frontend's number in the upper bits, a counter below.
"""

import msgspec

from fermata.router.links.closing import CloseCode
from fermata.router.links.directory import Directory
from fermata.router.links.unavailability import Unavailability

PROTOCOL = 9
"""Raised when a message changes; peers of other numbers than these two are refused by name."""
PROTOCOLS = (PROTOCOL, 8)
"""Versions that a process speaks, the newest first: a deployment is upgraded process by process.
A field that a reader does not know is ignored, and one that it misses has its default, so new ones
come last and have one."""
PLACES_FROM = 9
"""Version that tells where inputs lie, in `Submit` and `Run`. Peers of an earlier one would not say
that nobody has read them, so they are told nothing, and fetch."""
SPARES_FROM = 9
"""Version that knows spares. A router of an earlier one would give them batches, so it hears
nothing of them before they take over."""
CUTS_FROM = 9
"""Version whose backends cut pictures out of others (`Payload.cut`)."""
LOOKS_FROM = 9
"""Version whose backends look at inputs (`Look`). They say so; an earlier one never does."""
CUT = "CUT"
"""Type of such an input. Backends of an earlier version know no such type, and refuse it."""
RID_BITS = 40
"""A frontend's own counter; its number stands above."""


def frontend_of(rid: int) -> int:
    return rid >> RID_BITS


PackedTensors = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""(name, dtype, shape, length) of each tensor of a payload."""
STANDBY = "standby"
"""The role of a router that waits to lead."""


class Hello(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Identity of one end; see `fermata.router.links.handshake`. Proofs cover all of it: a new
    field takes a new protocol. Tag and first fields stay: any version is refused by name."""

    protocol: int
    role: str
    """`frontend`, `router` or `backend`; `standby`: a router that waits."""
    number: int
    """Number among its role; a frontend's is part of its rids."""
    term: int
    """Term of the router; 0 from others that have not met one. A lower one than known is
    refused."""
    address: str = ""
    """host:port where this process itself takes links; empty where it takes none."""
    node: str = ""
    """Processes of one node share memory."""
    nonce: bytes = b""
    """Random bytes of the end that opened the connection."""
    dialled: str = ""
    """Address that the connection was opened to."""


class Challenge(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Answer to a hello, and the only one before a proof."""

    nonce: bytes


class Proof(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """Evidence that this end knows the deployment's secret."""

    digest: bytes


class Heartbeat(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Sign of life; sent by a thread of its own, so that a busy loop is not taken for dead."""

    sent_at_ns: int


class Goodbye(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """The link ends on purpose. Peers of protocol 5 read the detail, and send no code."""

    detail: str
    code: CloseCode = CloseCode.OTHER
    term: int = 0
    """Term of the newer router that was met, with the code STALE."""


class TakesLead(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Announcement of a standby that leads from now on."""

    term: int


# Frontend -> router


class Submit(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """A request to be scheduled."""

    rid: int
    application: str
    slo_ns: int
    """Left until its deadline, reply delay already taken off."""
    hard_limit_ns: int
    """Left until it expires."""
    client: int = 0
    priority: int = 0
    accuracy_floor: float = 0.0
    """No variant below it may run it."""
    pinned: str = ""
    """Name of the only variant that may; empty: any."""
    tenant: int = 0
    """The tenant whose fair share it uses; 0: its client's own."""
    rows: int = 1
    """Places that it takes in a batch."""
    payload: "Payload | None" = None
    """Where its input lies, for the first backend that runs it, if that is on the frontend's
    node."""
    sequence: tuple[int, bool, bool] | None = None
    """(key, start, end) of its step in a sequence whose state a backend keeps; None: alone."""
    part: "QueryPart | None" = None
    """Its part in a query that the router knows, or will know; None: it stands alone."""
    retried: bool = False
    """A batch of it has failed, or taken its backend down, at an earlier home."""
    beside: "tuple[Payload | int, ...]" = ()
    """Further parts of the same result at the same stage, on the same terms: where the input of
    each lies, or its id alone. Only with `part`, which routers know from the same version on."""


class QueryPart(msgspec.Struct, array_like=True, frozen=True):
    """A request's part in a query; told once, when it is first submitted."""

    pipeline: str
    stage: int = 0
    """Place among the pipeline's stages."""
    parent: int = -1
    """The request whose result it is made of, or that the join waited for last; -1: it begins the
    query, which has its id unless `query` tells another."""
    query: int = -1
    """Id of the query whose function calls its stage; -1: it is a part of a graph."""


class HandedOn(msgspec.Struct, tag=17, array_like=True, frozen=True):
    """The result of a query's part has been taken up: what is made of it was submitted before. With
    a query's id: its function has ended."""

    rid: int
    lost: str = ""
    """Reason why there is no result, where the answer may be partial; of a query, how it has ended
    if not well."""


class Cancel(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """Its client has left."""

    rid: int


class Evidence(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """Evidence from a look at this very request: votes for each class, or the expected accuracy of
    each variant where the frontend has worked that out."""

    rid: int
    accuracies: tuple[float, ...] = ()
    votes: tuple[float, ...] = ()
    answers: bool = True
    """Whether the client takes the look's answer for the model's."""


class Truth(msgspec.Struct, tag=16, array_like=True, frozen=True):
    """The true class of an earlier request, as its client tells it; since protocol 9."""

    application: str
    label: int
    variant: str = ""
    """Variant that answered, or `sneakpeek`; empty: unknown."""
    answer: int = -1
    """Class that was answered; negative: unknown."""
    tenant: int = 0


class Place(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """A client wants this application loaded on every backend, or unloaded."""

    application: str
    load: bool


class ClientNetworkReport(msgspec.Struct, tag=14, array_like=True, frozen=True):
    """A client's report of itself and its network; see
    `fermata.router.core.events.ClientReport`."""

    application: str
    client: int
    slo_ns: int
    fps: float
    bandwidth_bps: float
    input_size: int
    frame_bits: int
    round_trip_ns: int
    accuracy_floor: float = 0.0
    pinned: str = ""
    """Name of the only variant that may serve it; empty: any."""
    source_size: int = 0
    """The largest size that its source can fill; 0: any."""
    name: str = ""
    """The client as it calls itself, for operators."""


class Answered(msgspec.Struct, array_like=True, frozen=True):
    """Ends of one application's requests at a frontend, since its last report."""

    application: str
    outcomes: dict[str, int]
    """`good`, `late`, or the reason of a refusal."""
    latency: tuple[int, ...]
    """Counts of latencies, by the buckets of `fermata.router.telemetry.histogram.LATENCY_NS`."""
    latency_ns: int
    """Their sum."""


class FrontendStats(msgspec.Struct, tag=15, array_like=True, frozen=True):
    """Once a second: what the frontend has counted since the last time, and what it holds now."""

    applications: tuple[Answered, ...]
    open: int = 0
    """Requests without an answer."""
    payload_bytes: int = 0
    """Memory of their inputs."""
    memory_bytes: int = 0
    """Memory of the whole process."""
    loop_late_ns: int = 0
    """Lateness of its event loop at this report."""
    tasks: int = 0
    """Tasks of its event loop, as counted a few seconds ago at most."""
    tenants: tuple[tuple[str, dict[str, int]], ...] = ()
    """Ends of each tenant's requests, of all applications together."""


# Router -> frontend


class Dropped(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """The request ends without a result."""

    rid: int
    reason: str
    retry_after_ns: int = 0
    detail: str = ""
    """The error itself, where a batch failed."""
    unread: bool = False
    """No backend was told where its input lies."""
    retried: bool = False
    """It is handed back, and must not be run again more than once: see `Submit`."""


class Unavailable(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """Applications that are not served, each with why; every other one is served."""

    applications: dict[str, Unavailability]


class InputSizeAdvice(msgspec.Struct, tag=22, array_like=True, frozen=True):
    """Tell this client which input size to send; see `fermata.router.core.events.Advise`."""

    application: str
    client: int
    input_size: int
    network_ns: int
    served: bool


class ShortCircuit(msgspec.Struct, tag=23, array_like=True, frozen=True):
    """The request is answered from its evidence; no backend runs it."""

    rid: int
    label: int
    estimate: float
    """Probability that the label is right."""
    classes: tuple[float, ...]
    """Probability of each class."""
    unread: bool = False
    """No backend was told where its input lies."""


class Estimated(msgspec.Struct, tag=24, array_like=True, frozen=True):
    """The request goes to a backend; how likely its variant is to answer it right."""

    rid: int
    estimate: float


class FleetStatus(msgspec.Struct, tag=25, array_like=True, frozen=True):
    """The size of the fleet; sent first on a link, and whenever it changes."""

    frontends: int
    """Frontends that are linked to this router, the receiver among them."""
    backends: int
    """Backends that may be given batches."""
    not_loaded: tuple[str, ...] = ()
    """Applications of which none of those holds all variants."""


class Shares(msgspec.Struct, tag=26, array_like=True, frozen=True):
    """Share of each tenant's rate that the receiving frontend may give; those left out are shared
    evenly. In answer to `FrontendStats`, where there are several frontends."""

    tenants: dict[str, float]


class Unread(msgspec.Struct, tag=27, array_like=True, frozen=True):
    """These requests went to a backend that was not told where their inputs lie: it fetches
    them."""

    rids: tuple[int, ...]


# Router -> backend


class Run(msgspec.Struct, tag=30, array_like=True, frozen=True):
    """Run these requests together, after what you have been given before."""

    batch: int
    variant: str
    rids: tuple[int, ...]
    start_in_ns: int
    plan_ns: int
    inputs: "tuple[Payload, ...]" = ()
    """Inputs that need not be fetched."""


class FrontendAddress(msgspec.Struct, tag=31, array_like=True, frozen=True):
    """Address of a frontend's links; sent before the first batch that needs it."""

    number: int
    address: str
    node: str


class LoadVariant(msgspec.Struct, tag=32, array_like=True, frozen=True):
    variant: str


class UnloadVariant(msgspec.Struct, tag=33, array_like=True, frozen=True):
    variant: str


class Drained(msgspec.Struct, tag=34, array_like=True, frozen=True):
    """Nothing more will come: whatever a backend that drains has been sent, it has by now."""


class Retire(msgspec.Struct, tag=35, array_like=True, frozen=True):
    """Order to be replaced: the backend fails or is slow, and gets nothing more."""

    reason: str


class EndSequence(msgspec.Struct, tag=36, array_like=True, frozen=True):
    """The state of this sequence is not needed any more."""

    variant: str
    key: int


# Backend -> router


class Ready(msgspec.Struct, tag=40, array_like=True, frozen=True):
    """Loaded and warm: may be given batches of these variants."""

    kind: str
    """Accelerator type."""
    variants: tuple[str, ...]
    trouble: tuple[tuple[str, str], ...] = ()
    """Variants that could not be loaded when last asked for, each with why."""
    costs: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    """(variant, p50, p99 by batch size from 1 up) as measured on this kind of backend."""
    empty: bool = False
    """Everything has been unloaded; no variants without this say that the backend drains."""
    limits: tuple[tuple[str, int], ...] = ()
    """(variant, largest batch) where memory did not suffice for larger ones lately."""
    unreachable: tuple[int, ...] = ()
    """Frontends that it cannot reach now: their requests are for other backends."""
    spare_of: int = -1
    """Number of the backend whose spare it is: it takes no batch before that one has ended, and
    then announces itself without this; negative: it is none."""
    runs_in: tuple[tuple[str, str], ...] = ()
    """(variant, library and device) where a backend chose between several."""


class Done(msgspec.Struct, tag=41, array_like=True, frozen=True):
    """A batch has ended."""

    batch: int
    run_ns: int
    """Run time."""
    start_late_ns: int
    """Delay of its start after the plan, the previous batch aside."""
    failed: str = ""
    """Reason why it gave no results; the router runs its requests elsewhere, or drops them."""
    left_out: tuple[int, ...] = ()
    """Requests whose frontend was out of reach: it could not send their inputs, or could not be
    sent their results."""
    spoilt: tuple[int, ...] = ()
    """Requests of a part that failed, while others gave results: one of them may have spoilt the
    others. The router runs each of them alone, or drops it."""
    error: str = ""
    """The error of those."""


class BackendStats(msgspec.Struct, tag=42, array_like=True, frozen=True):
    """Once a second: what the backend has counted since the last time, and what it holds now."""

    loads: tuple[tuple[str, int, int], ...] = ()
    """(variant, how often it was loaded, how long that took)."""
    failures: int = 0
    """Batches and loads that failed."""
    models_bytes: int = 0
    """Held by models on the accelerator."""
    memory_bytes: int = 0
    """Memory of the whole process."""
    gpu_memory_bytes: int = -1
    """In use on its GPU, by whomever; negative where there is none."""
    gpu_memory_bytes_max: int = -1
    gpu_used: float = -1.0
    """Share of the last second that the GPU was at work, as its driver says."""
    non_finite: tuple[tuple[str, int], ...] = ()
    """(variant, requests whose outputs held a NaN or an infinity)."""


# Backend -> frontend, and back


class Fetch(msgspec.Struct, tag=50, array_like=True, frozen=True):
    """Send me the inputs of these requests as soon as they are ready."""

    batch: int
    rids: tuple[int, ...]
    by: bytes = b""
    """The data connection for large inputs, of this fetch and of those before that wait: the nonce
    of its hello. Empty: this link."""
    asks: bool = False
    """Whether to answer with a `DataPort`, which peers that never ask would not know."""


class Returned(msgspec.Struct, tag=53, array_like=True, frozen=True):
    """These got no result here."""

    rids: tuple[int, ...]
    term: int = 0
    """Term of the router that decides about them; 0: the router that ordered them is gone."""


class Payload(msgspec.Struct, tag=51, array_like=True, frozen=True):
    """One request's input: bytes, or a place in the frontend's shared memory."""

    rid: int
    dtype: str
    shape: tuple[int, ...]
    data: bytes = b""
    segment: str = ""
    """Name of the shared memory; empty where `data` holds the input itself."""
    offset: int = 0
    length: int = 0
    missing: bool = False
    """The request has ended meanwhile: leave it out of the batch."""
    tensors: PackedTensors = ()
    """Its tensors, where there are several: their bytes follow one another, and `dtype` and
    `shape` say nothing."""
    rows: int = 0
    """Rows that it holds: the first dimension of each of its tensors. 0: one row, without that."""
    frame: int = -1
    """The request whose picture this is, which may be cut by others: worth keeping once it is
    decoded. Negative: nobody else asks for it."""
    cut: tuple[int, ...] = ()
    """Left, top, right and bottom of the part that is the input; empty: the whole picture."""


class Result(msgspec.Struct, tag=52, array_like=True, frozen=True):
    """One request's output tensors, or why there are none."""

    rid: int
    variant: str
    batch_size: int
    queue_ns: int
    """From dispatch to start of the run on the backend."""
    run_ns: int
    tensors: tuple[tuple[str, str, tuple[int, ...], bytes], ...] = ()
    """(name, dtype, shape, data) of each output."""
    error: str = ""
    estimate: float = -1.0
    """Estimated probability that it is right, filled in by the frontend; negative: unknown."""
    short_circuit: bool = False
    """Answered from evidence alone."""
    input_late: bool = False
    """With an error: its input did not arrive in time. The model is not at fault, and a retry may
    succeed."""


class TakesLooks(msgspec.Struct, tag=54, array_like=True, frozen=True):
    """A backend looks at requests of these applications, for frontends that ask it to. Since
    protocol 9, to peers that speak it."""

    applications: tuple[str, ...]


class Look(msgspec.Struct, tag=55, array_like=True, frozen=True):
    """Look at an input with the SneakPeek model of its application, beside the batches. To backends
    alone that take such looks."""

    application: str
    payload: Payload
    """Its input, or its place: that memory is lent until the answer."""
    within_ns: int
    """Votes are of no use later."""


class Looked(msgspec.Struct, tag=56, array_like=True, frozen=True):
    """The answer to each look: nobody reads its input any more."""

    rid: int
    votes: tuple[float, ...] = ()
    """Votes for each class; empty: there was no look."""
    took_ns: int = 0
    """Time of one look among those that were taken together."""


class DataPort(msgspec.Struct, tag=57, array_like=True, frozen=True):
    """Port where a frontend takes data connections (`fermata.router.links.data_socket`), on the
    host of its links. To backends alone that have asked (`Fetch.asks`)."""

    port: int


OfLinks = Hello | Challenge | Proof | Heartbeat | Goodbye
FrontendToRouter = (
    Submit | Cancel | Evidence | Place | ClientNetworkReport | FrontendStats | Truth | HandedOn
)
RouterToFrontend = (
    Dropped
    | Unavailable
    | InputSizeAdvice
    | ShortCircuit
    | Estimated
    | FleetStatus
    | Shares
    | Unread
    | Directory
)
RouterToBackend = (
    Run | FrontendAddress | LoadVariant | UnloadVariant | Drained | Retire | EndSequence
)
BackendToRouter = Ready | Done | BackendStats
BackendAndFrontend = Fetch | Returned | Payload | Result | TakesLooks | Look | Looked | DataPort
Message = (
    OfLinks
    | TakesLead
    | FrontendToRouter
    | RouterToFrontend
    | RouterToBackend
    | BackendToRouter
    | BackendAndFrontend
)
