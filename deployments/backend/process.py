"""The backend process: links, batch pipeline and executor on one event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress

from fermata.deployments.backend.batch_pipeline import (
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
from fermata.deployments.backend.execution.executor import (
    BatchExecutor,
    BatchOutcome,
    Executor,
    keeps_state,
    request_outputs,
)
from fermata.deployments.backend.execution.runners.runner import (
    Runner,
    RunnerStore,
    innermost,
    runs_in,
)
from fermata.deployments.backend.execution.runners.sequences import SequenceRunner
from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.execution.tensors import (
    InputError,
    Item,
    first_row,
    rows_in,
    view_rows,
)
from fermata.deployments.backend.frontends import Frontends
from fermata.deployments.backend.limits import BatchLimits
from fermata.deployments.backend.meter import BackendMeter, FailureReasons, LoadCounts
from fermata.deployments.backend.models.variants import Variants
from fermata.deployments.backend.settings import BackendSettings
from fermata.foundation.errors import ServingError
from fermata.foundation.logs import LOG, debugging, fields, in_ms
from fermata.foundation.precise_timer import LoopTimer
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import (
    PROTOCOL,
    SPARES_FROM,
    BackendStats,
    Drained,
    EndSequence,
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
from fermata.router.links.transport import Link, Resolve
from fermata.router.telemetry.periodic_report import PeriodicReport

END_S = 1.0
"""Time for the goodbyes of a process whose device is of no use any more."""


class UnfitError(ServingError):
    """This process should be replaced."""


class BackendProcess:
    """One accelerator's process; all methods on the loop's thread."""

    def __init__(
        self,
        settings: BackendSettings,
        runners: dict[str, Runner],
        resolve: Resolve,
        store: RunnerStore | None = None,
        meter: BackendMeter | None = None,
        export: Callable[[BackendStats], None] | None = None,
        heartbeat: HeartbeatThread | None = None,
        make_executor: Callable[[Callable[[BatchOutcome], None]], BatchExecutor] = Executor,
        standby: Resolve | None = None,
        end_process: Callable[[], None] = lambda: None,
        first: int | None = None,
    ) -> None:
        """`resolve` and `standby` find routers; one of the two leads at a time. `end_process` is
        called for another process to take its place. `first` is the number of the backend whose
        spare this one is, until it takes over."""
        self.settings = settings
        self.heartbeat = heartbeat or HeartbeatThread(settings.links.beat_ns)
        self.clock = self.heartbeat.clock
        self.make_executor = make_executor
        self.meter = meter or BackendMeter(LoadCounts(), lambda: 0)
        self.failures = FailureReasons(self.meter, settings.reasons_max)
        self.variants = Variants(
            *(runners, store, self.failures, self._busy, self._announce),
            announce_soon=lambda: self._post(self._announce),
        )
        self.export = export
        """Receives each report to the router too."""
        self.end_process = end_process
        self.first = first
        self.limits = BatchLimits()
        self.routers = (resolve,) if standby is None else (resolve, standby)
        self.pipeline = BatchPipeline(settings.pipeline)
        self.segments = Segments()
        self.frontends = Frontends(
            self.hello, self, self.heartbeat, settings.links, self._start, settings.frontends_max
        )
        self.router: Link | None = None
        self.draining = False
        self.drained = False
        """The router has confirmed that it sends nothing more."""
        self.retired = ""
        """The router's reason for having this process replaced."""
        self.unusable = ""
        """Why its device runs nothing any more."""
        self.batches = 0
        self.tasks: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        """Connect to the router, and serve it whenever it is linked."""
        self.loop = asyncio.get_running_loop()
        self.timer = LoopTimer(self.loop, self._on_timer, self.clock)
        self.executor = self.make_executor(
            lambda outcome: self._post(lambda: self._on_outcome(outcome))
        )
        self.to_router = RouterLinks(
            self.routers, self.hello, RouterEvents(self), self.heartbeat, self.settings.links
        )
        self.to_router.start()
        if self.settings.data_connections:
            self.frontends.read_data(self._post)
        self.reports = PeriodicReport(self.loop, self._report)
        for runner in self.variants.runners.values():
            self.variants.watch(runner)

    def _post(self, call: Callable[[], None]) -> None:
        """Have the loop call this, unless it has been closed meanwhile."""
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def _report(self, late_ns: int) -> None:
        """Send the counts since the last report; while no router is linked they add up."""
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
        # Orders may be in flight until the router confirms the drain; one that is gone, or does
        # not answer, sends none.
        began_ns = self.clock()
        while self.pipeline.jobs or not self._drained(began_ns):
            await asyncio.sleep(self.settings.drain_check_s)

    def _drained(self, began_ns: int) -> bool:
        wait_ns = self.settings.drain_answer_ns
        if any(each.open for each in self.variants.sequence_runners()):
            wait_ns = self.settings.drain_sequences_ns
        return self.drained or self.router is None or self.clock() > began_ns + wait_ns

    def check(self) -> None:
        """UnfitError if this process is to be replaced: its accelerator hangs or is unusable, or
        the router has retired it."""
        overrun_ns = self.pipeline.overrun_ns(self.clock())
        if overrun_ns > self.settings.hung_ns:
            raise UnfitError(f"a batch should have ended {overrun_ns / 1e9:.0f} s ago")
        if self.unusable:
            raise UnfitError(f"its device is unusable: {self.unusable}")
        if self.retired:
            raise UnfitError(f"retired: {self.retired}")

    async def stop(self, reason: str = "backend shuts down") -> None:
        """End every link and thread; batches that are still here are lost."""
        self.reports.close()
        await self.to_router.stop(reason)
        for task in tuple(self.tasks):
            task.cancel()
        await self.frontends.stop(reason)
        await self.loop.run_in_executor(None, self.executor.stop)
        await self.loop.run_in_executor(None, self.heartbeat.stop)
        self.timer.close()
        self.variants.close()

    def hello(self) -> Hello:
        settings = self.settings
        return Hello(PROTOCOL, "backend", settings.number, self.pipeline.term, "", settings.node)

    # The router

    def on_router_up(self, link: Link) -> None:
        refusal = self.pipeline.on_router_up(link.peer.term)
        if refusal is not None:
            link.close(CloseCode.STALE, refusal, term=self.pipeline.term)
            return
        self.router = link
        for runner in self.variants.sequence_runners():
            runner.end_all()
        LOG.info("router linked", extra=fields(term=link.peer.term))
        self.carry_out()

    def on_router_down(self, link: Link) -> None:
        if self.router is link:
            self.router = None
            LOG.info("router gone", extra=fields(term=link.peer.term))
            self.pipeline.on_router_down()
            self.carry_out()

    def on_order(self, link: Link, message: Message) -> None:
        """Handle one message of the router."""
        if isinstance(message, Run) and self.first is not None:
            link.close(CloseCode.REFUSED, f"a batch for the spare of backend {self.first}")
        elif isinstance(message, Run):
            run = self.frontends.without_strangers(message)
            runner = self.variants.runners.get(run.variant)
            stateful = runner is not None and keeps_state(runner)
            refusal = self.pipeline.on_run(self.clock(), link.peer.term, run, stateful)
            if refusal is not None:
                link.close(CloseCode.REFUSED, refusal)
        elif isinstance(message, FrontendAddress):
            self.frontends.add(message)
        elif isinstance(message, LoadVariant):
            self._start(self.variants.load(message.variant))
        elif isinstance(message, UnloadVariant):
            self.variants.unload(message.variant)
        elif isinstance(message, EndSequence):
            runner = innermost(self.variants.runners.get(message.variant))
            if isinstance(runner, SequenceRunner):
                runner.end(message.key)
        elif isinstance(message, Drained):
            self.drained = True
        elif isinstance(message, Retire):
            self.retired = message.reason
        else:
            link.close(CloseCode.WRONG_ROLE, f"{type(message).__name__} from a router")

    def _announce(self) -> None:
        """Announce the variants that run here, or that this backend drains."""
        if self.router is not None and self.pipeline.announced and self._is_understood():
            here, errors = self.variants.status()
            variants = () if self.draining else tuple(sorted(here))
            trouble = tuple(sorted(errors.items()))
            kind, costs = self.settings.kind, self.settings.costs
            empty = not here and not self.draining
            limits, cut = self.limits.items(), tuple(sorted(self.pipeline.unreachable))
            spare_of = -1 if self.first is None else self.first
            told = (kind, variants, trouble, costs, empty, limits, cut, spare_of)
            libraries = ((name, runs_in(self.variants.runners[name])) for name in variants)
            self.router.send(Ready(*told, tuple(each for each in libraries if each[1])))

    def _is_understood(self) -> bool:
        """Whether the router knows what a spare is, where this is one."""
        if self.first is None:
            return True
        return self.router is not None and self.router.peer.protocol >= SPARES_FROM

    def follow(self, first: int) -> None:
        """Wait for the end of this backend from now on: a spare alone."""
        assert self.first is not None, "only a spare waits for another backend"
        if first != self.first:
            self.first = first
            self._announce()

    def take_over(self, more: Mapping[str, Runner] | None = None) -> None:
        """Take batches from now on: the process of the backend before has ended. `more` runners are
        those that had to wait for that."""
        if self.first is not None:
            LOG.warning("spare takes over", extra=fields(first=self.first))
        self.first = None
        for variant, runner in (more or {}).items():
            self.variants.add(variant, runner)
        self._announce()

    def _busy(self) -> set[str]:
        """Variants that have batches here."""
        return {job.run.variant for job in self.pipeline.jobs}

    def _start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = self.loop.create_task(work)
        self.tasks[task] = None
        task.add_done_callback(lambda done: self.tasks.pop(done))
        return task

    # Frontends

    def on_payloads(self, payloads: list[Payload]) -> None:
        now_ns = self.clock()
        for payload in payloads:
            self.pipeline.on_payload(now_ns, payload)
        self.carry_out()

    def on_data_lost(self, frontend: int) -> None:
        self.pipeline.fetch_again(frontend)
        self.carry_out()

    def on_frontend_down(self, frontend: int, reason: str) -> None:
        if reason:
            self.failures.count(f"frontend {frontend}: {reason}")
        # Its memory stays while it is mapped; segments of other frontends are mapped again.
        self.segments.forget()
        self.pipeline.on_frontend_down(self.clock(), frontend)
        self.carry_out()

    def on_reach(self, unreachable: frozenset[int]) -> None:
        self.pipeline.unreachable = unreachable
        self._announce()

    # Effects

    def carry_out(self) -> None:
        """Carry out the effects of the pipeline, and those that they cause."""
        while effects := self.pipeline.take_effects():
            for effect in effects:
                if isinstance(effect, SendResults):
                    # A frontend whose link is broken may still wait for the result.
                    self.frontends.send(effect.frontend, effect.result)
                elif isinstance(effect, ReturnRequests):
                    self.frontends.send(effect.frontend, effect.returned)
                elif isinstance(effect, FetchInputs):
                    if not self.frontends.send(effect.frontend, effect.fetch):
                        self.pipeline.on_frontend_down(self.clock(), effect.frontend)
                elif isinstance(effect, StartBatch):
                    self._begin(effect.job)
                elif isinstance(effect, ReportDone):
                    if self.router is not None:
                        self.router.send(effect.done)
                        # Before the results are written: the device waits for the next order.
                        self.router.flush()
                elif isinstance(effect, AnnounceReady):
                    self._announce()
        self.timer.set(self.pipeline.wake_at_ns())

    def _on_timer(self) -> None:
        self.pipeline.on_time(self.clock())
        self.carry_out()

    def _begin(self, job: PipelineJob) -> None:
        variant = job.run.variant
        runner = self.variants.runners.get(variant)
        if runner is None:
            self.pipeline.on_failed(self.clock(), job, 0, f"{variant} is not loaded here")
            return
        items: list[tuple[int, Item]] = []
        errors: dict[int, str] = {}
        for place, payload in enumerate(job.payloads()):
            try:
                item = view_rows(payload, self.segments)
                runner.check(first_row(item))
                items.append((place, item))
            except InputError as error:
                errors[place] = str(error)
        size = rows_in([item for _, item in items])
        if size > runner.batch_size_max:
            reason = f"{size} rows in a batch, {variant} takes {runner.batch_size_max}"
            self.pipeline.on_failed(self.clock(), job, 0, reason)
            return
        self.executor.begin(job, runner, items, errors)

    def give_up(self, reason: str) -> None:
        """The device is of no use any more, if there is a reason. The router hears that nothing
        more is to come here before it hears of the batch that failed."""
        if self.unusable or not reason:
            return
        self.unusable = reason
        LOG.error("device unusable", extra=fields(reason=reason))
        self.draining = True
        self._announce()
        self._start(self._end())

    async def _end(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self.to_router.stop(f"device unusable: {self.unusable}")
                await self.frontends.stop("device unusable")
        self.end_process()

    def _on_outcome(self, outcome: BatchOutcome) -> None:
        now_ns, job = self.clock(), outcome.job
        self.batches += 1
        failed = outcome.failed or self.unusable  # Results of a lost device are not trusted.
        self.give_up(outcome.unusable)
        if outcome.fits and self.limits.set(now_ns, job.run.variant, outcome.fits):
            self.failures.count(f"{job.run.variant}: memory suffices for batches of {outcome.fits}")
            self._announce()
        outputs: list[Tensors | str] = []
        if not failed:
            try:
                outputs = request_outputs(outcome)
            # A model's outputs are a user's values: anything can be wrong with them.
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
            self.failures.count(failed)
            self.pipeline.on_failed(now_ns, job, outcome.run_ns, failed)
        else:
            self.pipeline.on_finished(
                now_ns,
                job,
                outcome.staged_at_ns,
                outcome.started_at_ns,
                outcome.run_ns,
                outputs,
                outcome.spoilt,
            )
        self.carry_out()
        if self.variants.leaving:
            self.variants.unload_leaving()


class RouterEvents:
    """Events of the link to the router."""

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
