"""The gRPC service: its methods, and a stub for a client."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fermata.clients.wire import open_inference_pb2 as pb

SERVICE = "inference.GRPCInferenceService"
UNARY = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)
STREAM = "ModelStreamInfer"
Headers = tuple[tuple[str, str], ...]


def _request(method: str) -> Any:
    return getattr(pb, f"{method}Request")


def _response(method: str) -> Any:
    return getattr(pb, f"{method}Response")


class InferenceStub:
    """Every method of the service on a channel, of `grpc` or of `grpc.aio`; each call carries
    `headers`."""

    def __init__(self, channel: Any, headers: Headers = ()) -> None:
        for name in UNARY:
            call = channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=_request(name).SerializeToString,
                response_deserializer=_response(name).FromString,
            )
            setattr(self, name, partial(call, metadata=headers) if headers else call)
        stream = stream_call(channel, pb.ModelInferRequest.SerializeToString)
        self.ModelStreamInfer = partial(stream, metadata=headers) if headers else stream

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{SERVICE} has no method {name!r}")


def stream_call(channel: Any, serialize: Callable[[Any], bytes] | None) -> Any:
    """ModelStreamInfer; without `serialize` its messages are bytes, serialized once for many."""
    return channel.stream_stream(
        f"/{SERVICE}/{STREAM}",
        request_serializer=serialize,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )
