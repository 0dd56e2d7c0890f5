"""The backend as a process: links, slot and executor wired on one event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from fermata.deployments.backend.batch_pipeline import (
    FETCH_LIMIT_NS,
    AnnounceReady,
    BatchPipeline,
    FetchInputs,
    PipelineJob,
    ReportDone,
    ReturnRequests,
    SendResults,
    StartBatch,
    Tensors,
)
from fermata.deployments.backend.execution.executor import BatchExecutor, BatchOutcome, Executor
from fermata.deployments.backend.execution.runner import Runner, RunnerStore
from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.execution.tensors import Array, InputError, split, view
from fermata.deployments.backend.frontends import Frontends
from fermata.deployments.backend.limits import BatchLimits
from fermata.deployments.backend.meter import BackendMeter, LoadCounts
from fermata.deployments.metrics.process_stats import PeriodicReport
from fermata.foundation.errors import ServingError
from fermata.foundation.logs import LOG, debugging, fields, in_ms
from fermata.foundation.units import seconds
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import (
    PROTOCOL,
    BackendStats,
    Drained,
    FrontendAddress,
    Hello,
    LoadVariant,
    Message,
    Payload,
    Ready,
    Retire,
    Run,
    UnloadVariant,
)
from fermata.router.links.router_links import RouterLinks
from fermata.router.links.transport import Link, LinkOptions, Resolve
from fermata.router.live.precise_timer import LoopTimer

DRAIN_LOOK_S = 0.02
DRAIN_ANSWER_NS = seconds(5)
"""A router that has not answered by then is not waited for."""
HUNG_NS = seconds(10)
REASONS_MAX = 100
"""Of failures, kept apart; a model that puts its input into words has no end of them."""
OTHERS = "other reasons, too many to tell apart"


class UnfitError(ServingError):
    """This process should be replaced."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """Who a backend is."""

    number: int
    """Unique among the backends of a router."""
    kind: str = "cpu"
    """Accelerator type."""
    node: str = ""
    """Frontends of the same node hand inputs over in shared memory."""
    fetch_limit_ns: int = FETCH_LIMIT_NS
    links: LinkOptions = field(default_factory=LinkOptions)
    hung_ns: int = HUNG_NS
    """A batch that has passed its plan by this much will not end: the process is to be replaced."""
    costs: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    """(variant, p50, p99 by batch size) of what was measured here."""


class BackendProcess:
    """One accelerator's process; all methods on the loop's thread."""

    def __init__(
        self,
        settings: BackendSettings,
        runners: dict[str, Runner],
        resolve: Resolve,
        stock: RunnerStore | None = None,
        meter: BackendMeter | None = None,
        export: Callable[[BackendStats], None] | None = None,
        heart: HeartbeatThread | None = None,
        make_executor: Callable[[Callable[[BatchOutcome], None]], BatchExecutor] = Executor,
        standby: Resolve | None = None,
    ) -> None:
        """`resolve` and `standby` tell where routers are, of which one leads at a time."""
        self.settings = settings
        self.heart = heart or HeartbeatThread(settings.links.beat_ns)
        self.clock = self.heart.clock
        self.make_executor = make_executor
        self.runners = runners
        """By variant; loaded and warm."""
        self.stock = stock
        """Where more variants come from, and go to; None where the set is fixed."""
        self.meter = meter or BackendMeter(LoadCounts(), lambda: 0)
        self.export = export
        """Hears what the meter says."""
        self.leaving: set[str] = set()
        """Variants that get no new batch, and go when those they have are done."""
        self.loading: dict[str, bool] = {}
        """Variants that are being loaded, and whether they are still wanted."""
        self.limits = BatchLimits()
        self.trouble: dict[str, str] = {}
        """Why a variant could not be loaded when last asked for."""
        self.routers = (resolve,) if standby is None else (resolve, standby)
        self.slot = BatchPipeline(settings.fetch_limit_ns)
        self.segments = Segments()
        self.frontends = Frontends(self.hello, self, self.heart, settings.links, self._start)
        self.router: Link | None = None
        self.draining = False
        self.drained = False
        """The router has said that it sends nothing more."""
        self.retired = ""
        """Why the router wants this process replaced."""
        self.batches = 0
        self.failures: dict[str, int] = {}
        """Batches and loads that failed, by reason."""
        self.tasks: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        """Look for the router, and serve it whenever it is there."""
        self.loop = asyncio.get_running_loop()
        self.timer = LoopTimer(self.loop, self._on_timer, self.clock)
        self.executor = self.make_executor(
            lambda outcome: _post(self.loop, lambda: self._on_outcome(outcome))
        )
        self.to_router = RouterLinks(
            self.routers, self.hello, RouterEvents(self), self.heart, self.settings.links
        )
        self.to_router.start()
        self.telling = PeriodicReport(self.loop, self._tell)

    def _tell(self, late_ns: int) -> None:
        """What there is to count is kept for a router that is away."""
        if self.limits.lift(self.clock()):
            self._announce()
        if self.router is not None:
            stats = self.meter.take()
            self.router.send(stats)
            if self.export is not None:
                self.export(stats)

    async def drain(self) -> None:
        """Take nothing more and finish what is here."""
        self.draining = True
        self._announce()
        # Orders may be under way until the router says that it has heard; one that is gone, or
        # does not answer, sends none.
        give_up_at_ns = self.clock() + DRAIN_ANSWER_NS
        while self.slot.jobs or not self._drained(give_up_at_ns):
            await asyncio.sleep(DRAIN_LOOK_S)

    def _drained(self, give_up_at_ns: int) -> bool:
        return self.drained or self.router is None or self.clock() > give_up_at_ns

    def check(self) -> None:
        """UnfitError where this process will not serve any more: its accelerator hangs, or the
        router has done with it."""
        overrun_ns = self.slot.overrun_ns(self.clock())
        if overrun_ns > self.settings.hung_ns:
            raise UnfitError(f"a batch should have ended {overrun_ns / 1e9:.0f} s ago")
        if self.retired:
            raise UnfitError(f"retired: {self.retired}")

    async def stop(self, reason: str = "backend shuts down") -> None:
        """End every link and thread; what still waits here is lost to its router."""
        self.telling.close()
        await self.to_router.stop(reason)
        for task in tuple(self.tasks):
            task.cancel()
        await self.frontends.stop(reason)
        await self.loop.run_in_executor(None, self.executor.stop)
        await self.loop.run_in_executor(None, self.heart.stop)
        self.timer.close()
        for runner in self.runners.values():
            runner.close()

    def hello(self) -> Hello:
        settings = self.settings
        return Hello(PROTOCOL, "backend", settings.number, self.slot.epoch, "", settings.node)

    # The router

    def on_router_up(self, link: Link) -> None:
        refusal = self.slot.on_router_up(link.peer.epoch)
        if refusal is not None:
            link.close(CloseCode.STALE, refusal)
            return
        self.router = link
        LOG.info("router linked", extra=fields(epoch=link.peer.epoch))
        self.carry_out()

    def on_router_down(self, link: Link) -> None:
        if self.router is link:
            self.router = None
            LOG.info("router gone", extra=fields(epoch=link.peer.epoch))
            self.slot.on_router_down()
            self.carry_out()

    def on_order(self, link: Link, message: Message) -> None:
        """What the router says."""
        if isinstance(message, Run):
            refusal = self.slot.on_run(self.clock(), link.peer.epoch, message)
            if refusal is not None:
                link.close(CloseCode.REFUSED, refusal)
        elif isinstance(message, FrontendAddress):
            self.frontends.meet(message)
        elif isinstance(message, LoadVariant):
            self._start(self._load(message.variant))
        elif isinstance(message, UnloadVariant):
            if message.variant in self.runners:
                self.leaving.add(message.variant)
            elif message.variant in self.loading:
                self.loading[message.variant] = False
            self._announce()
            self._let_go()
        elif isinstance(message, Drained):
            self.drained = True
        elif isinstance(message, Retire):
            self.retired = message.reason
        else:
            link.close(CloseCode.WRONG_ROLE, f"{type(message).__name__} from a router")

    def _announce(self) -> None:
        """Say which variants may be sent here, or that this backend drains."""
        if self.router is not None and self.slot.announced:
            here = self.runners.keys() - self.leaving
            variants = () if self.draining else tuple(sorted(here))
            trouble = tuple(sorted(self.trouble.items()))
            kind, costs = self.settings.kind, self.settings.costs
            empty = not here and not self.draining
            limits = self.limits.told()
            self.router.send(Ready(kind, variants, trouble, costs, empty, limits))

    async def _load(self, variant: str) -> None:
        self.leaving.discard(variant)
        self.trouble.pop(variant, None)
        if variant in self.loading:
            # Asked for twice, or wanted again after all: one load is under way.
            self.loading[variant] = True
            return
        if variant not in self.runners and self.stock is not None:
            self.loading[variant] = True
            try:
                load = self.stock.load
                self.runners[variant] = await self.loop.run_in_executor(None, load, variant)
                LOG.info("loaded", extra=fields(variant=variant))
            # A model is a user's code and may raise anything; who asked is to hear of it.
            except Exception as error:
                self.trouble[variant] = str(error) or type(error).__name__
                self._count(f"{variant}: {error}")
            if not self.loading.pop(variant) and variant in self.runners:
                self.leaving.add(variant)
        self._announce()
        self._let_go()

    def _let_go(self) -> None:
        """Unload what is to go and has no batch here any more."""
        busy = {job.run.variant for job in self.slot.jobs}
        for variant in self.leaving - busy:
            self.leaving.discard(variant)
            runner = self.runners.pop(variant)
            runner.close()
            LOG.info("unloaded", extra=fields(variant=variant))
            if self.stock is not None:
                self.stock.give_back(variant)

    def _count(self, reason: str) -> None:
        if len(self.failures) >= REASONS_MAX and reason not in self.failures:
            reason = OTHERS
        before = self.failures.get(reason, 0)
        self.failures[reason] = before + 1
        if not before:
            # Once: a model that fails may do so with every batch.
            LOG.warning("failed", extra=fields(reason=reason))
        self.meter.failures += 1

    def _start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = self.loop.create_task(work)
        self.tasks[task] = None
        task.add_done_callback(lambda done: self.tasks.pop(done))
        return task

    # Frontends

    def on_payloads(self, payloads: list[Payload]) -> None:
        now_ns = self.clock()
        for payload in payloads:
            self.slot.on_payload(now_ns, payload)
        self.carry_out()

    def on_frontend_down(self, frontend: int, reason: str) -> None:
        if reason:
            self._count(f"frontend {frontend}: {reason}")
        # Its memory would stay as long as anyone maps it; the living are mapped again.
        self.segments.forget()
        self.slot.on_frontend_down(self.clock(), frontend)
        self.carry_out()

    # Effects

    def carry_out(self) -> None:
        """Do what the slot wants, and what it wants on top of that."""
        while effects := self.slot.take_effects():
            for effect in effects:
                if isinstance(effect, SendResults):
                    # A frontend whose link is broken may still wait for it.
                    self.frontends.say(effect.frontend, effect.result)
                elif isinstance(effect, ReturnRequests):
                    self.frontends.say(effect.frontend, effect.returned)
                elif isinstance(effect, FetchInputs):
                    if not self.frontends.say(effect.frontend, effect.fetch):
                        self.slot.on_frontend_down(self.clock(), effect.frontend)
                elif isinstance(effect, StartBatch):
                    self._begin(effect.job)
                elif isinstance(effect, ReportDone):
                    if self.router is not None:
                        self.router.send(effect.done)
                elif isinstance(effect, AnnounceReady):
                    self._announce()
        self.timer.set(self.slot.wake_at_ns())

    def _on_timer(self) -> None:
        self.slot.on_time(self.clock())
        self.carry_out()

    def _begin(self, job: PipelineJob) -> None:
        variant = job.run.variant
        runner = self.runners.get(variant)
        if runner is None:
            self.slot.on_failed(self.clock(), job, 0, f"{variant} is not loaded here")
            return
        items: list[tuple[int, Array]] = []
        errors: dict[int, str] = {}
        for place, payload in enumerate(job.payloads()):
            try:
                item = view(payload, self.segments)
                runner.check(item)
                items.append((place, item))
            except InputError as error:
                errors[place] = str(error)
        if len(items) > runner.batch_size_max:
            reason = f"{len(items)} requests in a batch, {variant} takes {runner.batch_size_max}"
            self.slot.on_failed(self.clock(), job, 0, reason)
            return
        self.executor.begin(job, runner, items, errors)

    def _on_outcome(self, outcome: BatchOutcome) -> None:
        now_ns, job = self.clock(), outcome.job
        self.batches += 1
        if outcome.fits and self.limits.set(now_ns, job.run.variant, outcome.fits):
            self._count(f"{job.run.variant}: memory suffices for {outcome.fits} at once")
            self._announce()
        failed = outcome.failed
        outputs: list[Tensors | str] = [""] * (len(job.inputs))
        if not failed:
            try:
                _fill(outputs, outcome)
            # What a model returned is a user's value: anything can be wrong with it.
            except Exception as error:
                failed = f"{type(error).__name__}: {error}"
        if debugging():
            LOG.debug(
                "ran",
                extra=fields(
                    batch=job.run.batch,
                    variant=job.run.variant,
                    size=len(job.inputs),
                    fetched_ms=in_ms(job.ready_at_ns - job.arrived_at_ns),
                    waited_ms=in_ms(outcome.started_at_ns - job.ready_at_ns),
                    run_ms=in_ms(outcome.run_ns),
                    failed=failed,
                ),
            )
        if failed:
            self._count(failed)
            self.slot.on_failed(now_ns, job, outcome.run_ns, failed)
        else:
            self.slot.on_finished(
                now_ns, job, outcome.staged_at_ns, outcome.started_at_ns, outcome.run_ns, outputs
            )
        self.carry_out()
        if self.leaving:
            self._let_go()


def _fill(outputs: list[Tensors | str], outcome: BatchOutcome) -> None:
    for place, error in outcome.errors.items():
        outputs[place] = error
    for places, returned in outcome.outputs:
        for place, tensors in zip(places, split(returned, len(places)), strict=True):
            outputs[place] = tensors


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have the loop call this; a loop that has been closed meanwhile wants nothing any more."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise


class RouterEvents:
    """The link to the router."""

    def __init__(self, process: BackendProcess) -> None:
        self.process = process

    def on_up(self, link: Link) -> None:
        self.process.on_router_up(link)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        for message in messages:
            self.process.on_order(link, message)
        self.process.carry_out()

    def on_down(self, link: Link, closed: Closed) -> None:
        self.process.on_router_down(link)

    def on_refused(self, link: Link, closed: Closed) -> None:
        pass
