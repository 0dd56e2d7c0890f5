"""A backend from the load of its models to its end, as a replica or as a spare hosts it."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module

from fermata.deployments.backend.execution.executor import tune
from fermata.deployments.backend.gpu_events import watch_gpu
from fermata.deployments.backend.gpu_meter import find_gpu
from fermata.deployments.backend.looks.desk import LookDesk
from fermata.deployments.backend.looks.looker import Looker
from fermata.deployments.backend.meter import BackendMeter
from fermata.deployments.backend.models.loaders import pick_device
from fermata.deployments.backend.models.model_store import LoadedModels, ModelStore
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.seats import Holder, Seat, is_alive
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.sneakpeek.placed_look import PlacedLook
from fermata.deployments.specs.backend import LOADED, StoreOptions
from fermata.foundation.logs import LOG, fields
from fermata.foundation.process_memory import keep_freed_memory, settle_garbage
from fermata.foundation.units import seconds
from fermata.profiles.profile import Profile
from fermata.router.links.messages import BackendStats
from fermata.router.links.transport import LinkOptions, Resolve

Costs = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
SWAP_NS = seconds(600)
"""A batch may have to wait for minutes until its model is loaded."""
END_S = 5.0
"""Time for a process that has been killed to give its memory on the device back."""
LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Identity of a backend, its models, and the way to its router."""

    number: int
    store: StoreOptions
    resolve: Resolve
    standby: Resolve | None
    costs_of: Callable[[Mapping[str, Profile]], Costs]
    """Run times as routers take them."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """Run times that are known; others are measured."""
    placed: bool = False
    """The router decides which backend holds which model."""
    links: LinkOptions = field(default_factory=LinkOptions)
    node: str = ""
    actor: str = ""
    """Name of the actor that hosts it; empty in a replica of Serve's."""
    find_seat: Callable[[str], Seat | None] = lambda device: None
    """The seat of a backend on this device; None where it has no spare."""
    on_host: bool = False
    """Beside a process that serves, it waits without memory on the device."""
    ask: Callable[[str], Awaitable[tuple[str, dict[str, Profile]]]] | None = None
    """What the actor of this name says of its accelerator type and run times."""
    looks: Callable[[], Mapping[str, PlacedLook]] = dict
    """Reads the SneakPeek models that backends look with, by application."""


class BackendHost:
    """Loads the models, then serves, or waits until the process that serves on its seat ends."""

    def __init__(
        self,
        read_options: Callable[[], HostOptions],
        export: Callable[[BackendStats], None] | None = None,
    ) -> None:
        """What `read_options` raises is what the start has died of."""
        self.read_options = read_options
        self.export = export
        self.step = "starting"
        self.seat: Seat | None = None
        self.looks: LookDesk | None = None
        self.ending = False
        self.loop = asyncio.get_running_loop()
        self.loading = self.loop.create_task(self._load())
        self.starting = self.loop.create_task(self._start())

    async def _load(self) -> LoadedModels:
        """Load every model and measure its run times, on the accelerator that will run it."""
        options = self.options = self.read_options()
        device = pick_device(options.store.device)
        await asyncio.to_thread(_settle, device)
        self.seat = options.find_seat(device)
        first, given, found = self.follow(), options.store, LoadedModels({}, dict(options.profiles))
        self.on_host = options.on_host or (first is not None and first.on_host)
        if first is not None:
            # Beside a process that serves, run times would be measured wrong.
            given = replace(given, measure="once")
            if self.on_host and first.actor and options.ask is not None:
                kind, known = await options.ask(first.actor)
                given = replace(given, kind=kind)
                found.profiles.update(known)
        self.store = ModelStore(given, self.on_host and first is not None)
        self.store.pace.is_beside = self._is_beside
        specs = self.store.specs
        for index, name in enumerate(specs):
            count = f"({index + 1} of {len(specs)})"
            on_demand = name in options.store.on_demand or options.placed
            if on_demand and name in found.profiles:
                continue
            self.step = f"loading {name} {count}"
            runner = await asyncio.to_thread(self.store.load, name)
            if name not in found.profiles:
                self.step = f"measuring {name} {count}"
                found.profiles[name] = await asyncio.to_thread(self.store.measure, name, runner)
            if on_demand:
                runner.close()
                self.store.release(name)
            else:
                found.runners[name] = runner
        self.step = LOADED
        return found

    async def _start(self) -> None:
        tune()
        loaded = await asyncio.shield(self.loading)
        options, store = self.options, self.store
        first = self._first()
        if first is None:
            # Before anything is loaded: the next process on the seat looks who serves.
            self._note()
        if first is None and store.on_host:
            # The process that served has ended meanwhile.
            store.use_device()
            for name in loaded.runners:
                loaded.runners[name] = await asyncio.to_thread(store.load, name)
        settings = BackendSettings(
            options.number,
            kind=store.kind,
            costs=options.costs_of(loaded.profiles),
            node=options.node,
            links=options.links,
            data_connections=True,
        )
        if options.store.swap:
            settings = replace(settings, hung_ns=SWAP_NS)
        gpu = find_gpu(store.device)
        self.process = BackendProcess(
            settings,
            loaded.runners,
            options.resolve,
            store,
            BackendMeter(store.loads, store.held_bytes, gpu, store.non_finite),
            self.export,
            standby=options.standby,
            # Ray starts another in its place, with a context of its own on the device.
            end_process=lambda: os._exit(1),
            first=first,
        )
        if first is None:
            await self._take_looks()
        await self.process.start()
        watch_gpu(gpu, self._on_gpu_lost)
        if first is None:
            store.begin_tuning()
        elif self.seat is not None:
            holder = self.seat.holder()
            if holder is not None and is_alive(holder.pid) and not store.on_host:
                announce = partial(self.loop.call_soon_threadsafe, self._announce, holder)
                self.seat.alarm(holder.pid).when_dead(announce)
            self.seat.when_free(lambda: self.loop.call_soon_threadsafe(self._take_over))

    def _on_gpu_lost(self, reason: str) -> None:
        """The driver has told a thread."""
        self.loop.call_soon_threadsafe(partial(self.process.give_up, reason))

    async def _take_looks(self) -> None:
        """Look at inputs for frontends from now on, where an application's file says so."""
        found = await asyncio.to_thread(self.options.looks)
        if found:
            looker = Looker(found, self.store.device, self.store.budget)
            self.looks = LookDesk(looker, self.process.segments, self.process.frontends)
            await self.looks.load()

    def _first(self) -> int | None:
        """The backend that serves on this seat; None where it is to be this one."""
        if self.seat is None or self.seat.serving.try_take():
            return None
        holder = self.seat.holder()
        # One that serves since an instant ago has not said its number yet.
        return self.options.number if holder is None else holder.number

    def _announce(self, dead: Holder) -> None:
        """Take batches before the lock is free: the process that has it runs nothing any more."""
        if not self.ending and self.seat is not None and self.seat.holder() == dead:
            self.process.take_over()

    def _take_over(self) -> None:
        if not self.ending:
            self.taking_over = self.loop.create_task(self._serve())

    async def _serve(self) -> None:
        """Serve in place of the process that has ended."""
        before = None if self.seat is None else self.seat.holder()
        self._note()
        try:
            if self.store.on_host:
                await self._use_device(before)
            else:
                self.process.take_over()
        # Models and devices may raise anything; another process is to try.
        except Exception as error:
            LOG.error("spare cannot take over", extra=fields(reason=str(error)))
            os._exit(1)
        try:
            await self._take_looks()
        # It serves already, and requests need no look.
        except Exception as error:
            LOG.error("spare takes no looks", extra=fields(reason=str(error)))
        self.store.begin_tuning()

    async def _use_device(self, before: Holder | None) -> None:
        """Load what waits in host memory, and serve from the first model on."""
        store, process, variants = self.store, self.process, self.process.variants
        end_s = self.loop.time() + END_S
        while before is not None and is_alive(before.pid) and self.loop.time() < end_s:
            await asyncio.sleep(LOOK_S)
        # What is being read into host memory ends as a place that runs nothing.
        while variants.loading:
            await asyncio.sleep(LOOK_S)
        waiting = sorted(variants.runners)
        variants.runners.clear()
        # The router misses those that are not announced yet, and asks for them.
        variants.loading.update(dict.fromkeys(waiting, True))
        store.use_device()
        for name in waiting:
            runner = await asyncio.to_thread(store.load, name) if variants.loading[name] else None
            if variants.loading.pop(name) and runner is not None:
                process.take_over({name: runner})
                continue
            # Unloaded meanwhile.
            if runner is not None:
                runner.close()
            store.release(name)
        if process.first is not None:
            process.take_over()

    def _note(self) -> None:
        """Name this process as the one that serves on its seat."""
        if self.seat is not None:
            number, actor = self.options.number, self.options.actor
            self.seat.note(Holder(number, os.getpid(), actor, self.on_host))

    def follow(self) -> Holder | None:
        """The process that serves on its seat; None where this one does, or nobody."""
        seat = self.seat
        if seat is None or seat.serving.mine:
            return None
        if not self.is_up:
            return seat.holder() if seat.serving.is_held() else None
        # From here on a thread waits for the lock: a look at it would take it away from there.
        holder = seat.holder()
        if holder is not None and self.process.first is not None:
            self.process.follow(holder.number)
        return holder

    def _is_beside(self) -> bool:
        """Whether another process serves on its seat. Threads that load ask, so this leaves the
        lock alone."""
        if self.seat is None or self.seat.serving.mine:
            return False
        holder = self.seat.holder()
        return holder is not None and holder.pid != os.getpid() and is_alive(holder.pid)

    @property
    def is_up(self) -> bool:
        """It serves, or could at once."""
        return self.starting.done() and self.starting.exception() is None

    def check(self) -> None:
        """Raise what its start has died of, or why this process is to be replaced."""
        if self.starting.done():
            self.starting.result()
            self.process.check()

    async def profiles(self) -> tuple[str, dict[str, Profile]]:
        """Its accelerator type, and the run times of every variant once all are loaded."""
        loaded = await asyncio.shield(self.loading)
        return self.store.kind, loaded.profiles

    async def device_bytes(self) -> int:
        """Memory of its device; 0 where it has none of its own, or that is not known."""
        await asyncio.shield(self.loading)
        gpu = find_gpu(self.store.device)
        return 0 if gpu is None else max(0, gpu.memory_bytes()[1])

    async def leave(self) -> None:
        """Finish what is here and end every link."""
        self.ending = True
        if self.is_up:
            await self.process.drain()
            await self.process.stop()
        if self.looks is not None:
            self.looks.close()


def _settle(device: str) -> None:
    """Before any model is here: one that is unloaded later may be in a cycle, as torch's graphs
    are, and only the collector frees its memory."""
    if device == "cuda":
        # What its models need is imported with the first of them otherwise, and not settled.
        with suppress(ImportError):
            import_module("torchvision")
    settle_garbage()
    keep_freed_memory()
