"""Authentication of gRPC calls by their headers, before a byte of the message is read."""

from typing import Any

import grpc

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import SERVICE, handler
from fermata.deployments.frontend.access.tenants import AUTHORIZATION, UnauthenticatedError
from fermata.deployments.frontend.protocol.client_errors import refusal_of
from fermata.deployments.frontend.protocol.grpc_service import InferenceService, header_of, refuse


class AuthInterceptor(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Checks tokens before the service's methods; health checks need none."""

    def __init__(self, service: InferenceService) -> None:
        self._tenants = service.tenants
        self._methods = handler(service)

        async def live(messages: object, context: Any) -> pb.ServerLiveResponse:
            return await service.ServerLive(None, context)

        async def ready(messages: object, context: Any) -> pb.ServerReadyResponse:
            return await service.ServerReady(None, context)

        # Declared with a stream of messages, so that the empty message is not waited for.
        self._open = {
            f"/{SERVICE}/ServerLive": grpc.stream_unary_rpc_method_handler(
                live, response_serializer=pb.ServerLiveResponse.SerializeToString
            ),
            f"/{SERVICE}/ServerReady": grpc.stream_unary_rpc_method_handler(
                ready, response_serializer=pb.ServerReadyResponse.SerializeToString
            ),
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The method of a call, or one that refuses it."""
        if details.method in self._open:
            return self._open[details.method]
        try:
            self._tenants.find(header_of(details.invocation_metadata, AUTHORIZATION))
        except UnauthenticatedError as error:
            return _refusing(error)
        return self._methods.service(details)


def _refusing(error: UnauthenticatedError) -> Any:
    async def answer(messages: object, context: Any) -> None:
        await refuse(context, refusal_of(error))

    return grpc.stream_stream_rpc_method_handler(answer)
