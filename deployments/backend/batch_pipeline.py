"""A backend's slot: which batches it has, what they still wait for, and whom to tell.

Pure: events and a time in, effects out. One batch runs, at most one more waits behind it and has
its inputs fetched meanwhile. Every request of a batch gets exactly one `Result`, or is given back
when its router is gone, unless its own frontend said that it has ended, or is out of reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fermata.foundation.units import NEVER, ms
from fermata.router.links.messages import (
    INPUT_LATE,
    Done,
    Fetch,
    Payload,
    Result,
    Returned,
    Run,
    frontend_of,
)

BATCHES_MAX = 2
FETCH_LIMIT_NS = ms(100)

Tensors = tuple[tuple[str, str, tuple[int, ...], bytes], ...]
"""(name, dtype, shape, data) of each output of one request."""


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
        "left_out",
        "orphan",
        "planned_at_ns",
        "ready_at_ns",
        "run",
    )

    def __init__(self, now_ns: int, run: Run) -> None:
        self.run = run
        self.arrived_at_ns = now_ns
        self.planned_at_ns = now_ns + run.start_in_ns
        self.awaited: set[int] = set(run.rids)
        """Requests whose input is still to come."""
        self.inputs: dict[int, Payload] = {}
        self.left_out: tuple[int, ...] = ()
        """Requests whose frontend was out of reach before it had sent their inputs."""
        self.ready_at_ns = 0
        self.begun = False
        """Handed to the executor: from here on only its end is waited for."""
        self.orphan = False
        """Its router is gone, and with it whoever would want to know of its end."""

    def payloads(self) -> list[Payload]:
        """The inputs, in the batch's order; what was left out is left out."""
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
    """To the frontend of the request."""

    frontend: int
    result: Result


@dataclass(frozen=True, slots=True)
class ReturnRequests:
    """To a frontend whose requests are not run."""

    frontend: int
    returned: Returned


@dataclass(frozen=True, slots=True)
class ReportDone:
    """To the router."""

    done: Done


@dataclass(frozen=True, slots=True)
class AnnounceReady:
    """Tell the router that this backend may be given batches."""


Effect = FetchInputs | StartBatch | SendResults | ReturnRequests | ReportDone | AnnounceReady


class BatchPipeline:
    """The state machine of one backend."""

    def __init__(self, fetch_limit_ns: int = FETCH_LIMIT_NS) -> None:
        self.fetch_limit_ns = fetch_limit_ns
        """An input this much later than its batch's planned start is not waited for."""
        self.jobs: list[PipelineJob] = []
        """In order; the first runs as soon as it can."""
        self.epoch = 0
        """The highest one met; an order of an older router is refused."""
        self.linked = False
        self.announced = False
        self.front: PipelineJob | None = None
        """The batch that the executor has at hand."""
        self.front_since_ns = 0
        self.effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        effects = self.effects
        self.effects = []
        return effects

    # The router

    def on_router_up(self, epoch: int) -> str | None:
        """A router is linked; returns why it is refused, or None."""
        if epoch < self.epoch:
            return f"router epoch {epoch} is stale: this backend has met {self.epoch}"
        self.on_router_down()
        self.epoch = epoch
        self.linked = True
        self._announce()
        return None

    def on_router_down(self) -> None:
        """What it ordered and has not begun is given back: it runs elsewhere, or is submitted anew.
        What runs goes on, and its results go out; frontends know what they still want."""
        self.linked = False
        self.announced = False
        for job in self.jobs:
            if not job.begun:
                for frontend, rids in by_frontend(job.run.rids).items():
                    self.effects.append(ReturnRequests(frontend, Returned(tuple(rids))))
        self.jobs = [job for job in self.jobs if job.begun]
        for job in self.jobs:
            job.orphan = True

    def _announce(self) -> None:
        # Not while an orphan runs: the new router would plan as if the backend were free.
        if self.linked and not self.announced and not self.jobs:
            self.announced = True
            self.effects.append(AnnounceReady())

    def on_run(self, now_ns: int, epoch: int, run: Run) -> str | None:
        """An order; returns why it is refused, or None."""
        if epoch < self.epoch:
            return f"router epoch {epoch} is stale: this backend has met {self.epoch}"
        if not self.announced:
            return f"batch {run.batch} came before this backend was ready"
        if len(self.jobs) >= BATCHES_MAX:
            return f"batch {run.batch} came while {BATCHES_MAX} others are here"
        if not run.rids or len(set(run.rids)) != len(run.rids):
            return f"batch {run.batch} is empty or has a request twice"
        job = PipelineJob(now_ns, run)
        self.jobs.append(job)
        for frontend, rids in by_frontend(run.rids).items():
            self.effects.append(FetchInputs(frontend, Fetch(run.batch, tuple(rids))))
        return None

    # Inputs

    def on_payload(self, now_ns: int, payload: Payload) -> None:
        """An input has come, or the word that it will not; late and unasked ones are ignored."""
        rid = payload.rid
        for job in self.jobs:
            if rid in job.awaited:
                job.awaited.discard(rid)
                if not payload.missing:
                    job.inputs[rid] = payload
                if not job.awaited:
                    self._advance(now_ns)
                return

    def on_frontend_down(self, now_ns: int, frontend: int) -> None:
        """What it has not sent yet is left out; the router hears of it, in case that it lives."""
        for job in self.jobs:
            gone = [rid for rid in job.awaited if frontend_of(rid) == frontend]
            job.awaited.difference_update(gone)
            job.left_out += tuple(gone)
        self._advance(now_ns)

    # Time

    def wake_at_ns(self) -> int:
        """When `on_time` wants to be called."""
        return min((self._give_up_at_ns(job) for job in self.jobs if job.awaited), default=NEVER)

    def _give_up_at_ns(self, job: PipelineJob) -> int:
        return job.planned_at_ns + self.fetch_limit_ns

    def on_time(self, now_ns: int) -> None:
        """Leave out inputs that are so late that they hold the others up."""
        for job in self.jobs:
            if job.awaited and self._give_up_at_ns(job) <= now_ns:
                for rid in sorted(job.awaited):
                    self._refuse(now_ns, job, rid, INPUT_LATE)
                job.awaited.clear()
        self._advance(now_ns)

    # Running

    def _advance(self, now_ns: int) -> None:
        """Begin, in order, every batch that has all it can get."""
        self._begin(now_ns)
        front = self.jobs[0] if self.jobs and self.jobs[0].begun else None
        if front is not self.front:
            self.front, self.front_since_ns = front, now_ns

    def overrun_ns(self, now_ns: int) -> int:
        """By how much the batch at hand has passed its plan; negative while it has not."""
        if self.front is None:
            return -NEVER
        return now_ns - self.front_since_ns - self.front.run.plan_ns

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
                # Nobody is left in it. Ends are told in order, so one that waits says so later.
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
    ) -> None:
        """A batch has run; `outputs` are in the order of `job.payloads()`, with the reason in
        place of those that could not be had."""
        job.ready_at_ns = max(job.ready_at_ns, staged_at_ns)
        payloads = job.payloads()
        size = len(payloads)
        queue_ns = max(0, started_at_ns - job.arrived_at_ns)
        for payload, output in zip(payloads, outputs, strict=True):
            rid = payload.rid
            if isinstance(output, str):
                self._refuse(now_ns, job, rid, output)
                continue
            result = Result(rid, job.run.variant, size, queue_ns, run_ns, output)
            self.effects.append(SendResults(frontend_of(rid), result))
        self._end(job, run_ns, "")
        self._advance(now_ns)

    def on_failed(self, now_ns: int, job: PipelineJob, run_ns: int, reason: str) -> None:
        """A batch gave no results."""
        for payload in job.payloads():
            self._refuse(now_ns, job, payload.rid, reason)
        self._end(job, run_ns, reason)
        self._advance(now_ns)

    def _refuse(self, now_ns: int, job: PipelineJob, rid: int, reason: str) -> None:
        if job.orphan:
            # Others may be about to run it: this is not the last word.
            self.effects.append(ReturnRequests(frontend_of(rid), Returned((rid,))))
            return
        queue_ns = now_ns - job.arrived_at_ns
        result = Result(rid, job.run.variant, len(job.run.rids), queue_ns, 0, error=reason)
        self.effects.append(SendResults(frontend_of(rid), result))

    def _end(self, job: PipelineJob, run_ns: int, failed: str) -> None:
        self.jobs.remove(job)
        if not job.orphan:
            late_ns = job.ready_at_ns - job.planned_at_ns
            done = Done(job.run.batch, run_ns, late_ns, failed, job.left_out)
            self.effects.append(ReportDone(done))
        self._announce()
