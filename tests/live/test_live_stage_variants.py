"""Variants of stages live: the accurate ones while there is time, the cheap ones in overload."""

import asyncio
import json
from collections import Counter
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks.one_process import PATIENT, serve_here
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, split_bytes

pytestmark = pytest.mark.live

SLO_MS = 600
LARGE, SMALL = (60.0, 15.0), (4.0, 1.0)
"""A batch takes the first, and the second for each request, in milliseconds. So a backend serves
some 25 queries a second by the large ones, and ten times as many by the small ones."""
CALM, CROWD, CROWD_GAP_S = 6, 500, 0.01
SETTLED = 300
"""From this query of the crowd on, it has been learnt how far to fall: on one backend, a batch of
the large ones keeps all others waiting."""


def application(name: str) -> dict[str, Any]:
    variants = [
        {
            "name": f"{name}-{size}",
            "model": "emulated",
            "alpha_ms": each,
            "beta_ms": fixed,
            "accuracy": accuracy,
        }
        for size, (fixed, each), accuracy in (("large", LARGE, 0.9), ("small", SMALL, 0.8))
    ]
    tensor = {"name": "input", "dtype": "UINT8", "shape": [4]}
    return {"name": name, "slo_ms": SLO_MS, "input": tensor, "variants": variants}


CONFIG: dict[str, Any] = {
    "applications": [application("detect"), application("classify")],
    "pipelines": [
        {
            "name": "objects",
            "slo_ms": SLO_MS,
            "stages": [
                {"application": "detect"},
                {"application": "classify", "transform": "input"},
            ],
        }
    ],
    "backend": {"device": "emulated", "count": 1},
    "frontend": {"processes": 1},
}


async def ask(stub: InferenceStub) -> tuple[str, ...]:
    """The variants that have served a query, or why it was refused."""
    request = pb.ModelInferRequest(model_name="objects")
    add_input(request, from_array("input", np.zeros(4, np.uint8)))
    try:
        (tensor,) = response_tensors(await stub.ModelInfer(request))
    except grpc.aio.AioRpcError as error:
        return (error.code().name,)
    stages = json.loads(split_bytes(tensor.data)[0])["stages"]
    return tuple(part["variant"] for row in stages.values() for part in row)


def test_the_accurate_serve_when_calm_and_the_cheap_before_any_is_lost() -> None:
    async def play() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        async with serve_here(CONFIG, options=PATIENT) as frontend:
            target = f"127.0.0.1:{frontend.server.grpc_port}"
            async with grpc.aio.insecure_channel(target) as channel:
                stub = InferenceStub(channel)
                calm = [await ask(stub) for _ in range(CALM)]
                calls: list[asyncio.Task[tuple[str, ...]]] = []
                for _ in range(CROWD):
                    calls.append(asyncio.create_task(ask(stub)))
                    await asyncio.sleep(CROWD_GAP_S)
                return calm, await asyncio.gather(*calls)

    calm, crowd = asyncio.run(play())
    assert calm == [("detect-large", "classify-large")] * CALM
    assert len(crowd) == CROWD, "every query has an answer, or is refused"
    later = Counter(crowd[SETTLED:])
    small = sum(count for each, count in later.items() if "detect-small" in each)
    answered = sum(count for each, count in later.items() if len(each) == 2)
    assert small > 0.8 * later.total(), later
    assert answered > 0.9 * later.total(), later
