"""Shape buckets: draws with rows and buckets against the bound, and a ragged BERT against padding.

Parts of `benchmarks.signatures`.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import numpy as np

from benchmarks.one_process import serve_here
from fermata.applications.application import Application
from fermata.applications.reader import bucketed
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, to_array
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import Scenario, read_scenario
from fermata.simulator.tournament.bound import fluid_bound
from fermata.simulator.tournament.draw import draw
from fermata.simulator.tournament.play import earned

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FIRST = 1_000_000
"""Seed of the first draw: policies are tuned on those below."""
SLOS_MIN = 50
"""A run lasts for so many SLOs at least. The bound may use one more at the end, and has the first
one free of what came before."""
WARMUP_S_MIN = 0.3
"""Policies learn rates from the first tenth of a second."""
BUCKETS = [32, 64, 128, 256, 512]
LONGEST = 512
BERT_SLO_MS = 2000


# Draws


def drawn(seed: int, requests: int) -> dict[str, Any] | None:
    """A workload of the tournament with rows and two buckets; None of one with streams."""
    found = draw(seed, (1, 1), requests)
    document: dict[str, Any] = dict(found.document)
    applications = document["applications"]
    if any("clients" in each for each in applications):
        return None
    if document["arrivals"].get("process") == "trace":
        return None
    rng = Random(f"shapes {seed}")
    groups = document["backends"] if isinstance(document["backends"], list) else [{}]
    slower = max(each.get("slower", 1.0) for each in groups)
    for each in applications:
        run_ms = each["variants"][0]["latency_ms"]
        # Frontends split what does not run within half of the SLO.
        limit_ms = each["slo_ms"] / 2 / slower
        fits = [rows for rows in ROWS if rows <= len(run_ms) and run_ms[rows - 1] <= limit_ms]
        each["rows"] = [rng.choice(fits or [1]) for _ in range(4)]
        small = rng.choice((16, 32, 64, 128))
        sizes = [rng.choice((small, LONGEST)) for _ in range(4)]
        each["shapes"] = {"buckets": [small, LONGEST], "sizes": sizes}
    # The same load as without, so that the rate differs and so does the time.
    part = _work(read_scenario(document))
    document["rate_rps"] /= part
    slo_s = max(each["slo_ms"] for each in applications) / 1e3
    document["duration_s"] = max(part * document["duration_s"], SLOS_MIN * slo_s)
    document["warmup_s"] = max(part * document["warmup_s"], WARMUP_S_MIN)
    return document


def _work(scenario: Scenario) -> float:
    """Backend time of a request, over that of one row in the largest bucket."""
    work = whole = 0.0
    for share, application in zip(scenario.shares, scenario.applications, strict=True):
        shapes, parts = application.shapes, bucketed((application,))
        assert shapes is not None
        each_ns = {part.bucket: _cheapest_ns(part) for part in parts}
        sizes_ns = [each_ns[shapes.bucket(size)] for size in shapes.sizes]
        work += share * float(np.mean(application.rows)) * float(np.mean(sizes_ns))
        whole += share * each_ns[LONGEST]
    return work / whole


def _cheapest_ns(application: Application) -> float:
    """The least backend time that a row can take within the SLO."""
    table_ns = application.profiles[0].table_ns(application.variants[0].batch_size_max or 64)
    fits = [ns / size for size, ns in enumerate(table_ns, 1) if ns <= application.slo_ns]
    return min(fits, default=table_ns[0])


def over_bound(document: Mapping[str, Any]) -> float:
    """Requests answered in time, over as many as any policy could."""
    scenario = read_scenario(document)
    driver = Driver(scenario)
    log = driver.run()
    good, _ = earned(scenario, log, with_accuracy=False)
    bound = fluid_bound(driver.scenario, driver.arrivals, False, driver.rows)
    return good / bound if bound > 0 else 1.0


def draws(count: int, requests: int, first: int = FIRST) -> list[float]:
    """Goodput over the bound, of so many draws."""
    documents = (drawn(seed, requests) for seed in itertools.count(first))
    return [over_bound(each) for each in itertools.islice(filter(None, documents), count)]


# BERT


@dataclass(frozen=True, slots=True)
class Text:
    """A request: three tensors of so many rows."""

    tensors: Mapping[str, Any]

    @property
    def message(self) -> pb.ModelInferRequest:
        request = pb.ModelInferRequest(model_name="bert")
        for name, array in self.tensors.items():
            add_input(request, from_array(name, array))
        return request


def texts(count: int, seed: int = 1) -> list[Text]:
    """Requests of 1 to 32 rows and 16 to 512 tokens, 64 on average."""
    rng = np.random.default_rng(seed)
    found: list[Text] = []
    for _ in range(count):
        tokens = int(np.clip(rng.gamma(1.0, 48.0) + 16, 16, LONGEST))
        shape = int(rng.integers(1, 33)), tokens
        mask = (rng.random(shape) < 0.9).astype(np.int64)
        mask[:, 0] = 1
        ids, types = rng.integers(0, 1000, shape), rng.integers(0, 2, shape)
        found.append(Text({"input_ids": ids, "attention_mask": mask, "token_type_ids": types}))
    return found


@asynccontextmanager
async def served(folder: str, buckets: list[int]) -> AsyncIterator[Any]:
    """A stub of a server that has the model in these buckets, measured at its start."""
    variant = {"name": "bert", "model": f"transformers:{folder}", "batch_size_max": 32}
    shapes = {"buckets": buckets, "mask": "attention_mask", "tokens_max": 8 * LONGEST}
    application = {"name": "bert", "slo_ms": BERT_SLO_MS, "variants": [variant], "shapes": shapes}
    config = {
        "router": {"fair_shares": False},
        "backend": {"device": "cpu", "measure": "always"},
        "applications": [application],
    }
    async with serve_here(config) as frontend:
        where = f"127.0.0.1:{frontend.server.grpc_port}"
        async with grpc.aio.insecure_channel(where) as channel:
            yield InferenceStub(channel)


async def goodput(stub: Any, given: list[Text], rps: float) -> tuple[float, list[Any]]:
    """Requests a second that were answered in time, and the answers; None of the others."""

    async def ask(text: Text) -> Any:
        began_s = time.monotonic()
        try:
            answer = await stub.ModelInfer(text.message, timeout=BERT_SLO_MS / 1e3)
        except grpc.aio.AioRpcError:
            return None
        in_time = time.monotonic() - began_s <= BERT_SLO_MS / 1e3
        return to_array(response_tensors(answer)[0]) if in_time else None

    asked: list[Any] = []
    due_s = from_s = time.monotonic()
    for text in given:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        asked.append(asyncio.ensure_future(ask(text)))
        due_s += 1.0 / rps
    answers = await asyncio.gather(*asked)
    took_s = time.monotonic() - from_s
    return sum(each is not None for each in answers) / took_s, answers


def difference(network: Any, given: list[Text], answers: list[Any]) -> float:
    """The largest to what the network gives offline, each request by itself."""
    import torch

    worst = 0.0
    for text, answer in zip(given, answers, strict=True):
        if answer is not None:
            tensors = {name: torch.from_numpy(each) for name, each in text.tensors.items()}
            with torch.inference_mode():
                offline = network(**tensors).logits.numpy()
            # Not `max`: that would leave out NaN.
            worst = float(np.maximum(worst, np.abs(answer - offline).max()))
    return worst


async def ragged(folder: str, network: Any, quick: bool) -> tuple[float, float]:
    """Goodput of buckets over that of padding all to 512, and the difference to offline.

    Both get more than they can do, and leave out what would be late.
    """
    given = texts(200 if quick else 1000)
    rps = 100.0
    async with served(folder, BUCKETS) as stub:
        await goodput(stub, given[:50], rps)
        sorted_in, answers = await goodput(stub, given, rps)
    worst = difference(network, given, answers)
    async with served(folder, [LONGEST]) as stub:
        await goodput(stub, given[:50], rps)
        padded, answers = await goodput(stub, given, rps)
    worst = float(np.maximum(worst, difference(network, given, answers)))
    return sorted_in / max(padded, 1e-9), worst
