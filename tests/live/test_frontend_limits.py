"""What a frontend bounds: memory, slow readers, the age of streams."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("uvicorn")

from stand_in import LINKS, Running, ask, numbers, options, wait_for

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import from_array
from fermata.deployments.specs.frontend import ServerOptions, StreamLimits, TableLimits
from fermata.foundation.units import ms, seconds

pytestmark = pytest.mark.live


def test_payload_memory_is_bounded() -> None:
    limits = TableLimits(payload_bytes_max=100_000)
    system = Running(lambda: options(table=limits), delay_s=0.3)
    body = from_array("input", np.zeros(20_000, np.uint8))
    with grpc.insecure_channel(system.target) as channel:
        answers = list(InferenceStub(channel).ModelStreamInfer(iter([ask("bytes", body)] * 8)))
    refused = [each for each in answers if each.error_message]
    assert len(refused) == 3
    assert "payload_bytes_max=100000" in refused[0].error_message
    assert refused[0].infer_response.parameters["retry_after_us"].int64_param > 0
    system.close()


def test_an_input_that_no_message_to_another_machine_holds_is_refused_by_name() -> None:
    links = replace(LINKS, frame_bytes_max=1 << 20)
    server = ServerOptions(grpc_port=0, http_port=0, drain_ns=ms(500))
    system = Running(lambda: options(node="elsewhere", links=links, server=server))
    with grpc.insecure_channel(system.target) as channel:
        stub = InferenceStub(channel)
        fits, too_large = (
            from_array("input", np.ones(size, np.float32)) for size in (1000, 400_000)
        )
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(ask("large", too_large), timeout=10)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "too-large: its input of 1600000 bytes" in caught.value.details()
            assert dict(caught.value.trailing_metadata())["fermata-reason"] == "too-large"
            assert numbers(stub.ModelInfer(ask("large", fits), timeout=10)) == [1000, 1, 1]
    assert system.frontend.hub.table.payload_bytes == 0
    # The router tells of inputs whose place no backend was told after the answers.
    wait_for(lambda: not system.frontend.hub.table.lent)
    system.close()


def test_hundreds_of_slow_readers_are_bounded_and_cut() -> None:
    limits = StreamLimits(in_flight_max=8, stall_ns_max=seconds(2))
    system = Running(lambda: options(streams=limits))
    count = 200
    # A window of one byte at the client's side: it reads nothing.
    window = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0)]

    async def crowd() -> None:
        channel = grpc.aio.insecure_channel(system.target, options=window)
        slow = InferenceStub(channel)
        calls = [slow.ModelStreamInfer() for _ in range(count)]

        async def push(call: Any) -> None:
            while True:
                await call.write(ask("sum"))

        pushes = [asyncio.ensure_future(push(call)) for call in calls]
        await asyncio.sleep(2)
        held = [len(each.open) + len(each.ready) for each in list(system.frontend.service.streams)]
        assert max(held) <= 8
        # Others are served meanwhile.
        async with grpc.aio.insecure_channel(system.target) as other:
            assert numbers(await InferenceStub(other).ModelInfer(ask("sum"))) == [6, 0, 3]
        deadline = time.monotonic() + 20
        while system.frontend.service.streams and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        assert not system.frontend.service.streams
        for each in pushes:
            each.cancel()
        await channel.close()

    asyncio.run(crowd())
    assert system.frontend.service.stalled > 0
    system.close()


def test_an_old_stream_is_told_to_reconnect_with_its_answers_out() -> None:
    system = Running(lambda: options(streams=StreamLimits(age_ns_max=ms(300))), delay_s=0.1)
    done = threading.Event()

    def requests() -> Iterator[pb.ModelInferRequest]:
        yield ask("sum")
        time.sleep(0.25)
        yield ask("sum")
        done.wait(10)

    answers: list[pb.ModelStreamInferResponse] = []
    with grpc.insecure_channel(system.target) as channel:
        call = InferenceStub(channel).ModelStreamInfer(requests())
        with pytest.raises(grpc.RpcError) as caught:
            drain(call, answers)
        done.set()
    assert [numbers(each.infer_response) for each in answers] == [[6, 0, 3]] * 2
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "0.3 s old: reconnect" in caught.value.details()
    system.close()


def drain(call: Any, into: list[pb.ModelStreamInferResponse]) -> None:
    """Keep what came before the stream broke."""
    for response in call:
        into.append(response)
