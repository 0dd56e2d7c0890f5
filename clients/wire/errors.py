"""Faults of a message; each exception carries the gRPC status a client sees."""

from reprlib import Repr
from typing import ClassVar

TEXT_MAX = 1024
"""Characters of a name or an id; who writes more means harm, or is mistaken."""
_short = Repr()
_short.maxstring = _short.maxother = 100


class WireError(Exception):
    """Base of what this package raises. `clients` stands alone, hence a base of its own."""

    grpc_status: ClassVar[str] = "INTERNAL"


class BadRequestError(WireError):
    """The sender has to change the message; the text gives the value, the limit and the remedy."""

    grpc_status: ClassVar[str] = "INVALID_ARGUMENT"


class RefusedError(WireError):
    """The server answered with a refusal."""

    def __init__(self, status: str, message: str, retry_after_ns: int = 0) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.retry_after_ns = retry_after_ns
        """When it makes sense to come again; 0 when the server gave no hint."""


def shown(value: object) -> str:
    """A value as errors quote it: however large it is, no more than a line."""
    return _short.repr(value)
