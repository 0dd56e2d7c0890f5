"""The gRPC methods. Each is thin: the driver serves, `server_metadata` describes."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import grpc

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError, shown
from fermata.clients.wire.parameters import TRACEPARENT
from fermata.deployments.frontend.access.client_ids import CLIENT_BITS, tenant_number
from fermata.deployments.frontend.access.tenants import AUTHORIZATION, Tenant, Tenants
from fermata.deployments.frontend.memory.client_memory import ClientMemory, RegionOutput
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.protocol import server_metadata
from fermata.deployments.frontend.protocol.client_errors import CLIENT_ERRORS, refusal_of
from fermata.deployments.frontend.protocol.memory.service import MemoryService
from fermata.deployments.frontend.protocol.messages import MessageReader
from fermata.deployments.frontend.protocol.parsing import CallContext, parse_request
from fermata.deployments.frontend.protocol.replies import advise, response_of
from fermata.deployments.frontend.protocol.streams import ClientStream, OnMessage
from fermata.deployments.frontend.readiness import Readiness
from fermata.deployments.frontend.repository import Repository
from fermata.deployments.frontend.requests.request_driver import RequestDriver
from fermata.deployments.frontend.size_advice import headers_of
from fermata.deployments.specs.frontend import StreamLimits
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.registry import Registry, UnknownModelError
from fermata.deployments.specs.served_model import ServedModel
from fermata.foundation.errors import ServingError
from fermata.foundation.units import NEVER


class InferenceService(MemoryService):
    """`inference.GRPCInferenceService`."""

    def __init__(
        self,
        driver: RequestDriver,
        registry: Registry,
        limits: StreamLimits,
        repository: Repository,
        readiness: Readiness,
        tenants: Tenants,
        message_bytes_max: int = 16 << 20,
        memory: ClientMemory | None = None,
    ) -> None:
        self.driver = driver
        self.memory = memory or ClientMemory()
        self.reader = MessageReader(driver.pool, message_bytes_max)
        self.registry = registry
        self.repository = repository
        self.readiness = readiness
        self.limits = limits
        self.tenants = tenants
        self.stream_counts: Counter[str] = Counter()
        """Open streams by client."""
        self.streams: dict[ClientStream, asyncio.Task[Any]] = {}
        self.stalled = 0
        """Streams cut because their client did not read."""

    async def _authorize(self, context: Any, model: str | None = None) -> Tenant:
        """The tenant of a call; one that may not use the model is refused here."""
        try:
            metadata = context.invocation_metadata() if self.tenants else ()
            tenant = self.tenants.find(header_of(metadata, AUTHORIZATION))
            if model is not None:
                self.driver.check(tenant, self.registry, model)
            return tenant
        except CLIENT_ERRORS as error:
            await refuse(context, refusal_of(error))
            raise

    # Inference

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> Any:  # noqa: N802
        tenant = await self._authorize(context, request.model_name)
        left_s = context.time_remaining()
        left_ns = NEVER if left_s is None else int(left_s * 1e9)
        call = CallContext(left_ns, traceparent=self._trace(context), tenant=tenant.name)
        wanted: list[RegionOutput] = []
        try:
            if self.memory.regions:
                wanted = self.memory.fill(tenant.name, request)
            parsed = parse_request(request, self.registry, call)
        except CLIENT_ERRORS as error:
            await refuse(context, refusal_of(error))
            return None
        arrived_at_ns = time.monotonic_ns()
        outcome = await self.driver.infer(parsed, tenant)
        if isinstance(outcome, Refusal):
            advice = self.driver.advice_for(parsed.terms)
            await refuse(context, outcome, headers_of(advice, parsed.report is not None))
            return None
        server_ns = time.monotonic_ns() - arrived_at_ns
        try:
            response = response_of(parsed, outcome, server_ns - outcome.run_ns)
            if parsed.report is not None:
                advise(response, server_ns, self.driver.advice_for(parsed.terms))
            if wanted:
                self.memory.deliver(wanted, response)
            return response
        except BadRequestError as error:
            await refuse(context, refusal_of(error))
            return None

    def _trace(self, context: Any) -> str:
        """The caller's trace from the headers, which are not read if nothing is traced."""
        if self.driver.observer is None:
            return ""
        return header_of(context.invocation_metadata(), TRACEPARENT)

    async def ModelStreamInfer(  # noqa: N802
        self, requests: object, context: Any, on_message: OnMessage
    ) -> None:
        """Serve one stream, whose messages are bytes; `on_message` hears the size of each."""
        tenant = await self._authorize(context)
        call = CallContext(
            stream=secrets.randbits(CLIENT_BITS),
            traceparent=self._trace(context),
            tenant=tenant.name,
        )
        stream = ClientStream(
            self.driver,
            self.registry,
            context,
            self.limits,
            call,
            tenant,
            messages=self.reader,
            on_message=on_message,
        )
        task = asyncio.current_task()
        assert task is not None
        # The address without its port: a client may have many connections.
        client = tenant.name or context.peer().rpartition(":")[0]
        if self.stream_counts[client] >= self.limits.per_client_max:
            counts = self.driver.table.counts
            counts.count_tenant(tenant_number(tenant.name), RefusalReason.TOO_MANY)
            await refuse(context, _too_many_streams(client, self.limits.per_client_max))
            return
        self.stream_counts[client] += 1
        self.streams[stream] = task
        try:
            await stream.run()
        finally:
            del self.streams[stream]
            self.stream_counts[client] -= 1
            if not self.stream_counts[client]:
                del self.stream_counts[client]

    def leave(self) -> None:
        """Be ready no more. Requests that still come are served until `drain`."""
        self.readiness.leaving = True

    def end_streams(self) -> None:
        """Send clients elsewhere: streams end when they have their answers."""
        for stream in self.streams:
            stream.retire("this frontend shuts down")

    def drain(self) -> None:
        """Admit no more requests; streams end with the answers to those they have read."""
        self.driver.table.on_drain()
        for stream in self.streams:
            stream.stop_reading()

    async def watch(self) -> None:
        """Cut clients that do not read and end idle streams, for as long as the server runs."""
        while True:
            await asyncio.sleep(self.limits.check_ns / 1e9)
            now_ns = time.monotonic_ns()
            for stream, task in list(self.streams.items()):
                if stream.is_stalled(now_ns):
                    self.stalled += 1
                    task.cancel()
                else:
                    stream.end_if_idle(now_ns)

    # Health and description

    async def ServerLive(self, request: Any, context: Any) -> pb.ServerLiveResponse:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> pb.ServerReadyResponse:  # noqa: N802
        return pb.ServerReadyResponse(ready=not self.readiness.trouble())

    async def ServerMetadata(self, request: Any, context: Any) -> pb.ServerMetadataResponse:  # noqa: N802
        await self._authorize(context)
        return server_metadata.server_metadata()

    async def ModelReady(  # noqa: N802
        self, request: pb.ModelReadyRequest, context: Any
    ) -> pb.ModelReadyResponse:
        await self._authorize(context, request.name)
        try:
            model, version = self.registry.find(request.name, request.version)
        except UnknownModelError:
            # As Triton answers; stock clients would raise an error for any other status.
            return pb.ModelReadyResponse(ready=False)
        trouble = self.readiness.trouble(*model.applications(version))
        return pb.ModelReadyResponse(ready=not trouble)

    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, context: Any
    ) -> pb.ModelMetadataResponse:
        model, _ = await self._find(request.name, request.version, context)
        return server_metadata.model_metadata(model)

    async def ModelConfig(  # noqa: N802
        self, request: pb.ModelConfigRequest, context: Any
    ) -> pb.ModelConfigResponse:
        model, _ = await self._find(request.name, request.version, context)
        return server_metadata.model_config(model)

    async def ModelStatistics(  # noqa: N802
        self, request: pb.ModelStatisticsRequest, context: Any
    ) -> pb.ModelStatisticsResponse:
        tenant = await self._authorize(context)
        models = [each for each in self.registry.every() if tenant.may_use(each[0].name)]
        if request.name:
            models = [await self._find(request.name, request.version, context)]
        return server_metadata.statistics(models, self.driver.table.counts)

    async def RepositoryIndex(  # noqa: N802
        self, request: pb.RepositoryIndexRequest, context: Any
    ) -> pb.RepositoryIndexResponse:
        tenant = await self._authorize(context)
        trouble = self.readiness.trouble
        return server_metadata.repository_index(
            self.registry, trouble, request.ready, tenant.may_use
        )

    async def RepositoryModelLoad(  # noqa: N802
        self, request: pb.RepositoryModelLoadRequest, context: Any
    ) -> pb.RepositoryModelLoadResponse:
        tenant = await self._authorize(context, request.model_name)
        if request.parameters:
            given = shown(min(request.parameters))
            message = f"parameter {given} is not supported: the configuration describes models"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        await self._place(tenant, request.model_name, True, context)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(  # noqa: N802
        self, request: pb.RepositoryModelUnloadRequest, context: Any
    ) -> pb.RepositoryModelUnloadResponse:
        tenant = await self._authorize(context, request.model_name)
        await self._place(tenant, request.model_name, False, context)
        return pb.RepositoryModelUnloadResponse()

    async def _place(self, tenant: Tenant, name: str, load: bool, context: Any) -> None:
        try:
            tenant.check_operator()
            await self.repository.place(name, load)
        except ServingError as error:
            await context.abort(grpc.StatusCode[error.grpc_status], str(error))
        except TimeoutError:
            message = f"{name} is still being loaded: try again"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, message)

    async def _find(self, name: str, version: str, context: Any) -> tuple[ServedModel, str]:
        await self._authorize(context, name)
        try:
            return self.registry.find(name, version)
        except UnknownModelError as error:
            await context.abort(grpc.StatusCode[error.grpc_status], str(error))
            raise


def header_of(metadata: Any, name: str) -> str:
    """A header of a call; empty if it is missing or not text."""
    for key, value in metadata or ():
        if key == name:
            return value if isinstance(value, str) else ""
    return ""


def _too_many_streams(client: str, limit: int) -> Refusal:
    message = f"{client} has {limit} streams open here: end one, or send on those"
    return Refusal("RESOURCE_EXHAUSTED", RefusalReason.TOO_MANY, message)


async def refuse(context: Any, refusal: Refusal, more: Mapping[str, str] | None = None) -> None:
    """End a unary call with a refusal; gRPC's own retries read the hint from the metadata."""
    metadata: tuple[tuple[str, str], ...] = (("fermata-reason", refusal.reason),)
    metadata += tuple((more or {}).items())
    if refusal.retry_after_ns:
        retry_after_ms = str(max(1, refusal.retry_after_ns // 1_000_000))
        metadata += (
            ("retry-after-ms", retry_after_ms),
            ("grpc-retry-pushback-ms", retry_after_ms),
        )
    await context.abort(grpc.StatusCode[refusal.status], refusal.message, metadata)
