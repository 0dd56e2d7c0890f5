"""The REST routes about clients' shared memory, traces and logs."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fermata.clients.wire.errors import BadRequestError, shown
from fermata.deployments.frontend.memory.client_memory import ClientMemory, Region
from fermata.deployments.frontend.protocol.memory.service import (
    LOG_SETTINGS,
    NO_CUDA,
    NO_SETTINGS,
    TRACE_SETTINGS,
)
from fermata.foundation.json_types import JsonObject

Handler = Callable[[Request], Awaitable[Response]]
ReadOptions = Callable[[Request], Awaitable[JsonObject]]


class UnsupportedError(BadRequestError):
    """Something that Triton's protocol has, and this server does not."""

    grpc_status = "UNIMPLEMENTED"


class RestMemory:
    """Handlers of these routes."""

    def __init__(self, memory: ClientMemory, read_options: ReadOptions) -> None:
        """`read_options` reads the small JSON object in a body."""
        self.memory = memory
        self.read_options = read_options

    def routes(self, guard: Callable[[Handler], Handler]) -> list[Route]:
        """All routes, each handler behind `guard`."""
        found: list[Route] = []
        handlers: dict[str, tuple[Handler, Handler, Handler]] = {
            "system": (self.status, self.register, self.unregister),
            "cuda": (self.nothing, self.no_cuda, self.done),
        }
        for kind, (status, register, unregister) in handlers.items():
            path = f"/v2/{kind}sharedmemory"
            for each in (path, f"{path}/region/{{region}}"):
                found.append(Route(f"{each}/status", guard(status)))
                found.append(Route(f"{each}/unregister", guard(unregister), methods=["POST"]))
            found.append(
                Route(f"{path}/region/{{region}}/register", guard(register), methods=["POST"])
            )
        both = ["GET", "POST"]
        found.append(Route("/v2/logging", guard(self.logs), methods=both))
        for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting"):
            found.append(Route(path, guard(self.traces), methods=both))
        return found

    async def status(self, request: Request) -> Response:
        name = request.path_params.get("region", "")
        found = self.memory.status(request.state.tenant.name, name)
        return JSONResponse([_told(each) for each in found])

    async def register(self, request: Request) -> Response:
        given = await self.read_options(request)
        key, offset, size = given.get("key"), given.get("offset", 0), given.get("byte_size")
        if not isinstance(key, str) or type(offset) is not int or type(size) is not int:
            raise BadRequestError(
                f"the body is {shown(given)}: send key, byte_size and, if not 0, offset"
            )
        peer = request.client.host if request.client is not None else ""
        name = request.path_params["region"]
        self.memory.register(request.state.tenant.name, peer, name, key, offset, size)
        return Response(status_code=200)

    async def unregister(self, request: Request) -> Response:
        name = request.path_params.get("region", "")
        self.memory.unregister(request.state.tenant.name, name)
        return Response(status_code=200)

    async def nothing(self, request: Request) -> Response:
        return JSONResponse([])

    async def done(self, request: Request) -> Response:
        return Response(status_code=200)

    async def no_cuda(self, request: Request) -> Response:
        raise UnsupportedError(NO_CUDA)

    async def logs(self, request: Request) -> Response:
        if await self.read_options(request):
            raise UnsupportedError(NO_SETTINGS)
        return JSONResponse(LOG_SETTINGS)

    async def traces(self, request: Request) -> Response:
        if await self.read_options(request):
            raise UnsupportedError(NO_SETTINGS)
        return JSONResponse({name: list(values) for name, values in TRACE_SETTINGS.items()})


def _told(region: Region) -> JsonObject:
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.byte_size,
    }
