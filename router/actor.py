"""The router as a Ray actor: it starts, restarts and names the process; requests pass it by."""

import asyncio
import faulthandler
import gc
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

import ray
from ray.experimental import internal_kv

from router.aside import Aside
from router.assembly import RouterConfig
from router.batch_log import LoggedMeters
from router.epochs import next_epoch
from router.links.heart import Heart, LoopWatch
from router.links.session import LinkError
from router.links.transport import LinkOptions, LinkServer, Resolve
from router.live import LiveRouter
from router.logs import LOG, LogOptions, debugging, fields, start_logs
from router.meters import Meters
from router.policies.jellyfish.question import Assignment, Question
from router.seat import BEAT_NS, HUNG_NS, Seat, Watcher
from router.snapshot import snapshot
from router.wake import wake_timer

STANDBY_SUFFIX = "-standby"
T = TypeVar("T")
NODE = "node"
"""In place of an address."""


def own_address(host: str) -> str:
    """Where to take links: `node` is this machine's address in the Ray cluster."""
    # Ray's own functions are without types in part.
    cluster: Any = ray.util
    return str(cluster.get_node_ip_address()) if host == NODE else host


def standby_name(name: str) -> str:
    """What the router is called that waits to take the place of another."""
    return name + STANDBY_SUFFIX


def led(method: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """A method of the router that leads: where that is another, it is asked."""

    @wraps(method)
    async def call(self: "RouterActor", *given: Any) -> T:
        leader = await self.leader()
        if leader is None:
            return await method(self, *given)
        told: T = await getattr(leader, method.__name__).remote(*given)
        return told

    return call


class RouterActor:
    """Runs a `LiveRouter` on the actor's own event loop; see `create_router`."""

    def __init__(
        self,
        config: RouterConfig,
        generation: int,
        host: str = "127.0.0.1",
        port: int = 0,
        options: LinkOptions | None = None,
        mark: str = "",
        logs: LogOptions | None = None,
        other: str = "",
        second: bool = False,
        namespace: str | None = None,
    ) -> None:
        """`mark` tells a later owner whether this router is of its own making. `other` names
        another router of its namespace, with which it takes turns to lead; the `second` waits at
        first."""
        if logs is not None:
            start_logs("router", logs)
        self.of = mark
        self.options = options or LinkOptions()
        self.config = config
        self.epoch = take_epoch(generation, int(second) if other else None)
        self.other = other
        self.second = second
        self.namespace = namespace
        self.host = own_address(host)
        self.port = port
        self.heart = Heart(BEAT_NS if other else self.options.beat_ns)
        self.aside = Aside()
        self.starting: asyncio.Task[str] | None = None

    async def address(self) -> str:
        """host:port for links; the router listens from the first call on."""
        if self.starting is None:
            self.starting = asyncio.get_running_loop().create_task(self._start())
        return await asyncio.shield(self.starting)

    async def _start(self) -> str:
        loop = asyncio.get_running_loop()
        beats = HUNG_NS // self.heart.every_ns
        self.heart.mind(LoopWatch(loop.call_soon_threadsafe, beats, hang_up))
        self.live = LiveRouter(
            self.config,
            self.epoch,
            time.monotonic_ns,
            loop.call_soon,
            lambda call: wake_timer(loop, call),
            self.aside.do,
            stand_down,
            LoggedMeters if debugging() else Meters,
        )
        self.seat = Seat(self.live, leads=not self.other)
        self.server = LinkServer(self.seat.hello, self.seat, self.heart, self.options)
        port = await self.server.start(self.host, self.port)
        if self.other:
            resolve = find_router(self.other, self.namespace)
            first = not self.second
            self.watcher = Watcher(self.seat, resolve, first, self.heart, self.options, LOG.warning)
            self.watcher.start()
        quiet_gc()
        host = f"[{self.host}]" if ":" in self.host else self.host
        LOG.info("router listens", extra=fields(epoch=self.epoch, address=f"{host}:{port}"))
        return f"{host}:{port}"

    async def mark(self) -> str:
        return self.of

    async def leader(self) -> Any:
        """The other router, where that one leads; None: this one does, or nobody."""
        await self.address()
        if self.seat.leads or self.watcher.watched is None:
            return None
        return await find_actor(self.other, self.namespace)

    @led
    async def snapshot(self) -> dict[str, Any]:
        """Counters and signals; see `router.snapshot`."""
        watched, tasks = bool(self.seat.watchers), len(asyncio.all_tasks())
        return {**snapshot(self.live), "pid": os.getpid(), "standby": watched, "tasks": tasks}

    @led
    async def observe(self) -> dict[str, Any]:
        """The same, with the batches of the last seconds on each backend."""
        live = self.live
        recent = live.meters.recent_batches(live.clock(), 0, live.built.variants)
        return {**snapshot(live), "recent": recent}

    @led
    async def questions(self, wait_s: float) -> dict[int, Question]:
        """What mappings of clients are to be decided from, once one is due or what was decided
        last holds no more, within so many seconds; see `MappedClients`."""
        clients, urgent = self.live.clients, asyncio.Event()
        clients.on_urgent = urgent.set
        due_in_s = (clients.due_at_ns() - self.live.clock()) / 1e9
        if not clients.urgent and due_in_s > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(urgent.wait(), min(wait_s, due_in_s))
        return clients.questions(self.live.clock())

    @led
    async def take_plans(self, plans: dict[int, Assignment]) -> None:
        self.live.take_plans(plans)

    @led
    async def place(self, home: dict[str, int]) -> list[str]:
        """Serve applications from these sub-clusters; returns those still on their way."""
        return self.live.place(home)

    @led
    async def withdraw(self, application: str, reason: str) -> None:
        """Send nobody to an application any more; see `LiveRouter.withdraw`."""
        self.live.withdraw(application, reason)

    @led
    async def set_target(self, target: int, wanted: list[float]) -> None:
        """How many backends there should be, in all and of each sub-cluster."""
        self.live.set_target(target, wanted)

    @led
    async def target(self) -> int | None:
        """What the control plane last wanted; None until it has."""
        return self.live.placement.target

    async def stop(self, reason: str = "router shuts down") -> None:
        """Say goodbye to everyone; whoever created the actor then kills it."""
        if self.starting is None:
            return
        await self.starting
        if self.other:
            await self.watcher.stop(reason)
        await self.server.stop(reason)
        self.aside.stop()
        self.live.stop()
        self.heart.stop()


def take_epoch(generation: int, seat: int | None) -> int:
    """An epoch above all that routers of this name have had, in either seat. The cluster starts
    one of a seat at a time, and epochs of two seats are never the same."""
    context = ray.get_runtime_context()
    name = str(context.get_actor_name()).removesuffix(STANDBY_SUFFIX)
    key = f"fermata-epoch-{context.namespace}-{name}".encode()
    kept = internal_kv._internal_kv_get(key)
    epoch = next_epoch(generation, time.time_ns() // 1_000_000, int(kept or 0), seat)
    internal_kv._internal_kv_put(key, str(epoch).encode(), overwrite=True)
    return epoch


def stand_down(reason: str) -> None:
    """A newer router has taken over. If the cluster still wants one of this name, it starts it
    anew, with a higher epoch."""
    LOG.error("router stands down", extra=fields(reason=reason))
    os._exit(1)


def hang_up() -> None:
    """The loop hangs: whoever looks at the log sees where, and the cluster starts the router anew.
    All who are linked notice at once, and one that waits leads."""
    faulthandler.dump_traceback()
    stand_down("its event loop hangs")


def quiet_gc() -> None:
    """Keep the collector out of the way: the core makes no cycles, and a full collection among
    100,000 queued requests takes longer than many an SLO."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)


def create_router(
    name: str,
    config: RouterConfig,
    generation: int,
    *,
    namespace: str | None = None,
    host: str = "127.0.0.1",
    options: LinkOptions | None = None,
    resources: dict[str, float] | None = None,
    cpus: float = 0,
    mark: str = "",
    logs: LogOptions | None = None,
    other: str = "",
    second: bool = False,
) -> Any:
    """The handle of a new detached router. Whoever creates it must `stop` and `ray.kill` it.

    Start Ray with RAY_worker_niceness=0: by default its workers yield to every other process.
    """
    actor = ray.remote(RouterActor)
    return actor.options(
        name=name,
        namespace=namespace,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=1000,
        num_cpus=cpus,
        resources=resources,
    ).remote(config, generation, host, 0, options, mark, logs, other, second, namespace)


async def find_actor(name: str, namespace: str | None) -> Any:
    """The handle of a named actor; in a thread, since a cluster whose GCS is away answers late."""
    return await asyncio.to_thread(ray.get_actor, name, namespace=namespace)


def find_router(name: str, namespace: str | None = None) -> Resolve:
    """What `Reconnecting` asks at each attempt: where the router of that name listens now."""

    async def resolve() -> str:
        try:
            handle = await find_actor(name, namespace)
            return str(await handle.address.remote())
        except (ValueError, ray.exceptions.RayError) as error:
            raise LinkError(f"router {name!r} is not there: {error}") from None

    return resolve
