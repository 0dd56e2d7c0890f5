"""The driver: one virtual clock, the production engine, an emulated cluster."""

import gc
import random
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.foundation.units import NEVER
from fermata.router.core.engine import Engine
from fermata.router.core.events import (
    Advise,
    Answer,
    Compute,
    Dispatch,
    Drop,
    DropReason,
    Request,
    rows_of,
)
from fermata.router.live.clients.allowed_variants import AllowedVariants
from fermata.simulator.arrivals import Arrivals, generate
from fermata.simulator.assembly import assemble, spreads
from fermata.simulator.cluster import COMPLETION, CONTROL, HAND_ON, START_FAULT, EmulatedCluster
from fermata.simulator.contents import Contents, draw_contents
from fermata.simulator.pipelines.play import PipelineLog, QueryPlay, is_good
from fermata.simulator.pipelines.rules import with_homes
from fermata.simulator.rows import draw_rows
from fermata.simulator.scaling import EpochLog, ScalingControl, WindowLog
from fermata.simulator.scenario.scenario import Scenario
from fermata.simulator.sequences import sequences_of
from fermata.simulator.shapes import spread, whole_variants
from fermata.simulator.uplinks import CameraFrame, Uplinks

Progress = Callable[[float], None]
PROGRESS_EVERY = 20_000
"""Events between two calls of the progress bar."""
CHUNK = 1 << 18
"""Arrivals unpacked at a time: a day of them as Python objects would fill the memory."""
Column = npt.NDArray[np.int64]
PENDING = 0
DROPPED = -1
NOT_SENT = "not-sent"
"""Its client thought that it would come too late."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """How every request ended, by its place in the arrivals; what reports are made of."""

    arrivals: Arrivals
    start_ns: Column
    """When its batch started; meaningless where it was dropped."""
    end_ns: Column
    """When its batch ended; `DROPPED` where it never ran."""
    variant: Column
    batch: Column
    """Its batch's place in `batches`; meaningless where it never ran."""
    reasons: dict[int, str]
    """Why, for each dropped request."""
    batches: list[tuple[int, int, int, int]]
    """(backend, start, end, size) of each batch."""
    accuracy: list[float | None]
    """By variant."""
    first_variant: list[int]
    """By application: the number of its first one."""
    answers: dict[int, int]
    """Requests answered at once, without a backend."""
    contents: Contents | None
    """Contents of the requests; None where nobody looks."""
    wall_s: float
    cpu_s: float
    allocated_ns: int = 0
    """Backend time from the start of warm-up, start-up and last batches included."""
    windows: tuple[WindowLog, ...] = ()
    """Windows that the autoscaler saw, with its advice."""
    plans: tuple[EpochLog, ...] = ()
    pipelines: PipelineLog | None = None
    """How queries ended, where there are pipelines."""


class Driver:
    """Feeds one engine with arrivals, completions, faults and timers in order of time."""

    def __init__(
        self,
        scenario: Scenario,
        progress: Progress | None = None,
        arrivals: Arrivals | None = None,
        contents: Contents | None = None,
    ) -> None:
        """`arrivals` and `contents` take the place of those that the scenario describes."""
        scenario = with_homes(scenario)
        self.progress = progress
        self.given = scenario, generate(scenario) if arrivals is None else arrivals
        """Applications and requests as the file has them: logs are in its terms."""
        self.scenario, self.arrivals = spread(*self.given)
        scenario = self.scenario
        self.contents = draw_contents(scenario, self.arrivals) if contents is None else contents
        assembly = assemble(scenario, self.arrivals.weights)
        self.engine: Engine = assembly.engine
        self.router = assembly.router
        self.ownership = assembly.ownership
        self.families = assembly.families
        self.allowed = self._wishes()
        self.cluster = self._cluster()
        count = len(self.arrivals.at_ns)
        self.start_ns = array("q", bytes(8 * count))
        self.end_ns = array("q", bytes(8 * count))
        self.variant = array("q", bytes(8 * count))
        self.batch = array("q", bytes(8 * count))
        self.answers: dict[int, int] = {}
        self.reasons: dict[int, str] = {}
        self.batches: list[tuple[int, int, int, int]] = []
        costs, families = self.engine.costs, self.router.families
        sizes_max = [costs.of(family.serving).size_max for family in families]
        self.rows = draw_rows(scenario, self.arrivals, sizes_max)
        """By request; None: all have one."""
        self.sequences = sequences_of(scenario.applications)
        self.uplinks = self._uplinks()
        self.reply_ns = scenario.network.round_trip_ns // 2 if scenario.network else 0
        self.sent_side: dict[int, int] = {}
        """By request, where frames are sized by their clients."""
        self.sides = [
            variant.input_size for each in scenario.applications for variant in each.variants
        ]
        self.queries = self._pipelines()
        self.control: ScalingControl | None = None
        if scenario.scales:
            counted = dict if self.queries is None else self.queries.counts
            given = self.engine, self.ownership, self.cluster.enter_control
            self.control = ScalingControl(scenario, *given, counted)

    def _cluster(self) -> EmulatedCluster:
        scenario = self.scenario
        return EmulatedCluster(
            scenario.backends,
            self.engine.costs,
            scenario.dispatch_ns,
            scenario.jitter,
            scenario.faults,
            scenario.warmup_ns,
            random.Random(f"{scenario.seed} execution"),
            scenario.variation,
            spreads(scenario) if scenario.draw == "profile" else None,
            scenario.kind_of,
            (scenario.slow_share, scenario.slow_factor),
            scenario.fetch_ns,
        )

    def _pipelines(self) -> QueryPlay | None:
        if not self.scenario.pipelines:
            return None
        serving = [family.serving for family in self.families]
        return QueryPlay(self.scenario, self.engine, serving, self._new_rid)

    def _new_rid(self) -> int:
        """Number one more request, of a query; it is kept behind all that arrives."""
        for column in (self.start_ns, self.end_ns, self.variant, self.batch):
            column.append(0)
        return len(self.end_ns) - 1

    def _uplinks(self) -> Uplinks | None:
        scenario = self.scenario
        if scenario.network is None:
            return None
        rng = random.Random(f"{scenario.seed} network")
        return Uplinks(scenario.network, scenario.applications, rng)

    def _wishes(self) -> dict[int, frozenset[int]]:
        """By client, where it has any: the variants that may serve it."""
        wishes = AllowedVariants(self.router.families, self.router.variants)
        found: dict[int, frozenset[int]] = {}
        client = 1
        for number, application in enumerate(self.scenario.applications):
            for group in application.clients:
                allowed = wishes.allowed(number, group.accuracy_floor, group.pinned)
                if allowed is not None:
                    found.update(dict.fromkeys(range(client, client + group.count), allowed))
                client += group.count
        return found

    def run(self) -> RunLog:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        # The core makes no cycles, and looking for some takes a tenth of the time.
        gc.disable()
        try:
            self._loop()
        finally:
            gc.enable()
        count = len(self.arrivals.at_ns)
        end_ns = np.array(self.end_ns[:count], np.int64)
        for rid in np.flatnonzero(end_ns == PENDING).tolist():
            # It waits on a backend that hangs for ever, or for one that never came.
            end_ns[rid] = DROPPED
            self.reasons[rid] = DropReason.LOST
        control, (scenario, arrivals) = self.control, self.given
        whole = whole_variants(scenario.applications)
        first = np.cumsum([0, *(len(each.variants) for each in scenario.applications)])
        end = self.scenario.warmup_ns + self.scenario.duration_ns
        return RunLog(
            arrivals,
            np.array(self.start_ns[:count], np.int64),
            end_ns,
            np.array(whole, np.int64)[np.array(self.variant[:count], np.int64)],
            np.array(self.batch[:count], np.int64),
            {rid: reason for rid, reason in self.reasons.items() if rid < count},
            self.batches,
            [variant.accuracy for each in scenario.applications for variant in each.variants],
            first[:-1].tolist(),
            self.answers,
            self.contents,
            time.perf_counter() - wall_s,
            time.process_time() - cpu_s,
            self.scenario.backends * end if control is None else control.backends.allocated_ns,
            () if control is None else tuple(control.windows),
            () if control is None else tuple(control.plans),
            None if self.queries is None else self.queries.log,
        )

    def _loop(self) -> None:
        engine, cluster, outbox = self.engine, self.cluster, self.engine.outbox
        arrivals, uplinks = self.arrivals, self.uplinks
        count = len(arrivals.at_ns)
        hard_limit_ns = self._begin()
        index = events = now_ns = first = last = peeked = 0
        at_ns = [NEVER]
        peek_ns, peek_rid = self._peeks()
        while True:
            if index == last and index < count:
                first, last = last, min(count, last + CHUNK)
                at_ns, application, client, slo_ns, priority = self._columns(first, last)
            # At one instant: first what has ended, then what arrives, then the timers.
            here = index - first
            arrival_ns, agenda_ns = at_ns[here], cluster.next_ns()
            wake_ns = engine.wake_at_ns()
            uplink_ns = NEVER if uplinks is None else uplinks.next_ns()
            if uplinks is not None and uplink_ns < min(arrival_ns, agenda_ns, wake_ns):
                now_ns = uplink_ns
                self._on_uplink(now_ns, uplinks)
            elif peek_ns[peeked] <= min(wake_ns, agenda_ns) and peek_ns[peeked] < arrival_ns:
                now_ns = peek_ns[peeked]
                self._on_evidence(now_ns, peek_rid[peeked])
                peeked += 1
            elif agenda_ns <= arrival_ns and agenda_ns <= wake_ns:
                now_ns = agenda_ns
                if now_ns >= NEVER:
                    break
                self._on_agenda(now_ns)
            elif arrival_ns <= wake_ns:
                now_ns = arrival_ns
                number = application[here]
                if number >= len(hard_limit_ns):
                    who = client[here], priority[here]
                    self._on_query(now_ns, index, number, slo_ns[here], who)
                elif uplinks is None:
                    deadline_ns = now_ns + slo_ns[here]
                    expires_at_ns = max(deadline_ns, now_ns + hard_limit_ns[number])
                    who = client[here], priority[here]
                    request = Request(index, number, now_ns, deadline_ns, expires_at_ns, *who)
                    request.rows = 1 if self.rows is None else self.rows[index]
                    if self.allowed or self.sequences is not None:
                        self._add_wishes(request)
                    engine.on_request(now_ns, request)
                elif not uplinks.capture(now_ns, index, client[here]):
                    self._not_sent(index)
                index += 1
            else:
                now_ns = max(now_ns, wake_ns)
                if index >= count and not outbox.queued and agenda_ns >= NEVER <= uplink_ns:
                    # Only a policy that plans again and again still has a timer.
                    break
                engine.on_time(now_ns)
            while outbox.effects:
                self._carry_out(now_ns)
            events += 1
            if self.progress is not None and events % PROGRESS_EVERY == 0:
                self.progress(index / max(1, count))
        if self.control is not None:
            self.control.finish(now_ns)

    def _on_query(
        self, now_ns: int, qid: int, number: int, slo_ns: int, who: tuple[int, int]
    ) -> None:
        assert self.queries is not None
        self.queries.arrive(now_ns, qid, number, slo_ns, *who)
        self._end_queries(self.queries)

    def _not_sent(self, rid: int) -> None:
        self.end_ns[rid] = DROPPED
        self.reasons[rid] = NOT_SENT

    def _end_queries(self, queries: QueryPlay) -> None:
        """Note queries that have ended where arrivals are noted. They have no batch of their own:
        their requests have."""
        for query in queries.take_ended():
            assert self.end_ns[query.qid] == PENDING, f"query {query.qid} ended twice"
            answered = is_good(query) or query.ended_at_ns > query.deadline_ns
            self.start_ns[query.qid] = query.ended_at_ns
            self.end_ns[query.qid] = query.ended_at_ns if answered else DROPPED
            if not answered:
                self.reasons[query.qid] = query.outcome

    def _begin(self) -> list[int]:
        """Prepare uplinks and control; returns the hard limit of each application."""
        hard_limit_ns = [each.limit_ns for each in self.scenario.applications]
        if self.uplinks is not None:
            # Frames come out of their uplinks in another order.
            self.columns = (*self._columns(0, len(self.arrivals.at_ns))[1:], hard_limit_ns)
        if self.control is not None:
            self.control.begin(self.scenario.backends)
        return hard_limit_ns

    def _columns(
        self, first: int, last: int
    ) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        """Time, application, client, SLO and priority of some arrivals, and `NEVER` behind the
        times. Lists are read the fastest."""
        arrivals = self.arrivals
        return (
            [*arrivals.at_ns[first:last].tolist(), NEVER],
            arrivals.application[first:last].tolist(),
            arrivals.client[first:last].tolist(),
            arrivals.slo_ns[first:last].tolist(),
            arrivals.priority[first:last].tolist(),
        )

    def _peeks(self) -> tuple[list[int], list[int]]:
        """When evidence is there, ascending, and of which request."""
        if self.contents is None or not self.contents.votes:
            return [NEVER], []
        there_ns = self.arrivals.at_ns + self.contents.delay_ns
        order = np.argsort(there_ns, kind="stable")
        return [*there_ns[order].tolist(), NEVER], order.tolist()

    def _on_evidence(self, now_ns: int, rid: int) -> None:
        assert self.contents is not None
        votes = self.contents.votes[rid]
        if votes is not None:
            self.router.on_votes(now_ns, rid, votes)

    def _on_uplink(self, now_ns: int, uplinks: Uplinks) -> None:
        subject = uplinks.pop()
        if isinstance(subject, CameraFrame):
            uplinks.arrived(now_ns, subject)
            self.sent_side[subject.rid] = subject.side
            self.engine.on_report(now_ns, self.columns[0][subject.rid], subject.report)
            self._request(now_ns, subject)
        else:
            uplinks.heard(now_ns, subject)

    def _request(self, now_ns: int, frame: CameraFrame) -> None:
        """The request is at the server, whose deadline is what the client says is left."""
        application, client, slo_ns, priority, hard_limit_ns = self.columns
        rid = frame.rid
        number = application[rid]
        deadline_ns = now_ns + frame.left_ns
        expires_at_ns = max(deadline_ns, deadline_ns + hard_limit_ns[number] - slo_ns[rid])
        who = client[rid], priority[rid]
        request = Request(rid, number, now_ns, deadline_ns, expires_at_ns, *who)
        self._add_wishes(request)
        self.engine.on_request(now_ns, request)

    def _add_wishes(self, request: Request) -> None:
        """Add what the client of a request asks for: variants, and its place in a sequence."""
        request.allowed = self.allowed.get(request.client)
        if self.sequences is not None:
            request.sequence = self.sequences.step(request.application, request.client)

    def _on_agenda(self, now_ns: int) -> None:
        kind, subject, incarnation = self.cluster.pop()
        if kind == COMPLETION:
            if not self.cluster.stale(subject, incarnation):
                batch, started_at_ns, run_ns = self.cluster.complete(now_ns, subject)
                self._record(now_ns, subject, batch.requests, started_at_ns)
                if self.queries is not None:
                    if self.queries.on_done(now_ns, batch, started_at_ns, run_ns):
                        self.cluster.enter_hand_on(now_ns + self.scenario.hand_on_ns)
                    self._end_queries(self.queries)
                self.engine.on_done(now_ns, subject, run_ns)
                if self.control is not None:
                    self.control.on_done(now_ns, subject, batch)
        elif kind == HAND_ON:
            assert self.queries is not None
            self.queries.hand_on(now_ns)
            self._end_queries(self.queries)
        elif kind == CONTROL:
            assert self.control is not None
            self.control.on_agenda(now_ns, subject, incarnation)
        elif kind == START_FAULT:
            fault = self.cluster.begin_fault(now_ns, subject)
            if fault.kind == "crash":
                self.ownership.release(fault.backend)
                self.engine.on_backend_down(now_ns, fault.backend)
        else:
            fault = self.cluster.end_fault(subject)
            if fault.kind == "crash":
                owner = self.ownership.take(fault.backend)
                kind, resident = self.cluster.kind(fault.backend), self.scenario.resident
                rank = self.scenario.place_of(fault.backend)
                self.engine.on_backend_up(now_ns, fault.backend, kind, rank, owner, resident)

    def _record(
        self, now_ns: int, backend: int, requests: list[Request], started_at_ns: int
    ) -> None:
        start_ns, end_ns, batch = self.start_ns, self.end_ns, self.batch
        number = len(self.batches)
        for request in requests:
            batch[request.rid] = number
            assert end_ns[request.rid] == PENDING, f"request {request.rid} ended twice"
            start_ns[request.rid] = started_at_ns
            end_ns[request.rid] = now_ns + self.reply_ns
            if self.uplinks is not None:
                self.uplinks.answered(now_ns, request.rid)
        self.batches.append((backend, started_at_ns, now_ns, rows_of(requests)))

    def _carry_out(self, now_ns: int) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Dispatch):
                variant = self.variant
                for request in effect.batch.requests:
                    variant[request.rid] = self._as_good_as(request, effect.batch.variant)
                self.cluster.accept(now_ns, effect.backend, effect.batch)
                if self.queries is not None:
                    self.queries.on_dispatch(effect.batch)
            elif isinstance(effect, Drop):
                rid = effect.request.rid
                assert self.end_ns[rid] == PENDING, f"request {rid} ended twice"
                self.end_ns[rid] = DROPPED
                self.reasons[rid] = effect.reason
                if self.queries is not None:
                    self.queries.table.on_drop(now_ns, rid, effect.reason)
                    self._end_queries(self.queries)
                if self.sequences is not None:
                    self.sequences.on_drop(effect)
                if self.uplinks is not None:
                    self.uplinks.answered(now_ns, rid)
            elif isinstance(effect, Advise) and self.uplinks is not None:
                self.uplinks.advise(effect)
            elif isinstance(effect, Compute):
                # On the virtual clock, thinking takes no time.
                self.engine.on_computed(now_ns, effect.application, effect.work())
            elif isinstance(effect, Answer):
                rid = effect.request.rid
                assert self.end_ns[rid] == PENDING, f"request {rid} ended twice"
                self.start_ns[rid] = now_ns
                self.end_ns[rid] = now_ns
                self.answers[rid] = effect.label

    def _as_good_as(self, request: Request, variant: int) -> int:
        """The variant whose accuracy the answer has: a frame smaller than the variant's input
        is worth no more than the largest variant that it would fill."""
        side = self.sent_side.get(request.rid, 0)
        if side == 0 or side >= self.sides[variant]:
            return variant
        family = self.families[request.application].variants
        smaller = [each for each in family if self.sides[each] <= side]
        return max(smaller, key=lambda each: self.sides[each], default=variant)


def simulate(scenario: Scenario, progress: Progress | None = None) -> RunLog:
    """Run a scenario to the end of its last request."""
    return Driver(scenario, progress).run()
