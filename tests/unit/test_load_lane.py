"""The lane of a load: what it does when its server shuts down."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fermata.clients.load.connection import OK, RequestLane
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire import parameters as names
from fermata.clients.wire.parameters import parameter
from fermata.clients.wire.service import SERVICE, STREAM


class Desk:
    """Has small requests, and keeps the answers."""

    tail_s = 1.0

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.came = asyncio.Event()

    def message(self, index: int) -> bytes:
        return pb.ModelInferRequest(id=str(index)).SerializeToString()

    def answer(self, request_id: str, outcome: str, message: str, batch: int) -> None:
        self.answers[request_id] = outcome
        self.came.set()

    async def answered(self, count: int) -> None:
        while len(self.answers) < count:
            await self.came.wait()
            self.came.clear()


def draining(request: pb.ModelInferRequest) -> pb.ModelStreamInferResponse:
    response = pb.ModelStreamInferResponse(error_message="draining: reconnect")
    response.infer_response.id = request.id
    response.infer_response.parameters[names.STATUS].CopyFrom(parameter("UNAVAILABLE"))
    response.infer_response.parameters[names.REASON].CopyFrom(parameter("draining"))
    return response


async def started(serve: Any, port: int = 0) -> tuple[Any, int]:
    """A server of streams, and its port."""
    handler = grpc.stream_stream_rpc_method_handler(
        serve,
        request_deserializer=pb.ModelInferRequest.FromString,
        response_serializer=pb.ModelStreamInferResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {STREAM: handler}),)
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


async def serve_all(
    requests: AsyncIterator[pb.ModelInferRequest], context: Any
) -> AsyncIterator[pb.ModelStreamInferResponse]:
    async for request in requests:
        response = pb.ModelInferResponse(id=request.id)
        yield pb.ModelStreamInferResponse(infer_response=response)


class Counted(RequestLane):
    """Counts its attempts to connect."""

    attempts = 0

    async def _open(self) -> None:
        self.attempts += 1
        await super()._open()


def test_a_lane_connects_anew_until_it_can() -> None:
    async def test() -> None:
        server, port = await started(serve_all)
        desk = Desk()
        lane = Counted(desk, f"127.0.0.1:{port}")
        await lane.connect()
        await server.stop(None)
        lane.put(0)
        # Nobody listens now, not even at the second attempt after the loss.
        while lane.attempts < 3:
            await asyncio.sleep(0.01)
        server, _ = await started(serve_all, port)
        await desk.answered(1)
        await lane.close()
        await server.stop(None)
        assert desk.answers == {"0": OK}

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_lane_leaves_a_server_that_says_goodbye() -> None:
    """What it sent on that connection later on might be cut."""

    async def test() -> None:
        first, port = await started(serve_all)
        desk = Desk()
        lane = Counted(desk, f"127.0.0.1:{port}")
        await lane.connect()
        lane.put(0)
        await desk.answered(1)
        second, _ = await started(serve_all, port)
        # Its stream has no end of its own: only the client can make this one short.
        await asyncio.wait_for(first.stop(60), 5)
        lane.put(1)
        await desk.answered(2)
        await lane.close()
        await second.stop(None)
        assert desk.answers == {"0": OK, "1": OK}
        assert lane.attempts == 2

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_lane_connects_anew_once_its_server_drains() -> None:
    async def test() -> None:
        streams: list[int] = []

        async def serve(
            requests: AsyncIterator[pb.ModelInferRequest], context: Any
        ) -> AsyncIterator[pb.ModelStreamInferResponse]:
            streams.append(0)
            drains = len(streams) == 1
            async for request in requests:
                streams[-1] += 1
                if drains:
                    yield draining(request)
                else:
                    response = pb.ModelInferResponse(id=request.id)
                    yield pb.ModelStreamInferResponse(infer_response=response)

        server, port = await started(serve)
        desk = Desk()
        lane = RequestLane(desk, f"127.0.0.1:{port}")
        await lane.connect()
        lane.put(0)
        await desk.answered(1)
        for index in range(1, 4):
            lane.put(index)
        await desk.answered(4)
        await lane.close()
        await server.stop(None)
        assert desk.answers == {"0": "UNAVAILABLE", "1": OK, "2": OK, "3": OK}
        assert streams == [1, 3]

    asyncio.run(asyncio.wait_for(test(), 30))
