"""Events that enter the engine and effects that leave it."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from fermata.foundation.units import NEVER

HIGHEST: Final = 1
"""The highest priority, as in Triton; all others, with 0 the default, are alike."""


class DropReason:
    """Why a request ended without a result; the text travels to clients and metrics as it is."""

    LATE: Final = "late"
    """No batch, however small, could still end before its deadline."""
    WINDOW: Final = "window"
    """Serving it would have kept its successors from running in a batch of the target size."""
    SHED: Final = "shed"
    """Refused on arrival: overload, and its stream has had its share."""
    SUPERSEDED: Final = "superseded"
    """A newer frame of its stream took its place."""
    FULL: Final = "full"
    """Every buffer that it could have joined had no room."""
    FLOOR: Final = "floor"
    """No backend runs a variant that its accuracy floor or its pin admits."""
    CANCELLED: Final = "cancelled"
    """Its client has left."""
    FAILED: Final = "failed"
    """Its batch raised an error on the backend, and again elsewhere if there was time to try."""
    QUARANTINED: Final = "quarantined"
    """Its model has crashed one backend after the other, and is not run for a while."""
    LOST: Final = "backend-lost"
    """Its backend died and there was no time left to run it again."""
    INPUT_LATE: Final = "input-late"
    """Its input did not reach a backend in time, or its result its frontend; nor a second time."""
    NO_BACKEND: Final = "no-backend"
    """No backend that could run it was up, and in reach of its frontend, while it could wait."""
    HUNG: Final = "hung"
    """Its batch did not end. Whatever hung it is not run again: it would cost another backend."""
    BLAMED: Final = "blamed"
    """Inputs of its tenant, or client, have hung one backend after the other."""
    SEQUENCE_LOST: Final = "sequence-lost"
    """The state of its sequence is gone, with its backend or with a result. Told once."""
    NO_SEQUENCE: Final = "no-sequence"
    """Its sequence has not been started, or has ended."""
    MOVED: Final = "moved"
    """Its application lives in another sub-cluster now. Its frontend asks for it there."""


GOOD: Final = "good"
"""The outcome of a request that was answered in time."""
CLIENT_CAUSED: Final = frozenset(
    (DropReason.CANCELLED, DropReason.NO_SEQUENCE, "bad-input", "not-found", "rate")
)
"""Outcomes that are the client's own doing. The last three are refusals of frontends."""


def is_bad(outcome: str) -> bool:
    """Tell whether a request that ended so counts as bad. The one definition of the word."""
    return outcome not in (GOOD, DropReason.MOVED) and outcome not in CLIENT_CAUSED


class Estimate:
    """Evidence about one request's content."""

    __slots__ = ("accuracies", "classes", "label", "label_accuracy", "likely")

    def __init__(
        self,
        classes: tuple[float, ...],
        accuracies: tuple[float, ...],
        label: int,
        label_accuracy: float,
        likely: int,
    ) -> None:
        self.classes = classes
        """Probability of each class; empty where only profiles are known."""
        self.accuracies = accuracies
        """Expected accuracy of each variant, weighted as the application wants; 0: barred."""
        self.label = label
        """The answer that could be given at once; -1: none."""
        self.label_accuracy = label_accuracy
        """The worth of that answer, on the scale of `accuracies`."""
        self.likely = likely
        """The class with a probability above one half; -1 where none has."""


class Apart:
    """Requests that meet with nobody else's: those of a suspect, or of one frontend."""

    __slots__ = ("avoid", "variant")

    def __init__(self, variant: int, avoid: set[int] | None = None) -> None:
        self.variant = variant
        self.avoid: set[int] = set() if avoid is None else avoid
        """Backends that may not run them; whoever made it may change them at any time."""


class SequenceStep:
    """A request's part in a sequence, whose requests run in order and share a state."""

    __slots__ = ("end", "key", "start")

    def __init__(self, key: int, start: bool = False, end: bool = False) -> None:
        self.key = key
        """Number of the sequence, one for each tenant and id."""
        self.start = start
        """It begins with an empty state, whatever there was before."""
        self.end = end
        """The state is not needed after it."""


class Request:
    """One inference to be done for one client, with its deadline. Hot: one for each request."""

    is_part: ClassVar[bool] = False
    """Whether it is part of a query, whose end counts in its place."""

    __slots__ = (
        "accuracies",
        "allowed",
        "apart",
        "application",
        "arrived_at_ns",
        "client",
        "deadline_ns",
        "error",
        "estimate",
        "expires_at_ns",
        "left_out",
        "priority",
        "retried",
        "rid",
        "rows",
        "sequence",
        "start_by_ns",
        "tenant",
        "ticket",
    )

    def __init__(
        self,
        rid: int,
        application: int,
        arrived_at_ns: int,
        deadline_ns: int,
        expires_at_ns: int = NEVER,
        client: int = 0,
        priority: int = 0,
    ) -> None:
        self.rid = rid
        self.application = application
        self.arrived_at_ns = arrived_at_ns
        self.deadline_ns = deadline_ns
        """The target: an answer after it counts as bad."""
        self.expires_at_ns = expires_at_ns if expires_at_ns != NEVER else deadline_ns
        """The hard limit: nothing is dispatched to end after it."""
        self.rows = 1
        """Places that it takes in a batch. Its rows are planned, run and answered together."""
        self.client = client
        """The client's stream; 0 when requests stand alone."""
        self.tenant = 0
        """The tenant that shares as one, whatever its clients; 0: each client shares for itself."""
        self.priority = priority
        """`HIGHEST` goes first within what its tenant, or its client, may have."""
        self.start_by_ns = NEVER
        """When its successor in the stream will take its place: it should have started by then."""
        self.accuracies: tuple[float, ...] | None = None
        """Expected accuracy of each variant on this very request, once evidence has come in."""
        self.estimate: Estimate | None = None
        """All that the evidence says, for policies that look at classes."""
        self.allowed: frozenset[int] | None = None
        """The variants that its client's accuracy floor and pin leave; None: every one."""
        self.apart: Apart | None = None
        """Whom it runs with, where that is not left to its application's policy."""
        self.retried = False
        """It ran once on a backend that died, or in a batch that failed."""
        self.left_out = False
        """A batch ran without it once, since its input was late."""
        self.error = ""
        """Why that batch failed; whatever keeps it from running again, its client is told this."""
        self.sequence: SequenceStep | None = None
        """Its part in a sequence; None: it stands alone."""
        self.ticket: object = None
        """Whatever its driver keeps with it."""

    def __repr__(self) -> str:
        return f"Request({self.rid}, app {self.application}, deadline {self.deadline_ns})"


class PartRequest(Request):
    """One that is part of a query."""

    is_part: ClassVar[bool] = True

    __slots__ = ()


def rows_of(requests: Sequence[Request]) -> int:
    """Places that these requests take together."""
    rows = 0
    for request in requests:
        rows += request.rows
    return rows


def count_within(requests: Sequence[Request], rows: int, first: int = 0) -> int:
    """How many requests from `first` on take no more than so many places together."""
    count = 0
    for index in range(first, len(requests)):
        rows -= requests[index].rows
        if rows < 0:
            break
        count += 1
    return count


class ClientReport:
    """A client's report of itself and its network, sent with its frames."""

    __slots__ = (
        "accuracy_floor",
        "bandwidth_bps",
        "client",
        "fps",
        "frame_bits",
        "input_size",
        "pinned",
        "round_trip_ns",
        "slo_ns",
        "source_size",
    )

    def __init__(
        self,
        client: int,
        slo_ns: int,
        fps: float,
        bandwidth_bps: float,
        input_size: int = 0,
        frame_bits: int = 0,
        round_trip_ns: int = 0,
        accuracy_floor: float = 0.0,
        pinned: int = -1,
        source_size: int = 0,
    ) -> None:
        self.client = client
        self.slo_ns = slo_ns
        """From the camera to the answer."""
        self.fps = fps
        self.bandwidth_bps = bandwidth_bps
        """Bandwidth of its uplink, as it has measured it; 0 where it does not know yet."""
        self.input_size = input_size
        """Side of the last frame it sent, and that frame's bits; 0 before the first."""
        self.frame_bits = frame_bits
        self.round_trip_ns = round_trip_ns
        """Round trip of a message without a payload."""
        self.accuracy_floor = accuracy_floor
        """No variant below it may serve this client."""
        self.pinned = pinned
        """The only variant that may serve it; -1: any."""
        self.source_size = source_size
        """The largest size that its source can fill; 0: any."""


class Retry:
    """Requests that are to run once more, away from where they failed or were lost; or for the
    first time, apart from others."""

    __slots__ = ("apart", "backend", "complete", "failed", "first", "left", "requests", "variant")

    def __init__(self, requests: list[Request], variant: int, backend: int, complete: bool) -> None:
        assert requests
        self.first = False
        """They have not run yet, and wait here to meet with nobody else."""
        self.apart = requests[0].apart
        """None where any backend may run them."""
        self.requests = requests
        """Those that wait, earliest deadline first."""
        self.variant = variant
        self.backend = backend
        """Where their batch failed; -1 where it is not to be judged, since the backend is gone."""
        self.complete = complete
        """Nobody of that batch has been left out of the retry so far."""
        self.failed = False
        """Some of them failed elsewhere too."""
        self.left = len(requests)
        """Those that have not ended."""


class Batch:
    """Requests that one backend runs together; formed at the grant."""

    __slots__ = (
        "batch_id",
        "expect_ns",
        "plan_ns",
        "ready_at_ns",
        "requests",
        "retry",
        "size",
        "start_at_ns",
        "swap_in_ns",
        "variant",
    )

    def __init__(self, variant: int, requests: list[Request], size: int = 0) -> None:
        """`size` is the sum of the requests' rows, where some have several."""
        self.variant = variant
        self.requests = requests
        self.size = size or len(requests)
        """Places taken, which its run time depends on."""
        self.batch_id = 0
        self.start_at_ns = 0
        """When the rank plans it to start."""
        self.ready_at_ns = 0
        """When its backend will have it and its inputs."""
        self.plan_ns = 0
        """Planned run time, margin and swap-in included."""
        self.expect_ns = 0
        """The usual run time, swap-in included."""
        self.swap_in_ns = 0
        self.retry: Retry | None = None
        """The failed try that it repeats; None for a first try."""


class Effect:
    """Something the driver has to carry out."""

    __slots__ = ()


class Dispatch(Effect):
    """Run this batch on this backend; it may start once the one before has ended."""

    __slots__ = ("backend", "batch")

    def __init__(self, backend: int, batch: Batch) -> None:
        self.backend = backend
        self.batch = batch


class Drop(Effect):
    """This request ends without a result."""

    __slots__ = ("reason", "request")

    def __init__(self, request: Request, reason: str) -> None:
        self.request = request
        self.reason = reason


class Answer(Effect):
    """This request ends with a result that needs no backend (a short circuit)."""

    __slots__ = ("accuracy", "label", "request")

    def __init__(self, request: Request, label: int, accuracy: float) -> None:
        self.request = request
        self.label = label
        self.accuracy = accuracy


class Blame:
    """The cause of a batch's failure, as far as a retry has shown it."""

    BACKEND: Final = "backend"
    """The same requests ran well elsewhere."""
    INPUT: Final = "input"
    """They failed elsewhere too: it is an input, or the model."""
    UNKNOWN: Final = "unknown"
    """There was no time, or nowhere else, to try all of them again."""


class Verdict(Effect):
    """The cause of a failure on this backend is known, or never will be."""

    __slots__ = ("application", "backend", "blame")

    def __init__(self, backend: int, application: int, blame: str) -> None:
        self.backend = backend
        self.application = application
        self.blame = blame


class Compute(Effect):
    """Work that takes too long for a decision. The driver runs it aside, and hands what it returns
    to `Engine.on_computed`. It must be picklable, and depend on nothing but itself."""

    __slots__ = ("application", "work")

    def __init__(self, application: int, work: Callable[[], object]) -> None:
        self.application = application
        self.work = work


class Advise(Effect):
    """Tell this client which input size to send from now on."""

    __slots__ = ("application", "client", "input_size", "network_ns", "served")

    def __init__(
        self, application: int, client: int, input_size: int, network_ns: int, served: bool
    ) -> None:
        self.application = application
        self.client = client
        """It may use several applications, each with advice of its own."""
        self.input_size = input_size
        self.network_ns = network_ns
        """How long a frame may be on its way and still find time to wait and run."""
        self.served = served
        """False: there is no room for it now; its frames run only where some is left over."""


class EndSession(Effect):
    """Tell a backend that the state of a sequence is not needed any more."""

    __slots__ = ("backend", "key", "variant")

    def __init__(self, backend: int, variant: int, key: int) -> None:
        self.backend = backend
        self.variant = variant
        self.key = key


class Load(Effect):
    """Load a variant on a backend; it is resident once `on_resident` says so."""

    __slots__ = ("backend", "variant")

    def __init__(self, backend: int, variant: int) -> None:
        self.backend = backend
        self.variant = variant


class Unload(Effect):
    """Give the memory of a variant on a backend back."""

    __slots__ = ("backend", "variant")

    def __init__(self, backend: int, variant: int) -> None:
        self.backend = backend
        self.variant = variant
