"""A spare in host memory takes over: each model is loaded onto the device once, and runs there."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fermata.deployments.backend import host as host_module
from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.host import BackendHost, HostOptions
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.backend.seats import Holder, Seat
from fermata.deployments.specs.backend import ModelSpec, StoreOptions
from fermata.profiles.profile import Profile
from fermata.router.links.messages import LoadVariant, UnloadVariant

GONE = Holder(7, 2**30, "gone")
"""A process before, whose number no process has."""
SOON_S = 10.0


class Loads:
    """Every load of a store; those that are held wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: list[tuple[str, bool]] = []
        """(variant, whether in host memory)."""
        self.closed: list[str] = []
        self.held: dict[tuple[str, bool], threading.Event] = {}
        self.on_begin: Callable[[str, bool], object] = lambda variant, on_host: None
        load = ModelStore.load

        def watched(store: ModelStore, variant: str) -> Runner:
            key = variant, store.on_host
            self.began.append(key)
            self.on_begin(*key)
            runner = load(store, variant)
            if key in self.held:
                assert self.held[key].wait(SOON_S)
            close = runner.close

            def watched_close() -> None:
                self.closed.append(variant)
                close()

            monkeypatch.setattr(runner, "close", watched_close, raising=False)
            return runner

        monkeypatch.setattr(ModelStore, "load", watched)

    def hold(self, variant: str, on_host: bool) -> threading.Event:
        return self.held.setdefault((variant, on_host), threading.Event())


async def nowhere() -> str:
    await asyncio.Event().wait()
    raise AssertionError("nobody answers")


def spare(seat: Seat, *names: str, on_demand: frozenset[str] = frozenset()) -> BackendHost:
    specs = tuple(ModelSpec(name, "emulated", 4, table_ns=(1, 2, 3, 4)) for name in names)
    options = HostOptions(
        number=8,
        store=StoreOptions(specs, device="emulated", kind="some GPU", on_demand=on_demand),
        resolve=nowhere,
        standby=None,
        costs_of=lambda profiles: (),
        profiles={name: Profile(name, linear_ns=(1, 1)) for name in names},
        find_seat=lambda device: seat,
        on_host=True,
    )
    return BackendHost(lambda: options)


def taken_seat(folder: Path) -> tuple[Seat, Seat]:
    """The seat as the process before sees it, which serves, and as the spare does."""
    before = Seat(folder / "gpu-0")
    assert before.serving.try_take()
    before.note(GONE)
    return before, Seat(folder / "gpu-0")


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON_S):
        while not is_so():
            await asyncio.sleep(0.005)


def order(host: BackendHost, message: LoadVariant | UnloadVariant) -> None:
    link: Any = None
    host.process.on_order(link, message)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    def fail(code: int) -> None:
        raise AssertionError(f"the spare ends with {code}")

    monkeypatch.setattr(os, "_exit", fail)
    return Loads(monkeypatch)


def test_a_model_that_the_router_misses_meanwhile_is_loaded_once(
    tmp_path: Path, loads: Loads
) -> None:
    async def play() -> None:
        before, seat = taken_seat(tmp_path)
        host, go = spare(seat, "a", "b"), loads.hold("b", False)
        await host.starting
        before.serving.release()
        await until(lambda: ("b", False) in loads.began)
        assert list(host.process.variants.runners) == ["a"], "it serves from the first model on"
        order(host, LoadVariant("b"))
        await asyncio.sleep(0.05)
        go.set()
        await host.taking_over
        await until(lambda: not host.process.tasks)
        assert loads.began.count(("b", False)) == 1
        assert sorted(host.process.variants.runners) == ["a", "b"]
        assert (host.process.variants.loading, loads.closed) == ({}, [])
        await host.leave()

    asyncio.run(play())


def test_models_that_are_unloaded_meanwhile_do_not_stay(tmp_path: Path, loads: Loads) -> None:
    async def play() -> None:
        before, seat = taken_seat(tmp_path)
        host, go = spare(seat, "a", "b", "c", "d"), loads.hold("b", False)
        await host.starting
        before.serving.release()
        await until(lambda: ("b", False) in loads.began)
        for name in ("b", "c", "d"):
            order(host, UnloadVariant(name))
        order(host, LoadVariant("d"))
        await until(lambda: host.process.variants.loading.get("d"))
        go.set()
        await host.taking_over
        assert sorted(host.process.variants.runners) == ["a", "d"]
        assert loads.closed == ["b"]
        assert ("c", False) not in loads.began
        assert host.process.variants.loading == {}
        order(host, LoadVariant("c"))
        await until(lambda: "c" in host.process.variants.runners)
        await host.leave()

    asyncio.run(play())


def test_a_spare_serves_though_every_model_is_unloaded_meanwhile(
    tmp_path: Path, loads: Loads
) -> None:
    async def play() -> None:
        before, seat = taken_seat(tmp_path)
        host, go = spare(seat, "a"), loads.hold("a", False)
        await host.starting
        before.serving.release()
        await until(lambda: ("a", False) in loads.began)
        order(host, UnloadVariant("a"))
        go.set()
        await host.taking_over
        assert (host.process.variants.runners, host.process.first) == ({}, None)
        await host.leave()

    asyncio.run(play())


def test_a_model_that_is_being_read_runs_once_it_is_announced(
    tmp_path: Path, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "END_S", 0.05)

    async def play() -> None:
        before, seat = taken_seat(tmp_path)
        host, go = spare(seat, "a", "late", on_demand=frozenset({"late"})), loads.hold("late", True)
        await host.starting
        order(host, LoadVariant("late"))
        await until(lambda: ("late", True) in loads.began)
        before.serving.release()
        await asyncio.sleep(0.3)
        go.set()
        await until(lambda: len(host.process.variants.runners) == 2 and host.taking_over.done())
        for runner in host.process.variants.runners.values():
            runner.run(runner.stage([np.zeros(1, np.float32)]))
        await host.leave()

    asyncio.run(play())


def test_a_process_before_that_does_not_end_is_waited_for_a_while(
    tmp_path: Path, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "END_S", 0.2)
    monkeypatch.setattr(host_module, "is_alive", lambda pid: True)

    async def play() -> None:
        before, seat = taken_seat(tmp_path)
        host = spare(seat, "a")
        await host.starting
        before.serving.release()
        await asyncio.sleep(0.1)
        assert host.process.first == GONE.number
        await until(lambda: host.process.first is None)
        await host.leave()

    asyncio.run(play())


def test_a_spare_that_serves_is_named_before_it_loads(tmp_path: Path, loads: Loads) -> None:
    """The next process on the seat would take the dead one's word, or none, and load as well."""

    async def play() -> None:
        before, seat = taken_seat(tmp_path)
        named: list[Holder | None] = []

        def on_begin(variant: str, on_host: bool) -> None:
            if on_host:
                before.serving.release()
            else:
                named.append(before.holder())

        loads.on_begin = on_begin
        host = spare(seat, "a")
        await host.starting
        assert named == [Holder(8, os.getpid(), on_host=True)]
        assert host.process.first is None
        await host.leave()

    asyncio.run(play())
