"""Loads that are asked for twice, fail in their own words, or are not wanted any more."""

import asyncio
import threading
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.runners.runner import PlainRunner, Runner
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings


class SlowStore:
    """Loads when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.go = threading.Event()
        self.loads: list[str] = []
        self.given_back: list[str] = []

    def load(self, variant: str) -> Runner:
        self.loads.append(variant)
        self.go.wait(10)
        if self.error is not None:
            raise self.error
        return PlainRunner(lambda batch: np.array(batch), 4)

    def release(self, variant: str) -> None:
        self.given_back.append(variant)


async def nowhere() -> str:
    raise AssertionError("nobody asks")


def make(store: Any) -> BackendProcess:
    process = BackendProcess(BackendSettings(1), {}, nowhere, store)
    process.loop = asyncio.get_running_loop()
    return process


def test_a_model_that_is_asked_for_twice_is_loaded_once() -> None:
    async def play() -> None:
        store = SlowStore()
        process = make(store)
        one, two = (process._start(process.variants.load("v")) for _ in range(2))
        await asyncio.sleep(0.01)
        store.go.set()
        await asyncio.gather(one, two)
        assert store.loads == ["v"]
        assert list(process.variants.runners) == ["v"]
        assert process.variants.loading == {}

    asyncio.run(play())


def test_whatever_a_load_raises_is_told() -> None:
    async def play() -> None:
        store = SlowStore(RuntimeError("CUDA error"))
        store.go.set()
        process = make(store)
        await process.variants.load("v")
        assert process.variants.trouble == {"v": "CUDA error"}
        assert process.variants.runners == {}
        assert process.variants.loading == {}

    asyncio.run(play())


def test_a_model_that_is_unloaded_while_it_loads_goes_at_once() -> None:
    async def play() -> None:
        store = SlowStore()
        process = make(store)
        loading = process._start(process.variants.load("v"))
        await asyncio.sleep(0.01)
        process.variants.loading["v"] = False
        store.go.set()
        await loading
        assert process.variants.runners == {}
        assert store.given_back == ["v"]

    asyncio.run(play())
