"""The gRPC methods about clients' shared memory, traces and logs."""

from typing import Any

import grpc

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.frontend.access.callers import address_of
from fermata.deployments.frontend.access.tenants import Tenant
from fermata.deployments.frontend.memory.client_memory import ClientMemory, Region

NO_CUDA = "CUDA shared memory is not supported: register system shared memory, or send tensors"
NO_SETTINGS = "settings of traces and logs are those of the configuration: change it there"
TRACE_SETTINGS = {"trace_level": ("OFF",)}
LOG_SETTINGS = {"log_info": True, "log_warning": True, "log_error": True}


class MemoryService:
    """Methods that stock clients call besides inference."""

    memory: ClientMemory

    async def _authorize(self, context: Any, model: str | None = None) -> Tenant:
        raise NotImplementedError

    async def _refuse(self, context: Any, error: BadRequestError) -> None:
        await context.abort(grpc.StatusCode[error.grpc_status], str(error))

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        tenant = await self._authorize(context)
        response = pb.SystemSharedMemoryStatusResponse()
        found: list[Region] = []
        try:
            found = self.memory.status(tenant.name, request.name)
        except BadRequestError as error:
            await self._refuse(context, error)
        for each in found:
            region = response.regions[each.name]
            region.name, region.key = each.name, each.key
            region.offset, region.byte_size = each.offset, each.byte_size
        return response

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        tenant = await self._authorize(context)
        peer, _ = address_of(context.peer())
        given = request.name, request.key, request.offset, request.byte_size
        try:
            self.memory.register(tenant.name, peer, *given)
        except BadRequestError as error:
            await self._refuse(context, error)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        tenant = await self._authorize(context)
        self.memory.unregister(tenant.name, request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._authorize(context)
        return pb.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._authorize(context)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_CUDA)

    async def CudaSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._authorize(context)
        return pb.CudaSharedMemoryUnregisterResponse()

    async def TraceSetting(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._authorize(context, request.model_name or None)
        if request.settings:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SETTINGS)
        response = pb.TraceSettingResponse()
        for name, values in TRACE_SETTINGS.items():
            response.settings[name].value.extend(values)
        return response

    async def LogSettings(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._authorize(context)
        if request.settings:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SETTINGS)
        response = pb.LogSettingsResponse()
        for name, value in LOG_SETTINGS.items():
            response.settings[name].bool_param = value
        return response
