"""Routers, frontends and backends as the world runs them: production code on a virtual loop."""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from fermata.deployments.backend.batch_pipeline import PipelineJob
from fermata.deployments.backend.execution.executor import BatchOutcome
from fermata.deployments.backend.execution.runners.runner import PlainRunner, Runner
from fermata.deployments.backend.execution.tensors import Array, Item, copy_of
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.frontend.link_hub import LinkHub
from fermata.deployments.frontend.requests.queries.function_loops import OwnLoops
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.registry import Registry
from fermata.fault_simulator.environment.memory import VirtualArena, VirtualSegments
from fermata.fault_simulator.environment.world import VirtualLoop, World, new_process
from fermata.foundation.errors import ConfigError
from fermata.foundation.precise_timer import LoopTimer
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig
from fermata.router.leadership.process import Other, RouterProcess
from fermata.router.leadership.role import TIMING
from fermata.router.leadership.terms import TermRecord, next_term
from fermata.router.links.heartbeat import HeartbeatThread, LoopWatch
from fermata.router.links.transport import LinkOptions, Resolve
from fermata.router.live.driver import LiveRouter

LINKS = LinkOptions(secret=b"known to the processes of this world alone")
KIND = "virtual"
NODE = "world"


class VirtualHeartbeat(HeartbeatThread):
    """Beats in virtual time; a process that is stopped has no pulse, a busy one has."""

    def __init__(self, loop: VirtualLoop, every_ns: int) -> None:
        super().__init__(every_ns, loop.clock)
        self.loop = loop
        self.due = False

    def _start(self) -> None:
        if not self.due:
            self._next()

    def stop(self) -> None:
        self.links.clear()

    def _next(self) -> None:
        world = self.loop.world
        self.due = True
        world.enter(world.now_ns + self.every_ns, self._beat, self.loop, thread=True)

    def _beat(self) -> None:
        self.due = False
        self.beat_all()
        if self.links or self.watch is not None:
            self._next()


class RouterHost:
    """A router's process."""

    def __init__(
        self,
        world: World,
        name: str,
        config: RouterConfig,
        last_term: int,
        stand_down: Callable[["RouterHost"], None],
        seat: int = 0,
        mark: str = "",
        other: Callable[[VirtualLoop], Other] | None = None,
        record: TermRecord | None = None,
        links: LinkOptions = LINKS,
    ) -> None:
        """`other` tells how to reach the router of the other seat; None: there is none. `record`
        is the cluster's own of terms."""
        self.loop = new_process(world, name)
        self.config = config
        self.number = seat
        self.term = next_term(1, world.wall_ms(), last_term, None if other is None else seat)
        self.stand_down = stand_down
        self.address = ""
        self.process = RouterProcess(
            self._make_live,
            VirtualHeartbeat(self.loop, links.beat_ns if other is None else TIMING.beat_ns),
            links,
            "world",
            mark=mark,
            other=None if other is None else other(self.loop),
            record=record,
        )

    def _make_live(self) -> LiveRouter:
        loop, heartbeat = self.loop, self.process.heartbeat
        beats = TIMING.hung_ns // heartbeat.every_ns
        heartbeat.watch_loop(LoopWatch(loop.call_soon_threadsafe, beats, self.hang_up))
        return LiveRouter(
            self.config,
            self.term,
            loop.clock,
            loop.call_soon,
            lambda call: LoopTimer(loop, call, loop.clock),
            stand_down=lambda reason: self.stand_down(self),
            confirm=self.process.terms.confirm,
        )

    async def run(self, on_up: Callable[["RouterHost"], None]) -> None:
        self.address = await self.process.address()
        on_up(self)

    def hang_up(self) -> None:
        """Its loop does not turn any more."""
        self.loop.world.say(self.loop.name, "hangs")
        self.stand_down(self)

    @property
    def live(self) -> LiveRouter | None:
        return self.process.live if self.address else None

    @property
    def watched(self) -> bool:
        """It waits, and sees the one that leads."""
        return not self.leads and self.process.monitor.watched is not None

    @property
    def leads(self) -> bool:
        return self.loop.alive and bool(self.address) and self.process.role.leads


class FrontendHost:
    """A frontend's process, without its servers: clients call its driver."""

    def __init__(
        self,
        world: World,
        name: str,
        options: FrontendOptions,
        registry: Registry,
        routers: Sequence[Callable[[VirtualLoop], Resolve]],
        others: Sequence[Sequence[Callable[[VirtualLoop], Resolve]]] = (),
        reports: bool = False,
    ) -> None:
        """`others` find the routers of further sub-clusters, by seat. `reports`: it tells routers
        what it has counted, which versions on trial are judged by."""
        self.reports = reports
        self.loop = new_process(world, name)
        first, second = _both(routers, self.loop)
        further = [[each(self.loop) for each in seats] for seats in others]
        self.hub = LinkHub(options, registry, first, NODE, second, further)
        self.up = False
        self.draining = False

    async def run(self) -> None:
        self.undo = AsyncExitStack()
        heartbeat = VirtualHeartbeat(self.loop, LINKS.beat_ns)
        pool: Any = None
        arena = VirtualArena(self.loop)
        self.undo.callback(arena.close)
        await self.hub.listen(self.undo, arena, pool, heartbeat)
        # Threads have no place in virtual time.
        self.hub.driver.function_loops = OwnLoops(self.loop)
        self.hub.reach_router(self.undo)
        self.hub.driver.stall_detector.start()
        self.up = True
        while self.reports:
            await asyncio.sleep(1.0)
            self.hub.report(0, 0, 0)

    async def leave(self) -> None:
        """As `FrontendProcess.stop`: drain, then end."""
        self.draining = True
        self.hub.table.on_drain()
        # A query has no request of its own while the inputs of its next stage are made.
        while self.hub.table.entries or self.hub.driver.queries.queries:
            await asyncio.sleep(0.01)
        self.hub.driver.close()
        await self.undo.aclose()
        self.loop.die()


class Machine:
    """Faults of a backend's accelerator."""

    def __init__(self, tables: dict[str, tuple[int, ...]]) -> None:
        self.tables = tables
        self.profile_error = 1.0
        """It takes this much longer than its profile says, always."""
        self.slowness = 1.0
        self.hangs = False
        self.fails = False
        self.at_once = False
        """Where it fails, it does so before anything has run."""
        self.unusable = ""
        """Why nothing will run on it any more, whatever is tried."""
        self.bad_variant = ""
        """One that fails wherever it runs."""
        self.bad_inputs = 0
        """Requests whose number this divides fail wherever they run; 0: none."""
        self.room = 0
        """The largest batch that fits its memory; 0: any."""
        self.poison = ""
        """A variant that kills the process."""
        self.hanging: set[int] = set()
        """Inputs on which it hangs, as every other one does."""
        self.hung_on: set[int] = set()
        """Those that it has met."""


class VirtualExecutor:
    """In place of the threads that stage and run batches."""

    def __init__(
        self,
        loop: VirtualLoop,
        machine: Machine,
        report: Callable[[BatchOutcome], None],
        on_crash: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.machine = machine
        self.report = report
        self.on_crash = on_crash
        self.orders: deque[
            tuple[PipelineJob, Runner, Sequence[tuple[int, Array]], dict[int, str]]
        ] = deque()
        self.given: dict[PipelineJob, list[Array]] = {}
        """The inputs of each batch when it was handed over."""
        self.running: PipelineJob | None = None
        self.hung = False
        """It runs an input that never ends."""

    def begin(
        self,
        job: PipelineJob,
        runner: Runner,
        items: Sequence[tuple[int, Array]],
        errors: dict[int, str],
    ) -> None:
        self.orders.append((job, runner, items, errors))
        self.given[job] = [copy_of(item) for _, item in items]
        if self.running is None:
            self._next()

    def _next(self) -> None:
        if not self.orders:
            return
        job, runner, items, errors = self.orders.popleft()
        self.running = job
        machine, world = self.machine, self.loop.world
        # Here they are read at last, as `Executor` stages them.
        given = self.given.pop(job)
        hangs_on = machine.hanging.intersection(map(number_of, given))
        machine.hung_on |= hangs_on
        self.hung = bool(hangs_on)
        for before, (_, item) in zip(given, items, strict=True):
            if number_of(before) != number_of(item):
                world.trouble.append(f"{self.loop.name} reads {item} where {before} was meant")
        plain_ns = machine.tables[job.run.variant][max(0, len(items) - 1)]
        jitter = 1.0 + abs(self.loop.rng.gauss(0.0, 0.02))
        if 0 < machine.room < len(items):
            # It runs in parts, one after the other.
            plain_ns *= 1 + len(items) // machine.room
        run_ns = int(plain_ns * machine.profile_error * machine.slowness * jitter)
        if machine.at_once and (machine.fails or machine.unusable):
            run_ns = 0
        started_at_ns = self.loop.clock()
        world.enter(
            world.now_ns + run_ns,
            lambda: self._end(started_at_ns, job, runner, items, errors),
            self.loop,
            thread=True,
        )

    def _end(
        self,
        started_at_ns: int,
        job: PipelineJob,
        runner: Runner,
        items: Sequence[tuple[int, Array]],
        errors: dict[int, str],
    ) -> None:
        world = self.loop.world
        if self.machine.poison == job.run.variant:
            # It was not found to hang.
            self.machine.hung_on.clear()
            self.on_crash()
            return
        if self.machine.hangs or self.hung:
            again = ms(5)
            world.enter(
                world.now_ns + again,
                lambda: self._end(started_at_ns, job, runner, items, errors),
                self.loop,
                thread=True,
            )
            return
        machine = self.machine
        run_ns = self.loop.clock() - started_at_ns
        outputs = []
        spoilt: set[int] = set()
        failed = machine.unusable
        if machine.fails or job.run.variant == machine.bad_variant:
            failed = "RuntimeError: the model broke"
        elif not failed:
            for half in _halves(items):
                places = [place for place, _ in half]
                if machine.bad_inputs and any(
                    not number_of(item) % machine.bad_inputs for _, item in half
                ):
                    failed = "ValueError: a bad input"
                    errors.update(dict.fromkeys(places, failed))
                    spoilt.update(places if len(places) > 1 else ())
                else:
                    outputs.append((places, runner.run(runner.stage([item for _, item in half]))))
        failed = "" if outputs else failed
        self.running = None
        fits = machine.room if 0 < machine.room < len(items) else 0
        unusable = machine.unusable if failed else ""
        self.report(
            BatchOutcome(
                job,
                0,
                started_at_ns,
                run_ns,
                errors,
                outputs,
                failed,
                fits,
                unusable,
                frozenset(spoilt),
            )
        )
        self._next()

    def stop(self) -> None:
        self.orders.clear()


def number_of(item: Item) -> int:
    """The number of a request, which is its input."""
    return int((next(iter(item.values())) if isinstance(item, Mapping) else item)[0])


def _halves(items: Sequence[tuple[int, Array]]) -> list[Sequence[tuple[int, Array]]]:
    """As a batch is run that failed as a whole."""
    middle = len(items) // 2
    return [half for half in (items[:middle], items[middle:]) if half]


def _both(
    routers: Sequence[Callable[[VirtualLoop], Resolve]], loop: VirtualLoop
) -> tuple[Resolve, Resolve | None]:
    """Where the routers are, as this process asks."""
    return routers[0](loop), routers[1](loop) if len(routers) > 1 else None


def echo(batch: Array) -> Array:
    """The model of this world: whoever gets another's answer would notice."""
    return np.array(batch)


class TightStore:
    """The models of a backend that has room for some of them."""

    def __init__(self, tables: Mapping[str, tuple[int, ...]], room: int) -> None:
        self.tables = tables
        self.room = room
        self.held: set[str] = set()
        self.full = False
        """Nothing can be read into the cache on its disk."""

    def load(self, variant: str) -> Runner:
        if self.full:
            raise OSError(errno.ENOSPC, f"no space left on the disk for {variant}")
        if len(self.held) >= self.room:
            raise ConfigError(f"no room for {variant} beside {sorted(self.held)}")
        self.held.add(variant)
        return PlainRunner(echo, len(self.tables[variant]))

    def release(self, variant: str) -> None:
        self.held.discard(variant)


class BackendHost:
    """A backend's process."""

    def __init__(
        self,
        world: World,
        name: str,
        number: int,
        tables: dict[str, tuple[int, ...]],
        routers: Sequence[Callable[[VirtualLoop], Resolve]],
        on_crash: Callable[["BackendHost"], None],
        room: int = 0,
        links: LinkOptions = LINKS,
        extra: Mapping[str, Runner] | None = None,
    ) -> None:
        """`room`: models that fit, loaded as the router says; 0: it holds all from the start.
        `extra` are runners of other models than the one that echoes."""
        self.loop = new_process(world, name)
        self.machine = Machine(tables)
        self.on_crash = on_crash
        self.leaving = False
        runners: dict[str, Runner] = {
            variant: PlainRunner(echo, len(table)) for variant, table in tables.items() if not room
        }
        runners.update({} if extra is None else extra)
        self.store = TightStore(tables, room) if room else None
        first, second = _both(routers, self.loop)
        self.process = BackendProcess(
            BackendSettings(number, KIND, NODE, links=links),
            runners,
            first,
            heartbeat=VirtualHeartbeat(self.loop, LINKS.beat_ns),
            make_executor=self._make_executor,
            standby=second,
            store=self.store,
            end_process=lambda: self.on_crash(self),
        )
        self.process.segments = VirtualSegments(world)

    def _make_executor(self, report: Callable[[BatchOutcome], None]) -> VirtualExecutor:
        self.executor = VirtualExecutor(
            self.loop, self.machine, report, lambda: self.on_crash(self)
        )
        return self.executor

    async def run(self) -> None:
        await self.process.start()

    async def leave(self) -> None:
        """As Serve ends a replica that it does not want any more."""
        self.leaving = True
        await self.process.drain()
        await self.process.stop()
        self.loop.die()
