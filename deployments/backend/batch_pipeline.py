"""The batches of one backend, from the router's order to the results.

Pure: events and a time in, effects out. One batch runs; two more may wait behind it and have
their inputs fetched meanwhile. Every request of a batch gets exactly one `Result`, or is returned
when its batch fails or its router is gone. Requests that have ended, or whose frontend is out of
reach, are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fermata.foundation.units import NEVER, ms
from fermata.router.links.limits import LIMITS
from fermata.router.links.messages import (
    Done,
    Fetch,
    Payload,
    Result,
    Returned,
    Run,
    frontend_of,
)

INPUT_LATE = "its input was not there in time"
Tensors = tuple[tuple[str, str, tuple[int, ...], bytes], ...]
"""(name, dtype, shape, data) of each output of one request."""


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """Limits of a batch pipeline."""

    batches_max: int = 3
    """Batches here at a time: one that runs, and those behind it (`RankRules.queued_max`)."""
    fetch_limit_ns: int = ms(100)
    """An input this much later than its batch's planned start is not waited for."""
    outputs_bytes_max: int = LIMITS.data_bytes_max
    """A result with more does not fit a message to its frontend."""


def by_frontend(rids: Sequence[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rid in rids:
        found.setdefault(frontend_of(rid), []).append(rid)
    return found


class PipelineJob:
    """One batch on its way through the backend."""

    __slots__ = (
        "arrived_at_ns",
        "awaited",
        "begun",
        "inputs",
        "keeps_states",
        "left_out",
        "orphan",
        "planned_at_ns",
        "ready_at_ns",
        "run",
    )

    def __init__(self, now_ns: int, run: Run, keeps_states: bool = False) -> None:
        self.run = run
        self.keeps_states = keeps_states
        self.arrived_at_ns = now_ns
        self.planned_at_ns = now_ns + run.start_in_ns
        self.awaited: set[int] = set(run.rids)
        """Requests whose inputs have not arrived."""
        self.inputs: dict[int, Payload] = {}
        self.left_out: tuple[int, ...] = ()
        """Requests whose inputs were not there in time, or whose frontend was lost before it could
        be sent their results."""
        self.ready_at_ns = 0
        self.begun = False
        """The executor has it."""
        self.orphan = False
        """Its router is gone, so its end is not reported."""

    def payloads(self) -> list[Payload]:
        """The inputs that arrived, in the batch's order."""
        inputs = self.inputs
        return [inputs[rid] for rid in self.run.rids if rid in inputs]


@dataclass(frozen=True, slots=True)
class FetchInputs:
    """Fetch inputs from this frontend."""

    frontend: int
    fetch: Fetch


@dataclass(frozen=True, slots=True)
class StartBatch:
    """Stage these inputs, and run them once the batch before has ended."""

    job: PipelineJob


@dataclass(frozen=True, slots=True)
class SendResults:
    """Send a result to the frontend of its request."""

    frontend: int
    result: Result


@dataclass(frozen=True, slots=True)
class ReturnRequests:
    """Return requests that are not run to their frontend."""

    frontend: int
    returned: Returned


@dataclass(frozen=True, slots=True)
class ReportDone:
    """Report the end of a batch to the router."""

    done: Done


@dataclass(frozen=True, slots=True)
class AnnounceReady:
    """Announce to the router that this backend takes batches."""


Effect = FetchInputs | StartBatch | SendResults | ReturnRequests | ReportDone | AnnounceReady


class BatchPipeline:
    """The state machine of one backend."""

    def __init__(self, limits: PipelineLimits | None = None) -> None:
        self.limits = limits or PipelineLimits()
        self.jobs: list[PipelineJob] = []
        """In order; the first runs as soon as it can."""
        self.term = 0
        """The highest term met; an order of an older router is refused."""
        self.linked = False
        self.announced = False
        self.running: PipelineJob | None = None
        """The batch that the executor runs, or stages as the next to run."""
        self.running_since_ns = 0
        self.unreachable: frozenset[int] = frozenset()
        """Frontends that cannot be reached: their requests run elsewhere."""
        self.effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        effects = self.effects
        self.effects = []
        return effects

    # The router

    def on_router_up(self, term: int) -> str | None:
        """Link a router; returns the reason for refusing it, or None."""
        if term < self.term:
            return f"router term {term} is stale: this backend has met {self.term}"
        self.on_router_down()
        self.term = term
        self.linked = True
        self._announce()
        return None

    def on_router_down(self) -> None:
        """Return the requests of batches that have not begun, and what others have left out: a new
        router sends them elsewhere.

        Batches that run go on, and their results go out; frontends ignore what they do not need.
        """
        self.linked = False
        self.announced = False
        for job in self.jobs:
            if not job.orphan:
                idle = job.left_out if job.begun else job.run.rids
                for frontend, rids in by_frontend(idle).items():
                    self.effects.append(ReturnRequests(frontend, Returned(tuple(rids))))
        self.jobs = [job for job in self.jobs if job.begun]
        for job in self.jobs:
            job.orphan = True

    def _announce(self) -> None:
        # Not while an orphan runs: the new router would plan as if the backend were free.
        if self.linked and not self.announced and not self.jobs:
            self.announced = True
            self.effects.append(AnnounceReady())

    def on_run(self, now_ns: int, term: int, run: Run, keeps_states: bool = False) -> str | None:
        """Take an order; returns the reason for refusing it, or None. `keeps_states`: its model
        has the state of sequences."""
        if term < self.term:
            return f"router term {term} is stale: this backend has met {self.term}"
        if not self.announced:
            return f"batch {run.batch} came before this backend was ready"
        if len(self.jobs) >= self.limits.batches_max:
            return f"batch {run.batch} came while {len(self.jobs)} others are here"
        if not run.rids or len(set(run.rids)) != len(run.rids):
            return f"batch {run.batch} is empty or has a request twice"
        job = PipelineJob(now_ns, run, keeps_states)
        self.jobs.append(job)
        for payload in run.inputs:
            if payload.rid in job.awaited and frontend_of(payload.rid) not in self.unreachable:
                job.awaited.discard(payload.rid)
                job.inputs[payload.rid] = payload
        for frontend, rids in by_frontend([rid for rid in run.rids if rid in job.awaited]).items():
            if frontend in self.unreachable:
                job.awaited.difference_update(rids)
                job.left_out += tuple(rids)
            else:
                self.effects.append(FetchInputs(frontend, Fetch(run.batch, tuple(rids))))
        if not job.awaited:
            self._advance(now_ns)
        return None

    # Inputs

    def on_payload(self, now_ns: int, payload: Payload) -> None:
        """Take an input, or note that it is missing; late and unasked ones are ignored."""
        rid = payload.rid
        for job in self.jobs:
            if rid in job.awaited:
                job.awaited.discard(rid)
                if not payload.missing:
                    job.inputs[rid] = payload
                if not job.awaited:
                    self._advance(now_ns)
                return

    def fetch_again(self, frontend: int) -> None:
        """Fetch what this frontend may have sent by a way that has failed."""
        for job in self.jobs:
            gone = [rid for rid in job.run.rids if rid in job.awaited]
            rids = by_frontend(gone).get(frontend)
            if rids:
                self.effects.append(FetchInputs(frontend, Fetch(job.run.batch, tuple(rids))))

    def on_frontend_down(self, now_ns: int, frontend: int) -> None:
        """Leave out inputs that it has not sent; the router hears of them when the batch ends."""
        for job in self.jobs:
            gone = [rid for rid in job.awaited if frontend_of(rid) == frontend]
            job.awaited.difference_update(gone)
            job.left_out += tuple(gone)
        self._advance(now_ns)

    # Time

    def wake_at_ns(self) -> int:
        """The time of the next call to `on_time`."""
        return min((self._give_up_at_ns(job) for job in self.jobs if job.awaited), default=NEVER)

    def _give_up_at_ns(self, job: PipelineJob) -> int:
        return job.planned_at_ns + self.limits.fetch_limit_ns

    def on_time(self, now_ns: int) -> None:
        """Leave out inputs that are so late that they hold up the rest of their batch."""
        for job in self.jobs:
            if job.awaited and self._give_up_at_ns(job) <= now_ns:
                late = tuple(sorted(job.awaited))
                job.awaited.clear()
                if not job.keeps_states and not job.orphan:
                    job.left_out += late
                    continue
                # A router would take a step that was left out for one that has changed a state.
                for rid in late:
                    self._refuse(now_ns, job, rid, INPUT_LATE, input_late=True)
        self._advance(now_ns)

    # Running

    def _advance(self, now_ns: int) -> None:
        """Begin, in order, every batch whose inputs are here or given up."""
        self._begin(now_ns)
        first = self.jobs[0] if self.jobs and self.jobs[0].begun else None
        if first is not self.running:
            self.running, self.running_since_ns = first, now_ns

    def overrun_ns(self, now_ns: int) -> int:
        """Time by which the running batch exceeds its plan; negative until it does."""
        if self.running is None:
            return -NEVER
        return now_ns - self.running_since_ns - self.running.run.plan_ns

    def _begin(self, now_ns: int) -> None:
        for job in list(self.jobs):
            if job.awaited:
                return
            if job.begun:
                continue
            job.ready_at_ns = now_ns
            if job.inputs:
                job.begun = True
                self.effects.append(StartBatch(job))
            elif job is self.jobs[0]:
                # It has no requests left. Ends are reported in order, so one behind waits.
                self._end(job, 0, "")
            else:
                return

    def on_finished(
        self,
        now_ns: int,
        job: PipelineJob,
        staged_at_ns: int,
        started_at_ns: int,
        run_ns: int,
        outputs: Sequence[Tensors | str],
        spoilt: frozenset[int] = frozenset(),
    ) -> None:
        """End a batch that ran; `outputs` are in the order of `job.payloads()`.

        A request without outputs has the reason in their place. Those at `spoilt` places may have
        failed because of each other: they are returned, and the router decides.
        """
        job.ready_at_ns = max(job.ready_at_ns, staged_at_ns)
        payloads = job.payloads()
        size = sum(payload.rows or 1 for payload in payloads)
        queue_ns = max(0, started_at_ns - job.arrived_at_ns)
        returned: list[int] = []
        error = ""
        for place, (payload, output) in enumerate(zip(payloads, outputs, strict=True)):
            rid = payload.rid
            if frontend_of(rid) in self.unreachable and not job.orphan:
                # Nobody would hear of it; elsewhere it may still be in time.
                job.left_out += (rid,)
                continue
            if not isinstance(output, str):
                output = self._sendable(output)
            if isinstance(output, str):
                if place in spoilt and not job.orphan:
                    returned.append(rid)
                    error = output
                else:
                    self._refuse(now_ns, job, rid, output)
                continue
            result = Result(rid, job.run.variant, size, queue_ns, run_ns, output)
            self.effects.append(SendResults(frontend_of(rid), result))
        for frontend, rids in by_frontend(returned).items():
            self.effects.append(ReturnRequests(frontend, Returned(tuple(rids), self.term)))
        self._end(job, run_ns, "", tuple(returned), error)
        self._advance(now_ns)

    def _sendable(self, output: Tensors) -> Tensors | str:
        """The outputs, or why they cannot be sent."""
        size, most = sum([len(data) for *_, data in output]), self.limits.outputs_bytes_max
        return output if size <= most else f"its outputs take {size} bytes, a message holds {most}"

    def on_failed(self, now_ns: int, job: PipelineJob, run_ns: int, reason: str) -> None:
        """Return the requests of a batch that failed: its router retries them, or answers."""
        term = 0 if job.orphan else self.term
        rids = [payload.rid for payload in job.payloads()]
        for frontend, returned in by_frontend(rids).items():
            self.effects.append(ReturnRequests(frontend, Returned(tuple(returned), term)))
        self._end(job, run_ns, reason)
        self._advance(now_ns)

    def _refuse(
        self, now_ns: int, job: PipelineJob, rid: int, reason: str, input_late: bool = False
    ) -> None:
        if job.orphan:
            # Another backend may be about to run it, so this is not its end.
            self.effects.append(ReturnRequests(frontend_of(rid), Returned((rid,))))
            return
        queue_ns = now_ns - job.arrived_at_ns
        variant, size = job.run.variant, len(job.run.rids)
        result = Result(rid, variant, size, queue_ns, 0, error=reason, input_late=input_late)
        self.effects.append(SendResults(frontend_of(rid), result))

    def _end(
        self,
        job: PipelineJob,
        run_ns: int,
        failed: str,
        spoilt: tuple[int, ...] = (),
        error: str = "",
    ) -> None:
        self.jobs.remove(job)
        if not job.orphan:
            late_ns = job.ready_at_ns - job.planned_at_ns
            done = Done(job.run.batch, run_ns, late_ns, failed, job.left_out, spoilt, error)
            self.effects.append(ReportDone(done))
        self._announce()
