"""Ragged requests through gRPC to shape buckets of a user's function, and back in their sizes."""

import asyncio
import sys
import types
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks.one_process import serve_here
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, to_array

pytestmark = pytest.mark.live

INPUTS = [{"name": name, "dtype": "INT64", "shape": [-1]} for name in ("ids", "mask")]
CONFIG = {
    "router": {"fair_shares": False},
    "applications": [
        {
            "name": "tags",
            "slo_ms": 5000,
            "inputs": INPUTS,
            "shapes": {"buckets": [8, 64], "mask": "mask", "tokens_max": 256},
            "variants": [
                {"name": "v", "model": "users_tags:load", "alpha_ms": 1, "beta_ms": 1}
                | {"batch_size_max": 16}
            ],
        }
    ],
}
SHAPES: list[tuple[int, ...]] = []
"""Shapes of the batches that the user's function got."""


def tags(batch: Mapping[str, Any]) -> dict[str, Any]:
    SHAPES.append(batch["ids"].shape)
    return {"total": (batch["ids"] * batch["mask"]).sum(1), "tags": batch["ids"] + 1}


@pytest.fixture(autouse=True)
def users_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_tags")
    module.load = lambda: tags  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_tags", module)


async def ask(stub: Any, ids: Any) -> dict[str, Any]:
    request = pb.ModelInferRequest(model_name="tags")
    add_input(request, from_array("ids", ids))
    answer = await stub.ModelInfer(request, timeout=30)
    return {each.name: to_array(each) for each in response_tensors(answer)}


def test_ragged_requests_run_in_their_bucket_and_keep_their_size() -> None:
    asyncio.run(ragged())


async def ragged() -> None:
    rng = np.random.default_rng(1)
    async with serve_here(CONFIG) as frontend:
        SHAPES.clear()
        where = f"127.0.0.1:{frontend.server.grpc_port}"
        async with grpc.aio.insecure_channel(where) as channel:
            stub = InferenceStub(channel)
            shapes = [(int(rng.integers(1, 20)), int(rng.integers(1, 65))) for _ in range(60)]
            asked = [rng.integers(1, 100, shape) for shape in shapes]
            answers = await asyncio.gather(*(ask(stub, ids) for ids in asked))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(stub, np.ones((1, 65), np.int64))
            ready = await stub.ModelReady(pb.ModelReadyRequest(name="tags"))
            told = await stub.ModelStatistics(pb.ModelStatisticsRequest(name="tags"))
    for ids, answer in zip(asked, answers, strict=True):
        assert answer["total"].tolist() == ids.sum(1).tolist()
        assert answer["tags"].tolist() == (ids + 1).tolist()
    assert {size for _, size in SHAPES} == {8, 64}
    assert all(rows * size <= 256 for rows, size in SHAPES)
    # Requests of several sizes ran together.
    assert len(SHAPES) < sum(-(-rows // (4 if size > 8 else 16)) for rows, size in shapes)
    assert "send at most 64" in str(caught.value.details())
    assert ready.ready
    assert told.model_stats[0].inference_count >= 60
