"""Sequences through gRPC, streams and REST to models with a state, and back."""

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks.one_process import serve_here
from benchmarks.sequence_sums import step
from benchmarks.sequences import APPLICATIONS, request_of, sequences_under_fire, total_of
from fermata.clients.wire.service import InferenceStub

pytestmark = pytest.mark.live

# What is asked here is whose state it is, on however busy a machine: deadlines are not the matter.
CONFIG = {"applications": [{**each, "slo_ms": 20_000} for each in APPLICATIONS]}
KINDS = ["kept", "carried"]


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_interleaved_sequences_each_have_their_own_state(kind: str, shared_memory: bool) -> None:
    async def play() -> None:
        async with serve_here(CONFIG, 2, shared_memory) as frontend:
            target = f"127.0.0.1:{frontend.server.grpc_port}"
            async with grpc.aio.insecure_channel(target) as channel:
                stub = InferenceStub(channel)
                totals: dict[int | str, int] = {}
                names: list[int | str] = [*range(1, 21), *(f"camera {each}" for each in range(20))]
                for turn in range(5):
                    asked = {
                        name: stub.ModelInfer(
                            request_of(kind, name, turn + place, turn == 0, turn == 4)
                        )
                        for place, name in enumerate(names)
                    }
                    for place, (name, call) in enumerate(asked.items()):
                        totals[name] = step(totals.get(name, 0), turn + place)
                        assert total_of(await call) == totals[name], (name, turn)
                with pytest.raises(grpc.aio.AioRpcError, match="sequence 1 has not been started"):
                    await stub.ModelInfer(request_of(kind, 1, 1))
            assert not frontend.hub.driver.sequences.states
            assert not frontend.hub.driver.sequences.steps

    asyncio.run(play())


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_a_stream_run_in_order_without_waiting_for_answers(kind: str) -> None:
    async def play() -> None:
        async with serve_here(CONFIG, 2) as frontend:
            target = f"127.0.0.1:{frontend.server.grpc_port}"
            async with grpc.aio.insecure_channel(target) as channel:
                stream = InferenceStub(channel).ModelStreamInfer()
                for value in range(40):
                    for name in ("left", "right"):
                        message = request_of(kind, name, value, value == 0, value == 39)
                        message.id = f"{name} {value}"
                        await stream.write(message)
                await stream.done_writing()
                answers: dict[str, int] = {}
                async for each in stream:
                    assert not each.error_message
                    answers[each.infer_response.id] = total_of(each.infer_response)
                for name in ("left", "right"):
                    total = 0
                    for value in range(40):
                        total = step(total, value)
                        assert answers[f"{name} {value}"] == total

    asyncio.run(play())


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    asked = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(asked, timeout=9) as answer:
        return dict(json.loads(answer.read()))


@pytest.mark.parametrize("kind", KINDS)
def test_rest_knows_sequences_too(kind: str) -> None:
    def ask(url: str, value: int, **given: object) -> int:
        tensor = {"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [value]}
        answer = post(url, {"inputs": [tensor], "parameters": {"sequence_id": "seven", **given}})
        (output,) = answer["outputs"]
        assert output["name"] == "total"
        return int(np.ravel(output["data"])[0])

    def play_rest(url: str) -> None:
        assert ask(url, 3, sequence_start=True) == 3
        assert ask(url, 4) == step(3, 4)
        assert ask(url, 5, sequence_end=True) == step(step(3, 4), 5)
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(url, 6)
        assert caught.value.code == 412
        assert "sequence seven has not been started" in json.loads(caught.value.read())["error"]

    async def play() -> None:
        async with serve_here(CONFIG) as frontend:
            url = f"http://127.0.0.1:{frontend.server.http_port}/v2/models/{kind}/infer"
            await asyncio.to_thread(play_rest, url)

    asyncio.run(play())


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_backend_tells_its_own_sequences_once_and_no_other(kind: str) -> None:
    found = asyncio.run(sequences_under_fire(kind, 100))
    assert found.wrong == 0
    assert found.lost == 0, found.refused
    assert found.right + len(found.told) == 1000
    assert set(found.told.values()) <= {1}
    assert bool(found.told) == (kind == "kept")
