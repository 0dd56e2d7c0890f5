"""Requests that end before they are one: what was raised, as a refusal."""

from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.frontend.access.tenants import ForbiddenError, UnauthenticatedError
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.registry import UnknownModelError

UNSOUND = (BadRequestError, UnknownModelError, UnauthenticatedError, ForbiddenError)
"""What a client can do wrong, and nobody else."""

SAID_MAX = 500
"""Characters: gRPC's clients take no status of more than 8 KB, and nobody reads more."""


def refusal_of(
    error: BadRequestError | UnknownModelError | UnauthenticatedError | ForbiddenError,
) -> Refusal:
    """What to tell whoever sent it."""
    denied = isinstance(error, UnauthenticatedError | ForbiddenError)
    reason = RefusalReason.DENIED if denied else RefusalReason.BAD_INPUT
    said = str(error)
    return Refusal(error.grpc_status, reason, said if len(said) <= SAID_MAX else said[:SAID_MAX])
