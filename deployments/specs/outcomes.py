"""Names of the ways in which a request ends, as clients, counters and dashboards read them."""

from typing import Final

from fermata.router.core.events import DropReason

GOOD = "good"
LATE = "ran-late"
"""Served, but after the SLO; `late` is the router's reason for not serving at all."""


class RefusalReason:
    """Reasons of the frontend for refusing a request; the router's are in `DropReason`."""

    EXPIRED: Final = "expired"
    """Its time ran out before a backend or the router answered."""
    MEMORY: Final = "memory"
    """Its input would not fit the memory for payloads."""
    TOO_MANY: Final = "too-many"
    """The table is full."""
    NO_ROUTER: Final = "no-router"
    DRAINING: Final = "draining"
    BAD_INPUT: Final = "bad-input"
    TOO_LARGE: Final = "too-large"
    """Its input does not fit a message to a backend on another machine."""
    NOT_FOUND: Final = "not-found"
    RATE: Final = "rate"
    """Its tenant is above its rate limit."""
    DENIED: Final = "denied"
    """Its caller is unknown, or may not use the model."""
    FAILED: Final = "failed"
    """The model raised an error."""
    STALLED: Final = "stalled"
    """The frontend stood still for so long that the request may have expired unread."""
    SLOW: Final = "slow"
    """Its message did not come in time."""
    INPUT_LATE: Final = "input-late"
    """Its input was still being decoded, or in transit, when its batch could wait no longer."""


CLIENT_FAULTS = (
    DropReason.CANCELLED,
    DropReason.NO_SEQUENCE,
    RefusalReason.BAD_INPUT,
    RefusalReason.NOT_FOUND,
    RefusalReason.RATE,
)
"""Outcomes that clients cause themselves; they count neither as good nor as bad."""
