"""Every method of a stock tritonclient against a server here: see `triton_calls`.

`python -m benchmarks.signatures --only tritonclient` prints them.
"""

import asyncio
import json
import os
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.one_process import PATIENT, serve_here
from fermata.deployments.models.cache import cache_folder
from fermata.foundation.errors import ConfigError

VERSION = "2.73.0"
CALLS = Path(__file__).with_name("triton_calls.py")
INSTALL_S = 600.0
SLO_MS = 60_000
LATENCY_MS = [5] * 8


def variant(name: str, model: str) -> dict[str, Any]:
    return {"name": f"{name}-v", "model": model, "latency_ms": LATENCY_MS}


SUM: dict[str, Any] = {
    "slo_ms": SLO_MS,
    "input": {"shape": [4]},
    "labels": ["sum", "first", "last"],
}
CONFIG: dict[str, Any] = {
    "repository": "open",
    "frontend": {"client_memory": True},
    "applications": [
        {"name": "sum", **SUM, "variants": [variant("sum", "benchmarks.triton_client:sums")]},
        {
            "name": "later",
            **SUM,
            "load": "asked",
            "variants": [variant("later", "benchmarks.triton_client:sums")],
        },
        {
            "name": "broken",
            **SUM,
            "load": "asked",
            "variants": [variant("broken", "benchmarks.triton_client:nothing")],
        },
        {
            "name": "kept",
            "slo_ms": SLO_MS,
            "sequences": True,
            "inputs": [{"name": "x", "dtype": "INT64", "shape": [1]}],
            "variants": [variant("kept", "benchmarks.sequence_sums:kept")],
        },
    ],
}


def sums() -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """A model of four numbers: their sum, the first and the last."""

    def model(batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.stack([batch.sum(1), batch[:, 0], batch[:, -1]], 1)

    return model


@dataclass(frozen=True, slots=True)
class Answer:
    """One call of one client."""

    client: str
    method: str
    arguments: str
    answer: str
    right: bool

    def __str__(self) -> str:
        mark = "right" if self.right else "WRONG"
        return f"{mark} {self.client}.{self.method} ({self.arguments}): {self.answer}"


def stock_python(environment: Mapping[str, str]) -> Path:
    """The interpreter of an environment with the stock client, which is made once."""
    folder = cache_folder(environment) / f"tritonclient-{VERSION}"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.exists():
        venv.create(folder, with_pip=True, symlinks=True)
        package = f"tritonclient[grpc,http]=={VERSION}"
        command = [str(python), "-m", "pip", "install", "--quiet", package]
        found = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
        if found.returncode:
            told = (found.stderr.splitlines() or ["pip failed"])[-1]
            raise ConfigError(f"{package} cannot be installed: {told}")
        done.touch()
    return python


async def answers(python: Path, *kinds: str) -> AsyncIterator[Answer]:
    """Calls of every method of the clients that this interpreter has, against a server here."""
    async with serve_here(CONFIG, options=PATIENT) as frontend:
        ports = frontend.server.grpc_port, frontend.server.http_port
        process = await asyncio.create_subprocess_exec(
            python,
            CALLS,
            *map(str, ports),
            *kinds,
            stdout=subprocess.PIPE,
            env={name: each for name, each in os.environ.items() if name != "PYTHONPATH"},
        )
        assert process.stdout is not None
        async for line in process.stdout:
            yield Answer(**json.loads(line))
        if await process.wait():
            yield Answer("", "", "", f"the client ended with {process.returncode}", False)


async def compared() -> tuple[int, int]:
    """Calls made, and those that were answered as documented; each is told."""
    count = right = 0
    async for each in answers(stock_python(os.environ)):
        print(f"  {each}", file=sys.stderr)
        count += 1
        right += each.right
    return count, right
