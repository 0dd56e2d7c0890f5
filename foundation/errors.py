"""The exceptions that every layer above shares; each carries the gRPC status a client sees."""

from typing import ClassVar


class ServingError(Exception):
    """Base of every exception we raise on purpose."""

    grpc_status: ClassVar[str] = "INTERNAL"


class ConfigError(ServingError):
    """The operator gave a value that cannot work; the message says which one is allowed."""

    grpc_status: ClassVar[str] = "INVALID_ARGUMENT"


class NoAnswerError(ServingError):
    """A process of the cluster has not answered; it may when it is asked again."""

    grpc_status: ClassVar[str] = "UNAVAILABLE"


class ModelLoadError(ServingError):
    """A model raised an error of its own while it was loaded; it may not the next time."""

    grpc_status: ClassVar[str] = "FAILED_PRECONDITION"


class GoneError(NoAnswerError):
    """It has been ended for good, and will not."""
