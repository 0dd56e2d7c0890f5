"""gRPC calls from their headers to their answer: who may call, how many, and how slowly.

All methods are declared with streams of bytes. So a call is refused by its headers before a byte of
its message is read, and a message is looked at before it is parsed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.service import STREAM, UNARY
from fermata.deployments.frontend.access.callers import Caller, CallGate, OpenCall
from fermata.deployments.frontend.access.tenants import AUTHORIZATION, UnauthenticatedError
from fermata.deployments.frontend.access.turns import Turns
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.protocol.client_errors import refusal_of
from fermata.deployments.frontend.protocol.grpc_service import InferenceService, header_of, refuse
from fermata.deployments.frontend.protocol.messages import parse_small
from fermata.deployments.frontend.protocol.streams import OnMessage
from fermata.foundation.units import NEVER

HEALTH = ("ServerLive", "ServerReady")
"""Methods that need neither a token nor a message."""
WRONG = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
)
"""Statuses of calls that are refused for what their client has sent."""
CALL_BYTES = 1024
"""Allowance for the headers and frames of one call or message, beside the message itself."""

Method = Callable[[Any, Any], Awaitable[Any]]
Read = Callable[[bytes], Awaitable[Any]]


class GrpcCalls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of the service, behind tokens and the limits of `gate`."""

    def __init__(self, service: InferenceService, gate: CallGate) -> None:
        self.gate = gate
        self.turns = Turns()
        self._tenants = service.tenants
        read_infer = service.reader.read
        self.methods = {
            name: self._unary(
                getattr(service, name),
                read_infer if name == "ModelInfer" else _small_reader(name),
                name,
            )
            for name in UNARY
            if name not in HEALTH
        }
        """Handlers by name. gRPC keeps the calls of each apart, so that health checks need not
        wait behind others."""
        self.methods[STREAM] = self._stream(service.ModelStreamInfer)
        for name in HEALTH:
            self.methods[name] = self._health(getattr(service, name), name)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Refuse a call of a method that there is not; without a token that is not told."""
        try:
            self._tenants.find(header_of(details.invocation_metadata, AUTHORIZATION))
        except UnauthenticatedError:
            return grpc.stream_stream_rpc_method_handler(self._refuse)
        return None

    def line_up(self, peer: str, begin: Callable[[], None]) -> None:
        """Begin a call of a peer at once while there are few, and else in its address's turn."""
        gate, turns = self.gate, self.turns
        caller = None if turns.is_free(gate.clock()) else gate.line_up(peer)
        if caller is None:
            begin()
        else:
            turns.add(caller.address, partial(self._step_up, caller, begin))

    def _step_up(self, caller: Caller, begin: Callable[[], None]) -> bool:
        may_begin = self.gate.step_up(caller)
        if may_begin:
            begin()
        return may_begin

    def on_vain(self, peer: str) -> None:
        """Count a call that its client gave up before it could begin."""
        call = self.gate.enter(peer)
        if not isinstance(call, Refusal):
            self.gate.leave(call)

    async def _enter(self, context: Any, health: bool = False) -> OpenCall:
        """Admit a call until its answer has left; one without a token or at a limit is refused
        here."""
        call = self.gate.enter(context.peer(), health)
        if isinstance(call, Refusal):
            await refuse(context, call)
            raise AssertionError("a refused call goes on")
        context.add_done_callback(lambda _: self.gate.leave(call, context.code() in WRONG))
        if self._tenants and not health:
            try:
                self._tenants.find(header_of(context.invocation_metadata(), AUTHORIZATION))
            except UnauthenticatedError as error:
                self._tenants.denied.note(call.caller.address, str(error))
                await refuse(context, refusal_of(error))
        return call

    async def _read(self, call: OpenCall, context: Any) -> bytes:
        """The message of a unary call."""
        call.task = asyncio.current_task()
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            if call.refusal is None:
                raise
            await refuse(context, call.refusal)
            raise
        call.since_ns = NEVER
        if raw is grpc.aio.EOF:
            await refuse(context, refusal_of(BadRequestError("the call has no message: send one")))
        call.caller.taken_bytes += len(raw) + CALL_BYTES
        return raw  # type: ignore[no-any-return]

    def _unary(self, method: Method, read: Read, name: str) -> Any:
        async def run(messages: object, context: Any) -> Any:
            call = await self._enter(context)
            raw = await self._read(call, context)
            try:
                request = await read(raw)
            except BadRequestError as error:
                await refuse(context, refusal_of(error))
                return None
            del raw
            response = await method(request, context)
            call.answered_at_ns = self.gate.clock()
            return response

        return grpc.stream_unary_rpc_method_handler(run, response_serializer=_serializer(name))

    def _health(self, method: Method, name: str) -> Any:
        async def run(messages: object, context: Any) -> Any:
            call = await self._enter(context, health=True)
            call.since_ns = NEVER
            response = await method(None, context)
            call.answered_at_ns = self.gate.clock()
            return response

        return grpc.stream_unary_rpc_method_handler(run, response_serializer=_serializer(name))

    def _stream(self, method: Callable[[Any, Any, OnMessage], Awaitable[None]]) -> Any:
        async def run(messages: object, context: Any) -> None:
            call = await self._enter(context)
            call.since_ns = NEVER
            caller, turns, clock = call.caller, self.turns, self.gate.clock

            def on_message(size: int) -> Awaitable[None] | None:
                caller.taken_bytes += size + CALL_BYTES
                return None if turns.is_free(clock()) else turns.wait(caller.address)

            await method(messages, context, on_message)

        return grpc.stream_stream_rpc_method_handler(run, response_serializer=_written)

    async def _refuse(self, messages: object, context: Any) -> None:
        await self._enter(context)


def _written(response: Any) -> bytes:
    """A message of a stream, which may have been written before."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def _serializer(name: str) -> Any:
    return getattr(pb, f"{name}Response").SerializeToString


def _small_reader(name: str) -> Read:
    parse = getattr(pb, f"{name}Request").FromString

    async def read(raw: bytes) -> Any:
        return parse_small(raw, parse)

    return read
