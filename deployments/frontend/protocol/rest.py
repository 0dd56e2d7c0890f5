"""The Open Inference Protocol over HTTP, and health for load balancers."""

import asyncio
import json
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError, shown
from fermata.clients.wire.parameters import TRACEPARENT
from fermata.deployments.frontend.access.client_ids import tenant_number
from fermata.deployments.frontend.access.tenants import (
    AUTHORIZATION,
    Tenant,
    UnauthenticatedError,
)
from fermata.deployments.frontend.inputs.feedback import read_truth
from fermata.deployments.frontend.outcomes import RETRY_AFTER_NS, Outcome, Refusal
from fermata.deployments.frontend.protocol import server_metadata
from fermata.deployments.frontend.protocol.client_errors import CLIENT_ERRORS, refusal_of
from fermata.deployments.frontend.protocol.grpc_service import InferenceService
from fermata.deployments.frontend.protocol.json_process import JsonProcess, JsonProcessError
from fermata.deployments.frontend.protocol.json_tensors import (
    read_request,
    wants_binary,
    write_body,
)
from fermata.deployments.frontend.protocol.memory.routes import RestMemory
from fermata.deployments.frontend.protocol.openapi import document
from fermata.deployments.frontend.protocol.parsing import CallContext, parse_request
from fermata.deployments.frontend.protocol.replies import advise, response_of
from fermata.deployments.frontend.size_advice import headers_of
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.served_model import ServedModel
from fermata.foundation.errors import ServingError
from fermata.foundation.json_types import JsonObject

STATUSES = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "CANCELLED": 499,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 412,
    "ABORTED": 409,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP statuses for those of gRPC; any other is 500."""
BINARY_HEADER = "inference-header-content-length"
LOOP_BYTES_MAX = 64 * 1024
"""JSON up to this size is read and written on the loop. A process aside reads larger bodies, and
a thread writes larger answers."""
T = TypeVar("T")

Handler = Callable[[Request], Awaitable[Response]]


class Rest:
    """Routes to the same driver and registry that gRPC uses."""

    def __init__(self, service: InferenceService, body_bytes_max: int) -> None:
        self.service = service
        self.body_bytes_max = body_bytes_max
        self.json_process = JsonProcess()
        self.receiving_bytes = 0
        """Size of all bodies that are being received or parsed."""

    def app(self, extra: tuple[Route, ...] = ()) -> Starlette:
        """The ASGI application; `extra` routes (metrics) come with it."""
        guard = self._guard
        routes = [
            Route("/v2", guard(self.server)),
            Route("/v2/openapi.json", guard(self.description)),
            # Health checks have no token, and reveal nothing else.
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            *extra,
        ]
        routes += [
            Route("/v2/models/stats", guard(self.stats)),
            Route("/v2/repository/index", guard(self.index), methods=["POST"]),
            Route("/v2/repository/models/{model}/load", guard(self.load), methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", guard(self.unload), methods=["POST"]),
        ]
        routes += RestMemory(self.service.memory, self._options).routes(guard)
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [
                Route(path, guard(self.model)),
                Route(f"{path}/ready", guard(self.model_ready)),
                Route(f"{path}/config", guard(self.config)),
                Route(f"{path}/stats", guard(self.stats)),
                Route(f"{path}/infer", guard(self.infer), methods=["POST"]),
                Route(f"{path}/feedback", guard(self.feedback), methods=["POST"]),
            ]
        app = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})
        # Redirects would lead clients to any host that a header names.
        app.router.redirect_slashes = False
        return app

    async def server(self, request: Request) -> Response:
        metadata = server_metadata.server_metadata()
        return JSONResponse(
            {
                "name": metadata.name,
                "version": metadata.version,
                "extensions": [*metadata.extensions, "binary_tensor_data"],
            }
        )

    async def description(self, request: Request) -> Response:
        return JSONResponse(document())

    async def live(self, request: Request) -> Response:
        return PlainTextResponse("live\n")

    async def ready(self, request: Request) -> Response:
        return _health(self.service.readiness.trouble())

    def _found(self, request: Request) -> tuple[ServedModel, str]:
        """The model of a path and its version."""
        path = request.path_params
        return self.service.registry.find(path["model"], path.get("version", ""))

    async def model_ready(self, request: Request) -> Response:
        model, version = self._found(request)
        return _health(self.service.readiness.trouble(*model.applications(version)))

    async def model(self, request: Request) -> Response:
        model, _ = self._found(request)
        metadata = server_metadata.model_metadata(model)
        return JSONResponse(
            {
                "name": metadata.name,
                "versions": list(metadata.versions),
                "platform": metadata.platform,
                "inputs": [_tensor(each) for each in metadata.inputs],
                "outputs": [_tensor(each) for each in metadata.outputs],
                "parameters": {
                    "slo_ms": model.slo_ns / 1e6,
                    "hard_limit_ms": model.hard_limit_ns / 1e6,
                    "variants": list(model.variants),
                },
            }
        )

    async def config(self, request: Request) -> Response:
        model, _ = self._found(request)
        return JSONResponse(server_metadata.to_json(server_metadata.model_config(model).config))

    async def stats(self, request: Request) -> Response:
        """Counts of one model, or of all that the caller may use."""
        registry, tenant = self.service.registry, request.state.tenant
        models = [each for each in registry.every() if tenant.may_use(each[0].name)]
        if name := request.path_params.get("model"):
            models = [registry.find(name, request.path_params.get("version", ""))]
        counts = self.service.driver.table.counts
        return JSONResponse(server_metadata.to_json(server_metadata.statistics(models, counts)))

    async def index(self, request: Request) -> Response:
        given = await self._options(request)
        ready = given.get("ready", False)
        if not isinstance(ready, bool):
            raise BadRequestError(f"ready={shown(ready)} is neither true nor false")
        service = self.service
        found = server_metadata.repository_index(
            service.registry, service.readiness.trouble, ready, request.state.tenant.may_use
        )
        return JSONResponse([server_metadata.to_json(each) for each in found.models])

    async def load(self, request: Request) -> Response:
        given = await self._options(request)
        if parameters := given.get("parameters"):
            raise BadRequestError(
                f"parameters={shown(parameters)} are not supported: the configuration describes "
                "models"
            )
        return await self._place(request, True)

    async def unload(self, request: Request) -> Response:
        await self._options(request)
        return await self._place(request, False)

    async def _place(self, request: Request, load: bool) -> Response:
        name = request.path_params["model"]
        try:
            request.state.tenant.check_operator()
            await self.service.repository.place(name, load)
        except ServingError as error:
            return _refusal(Refusal(error.grpc_status, RefusalReason.FAILED, str(error)))
        except TimeoutError:
            message = f"{name} is still being loaded: try again"
            return _refusal(Refusal("DEADLINE_EXCEEDED", RefusalReason.FAILED, message))
        return Response(status_code=200)

    async def _options(self, request: Request) -> JsonObject:
        """The small JSON object in a body; empty where there is none."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LOOP_BYTES_MAX:
                raise BadRequestError(f"the body is larger than {LOOP_BYTES_MAX} bytes: send less")
        try:
            given = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise BadRequestError(f"the body is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise BadRequestError(f"the body is {shown(given)}: send an object")
        return given

    async def feedback(self, request: Request) -> Response:
        """Take the true class of an earlier request."""
        given = await self._options(request)
        model, version = self._found(request)
        tenant: Tenant = request.state.tenant
        truth = read_truth(model, version, given, tenant_number(tenant.name))
        refusal = tenant.admit(time.monotonic_ns())
        if refusal is not None:
            return _refusal(refusal)
        self.service.driver.tell(truth)
        return Response(status_code=200)

    async def infer(self, request: Request) -> Response:
        message = await self._message(request)
        if isinstance(message, Refusal):
            return _refusal(message)
        is_binary = wants_binary(message)
        tenant: Tenant = request.state.tenant
        call = CallContext(traceparent=request.headers.get(TRACEPARENT, ""), tenant=tenant.name)
        memory = self.service.memory
        wanted = memory.fill(tenant.name, message) if memory.regions else []
        parsed = parse_request(message, self.service.registry, call)
        arrived_at_ns = time.monotonic_ns()
        outcome = await _while_connected(request, self.service.driver.infer(parsed, tenant))
        if isinstance(outcome, Refusal):
            advice = self.service.driver.advice_for(parsed.terms)
            return _refusal(outcome, headers_of(advice, parsed.report is not None))
        server_ns = time.monotonic_ns() - arrived_at_ns
        response = response_of(parsed, outcome, server_ns - outcome.run_ns)
        if parsed.report is not None:
            advise(response, server_ns, self.service.driver.advice_for(parsed.terms))
        if wanted:
            memory.deliver(wanted, response)
        size = sum(len(each) for each in response.raw_output_contents)
        body, head_bytes = await self._run_off_loop(size, lambda: write_body(response, is_binary))
        if head_bytes == len(body):
            return Response(body, media_type="application/json")
        headers = {BINARY_HEADER: str(head_bytes)}
        return Response(body, headers=headers, media_type="application/octet-stream")

    def _guard(self, handler: Handler) -> Handler:
        """Check the token and the right to the model before a byte of the body is read."""

        async def guarded(request: Request) -> Response:
            try:
                tenant = self.service.tenants.find(request.headers.get(AUTHORIZATION, ""))
                if model := request.path_params.get("model"):
                    self.service.driver.check(tenant, self.service.registry, model)
                request.state.tenant = tenant
                return await handler(request)
            except CLIENT_ERRORS as error:
                if isinstance(error, UnauthenticatedError):
                    address = "" if request.client is None else request.client.host
                    self.service.tenants.denied.note(address, str(error))
                return _refusal(refusal_of(error))
            except JsonProcessError as error:
                unread = Refusal(
                    error.grpc_status, RefusalReason.FAILED, str(error), RETRY_AFTER_NS
                )
                return _refusal(unread)
            except ClientDisconnect:
                # The client has left, or was cut for a slow request; it does not read this.
                return Response(status_code=STATUSES["CANCELLED"])

        return guarded

    async def _message(self, request: Request) -> pb.ModelInferRequest | Refusal:
        """The message in the body, or a refusal if there is no memory for it."""
        parts: list[bytes] = []
        size, most = 0, self.service.driver.table.limits.payload_bytes_max
        try:
            async for part in request.stream():
                size += len(part)
                self.receiving_bytes += len(part)
                if size > self.body_bytes_max:
                    raise BadRequestError(
                        f"the body is larger than {self.body_bytes_max} bytes: send less, or raise "
                        "message_mb"
                    )
                if self.receiving_bytes > most:
                    message = f"memory: bodies of {most} bytes are in flight: try again later"
                    return Refusal(
                        "RESOURCE_EXHAUSTED", RefusalReason.MEMORY, message, RETRY_AFTER_NS
                    )
                parts.append(part)
            return await self._read(request, await self._unpacked(request, b"".join(parts)))
        finally:
            self.receiving_bytes -= size

    async def _unpacked(self, request: Request, body: bytes) -> bytes:
        """The body, decompressed if it says that it is compressed."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding == "identity":
            return body
        if encoding not in ("gzip", "deflate"):
            raise BadRequestError(f"content-encoding={shown(encoding)}: use gzip or deflate")
        most = self.body_bytes_max
        return await self._run_off_loop(len(body), lambda: _decompress(body, most))

    async def _read(self, request: Request, body: bytes) -> pb.ModelInferRequest:
        header = request.headers.get(BINARY_HEADER, str(len(body)))
        # Python refuses to convert too many digits.
        if not header.isdecimal() or len(header) > 18 or int(header) > len(body):
            raise BadRequestError(f"{BINARY_HEADER}={header}, the body has {len(body)} bytes")
        path = request.path_params
        given = path["model"], path.get("version", ""), body, int(header)
        if int(header) > LOOP_BYTES_MAX:
            return await self.json_process.read(*given)
        return read_request(*given)

    async def _run_off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Write JSON, in a thread if it is large: all other responses wait for the loop."""
        if size <= LOOP_BYTES_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.service.driver.pool, work)


def _decompress(body: bytes, bytes_max: int) -> bytes:
    """A body as it was before gzip or deflate, of which `bytes_max` are the most."""
    # The zlib module tells gzip and zlib apart by their headers with these bits.
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        found = unpacking.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise BadRequestError(f"the body cannot be decompressed: {error}") from None
    if len(found) > bytes_max:
        raise BadRequestError(
            f"the body is larger than {bytes_max} bytes: send less, or raise message_mb"
        )
    if not unpacking.eof:
        raise BadRequestError("the body cannot be decompressed: it ends too early")
    return found


async def _unknown(request: Request, error: Exception) -> Response:
    """A refusal that clients of the protocol can read."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    message = f"{request.method} {shown(request.url.path)} is not served: see /v2/openapi.json"
    body = {"error": message, "status": "UNIMPLEMENTED", "reason": RefusalReason.BAD_INPUT}
    return JSONResponse(body, status)


async def _while_connected(request: Request, serving: Awaitable[Outcome]) -> Outcome:
    """The outcome; a client that hangs up before has its request cancelled."""
    task = asyncio.ensure_future(serving)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            return Refusal("CANCELLED", "cancelled", "the client has disconnected")
        return task.result()
    finally:
        gone.cancel()


def _health(trouble: str) -> Response:
    if trouble:
        return PlainTextResponse(f"{trouble}\n", 503)
    return PlainTextResponse("ready\n")


def _refusal(refusal: Refusal, more: Mapping[str, str] | None = None) -> Response:
    headers = dict(more or {})
    if refusal.status == "UNAUTHENTICATED":
        headers["WWW-Authenticate"] = "Bearer"
    if refusal.retry_after_ns:
        # HTTP counts in whole seconds; the exact hint stands beside it.
        headers["Retry-After"] = str(-(-refusal.retry_after_ns // 1_000_000_000))
        headers["Retry-After-Ms"] = str(max(1, refusal.retry_after_ns // 1_000_000))
    body = {"error": refusal.message, "status": refusal.status, "reason": refusal.reason}
    return JSONResponse(body, STATUSES.get(refusal.status, 500), headers)


def _tensor(given: pb.ModelMetadataResponse.TensorMetadata) -> JsonObject:
    return {"name": given.name, "datatype": given.datatype, "shape": list(given.shape)}
