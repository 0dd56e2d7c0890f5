"""The exceptions that every layer above shares; each carries the gRPC status a client sees."""

from typing import ClassVar


class ServingError(Exception):
    """Base of every exception we raise on purpose."""

    grpc_status: ClassVar[str] = "INTERNAL"


class ConfigError(ServingError):
    """The operator gave a value that cannot work; the message says which one is allowed."""

    grpc_status: ClassVar[str] = "INVALID_ARGUMENT"
