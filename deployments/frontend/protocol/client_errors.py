"""Errors of clients, turned into refusals."""

from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.frontend.access.tenants import ForbiddenError, UnauthenticatedError
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.registry import UnknownModelError

CLIENT_ERRORS = (BadRequestError, UnknownModelError, UnauthenticatedError, ForbiddenError)
"""Errors that only clients cause."""

MESSAGE_MAX = 500
"""Characters of a message: gRPC clients take no status above 8 KB."""


def refusal_of(
    error: BadRequestError | UnknownModelError | UnauthenticatedError | ForbiddenError,
) -> Refusal:
    """The refusal that answers such an error."""
    denied = isinstance(error, UnauthenticatedError | ForbiddenError)
    reason = RefusalReason.DENIED if denied else RefusalReason.BAD_INPUT
    return Refusal(error.grpc_status, reason, str(error)[:MESSAGE_MAX])
