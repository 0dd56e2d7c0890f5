"""Functions that call stages, live: one deadline, one answer a query, whatever they do."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from test_live_pipelines import CLASSIFIER, CONFIG, DETECTOR, message, nothing_is_left, read
from users_stages import picture

from benchmarks.one_process import serve_here
from fermata.clients.wire.service import InferenceStub
from fermata.commands.trace import read_spans
from fermata.deployments.frontend.process import FrontendProcess

pytestmark = pytest.mark.live

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SLOS_MS = {
    "objects": 5000,
    "narrowed": 5000,
    "black": 5000,
    "broken": 5000,
    "blocking": 300,
    "hanging": 300,
}


def pipeline(name: str) -> dict[str, object]:
    stages = [{"application": "detect"}, {"application": "classify"}]
    function = f"users_functions:{name}"
    return {"name": name, "slo_ms": SLOS_MS[name], "function": function, "stages": stages}


@asynccontextmanager
async def served(**more: object) -> AsyncIterator[tuple[FrontendProcess, InferenceStub]]:
    config = {
        **CONFIG,
        "applications": [DETECTOR, CLASSIFIER],
        "pipelines": [pipeline(name) for name in SLOS_MS],
        **more,
    }
    async with serve_here(config) as frontend:
        target = f"127.0.0.1:{frontend.server.grpc_port}"
        async with grpc.aio.insecure_channel(target) as channel:
            yield frontend, InferenceStub(channel)


def test_functions_gather_branch_and_loop() -> None:
    async def play() -> None:
        async with served() as (frontend, stub):
            pixels = picture(("red", 4, 20), ("blue", 30, 60))
            for encoded in (False, True):
                answer = read(await stub.ModelInfer(message("objects", pixels, encoded)))
                assert answer["answer"] == [
                    {"box": [4, 8, 20, 40], "class": "red"},
                    {"box": [30, 8, 60, 40], "class": "blue"},
                ]
                assert not answer["partial"]
                assert len(answer["stages"]["classify"]) == 2
            empty = read(await stub.ModelInfer(message("objects", picture())))
            assert empty["answer"] == []
            blocks = picture(*(("green", 8 * each, 8 * each + 6) for each in range(8)))
            assert read(await stub.ModelInfer(message("narrowed", blocks)))["answer"] == 3
            await nothing_is_left(frontend)

    asyncio.run(play())


def test_mistakes_of_functions_are_told_and_hold_up_nobody() -> None:
    async def play() -> None:
        async with served() as (frontend, stub):
            pixels = picture(("red", 4, 20))
            blocked = [stub.ModelInfer(message("blocking", pixels)) for _ in range(2)]
            hangs = stub.ModelInfer(message("hanging", pixels))
            # Answered while the other function holds its thread.
            assert len(read(await stub.ModelInfer(message("objects", pixels)))["answer"]) == 1
            assert not blocked[0].done()
            for model, told in (
                ("broken", "function users_functions:broken: RuntimeError: no such thing"),
                ("black", "stage 'classify': .*all is black"),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match=told) as one:
                    await stub.ModelInfer(message(model, pixels))
                assert one.value.code() is grpc.StatusCode.INTERNAL
            late: list[str] = []
            for call in (*blocked, hangs):
                with pytest.raises(grpc.aio.AioRpcError) as expired:
                    await call
                assert expired.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                late.append(str(expired.value.details()).removeprefix("expired: function "))
            # Either of the two may have come first.
            assert [
                each.partition(",")[0].partition(": other")[0] for each in sorted(late)[:2]
            ] == [
                "users_functions:blocking had not begun",
                "users_functions:blocking held its thread",
            ]
            assert late[2].startswith("users_functions:hanging still waited for something")
            assert read(await stub.ModelInfer(message("objects", picture())))["answer"] == []
            await nothing_is_left(frontend)

    asyncio.run(play())


def test_clients_that_leave_at_any_time_free_everything() -> None:
    async def play() -> None:
        rng = random.Random(1_000_005)
        async with served() as (frontend, stub):
            pixels = picture(*(("red", 8 * each, 8 * each + 6) for each in range(8)))
            for _ in range(20):
                calls = [stub.ModelInfer(message("objects", pixels)) for _ in range(3)]
                await asyncio.sleep(rng.uniform(0.0, 0.02))
                for call in calls[1:]:
                    call.cancel()
                assert len(read(await calls[0])["answer"]) == 8
            await nothing_is_left(frontend)

    asyncio.run(play())


def test_a_trace_shows_what_a_function_has_called(tmp_path: Path) -> None:
    async def play() -> None:
        traces = {"folder": str(tmp_path), "share": 0.0}
        async with served(traces=traces) as (frontend, stub):
            pixels = picture(("red", 2, 4), ("blue", 31, 60))
            await stub.ModelInfer(message("objects", pixels), metadata=(("traceparent", PARENT),))
            await nothing_is_left(frontend)

    asyncio.run(play())
    spans: list[Any] = list(read_spans(tmp_path))
    (query,) = (each for each in spans if each.name == "query")
    below = [each for each in spans if each.parent_id == query.span_id]
    parts = sorted(each.attributes["application"] for each in below if each.name == "receive")
    assert parts == ["classify", "classify", "detect"]
