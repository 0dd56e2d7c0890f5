"""The end of a request: its result, or a refusal with a message for its client."""

from collections.abc import Callable
from dataclasses import dataclass

from fermata.deployments.specs.outcomes import RefusalReason
from fermata.foundation.logs import LOG, fields
from fermata.router.core.events import DropReason
from fermata.router.links.messages import Result


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that gets no result."""

    status: str
    """Name of the gRPC status."""
    reason: str
    message: str
    retry_after_ns: int = 0
    """Time after which a retry may succeed; 0 if it would not help."""


Outcome = Result | Refusal
OnAnswer = Callable[[int, Outcome], None]
"""Called with a request's id and its outcome."""


def answer(waiter: OnAnswer, rid: int, outcome: Outcome) -> None:
    """Answer one request; a result that cannot be encoded must not hold up the others."""
    try:
        waiter(rid, outcome)
    # Encoders meet whatever a model gives and a client asks for.
    except Exception as error:
        LOG.exception("cannot encode response", extra=fields(request=str(rid)))
        message = f"failed: cannot encode the response ({error})"
        waiter(rid, Refusal("INTERNAL", RefusalReason.FAILED, message))


_STATUSES = {
    DropReason.LATE: ("DEADLINE_EXCEEDED", "no batch could still end before its deadline"),
    DropReason.WINDOW: (
        "RESOURCE_EXHAUSTED",
        "overload: serving it would have made the requests behind it late",
    ),
    DropReason.SHED: ("RESOURCE_EXHAUSTED", "overload: its stream has used its share"),
    DropReason.FULL: ("RESOURCE_EXHAUSTED", "overload: no instance has room and time for it"),
    DropReason.FLOOR: (
        "RESOURCE_EXHAUSTED",
        "no backend runs a variant that its accuracy floor or its pin admits",
    ),
    DropReason.SUPERSEDED: ("CANCELLED", "a newer frame of its stream took its place"),
    DropReason.CANCELLED: ("CANCELLED", "its client cancelled it"),
    "unknown-application": ("NOT_FOUND", "the router does not serve this application"),
    RefusalReason.FAILED: ("INTERNAL", "the model failed"),
    DropReason.QUARANTINED: (
        "UNAVAILABLE",
        "its model has crashed one backend after the other and is quarantined",
    ),
    DropReason.LOST: ("UNAVAILABLE", "its backend died and no time was left to run it again"),
    DropReason.INPUT_LATE: (
        "UNAVAILABLE",
        "its input was not there in time, and its batch could not wait",
    ),
    DropReason.NO_BACKEND: ("UNAVAILABLE", "no backend that runs its model is up and in reach"),
    DropReason.HUNG: ("INTERNAL", "the model did not end its batch; it is not run again"),
    DropReason.SEQUENCE_LOST: ("ABORTED", "the state of its sequence is gone: start it anew"),
    DropReason.NO_SEQUENCE: (
        "FAILED_PRECONDITION",
        "its sequence has not been started or has ended: send sequence_start first",
    ),
    DropReason.BLAMED: ("UNAVAILABLE", "its tenant's or client's inputs have hung backends"),
}
RETRY_AFTER_NS = 100_000_000
"""Hint for a retry after an overload or an outage, unless the router gives a better one."""


def drop_refusal(reason: str, retry_after_ns: int = 0, detail: str = "") -> Refusal:
    """The refusal of a request that the router dropped; `detail` is its batch's error."""
    if detail:
        return error_refusal(detail)
    status, message = _STATUSES.get(reason, ("UNAVAILABLE", "the router could not serve it"))
    if status in ("RESOURCE_EXHAUSTED", "UNAVAILABLE"):
        retry_after_ns = retry_after_ns or RETRY_AFTER_NS
    return Refusal(status, reason, f"{reason}: {message}", retry_after_ns)


def error_refusal(error: str, input_late: bool = False) -> Refusal:
    """The refusal of a request that could not be run."""
    if input_late:
        message = f"input-late: {error}, and its batch could not wait"
        return Refusal("UNAVAILABLE", RefusalReason.INPUT_LATE, message, RETRY_AFTER_NS)
    return Refusal("INTERNAL", RefusalReason.FAILED, f"the model failed: {error}")
