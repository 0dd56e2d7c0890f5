"""Signatures and rows: answers against offline, cost of a row, and what bad requests are told.

`python -m benchmarks.signatures [--json] [--quick] [--only PART]`
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.figures import Figure, run_parts
from benchmarks.isolation import isolation_figures
from benchmarks.one_process import serve_here
from benchmarks.sequences import sequences_under_fire
from benchmarks.signature_shapes import draws, ragged
from benchmarks.triton_client import compared
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, to_array
from fermata.foundation.units import SECOND

PARTS = {
    "bert": "a small BERT of random weights with three inputs, against offline",
    "shapes": "the same BERT in shape buckets, over padding all to 512 tokens",
    "draws": "simulated draws with rows and two shape buckets, over the bound",
    "rows": "CPU of a row at 16 rows a request over that of single rows",
    "sequences": "interleaved sequences on two backends, one of which is killed",
    "onnx": "ONNX files in torch on the device, against onnxruntime on the CPU",
    "bad": "requests that do not fit the signature",
    "isolation": "two applications with conflicting libraries on one backend",
    "tritonclient": "every method of a stock tritonclient, with sound and unsound arguments",
}
ROWS = 16
ROWS_PER_S = 200
SLO_MS = 200
PLAIN: dict[str, Any] = {
    "applications": [
        {
            "name": "plain",
            "slo_ms": SLO_MS,
            "input": {"shape": [64]},
            "variants": [{"name": "v", "alpha_ms": 0.2, "beta_ms": 4, "batch_size_max": 64}],
        },
        {
            "name": "named",
            "slo_ms": SLO_MS,
            "inputs": [
                {"name": "ids", "dtype": "INT64", "shape": [-1]},
                {"name": "image", "shape": [3, 4]},
                {"name": "note", "dtype": "BYTES", "shape": [1], "optional": True},
            ],
            "outputs": [{"name": "y", "shape": [2]}],
            "variants": [{"name": "w", "alpha_ms": 0.2, "beta_ms": 4, "batch_size_max": 8}],
        },
    ]
}


def message(model: str, *outputs: str, **arrays: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    for name, array in arrays.items():
        add_input(request, from_array(name, array))
    for name in outputs:
        request.outputs.add(name=name)
    return request


# BERT


def bert_folder(folder: Path) -> str:
    """A small BERT, saved as users save theirs."""
    import torch

    transformers: Any = import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=5,
    )
    torch.manual_seed(1)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


async def bert_difference(requests: int) -> float:
    """The largest difference to offline answers, over requests of 1 to 32 rows."""
    import torch

    transformers: Any = import_module("transformers")
    with tempfile.TemporaryDirectory() as made:
        folder = bert_folder(Path(made))
        network = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
        variant = {"name": "bert", "model": f"transformers:{folder}", "batch_size_max": 32}
        variant |= {"alpha_ms": 20.0, "beta_ms": 20.0}
        # All come at once, which is more than a fair share.
        config = {
            "router": {"fair_shares": False},
            "applications": [{"name": "bert", "slo_ms": 60_000, "variants": [variant]}],
        }
        rng = np.random.default_rng(1)
        worst = 0.0
        async with serve_here(config) as frontend, stub_of(frontend.server.grpc_port) as stub:
            asked: list[tuple[dict[str, Any], Any]] = []
            for _ in range(requests):
                # Whole tens of tokens, so that some of these requests run together.
                tokens = int(np.clip(rng.gamma(1.0, 48.0) + 16, 16, 512)) // 10 * 10 + 6
                shape = int(rng.integers(1, 33)), tokens
                given = {
                    "input_ids": rng.integers(0, 1000, shape),
                    "attention_mask": (rng.random(shape) < 0.9).astype(np.int64),
                    "token_type_ids": rng.integers(0, 2, shape),
                }
                given["attention_mask"][:, 0] = 1
                asked.append((given, stub.ModelInfer(message("bert", **given), timeout=60)))
            for given, call in asked:
                (found,) = [to_array(each) for each in response_tensors(await call)]
                with torch.inference_mode():
                    tensors = {name: torch.from_numpy(each) for name, each in given.items()}
                    offline = network(**tensors).logits.numpy()
                # Not `max`: that would leave out NaN.
                worst = float(np.maximum(worst, np.abs(found - offline).max()))
    return worst


async def shapes_figures(quick: bool) -> tuple[float, float]:
    """Goodput of shape buckets over padding, and the largest difference to offline answers."""
    transformers: Any = import_module("transformers")
    with tempfile.TemporaryDirectory() as made:
        folder = bert_folder(Path(made))
        network = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
        return await ragged(folder, network, quick)


# Rows


@asynccontextmanager
async def stub_of(port: int) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield InferenceStub(channel)


async def keep_serving() -> None:
    """Serve until the input ends; the first line of output is the port."""
    async with serve_here(PLAIN, backends=2) as frontend:
        print(frontend.server.grpc_port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def send_rows(port: int, pid: int, rows: int, seconds: float) -> tuple[float, float]:
    """CPU seconds of the server for each row, and the share of good requests."""
    gap_s = rows / ROWS_PER_S
    shape = (rows, 64) if rows > 1 else (64,)
    request = message("plain", input=np.zeros(shape, np.float32))
    good = count = 0

    async def ask(stub: Any) -> bool:
        began_ns = time.monotonic_ns()
        try:
            await stub.ModelInfer(request)
        except grpc.aio.AioRpcError:
            return False
        return time.monotonic_ns() - began_ns <= SLO_MS * SECOND // 1000

    async with stub_of(port) as stub:
        await asyncio.gather(*(ask(stub) for _ in range(8)))
        before_s, asked = cpu_s(pid), []
        due_s = time.monotonic()
        end_s = due_s + seconds
        while due_s < end_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            asked.append(asyncio.ensure_future(ask(stub)))
            due_s += gap_s
        good = sum(await asyncio.gather(*asked))
        count = len(asked)
        return (cpu_s(pid) - before_s) / (rows * count), good / count


async def rows_figures(quick: bool) -> tuple[float, float]:
    """CPU of a row among many over that of a single one, and goodput of the same rows."""
    seconds = 5.0 if quick else 20.0
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.signatures",
        "--serve",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    try:
        single, good = await send_rows(port, process.pid, 1, seconds)
        many, good_many = await send_rows(port, process.pid, ROWS, seconds)
    finally:
        await process.communicate(b"")
    return many / single, good_many / max(good, 1e-9)


# Requests that do not fit


def bad_requests() -> list[pb.ModelInferRequest]:
    """Mistakes that clients make with names, types, shapes, rows, data and outputs."""
    ids, image = np.arange(4), np.ones((3, 4), np.float32)
    note = np.array([b"a"], object)
    found = [message("named"), message("named", ids=ids), message("named", image=image)]
    for name in ("Ids", "ids ", "", "x" * 5000, "input", "ids\n"):
        found.append(message("named", **{name: ids}, image=image))
    for dtype in ("i1", "i2", "i4", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?"):
        found.append(message("named", ids=ids.astype(dtype), image=image))
        if dtype != "f4":
            found.append(message("named", ids=ids, image=image.astype(dtype)))
    for shape in ((), (3,), (4, 3), (3, 4, 1), (1, 1, 3, 4), (0, 3, 4), (2, 3, 4), (12,), (0,)):
        found.append(message("named", ids=ids, image=np.ones(shape, np.float32)))
    for shape in ((0,), (2, 2, 2), (0, 4), (1025, 1)):
        found.append(message("named", ids=np.zeros(shape, np.int64), image=image))
    for count in (0, 2, 1025):
        rows = np.zeros((count, 4), np.int64)
        found.append(message("named", ids=rows, image=np.stack([image])))
    for value in (np.nan, np.inf, -np.inf):
        found.append(message("named", ids=ids, image=np.full((3, 4), value, np.float32)))
    for name in ("z", "Y", "", "y" * 2000, "output"):
        found.append(message("named", name, ids=ids, image=image))
    found.append(message("named", ids=ids, image=image, note=np.array([b"a", b"b"], object)))
    found.append(message("named", ids=ids, image=image, note=np.zeros(1)))
    found.append(message("named", ids=ids, image=image, note=note, more=note))
    for kind in ("FP8", "", "fp32", "STRING"):
        wrong = message("named", ids=ids, image=image)
        wrong.inputs[1].datatype = kind
        found.append(wrong)
    for size in (0, 3, 31, 33, 1 << 20):
        wrong = message("named", ids=ids, image=image)
        wrong.raw_input_contents[0] = bytes(size)
        found.append(wrong)
    for count in (1, 3):
        wrong = message("named", ids=ids, image=image)
        del wrong.raw_input_contents[:]
        wrong.raw_input_contents.extend([ids.tobytes()] * count)
        found.append(wrong)
    twice = message("named", ids=ids, image=image)
    twice.inputs.add(name="ids", datatype="INT64", shape=[4])
    twice.raw_input_contents.append(ids.tobytes())
    return [*found, twice]


async def bad_answers() -> tuple[int, int, int]:
    """Bad requests sent, those refused as such in one line, and sound ones lost beside them."""
    right = lost = 0
    given = bad_requests()
    sound = message("named", ids=np.arange(4), image=np.ones((3, 4), np.float32))
    async with serve_here(PLAIN) as frontend, stub_of(frontend.server.grpc_port) as stub:
        for request in given:
            beside = asyncio.ensure_future(stub.ModelInfer(sound, timeout=30))
            try:
                await stub.ModelInfer(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                told = error.details() or ""
                as_bad = error.code() is grpc.StatusCode.INVALID_ARGUMENT
                right += as_bad and bool(told) and "\n" not in told and len(told) <= 500
            try:
                await beside
            except grpc.aio.AioRpcError:
                lost += 1
    return len(given), right, lost


def sequence_figures(sequences: int) -> Iterator[Figure]:
    """Ends of interleaved sequences of which a part loses its backend."""
    for model, state in (("kept", "kept by the model"), ("carried", "handed back")):
        found = asyncio.run(sequences_under_fire(model, sequences))
        name = f"{sequences} sequences, state {state}, one of two backends killed"
        yield Figure(f"{name}: right answers", found.right, "", 9 * sequences)
        yield Figure(f"{name}: answers wrong", found.wrong, "", 0, at_most=True)
        yield Figure(f"{name}: requests lost or told otherwise", found.lost, "", 0, at_most=True)
        most = max(found.told.values(), default=0)
        if model == "kept":
            yield Figure(f"{name}: sequences told", len(found.told), "", 1)
            yield Figure(f"{name}: each told at most", most, "times", 1, at_most=True)
        else:
            yield Figure(f"{name}: sequences told", len(found.told), "", 0, at_most=True)


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    if "bert" in parts:
        worst = asyncio.run(bert_difference(10 if quick else 100))
        name = "BERT of three inputs, 1-32 rows, 16-512 tokens: difference to offline"
        yield Figure(name, worst, "", 1e-3, at_most=True)
    if "shapes" in parts:
        over, worst = asyncio.run(shapes_figures(quick))
        name = "BERT in shape buckets, 1-32 rows, 16-512 tokens: difference to offline"
        yield Figure(name, worst, "", 1e-3, at_most=True)
        yield Figure("its goodput over padding all to 512 tokens", over, "x", 4.0)
    if "draws" in parts:
        found = draws(10 if quick else 40, 2_000 if quick else 10_000)
        name = "draws with rows of 1-64 and two shape buckets: goodput over the bound"
        yield Figure(name, sum(found) / len(found), "", 0.93)
    if "rows" in parts:
        ratio, goodput = asyncio.run(rows_figures(quick))
        yield Figure(
            "CPU of a row at 16 rows a request over singles'", ratio, "x", 0.25, at_most=True
        )
        yield Figure("goodput at 16 rows a request over singles'", goodput, "x", 0.95)
    if "onnx" in parts:
        # Not above: it needs torch, and runs by itself on machines without Ray.
        from benchmarks import onnx_device

        yield from onnx_device.measure(list(onnx_device.PARTS), quick)
    if "sequences" in parts:
        yield from sequence_figures(100 if quick else 1000)
    if "bad" in parts:
        count, right, lost = asyncio.run(bad_answers())
        yield Figure("bad signatures, shapes, types, rows", count, "cases", 60)
        yield Figure("of these told in one line", right / count, "", 1.0)
        yield Figure("sound requests lost beside them", lost, "", 0, at_most=True)
    if "isolation" in parts:
        ratio, wrong = asyncio.run(isolation_figures(quick))
        name = "two applications with conflicting libraries on one backend"
        yield Figure(f"{name}: goodput over one process", ratio, "x", 0.9)
        yield Figure(f"{name}: answers of the other library", wrong, "", 0, at_most=True)
    if "tritonclient" in parts:
        count, right = asyncio.run(compared())
        yield Figure("calls of tritonclient's methods, sound and unsound", count, "calls", 140)
        yield Figure("of these answered as Triton's documents say", right / count, "", 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--serve", action="store_true")
    if parser.parse_known_args()[0].serve:
        asyncio.run(keep_serving())
    else:
        run_parts("Signatures", measure, PARTS)


if __name__ == "__main__":
    main()
