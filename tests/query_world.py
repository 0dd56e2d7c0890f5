"""A small world for query tables: an engine with stages, whose backends run as planned."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import GOOD, Dispatch, Drop, DropReason
from fermata.router.core.queries.flow import RULES, QueryRules
from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.core.queries.query_table import Query, QueryTable
from fermata.router.policies.family import family_of
from fermata.router.policies.pipelines.stages import STAGES, StageThread
from fermata.router.policies.pipelines.variant_stages import VariantStage

FanOutOf = Callable[[int, int], int]
"""Requests that a result of a stage makes on an edge."""


FunctionOf = Callable[[Query], Sequence[int] | str]
"""A step of a query's function, where nothing of it is open: the stages that it calls now, or how
the query ends; empty: well, if it is in time."""


def return_at_once(query: Query) -> str:
    return ""


class QueryWorld:
    """Drives an engine and its query table, and keeps every end."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        backends: int = 1,
        fan_out: FanOutOf = lambda stage, edge: 1,
        rules: QueryRules = RULES,
        fixed_ms: float = 4.0,
        each_ms: float = 1.0,
        variants: Sequence[tuple[float, float]] = (),
        slower: Sequence[float] = (1.0,),
    ) -> None:
        """`variants`: of every application, run time over that of the first, and accuracy.
        `slower`: by kind of backend, its run times over those that are told. Backends are of the
        kinds in turn."""
        applications = 1 + max(each for one in pipelines for each in one.applications)
        costs = Costs()
        self.engine = Engine(costs)
        for number in range(applications):
            source: StageThread = StageThread(number, STAGES)
            own = tuple(range(number * len(variants), (number + 1) * len(variants)))
            for variant, (times, _) in zip(own, variants, strict=True):
                for kind, factor in enumerate(slower):
                    each = times * factor
                    table = [ms(each * (fixed_ms + each_ms * size)) for size in range(1, 33)]
                    costs.add(variant, table, kind=kind)
            if variants:
                accuracy = tuple(each for _, each in variants)
                family = family_of(number, f"stage-{number}", ms(1000), own, own[0], accuracy)
                source = VariantStage(family, STAGES)
            else:
                for kind, factor in enumerate(slower):
                    table = [ms(factor * (fixed_ms + each_ms * size)) for size in range(1, 33)]
                    costs.add(number, table, kind=kind)
            self.engine.add_application(source)
        self.made = 0
        serving = range(0, applications * max(1, len(variants)), max(1, len(variants)))
        self.table = QueryTable(self.engine, pipelines, serving, self._new_rid, rules=rules)
        self.fan_out = fan_out
        self.now_ns = 0
        self.runs: list[tuple[int, int, int]] = []
        """(when it ends, number of the batch, backend), earliest first."""
        self.batches = 0
        self.ran: list[list[int]] = []
        """Requests of each batch, as they were dispatched."""
        self.served_by: list[int] = []
        """The variant of each."""
        self.owners: dict[int, int] = {}
        """By request that was dispatched: its query; -1 where it had none."""
        self.drops: list[int] = []
        self.ends: dict[int, list[str]] = {}
        self.killed: set[int] = set()
        self.function: FunctionOf = return_at_once
        """The function of pipelines that have one."""
        self.minds_losses = False
        """A function that has lost a call ends at once, as one does that gathers calls."""
        for backend in range(backends):
            self.engine.on_backend_up(0, backend, backend % len(slower))

    def _new_rid(self) -> int:
        self.made += 1
        return self.made

    def send(
        self, qid: int, slo_ns: int, pipeline: int = 0, client: int = 0, tenant: int = 0
    ) -> Query:
        """A query arrives now."""
        until_ns = self.now_ns + slo_ns
        query = Query(qid, pipeline, self.now_ns, until_ns, client, tenant=tenant)
        self.table.on_query(self.now_ns, query)
        self._settle()
        return query

    def cancel(self, qid: int) -> bool:
        found = self.table.on_cancel(self.now_ns, qid)
        self._settle()
        return found

    def kill(self, backend: int) -> None:
        """A backend dies, and comes back at once under another number."""
        if backend in self.engine.backend_rank:
            self.killed.add(backend)
            self.engine.on_backend_down(self.now_ns, backend)
            self.engine.on_backend_up(self.now_ns, backend + 100)
            self._settle()

    def advance(self, until_ns: int) -> None:
        """Let time pass; runs end and timers fire in order."""
        while True:
            run_ns = self.runs[0][0] if self.runs else NEVER
            at_ns = min(run_ns, max(self.now_ns, self.engine.wake_at_ns()))
            if at_ns > until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = at_ns
            if run_ns <= at_ns:
                self._end_run()
            else:
                self.engine.on_time(at_ns)
            self._settle()

    def _end_run(self) -> None:
        _, number, backend = heappop(self.runs)
        if backend in self.killed:
            return
        running = self.engine.backend(backend).running
        assert running is not None
        done = []
        for rid in self.ran[number]:
            part = self.table.parts.get(rid)
            children = () if part is None else self._children(part.query.pipeline, part.stage)
            stage = 0 if part is None else part.stage
            done.append((rid, [self.fan_out(stage, edge) for edge in range(len(children))]))
        self.table.on_done(self.now_ns, done)
        self.engine.on_done(self.now_ns, backend, running.plan_ns)

    def _children(self, pipeline: int, stage: int) -> tuple[int, ...]:
        return self.table.flows[pipeline].pipeline.stages[stage].children

    def _settle(self) -> None:
        self._carry_out()
        while self._step():
            self._carry_out()
        for query in self.table.take_ended():
            self.ends.setdefault(query.qid, []).append(query.outcome)

    def _step(self) -> bool:
        """Let functions go on that wait for nothing; false where there are none."""
        for query in list(self.table.queries.values()) if self.minds_losses else ():
            if query.called and query.missing:
                assert self.table.on_return(self.now_ns, query.qid, DropReason.WINDOW)
        idle = [each for each in self.table.queries.values() if each.called and not each.parts]
        for query in idle:
            what = self.function(query)
            if isinstance(what, str):
                in_time = self.now_ns <= query.deadline_ns
                ended = what or (GOOD if in_time else DropReason.LATE)
                assert self.table.on_return(self.now_ns, query.qid, ended)
            else:
                self.table.on_calls(self.now_ns, [(query.qid, place) for place in what])
        return bool(idle)

    def _carry_out(self) -> None:
        while effects := self.engine.take_effects():
            for effect in effects:
                if isinstance(effect, Dispatch) and self.engine.is_current(effect):
                    self._begin_run(effect)
                elif isinstance(effect, Drop):
                    self.drops.append(effect.request.rid)
                    self.table.on_drop(self.now_ns, effect.request.rid, effect.reason)

    def _begin_run(self, effect: Dispatch) -> None:
        batch = effect.batch
        self.ran.append([request.rid for request in batch.requests])
        self.served_by.append(batch.variant)
        for request in batch.requests:
            part = self.table.parts.get(request.rid)
            self.owners[request.rid] = -1 if part is None else part.query.qid
        ends_at_ns = max(self.now_ns, batch.start_at_ns) + batch.plan_ns
        heappush(self.runs, (ends_at_ns, len(self.ran) - 1, effect.backend))
