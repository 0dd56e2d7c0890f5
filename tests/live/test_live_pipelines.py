"""Pipelines live: one deadline, one answer a query, whatever its stages find."""

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copy
from typing import Any

import grpc
import numpy as np
import pytest
import users_stages
from PIL import Image
from served import serving
from users_stages import HEIGHT, WIDTH, picture

from benchmarks.one_process import serve_here
from benchmarks.pipelines_kills import MARKS, kill_in
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import (
    add_input,
    from_array,
    join_bytes,
    response_tensors,
    split_bytes,
)
from fermata.commands.trace import chrome_events, read_spans
from fermata.deployments.frontend.process import FrontendProcess

pytestmark = pytest.mark.live

SLO_MS = 5000
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PLAIN = {"mean": [0, 0, 0], "std": [1, 1, 1]}


def application(name: str, model: str, **more: object) -> dict[str, object]:
    variant = {"name": f"{name}-v", "model": f"users_stages:{model}", "latency_ms": [1.0] * 16}
    return {"name": name, "slo_ms": SLO_MS, "variants": [variant], **more}


DETECTOR = application(
    "detect",
    "load_detector",
    input={"name": "picture", "image": True, "dtype": "UINT8", "shape": [3, HEIGHT, WIDTH]},
    boxes={"output": "boxes"},
    labels=["red", "green", "blue"],
)
CLASSIFIER = application(
    "classify",
    "load_classifier",
    input={"image": True, "shape": [3, 8, 8], **PLAIN},
    labels=["red", "green", "blue"],
)
COUNTER = application("count", "load_counter", input={"shape": [1]})


def pipeline(name: str, *stages: dict[str, Any], **more: object) -> dict[str, object]:
    return {"name": name, "slo_ms": SLO_MS, "stages": [{"application": "detect"}, *stages], **more}


CROPS = {"application": "classify", "transform": {"crop": {}}}
HALVES = {"application": "classify", "transform": "users_stages:halves"}
CONFIG: dict[str, Any] = {
    "applications": [DETECTOR, CLASSIFIER, COUNTER],
    "pipelines": [
        pipeline("objects", {**CROPS, "classes": 1}),
        pipeline("wide", {"application": "classify", "transform": {"crop": {"top_k": 1}}}),
        pipeline(
            "red",
            {
                "application": "classify",
                "transform": {"crop": {"classes": ["red"], "score_min": 0.1}},
            },
        ),
        pipeline("several", {**CROPS, "when": {"classes": ["red"], "found_min": 2}}),
        pipeline("halves", HALVES),
        pipeline("gaps", HALVES, partial=True),
        pipeline("broken", {"application": "classify", "transform": "users_stages:broken"}),
        pipeline(
            "joined",
            CROPS,
            {"application": "count", "join": True, "transform": "users_stages:count_red"},
        ),
    ],
    "backend": {"device": "cpu", "count": 1},
    "frontend": {"processes": 1},
}


def decoded_by_backends(name: str, model: str, like: dict[str, Any]) -> dict[str, Any]:
    given = {**like, **application(name, model)}
    return {**given, "input": {**like["input"], "decode": "gpu"}}


CUT_BY_BACKENDS: dict[str, Any] = {
    "applications": [
        decoded_by_backends("detect", "load_detector", DETECTOR),
        decoded_by_backends("classify", "load_calm_classifier", CLASSIFIER),
        COUNTER,
    ],
    "backend": {"device": "auto", "count": 1},
}
"""Sections with which JPEGs are decoded, and crops are cut, where they run."""


def message(model: str, pixels: Any, encoded: bool | str = False) -> pb.ModelInferRequest:
    """`encoded`: as a PNG, or in the format that it names."""
    request = pb.ModelInferRequest(model_name=model)
    if encoded:
        file = io.BytesIO()
        kind = encoded if isinstance(encoded, str) else "PNG"
        Image.fromarray(pixels).save(file, kind, quality=100, subsampling=0)
        request.inputs.add(name="picture", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(join_bytes([file.getvalue()]))
    else:
        add_input(request, from_array("picture", pixels))
    return request


def read(response: pb.ModelInferResponse) -> dict[str, Any]:
    (tensor,) = response_tensors(response)
    assert (tensor.name, tensor.datatype) == ("answer", "BYTES")
    return dict(json.loads(split_bytes(tensor.data)[0]))


@asynccontextmanager
async def served(**more: object) -> AsyncIterator[tuple[FrontendProcess, InferenceStub]]:
    async with serve_here({**CONFIG, **more}) as frontend:
        target = f"127.0.0.1:{frontend.server.grpc_port}"
        async with grpc.aio.insecure_channel(target) as channel:
            yield frontend, InferenceStub(channel)


async def nothing_is_left(frontend: FrontendProcess) -> None:
    """Every payload is free soon, and no query is open."""
    async with asyncio.timeout(10):
        while frontend.hub.table.entries or frontend.hub.driver.queries.queries:
            await asyncio.sleep(0.01)
        # Backends that have read a payload say so a little later.
        while frontend.hub.arena.extents.used:
            await asyncio.sleep(0.01)
    assert frontend.hub.table.payload_bytes == 0
    assert frontend.hub.driver.waiters == {}


def test_crops_are_classified_in_the_clients_pixels() -> None:
    async def play() -> None:
        async with served() as (frontend, stub):
            pixels = picture(("red", 4, 20), ("blue", 30, 60))
            for encoded in (False, True):
                answer = read(await stub.ModelInfer(message("objects", pixels, encoded)))
                assert answer["pipeline"] == "objects"
                assert not answer["partial"]
                (detected,) = answer["stages"]["detect"]
                assert len(detected["outputs"]["boxes"]) == 2
                wide, narrow = answer["stages"]["classify"]
                assert wide["of"] == ["detect", 0]
                assert wide["box"] == [30, 8, 60, 40]
                assert (wide["class"], wide["classes"][0]["class"]) == ("blue", "blue")
                assert narrow["box"] == [4, 8, 20, 40]
                assert narrow["classes"][0]["class"] == "red"
            # Fan-out of none, one and many.
            for count in (0, 1, 8):
                blocks = [("green", 8 * each, 8 * each + 6) for each in range(count)]
                answer = read(await stub.ModelInfer(message("objects", picture(*blocks))))
                assert len(answer["stages"]["classify"]) == count
            await nothing_is_left(frontend)

    asyncio.run(play())


def test_backends_cut_the_crops_that_frontends_would() -> None:
    pixels = picture(("red", 4, 20), ("blue", 30, 60), ("red", 61, 63))

    async def play(**more: Any) -> list[dict[str, Any]]:
        async with served(**more) as (frontend, stub):
            answers = [
                read(await stub.ModelInfer(message(model, given, "JPEG")))
                for model in ("objects", "red", "wide", "joined", "halves")
                for given in (pixels, picture())
                if model != "halves" or given is pixels
            ]
            calls = [stub.ModelInfer(message("objects", pixels, "JPEG")) for _ in range(10)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            answers += [read(await call) for call in calls[1::2]]
            await nothing_is_left(frontend)
            return answers

    cut, usual = asyncio.run(play(**CUT_BY_BACKENDS)), asyncio.run(play())
    assert [len(each["stages"]["classify"]) for each in cut[:7]] == [3, 0, 1, 0, 1, 0, 3]
    assert cut == usual


def test_choices_joins_and_functions() -> None:
    async def play() -> None:
        async with served() as (frontend, stub):
            pixels = picture(("red", 2, 4), ("red", 10, 30), ("blue", 31, 60))
            (wide,) = read(await stub.ModelInfer(message("wide", pixels)))["stages"]["classify"]
            assert wide["box"] == [31, 8, 60, 40]
            (red,) = read(await stub.ModelInfer(message("red", pixels)))["stages"]["classify"]
            assert red["box"] == [10, 8, 30, 40]
            several = read(await stub.ModelInfer(message("several", pixels)))
            assert (len(several["stages"]["classify"]), several["left_out"]) == (3, {})
            one = read(await stub.ModelInfer(message("several", picture(("red", 2, 4)))))
            why = {"of": ["detect", 0], "when": {"stage": "detect", "found": 1}}
            assert (one["stages"]["classify"], one["left_out"]) == ([], {"classify": [why]})
            joined = read(await stub.ModelInfer(message("joined", pixels)))["stages"]
            assert len(joined["classify"]) == 3
            assert joined["count"][0]["outputs"]["output"] == [4.0]
            none = read(await stub.ModelInfer(message("joined", picture())))["stages"]
            assert none["classify"] == []
            assert none["count"][0]["outputs"]["output"] == [0.0]
            both = picture(("red", 0, 30), ("green", 34, 64))
            halves = read(await stub.ModelInfer(message("halves", both)))["stages"]["classify"]
            assert [max(each["outputs"]["output"]) > 0.5 for each in halves] == [True, True]
            await nothing_is_left(frontend)

    asyncio.run(play())


def test_refusals_say_which_stage_and_why() -> None:
    async def play() -> None:
        async with served() as (frontend, stub):
            half = picture(("red", 0, 20))
            with pytest.raises(grpc.aio.AioRpcError, match="all is black") as one:
                await stub.ModelInfer(message("halves", half))
            assert one.value.code() is grpc.StatusCode.INTERNAL
            assert "stage 'classify'" in str(one.value.details())
            gaps = read(await stub.ModelInfer(message("gaps", half)))
            assert gaps["partial"]
            left, right = gaps["stages"]["classify"]
            assert "outputs" in left
            assert right == {"of": ["detect", 0], "missing": "failed"}
            with pytest.raises(grpc.aio.AioRpcError, match="no such thing"):
                await stub.ModelInfer(message("broken", half))
            # Half of what both stages take is more than what the reply leaves of it.
            hurried = message("objects", half)
            left_us = frontend.hub.table.reply_ns // 1000 + 800
            hurried.parameters["timeout"].int64_param = left_us
            with pytest.raises(grpc.aio.AioRpcError, match="could not have ended") as refused:
                await stub.ModelInfer(hurried)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            rows = message("objects", np.stack([half, half]))
            with pytest.raises(grpc.aio.AioRpcError, match="send each") as two:
                await stub.ModelInfer(rows)
            assert two.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await nothing_is_left(frontend)

    asyncio.run(play())


def test_a_trace_shows_a_query_across_its_stages(tmp_path: Path) -> None:
    async def play() -> None:
        traces = {"folder": str(tmp_path), "share": 0.0}
        async with served(traces=traces) as (frontend, stub):
            pixels = picture(("red", 2, 4), ("red", 10, 30), ("blue", 31, 60))
            await stub.ModelInfer(message("joined", pixels))
            await stub.ModelInfer(message("joined", pixels), metadata=(("traceparent", PARENT),))
            await nothing_is_left(frontend)

    asyncio.run(play())
    spans = list(read_spans(tmp_path))
    assert {each.trace_id for each in spans} == {PARENT[3:35]}
    (query,) = (each for each in spans if each.name == "query")
    assert query.parent_id == PARENT[36:52]
    below = [each for each in spans if each.parent_id == query.span_id]
    parts = sorted(each.attributes["application"] for each in below if each.name == "receive")
    assert parts == ["classify", "classify", "classify", "count", "detect"]
    worked = [(each.name, each.attributes.get("stage")) for each in below]
    assert ("transform", "detect") in worked
    assert ("join", "count") in worked
    assert ("answer", None) in worked
    assert all(query.start_ns <= each.start_ns <= each.end_ns <= query.end_ns for each in spans)
    drawn = [each["name"] for each in chrome_events(spans) if each["ph"] == "X"]
    assert drawn.count("joined") == 1


def test_a_client_that_leaves_frees_everything() -> None:
    async def play() -> None:
        async with served() as (frontend, stub):
            pixels = picture(*(("red", 8 * each, 8 * each + 6) for each in range(8)))
            calls = [stub.ModelInfer(message("objects", pixels)) for _ in range(20)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            for call in calls[1::2]:
                assert len(read(await call)["stages"]["classify"]) == 8
            await nothing_is_left(frontend)

    asyncio.run(play())


def test_clients_that_leave_at_any_stage_free_everything() -> None:
    async def play() -> None:
        rng = random.Random(1_000_003)
        async with served() as (frontend, stub):
            pixels = picture(*(("red", 8 * each, 8 * each + 6) for each in range(8)))
            target = f"127.0.0.1:{frontend.server.grpc_port}"
            for model in ("objects", "gaps", "joined") * 10:
                # A call that is cancelled, a connection that ends, and one that stays.
                async with grpc.aio.insecure_channel(target) as channel:
                    gone = InferenceStub(channel).ModelInfer(message(model, pixels))
                    cancelled = stub.ModelInfer(message(model, pixels))
                    stays = stub.ModelInfer(message(model, pixels))
                    await asyncio.sleep(rng.uniform(0.0, 0.02))
                    cancelled.cancel()
                assert read(await stays)["pipeline"] == model
                assert gone.done()
            await nothing_is_left(frontend)

    asyncio.run(play())


async def ask_all(
    port: int, pixels: Sequence[Any], encoded: str, stage: str, marks: Path
) -> list[dict[str, Any]]:
    """Send queries, and kill a backend in a batch of a stage while they are under way."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = InferenceStub(channel)
        calls: list[Any] = []
        for number, each in enumerate(pixels):
            calls.append(asyncio.ensure_future(_answer(stub, each, encoded)))
            if number == len(pixels) // 2:
                calls.append(asyncio.create_task(asyncio.to_thread(kill_in, stage, marks)))
            await asyncio.sleep(0.01)
        return [each for each in await asyncio.gather(*calls) if each is not None]


async def _answer(stub: InferenceStub, pixels: Any, encoded: str) -> dict[str, Any]:
    return read(await stub.ModelInfer(message("objects", pixels, encoded)))


@pytest.mark.parametrize(
    ("encoded", "sections"),
    [
        pytest.param("", {}, id="frontend", marks=pytest.mark.long),
        pytest.param("JPEG", CUT_BY_BACKENDS, id="backend"),
    ],
)
def test_backends_that_die_in_any_stage_lose_no_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: str, sections: dict[str, Any]
) -> None:
    """Whoever cuts the crops."""
    copy(Path(users_stages.__file__), tmp_path / "users_stages.py")
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setenv(MARKS, str(marks))
    backend = {**CONFIG["backend"], **sections.get("backend", {})}
    backend |= {"count": 2, "cpus": 0.5, "spare": False}
    config = {**CONFIG, **sections, "backend": backend}
    counts = [number % 5 for number in range(100)]
    pixels = [
        picture(*(("green", 8 * each, 8 * each + 6) for each in range(count))) for count in counts
    ]
    with serving(tmp_path, config, backends=2) as server:
        for stage in ("detect", "classify"):
            server.wait(backends=2)
            answers = asyncio.run(ask_all(server.grpc_port, pixels, encoded, stage, marks))
            assert [len(each["stages"]["classify"]) for each in answers] == counts
