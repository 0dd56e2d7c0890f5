"""Window scheduling as a source of bids: plans at each window's end, one lane a backend."""

from collections.abc import Sequence

from fermata.foundation.units import NEVER
from fermata.router.core.events import Batch, Estimate, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, Bid, Source, SourceContext, SourceTimer, own_lane
from fermata.router.policies.family import Family
from fermata.router.policies.sneakpeek.estimator import Estimator
from fermata.router.policies.sneakpeek.options import SneakPeekOptions, usual_window_ns
from fermata.router.policies.sneakpeek.penalty import load_penalty
from fermata.router.policies.sneakpeek.planner import Planning
from fermata.router.policies.sneakpeek.problem import Job, Schedule, Segment, Worker, batch_size
from fermata.router.policies.sneakpeek.worth import worth_at


class WindowScheduler(Source):
    """Requests of several applications wait for their window's end and are scheduled together with
    what earlier windows have left over. Backends run their line of segments in order."""

    owns_backends = True

    def __init__(self, families: Sequence[Family], options: SneakPeekOptions) -> None:
        self.options = options
        specs = [family.spec for family in families]
        self.window_ns = options.window_ns or usual_window_ns(specs)
        self.penalty = load_penalty("policy_options.penalty", options.penalty)
        self.variants: dict[int, Sequence[int]] = {
            family.application: family.variants for family in families
        }
        self.profiled = {family.application: _profiled(family) for family in families}
        self.barred = {family.application: _barred(family) for family in families}
        self.floors = {family.application: family.accuracy_floor for family in families}
        self.waiting: dict[int, Request] = {}
        """Everyone who has not been sent to a backend yet."""
        self.lines: dict[int, list[Segment]] = {}
        """The rest of the last plan, by backend; the backends that are up."""
        self.bids: dict[int, Bid] = {}
        self.sizes: dict[int, dict[tuple[int, int], int]] = {}
        """Batch sizes found before, by kind of backend."""
        self.planning: Planning | None = None
        self.changed = False
        """Something has come up since the last plan."""
        self.timer = SourceTimer(self)

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        self._find_fastest()

    def _find_fastest(self) -> None:
        """For each application: the shortest run of a request alone as planned now, its variant and
        its kind of backend, of those that are up and may serve."""
        kinds = sorted({self.desk.kind(backend) for backend in self.lines}) or [0]
        self.fastest: dict[int, tuple[int, int, int]] = {}
        for application, variants in self.variants.items():
            barred = self.barred[application]
            may = [each for local, each in enumerate(variants) if not barred or not barred[local]]
            self.fastest[application] = min(
                (self.costs.of(variant, kind).plan_ns[1], variant, kind)
                for variant in may or variants
                for kind in kinds
                if variant in self.costs.by_kind[kind]
            )

    # Events

    def on_request(self, now_ns: int, request: Request) -> Sequence[int]:
        self.waiting[request.rid] = request
        self._change(now_ns)
        return NO_LANES

    def on_update(self, now_ns: int, request: Request) -> Sequence[int]:
        estimate = request.estimate
        if estimate is not None and self._is_best_answer(request, estimate):
            self._forget(request)
            self.outbox.answer(request, estimate.label, estimate.label_accuracy)
        else:
            self._change(now_ns)
        return NO_LANES

    def _is_best_answer(self, request: Request, estimate: Estimate) -> bool:
        """Whether no variant could do better however soon it ran. No plan would run one then, so
        nothing is gained by waiting for the window's end."""
        options = self.options
        if not options.evidence or not options.short_circuit:
            return False
        better = estimate.label_accuracy > max(estimate.accuracies)
        return better and self._may_answer(request, estimate)

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        self._forget(request)
        return NO_LANES

    def _forget(self, request: Request) -> None:
        del self.waiting[request.rid]
        if not self.waiting:
            self.timers.disarm(self.timer)
            self.planning = None

    def on_backend(self, now_ns: int, backend: int, up: bool) -> Sequence[int]:
        if up:
            self.lines[backend] = []
            self.bids[backend] = Bid()
        else:
            self.lines.pop(backend, None)
            self.bids.pop(backend, None)
        if self.waiting:
            self._change(now_ns)
        return (own_lane(backend),)

    def _change(self, now_ns: int) -> None:
        self.changed = True
        if self.timer.stamp == 0:
            self._arm(now_ns)

    def _arm(self, now_ns: int) -> None:
        self.timers.arm(self.timer, self._window_end_ns(now_ns))

    def _window_end_ns(self, now_ns: int) -> int:
        window_ns = self.window_ns
        return (now_ns // window_ns + 1) * window_ns

    # Planning

    def on_time(self, now_ns: int) -> Sequence[int]:
        if self.planning is None:
            self._drop_hopeless(now_ns)
            if self.lines and self.changed and self.waiting:
                self.planning = self._start(now_ns)
        if self.planning is not None:
            if not self.planning.advance():
                # The rest in a moment: whoever is due meanwhile goes first.
                self.timers.arm(self.timer, now_ns + 1)
                return NO_LANES
            self._apply(self.planning.workers, self.planning.schedule)
            self.planning = None
        if self.waiting:
            self._arm(now_ns)
        return [own_lane(backend) for backend in self.lines]

    def _drop_hopeless(self, now_ns: int) -> None:
        self._find_fastest()
        for request in [*self.waiting.values()]:
            if now_ns + self.fastest[request.application][0] > request.expires_at_ns:
                self._drop(request)

    def _drop(self, request: Request) -> None:
        del self.waiting[request.rid]
        _, variant, kind = self.fastest[request.application]
        # Nobody starts before the first window's end.
        held_ns = self._window_end_ns(request.arrived_at_ns) - request.arrived_at_ns
        self.drop_late(request, variant, request.expires_at_ns - held_ns, kind)

    def _start(self, now_ns: int) -> Planning:
        self.changed = False
        jobs = [self._job(request) for request in self.waiting.values()]
        # Each batch meets its own lead at the grant; nobody is given up for another's.
        asking = {request.application for request in self.waiting.values()}
        ready_at_ns = now_ns + min(self.desk.lead_ns(1, each) for each in asking)
        workers = [self._worker(ready_at_ns, backend) for backend in self.lines]
        return Planning(now_ns, jobs, workers, self.variants, self.penalty, self.options)

    def _job(self, request: Request) -> Job:
        application, options = request.application, self.options
        estimate = request.estimate if options.evidence else None
        worths: Sequence[float] = self.profiled[application]
        instant, likely = 0.0, -1
        if estimate is not None:
            worths = estimate.accuracies
            likely = estimate.likely
            if options.short_circuit and self._may_answer(request, estimate):
                instant = estimate.label_accuracy
        elif options.evidence and request.accuracies is not None:
            worths = request.accuracies
        barred = self.barred[application]
        if barred:
            worths = [0.0 if out else each for each, out in zip(worths, barred, strict=True)]
        return Job(
            request.rid,
            application,
            request.arrived_at_ns,
            request.deadline_ns,
            request.expires_at_ns,
            worths,
            instant,
            likely,
        )

    def _may_answer(self, request: Request, estimate: Estimate) -> bool:
        """Whether the SneakPeek model may answer at all. It is none of the variants that a client
        insists on, and for the application's floor it counts as sure as both this look and looks
        as a rule are."""
        if estimate.label < 0 or request.allowed is not None:
            return False
        sure = min(estimate.classes[estimate.label], estimate.label_accuracy)
        return sure >= self.floors[request.application]

    def _worker(self, ready_at_ns: int, backend: int) -> Worker:
        desk, costs = self.desk, self.costs
        kind, held = desk.kind(backend), desk.resident(backend)
        # Others run in between where the backend is shared.
        factor = costs.backend_factor.get(backend, 1.0) / self.share
        tables: dict[int, list[int]] = {}
        for variant, cost in costs.by_kind[kind].items():
            if held is None or variant in held or variant in costs.swap_in_ns:
                plan_ns = cost.plan_ns
                tables[variant] = (
                    plan_ns if factor == 1.0 else [int(each * factor) for each in plan_ns]
                )
        free_at_ns = max(ready_at_ns, desk.free_at_ns(backend))
        sizes = self.sizes.setdefault(kind, {})
        return Worker(backend, free_at_ns, held, tables, costs.swap_in_ns, sizes)

    def _apply(self, workers: Sequence[Worker], schedule: Schedule) -> None:
        for worker, line in zip(workers, schedule.lines, strict=True):
            if worker.number in self.lines:
                self.lines[worker.number] = line
        # A request without a variant is looked at again at the next window's end.
        self.changed = self.changed or bool(schedule.left)
        for job in schedule.ended:
            request = self.waiting.get(job.key)
            if request is None:
                continue
            estimate = request.estimate
            if job.instant > 0.0 and estimate is not None:
                del self.waiting[request.rid]
                self.outbox.answer(request, estimate.label, estimate.label_accuracy)
            else:
                self._drop(request)

    # Bids and grants

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        backend = lane - own_lane(0)
        line = self.lines.get(backend)
        if line is None:
            return None
        segment = self._front(line)
        if segment is None:
            return None
        bid = self.bids[backend]
        bid.application = segment.application
        bid.size = 1
        bid.ripe_at_ns = now_ns
        bid.expires_at_ns = NEVER - 1
        bid.key = segment.jobs[0].deadline_ns if self.shares_backends else now_ns
        return bid

    def _front(self, line: list[Segment]) -> Segment | None:
        """The first segment with jobs that still wait; those before it are forgotten."""
        while line:
            segment = line[0]
            segment.jobs = [job for job in segment.jobs if job.key in self.waiting]
            if segment.jobs:
                return segment
            del line[0]
        return None

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        line = self.lines[slot.backend]
        segment = self._front(line)
        while segment is not None:
            if not slot.runs(segment.variant):
                # It went since the plan was made; its jobs wait for the next one.
                del line[0]
                self._change(now_ns)
            else:
                jobs = self._worth_running(now_ns, slot, segment)
                if jobs:
                    requests = [self.waiting.pop(job.key) for job in jobs]
                    return Batch(segment.variant, requests)
            segment = self._front(line)
        return None

    def _worth_running(self, now_ns: int, slot: Slot, segment: Segment) -> list[Job]:
        """The jobs of the next batch. Those that it would be too late for are dropped; those that
        may not run on this variant wait for the next plan."""
        table = self.costs.of(segment.variant, slot.kind).plan_ns
        size_max = slot.size_max(segment.variant)
        jobs = segment.jobs[: min(size_max, batch_size(table, len(segment.jobs)))]
        while jobs:
            end_ns = slot.start_at_ns + slot.plan_ns(segment.variant, len(jobs))
            kept = [job for job in jobs if self._worthy(job, segment, end_ns)]
            if len(kept) == len(jobs):
                break
            for job in jobs:
                if job in kept:
                    continue
                if job.worths[segment.local] <= 0.0 and end_ns <= job.expires_at_ns:
                    segment.jobs.remove(job)
                    self._change(now_ns)
                else:
                    self._drop(self.waiting[job.key])
            jobs = kept
        return jobs

    def _worthy(self, job: Job, segment: Segment, end_ns: int) -> bool:
        if end_ns > job.expires_at_ns:
            return False
        if self.options.run_worthless:
            return True
        return worth_at(job, segment.local, end_ns, self.penalty) > 0.0


def _profiled(family: Family) -> tuple[float, ...]:
    """The worth of each variant where nothing is known of a request."""
    accuracy = family.accuracy or (1.0,) * len(family.variants)
    if family.classes is None:
        return accuracy
    return Estimator(family.classes, accuracy, family.accuracy_floor).profiled.accuracies


def _barred(family: Family) -> list[bool]:
    """Which variants the application's accuracy floor bars; empty where none."""
    out = [each < family.accuracy_floor for each in family.accuracy]
    return out if any(out) else []
