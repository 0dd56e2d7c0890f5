"""The router as a Ray actor: it starts, restarts and names the process; requests pass it by."""

import asyncio
import faulthandler
import gc
import os
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import ray
from ray.experimental import internal_kv

from fermata.foundation import native
from fermata.foundation.errors import GoneError, NoAnswerError, ServingError
from fermata.foundation.logs import LOG, LogOptions, debugging, fields, start_logs
from fermata.foundation.precise_timer import precise_timer
from fermata.foundation.process_memory import settle_garbage
from fermata.router.assembly import RouterConfig
from fermata.router.leadership import started_ahead
from fermata.router.leadership.asked_again import first_answer
from fermata.router.leadership.process import Other, RouterProcess
from fermata.router.leadership.role import TIMING
from fermata.router.leadership.terms import next_term
from fermata.router.links.heartbeat import HeartbeatThread, LoopWatch
from fermata.router.links.session import LinkError
from fermata.router.links.transport import LinkOptions, Resolve
from fermata.router.live.driver import LiveRouter
from fermata.router.live.subprocess_worker import SubprocessWorker
from fermata.router.telemetry.batch_log import LoggedMeters
from fermata.router.telemetry.meters import Meters

T = TypeVar("T")
STANDBY_SUFFIX = "-standby"
MARK_LETTERS = 8
NODE = "node"
"""In place of an address."""


def own_address(host: str) -> str:
    """The address to take links at: `node` is this machine's in the Ray cluster."""
    # Ray's own functions are without types in part.
    cluster: Any = ray.util
    return str(cluster.get_node_ip_address()) if host == NODE else host


def standby_name(name: str) -> str:
    """The name of another router's standby."""
    return name + STANDBY_SUFFIX


class RouterActor(RouterProcess):
    """The process of a router that Ray runs; see `create_router`."""

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
        """`other` names another router of its namespace, with which it takes turns to lead; the
        `second` waits at first."""
        if logs is not None:
            start_logs("router", logs)
        options = options or LinkOptions()
        self.config = config
        self.has_standby = bool(other)
        record = RecordedTerms(int(second) if other else None)
        self.term = record.take(generation)
        self.worker = SubprocessWorker()
        turns = Other(find_router(other, namespace), second, LOG.warning)
        super().__init__(
            self._make_live,
            HeartbeatThread(TIMING.beat_ns if other else options.beat_ns),
            options,
            own_address(host),
            port,
            mark,
            turns if other else None,
            record,
            time.thread_time_ns,
        )

    def _make_live(self) -> LiveRouter:
        loop = asyncio.get_running_loop()
        live = LiveRouter(
            self.config,
            self.term,
            time.monotonic_ns,
            loop.call_soon,
            lambda call: precise_timer(loop, call),
            self.worker.submit,
            stand_down,
            LoggedMeters if debugging() else Meters,
            self.terms.confirm,
        )
        for name in live.built.unused_variants():
            LOG.warning(
                "this variant never runs: another one is as accurate, as fast and as small",
                extra=fields(variant=name),
            )
        return live

    async def _start(self) -> str:
        address = await super()._start()
        quiet_gc()
        # Not before: to read tables and checkpoints may take longer than a loop may stand still.
        post = asyncio.get_running_loop().call_soon_threadsafe
        beats = TIMING.hung_ns // self.heartbeat.every_ns
        self.heartbeat.watch_loop(LoopWatch(post, beats, hang_up))
        reason = native.install()
        if reason not in ("", native.NOT_ASKED, native.NO_BUILD):
            LOG.warning("router is not compiled", extra=fields(reason=reason))
        listens = fields(term=self.term, address=address, compiled=reason or "yes")
        LOG.info("router listens", extra=listens)
        # The first scrape needs it, and the first request does not wait for it.
        asyncio.get_running_loop().run_in_executor(None, import_module, "numpy")
        if not self.has_standby:
            started_ahead.begin()
        return address

    async def stop(self, reason: str = "router shuts down") -> None:
        await super().stop(reason)
        await self.worker.stop()


def in_our_words(error: ray.exceptions.RayError) -> Exception:
    """The error to raise in place of Ray's; errors of our own code stay."""
    if isinstance(error, ServingError):
        return error
    gone = isinstance(error, ray.exceptions.ActorDiedError)
    return GoneError(str(error)) if gone else NoAnswerError(str(error))


class Called:
    """A Ray actor's methods as plain coroutines, and its silence as errors of our own."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.actor, name)

        async def call(*given: Any) -> Any:
            try:
                return await method.remote(*given)
            except ray.exceptions.RayError as error:
                raise in_our_words(error) from None

        return call


class RecordedTerms:
    """Terms of the routers of one name, as Ray keeps them (`TermRecord`). Each seat has a place of
    its own, so that neither lowers the other's term."""

    def __init__(self, seat: int | None) -> None:
        context = ray.get_runtime_context()
        name = str(context.get_actor_name()).removesuffix(STANDBY_SUFFIX)
        # Earlier versions have named it so, and the record outlives a router.
        key = f"fermata-epoch-{context.namespace}-{name}"
        self.seat = seat
        self.places = (key, f"{key}-0", f"{key}-1")
        self.own = self.places[0 if seat is None else 1 + seat]

    def take(self, generation: int) -> int:
        """A term above all that have been, in either seat."""
        now_ms = time.time_ns() // 1_000_000
        term = next_term(generation, now_ms, self._highest(), self.seat)
        self._note(term)
        return term

    async def highest(self) -> int:
        return await self._ask(self._highest)

    async def note(self, term: int) -> None:
        await self._ask(lambda: self._note(term))

    def _highest(self) -> int:
        return max(map(_read, self.places))

    def _note(self, term: int) -> None:
        value = str(max(term, _read(self.own))).encode()
        internal_kv._internal_kv_put(self.own.encode(), value, overwrite=True)

    async def _ask(self, ask: Callable[[], T]) -> T:
        try:
            # In a thread: a cluster whose GCS is away answers late.
            return await asyncio.to_thread(ask)
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise NoAnswerError(f"the record of terms cannot be reached: {error}") from None


def _read(place: str) -> int:
    return int(internal_kv._internal_kv_get(place.encode()) or 0)


def stand_down(reason: str) -> None:
    """End this process: a newer router has taken over. The cluster starts this one again, with a
    higher term, if it still wants one of this name."""
    LOG.error("router stands down", extra=fields(reason=reason))
    os._exit(1)


def hang_up() -> None:
    """Log where the loop hangs, and end this process, which the cluster starts again. Every peer
    notices at once, and a standby leads."""
    faulthandler.dump_traceback()
    stand_down("its event loop hangs")


def quiet_gc() -> None:
    """Keep the collector out of the way: the core makes no cycles, and a full collection among
    100,000 queued requests takes longer than many an SLO."""
    settle_garbage()
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
    compiled: bool = False,
) -> Called:
    """A new detached router. Its creator must `stop` it and `ray.kill` its actor. It is `compiled`
    where its machine has a build of this very code.

    Start Ray with RAY_worker_niceness=0: by default its workers yield to every other process.
    """
    actor = ray.remote(_class_of(mark))
    created = actor.options(
        name=name,
        namespace=namespace,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=1000,
        num_cpus=cpus,
        resources=resources,
        runtime_env=environment_of(compiled),
    ).remote(config, generation, host, 0, options, mark, logs, other, second, namespace)
    return Called(created)


def environment_of(compiled: bool) -> dict[str, Any] | None:
    """The environment that Ray makes for a process which runs the router's code."""
    return {"env_vars": native.USE} if compiled else None


def _class_of(mark: str) -> type[RouterActor]:
    """The class of routers of one mark, by a name of its own.

    A router looks up the other one, which may be of other code. Ray then loads that one's class,
    and knows methods by the name of their class alone: under the same name they would take the
    place of the router's own.
    """
    return type(f"RouterActor{mark[:MARK_LETTERS]}", (RouterActor,), {"__module__": __name__})


async def find_actor(name: str, namespace: str | None) -> Called:
    """A named actor; in a thread, since a cluster whose GCS is away answers late."""
    try:
        return Called(await asyncio.to_thread(ray.get_actor, name, namespace=namespace))
    except ValueError as error:
        raise GoneError(str(error)) from None
    except ray.exceptions.RayError as error:
        raise in_our_words(error) from None


def find_router(name: str, namespace: str | None = None) -> Resolve:
    """The way to ask, at each attempt of a `PersistentLink`, where that router listens now."""

    async def resolve() -> str:
        try:
            actor = await find_actor(name, namespace)
            return str(await first_answer(actor.address))
        except (NoAnswerError, TimeoutError) as error:
            raise LinkError(f"router {name!r} is not there: {error}") from None

    return resolve
