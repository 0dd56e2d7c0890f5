"""Sequences under fire: many of them interleaved over two backends, one of which is killed.

A part of `python -m benchmarks.signatures`.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from benchmarks.one_process import PATIENT, serve_here
from benchmarks.sequence_sums import step
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.parameters import parameter
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, to_array

SLO_MS = 2000
CHANNELS = 8
"""Connections; a sequence stays on one."""
SENDERS = 64
"""Requests that are open at a time."""
LOST, NOT_STARTED = "sequence-lost", "no-sequence"
VARIANT: Mapping[str, Any] = {"latency_ms": [2 + 0.1 * size for size in range(1, 65)]}
APPLICATIONS: tuple[Mapping[str, Any], ...] = (
    {
        "name": "kept",
        "slo_ms": SLO_MS,
        "sequences": True,
        "inputs": [{"name": "x", "dtype": "INT64", "shape": [1]}],
        "variants": [{"name": "kept-1", "model": "benchmarks.sequence_sums:kept", **VARIANT}],
    },
    {
        "name": "carried",
        "slo_ms": SLO_MS,
        "state": {"total_in": "total_out"},
        "inputs": [
            {"name": "x", "dtype": "INT64", "shape": [1]},
            {"name": "total_in", "dtype": "INT64", "shape": [1]},
        ],
        "variants": [{"name": "carried-1", "model": "benchmarks.sequence_sums:carried", **VARIANT}],
    },
)


def request_of(
    model: str, sequence: int | str, value: int, start: bool = False, end: bool = False
) -> pb.ModelInferRequest:
    """One step of a sequence."""
    request = pb.ModelInferRequest(model_name=model)
    add_input(request, from_array("x", np.array([value], np.int64)))
    given = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    for name, each in given.items():
        request.parameters[name].CopyFrom(parameter(each))
    return request


def total_of(response: pb.ModelInferResponse) -> int:
    """The total that a model answers with, and nothing else."""
    (tensor,) = response_tensors(response)
    assert tensor.name == "total"
    return int(np.ravel(to_array(tensor))[0])


@dataclass(slots=True)
class SequenceRun:
    """Outcomes of all sequences."""

    right: int = 0
    wrong: int = 0
    """Answers that do not follow from those before."""
    lost: int = 0
    """Requests that were refused or unanswered, while their sequence was told nothing."""
    told: Counter[int] = field(default_factory=Counter)
    """By sequence: how often it was told that its state is gone."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refusals by reason."""


async def play_sequence(
    stub: Any, model: str, number: int, steps: int, turns: asyncio.Semaphore, found: SequenceRun
) -> None:
    """One sequence, a step after the other; it starts anew when it is told that it has to."""
    total, start = 0, True
    for place in range(steps):
        value = number * steps + place
        message = request_of(model, number, value, start, place == steps - 1)
        async with turns:
            try:
                answer = total_of(await stub.ModelInfer(message, timeout=60))
            except grpc.aio.AioRpcError as error:
                metadata = dict(error.trailing_metadata() or ())
                reason = str(metadata.get("fermata-reason", error.code().name))
                found.refused[reason] += 1
                if reason == LOST and f"sequence {number} " in (error.details() or ""):
                    found.told[number] += 1
                    start = True
                else:
                    found.lost += 1
                continue
        total, start = step(0 if start else total, value), False
        if answer == total:
            found.right += 1
        else:
            found.wrong += 1
            total = answer
        # Others have their turn.
        await asyncio.sleep(0)


async def play_sequences(
    target: str, model: str, sequences: int, steps: int, kill: Callable[[], None]
) -> SequenceRun:
    """All sequences at once; half-way, one backend is killed."""
    found = SequenceRun()
    turns = asyncio.Semaphore(SENDERS)
    channels = [grpc.aio.insecure_channel(target) for _ in range(CHANNELS)]
    stubs = [InferenceStub(channel) for channel in channels]
    players = [
        asyncio.ensure_future(
            play_sequence(stubs[number % CHANNELS], model, number, steps, turns, found)
        )
        for number in range(1, sequences + 1)
    ]
    half = sequences * steps // 2
    while found.right < half and not all(each.done() for each in players):
        await asyncio.sleep(0.005)
    kill()
    await asyncio.gather(*players)
    for channel in channels:
        await channel.close()
    return found


async def sequences_under_fire(model: str, sequences: int, steps: int = 10) -> SequenceRun:
    """Sequences over two backends, in processes of their own, one of which is killed half-way."""
    config = {"applications": list(APPLICATIONS), "router": {"fair_shares": False}}
    backends: list[subprocess.Popen[bytes]] = []

    async def start(address: str) -> int:
        for number in (1, 2):
            given = json.dumps(config), str(number), address
            command = [sys.executable, "-m", "benchmarks.one_process", *given]
            backends.append(subprocess.Popen(command))
        return len(backends)

    try:
        async with serve_here(config, backends=0, start_others=start, options=PATIENT) as frontend:
            target = f"127.0.0.1:{frontend.server.grpc_port}"
            return await play_sequences(target, model, sequences, steps, backends[0].kill)
    finally:
        for process in backends:
            process.kill()
            process.wait()
