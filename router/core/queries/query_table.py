"""The query table: admits queries, makes the requests of their stages, and ends each once."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fermata.foundation.units import NEVER
from fermata.router.core.engine import Engine
from fermata.router.core.events import GOOD, DropReason, PartRequest, Request
from fermata.router.core.fairness.pool import Pool
from fermata.router.core.queries.aim import BatchAim
from fermata.router.core.queries.budgets import StageBudget, Timed, fit
from fermata.router.core.queries.door_shares import DoorShares
from fermata.router.core.queries.flow import RULES, Flow, QueryRules
from fermata.router.core.queries.group_turns import GroupTurns
from fermata.router.core.queries.newest import QueryStreams, WaitingQueries
from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.core.queries.query import Part, Query
from fermata.router.core.queries.rooms import Rooms
from fermata.router.core.queries.speeds import StageSpeeds
from fermata.router.core.queries.variants import StageVariants

__all__ = ["Part", "Query", "QueryTable"]
LEFT = (DropReason.CANCELLED, DropReason.MOVED)
"""Ends of queries that say nothing of the load."""


class QueryTable:
    """Queries beside an engine, whose requests are ordinary ones of its applications.

    The driver hands over the ends of requests: `on_done` with the fan-out of each result, `on_drop`
    of each `Drop` effect. Requests that are no part of a query are left alone.
    """

    chooses = True
    """It chooses variants for the stages that leave a choice."""

    def __init__(
        self,
        engine: Engine,
        pipelines: Sequence[Pipeline],
        serving: Sequence[int],
        new_rid: Callable[[], int],
        rules: QueryRules = RULES,
    ) -> None:
        """`serving`: the variant that runs each application; `new_rid` numbers requests."""
        self.engine = engine
        self.rules = rules
        self.new_rid = new_rid
        self.serving = serving
        self.flows = [Flow(each, rules.share_first, rules.room) for each in pipelines]
        self.budgets = {
            application: StageBudget(engine.costs.of(serving[application]).plan_ns)
            for application in sorted({each for one in pipelines for each in one.applications})
        }
        """By application that runs some stage."""
        for application in self.budgets:
            engine.ledger.count_parts(application)
        self.speeds = StageSpeeds(engine)
        self.variants = StageVariants(engine, self.flows, self.budgets, self.speeds)
        self.shares = DoorShares(engine, self.budgets)
        self.rooms = Rooms(engine, self.flows, self.budgets, self.speeds)
        self.choosing = False
        """Whether some stage leaves a choice."""
        self.queries: dict[int, Query] = {}
        """Those that have not ended, by number."""
        waiting = WaitingQueries(self.queries, engine.outbox.queued)
        self.streams = [QueryStreams(one, waiting) if one.newest else None for one in pipelines]
        """By pipeline: those of which only the newest query of a stream waits."""
        self.parts: dict[int, Part] = {}
        """Their requests, by number."""
        self.ended: list[Query] = []
        """Those that the driver has not taken yet."""
        self.plan_at_ns = -1
        self.turns = GroupTurns(pipelines, rules.planned)

    # Queries

    def on_query(self, now_ns: int, query: Query) -> None:
        """Let a query in, or refuse it at once."""
        assert query.qid not in self.queries
        assert not query.outcome
        flow = self.flows[query.pipeline]
        if now_ns >= self.plan_at_ns:
            self._plan(now_ns)
        flow.learn(now_ns, self.rules)
        if self.choosing:
            self._choose(now_ns, query, flow)
        self.queries[query.qid] = query
        streams = self.streams[query.pipeline]
        if streams is not None:
            query.frame = streams.admit(now_ns, query)
        its_turn = streams is not None and query.frame is None
        if its_turn or not self.admits(now_ns, query, flow):
            flow.refused += 1
            query.refused = True
            self._end(now_ns, query, DropReason.SHED)
            return
        if streams is not None and query.frame is not None:
            self._supersede(now_ns, streams.superseded(query.frame))
        flow.rate.on_arrival(now_ns)
        stages = len(flow.pipeline.stages)
        query.open, query.ended = [0] * stages, [0] * stages
        if flow.pipeline.called:
            query.called, query.rounds = [0] * stages, [0] * stages
            flow.running += 1
            return
        made: dict[int, list[Request]] = {}
        self._make(now_ns, query, 0, 1, -1, made)
        self._submit(now_ns, made)

    def _supersede(self, now_ns: int, qid: int | None) -> None:
        """Drop what a query has that waits: it ends with its first request, and a function with its
        calls."""
        query = None if qid is None else self.queries[qid]
        if query is not None and not query.parts:
            # A function whose calls have not begun.
            self._end(now_ns, query, DropReason.SUPERSEDED)
        for rid in sorted(query.parts) if query is not None else ():
            self.engine.withdraw(now_ns, rid, DropReason.SUPERSEDED)

    def on_calls(self, now_ns: int, calls: Sequence[tuple[int, int]]) -> None:
        """Functions of queries that have not ended call stages: (query, stage) each. What is called
        together may be one batch."""
        made: dict[int, list[Request]] = {}
        for qid, place in calls:
            query = self.queries[qid]
            assert query.called, "stages of a graph follow one another"
            query.rounds[place] += not query.open[place]
            self._make(now_ns, query, place, 1, -1, made)
            query.called[place] += 1
            self.flows[query.pipeline].called[place] += 1
        self._submit(now_ns, made)

    def on_return(self, now_ns: int, qid: int, outcome: str) -> bool:
        """The function of a query has ended, with an answer or without; false if the query has
        ended already. Whether the answer is in time is told, since it was made elsewhere."""
        query = self.queries.get(qid)
        if query is None:
            return False
        assert query.called, "a graph ends with its last request"
        self._end(now_ns, query, outcome)
        return True

    def on_cancel(self, now_ns: int, qid: int) -> bool:
        """The client has left; false if the query has ended already."""
        query = self.queries.get(qid)
        if query is None:
            return False
        self._end(now_ns, query, DropReason.CANCELLED)
        return True

    def forget(self, now_ns: int, pipeline: int) -> None:
        """Queries of a pipeline go on at another router. Their requests stay as they are: each
        stands alone from now on."""
        for query in [each for each in self.queries.values() if each.pipeline == pipeline]:
            for rid in sorted(query.parts):
                self._close(self.parts[rid])
            self._end(now_ns, query, DropReason.MOVED)

    def take_ended(self) -> list[Query]:
        """Queries that have ended since the last call, refused ones included."""
        taken, self.ended = self.ended, []
        return taken

    # Requests of their stages

    def on_done(self, now_ns: int, done: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Requests of one batch have ended with results, each with the requests that are made of it
        on each edge. To be told before the engine is: what comes next may want the same backend."""
        made: dict[int, list[Request]] = {}
        for rid, fan_out in done:
            part = self.parts.get(rid)
            if part is not None:
                self._close(part)
                part.query.ended[part.stage] += 1
                self._hand_on(now_ns, part, fan_out, made)
                self._go_on(now_ns, part.query, made)
        self._submit(now_ns, made)

    def _hand_on(
        self, now_ns: int, part: Part, fan_out: Sequence[int], made: dict[int, list[Request]]
    ) -> None:
        """Make the requests that follow one."""
        flow = self.flows[part.query.pipeline]
        stages = flow.pipeline.stages
        if not flow.pipeline.follows(part.stage):
            return
        for edge, child in enumerate(stages[part.stage].children):
            if not stages[child].join:
                flow.fan_outs[part.stage][edge].learn(fan_out[edge])
                self._make(now_ns, part.query, child, fan_out[edge], part.rid, made)

    def _submit(self, now_ns: int, made: dict[int, list[Request]]) -> None:
        for requests in made.values():
            self.engine.on_requests(now_ns, requests)

    def on_drop(self, now_ns: int, rid: int, reason: str) -> None:
        """A request has ended without a result: its query ends with it, or has a gap. A function
        hears of that, and says whether its query goes on."""
        part = self.parts.get(rid)
        if part is None:
            return
        query = part.query
        self._close(part)
        pipeline = self.flows[query.pipeline].pipeline
        if pipeline.called or (part.stage > 0 and pipeline.partial):
            query.missing += 1
            # A join is tried once: without a result it has ended, too.
            query.ended[part.stage] += pipeline.stages[part.stage].join
            made: dict[int, list[Request]] = {}
            self._go_on(now_ns, query, made)
            self._submit(now_ns, made)
        else:
            self._end(now_ns, query, reason)

    def _go_on(self, now_ns: int, query: Query, made: dict[int, list[Request]]) -> None:
        """Run the joins that nothing is awaited for; end the query where nothing is left."""
        pipeline = self.flows[query.pipeline].pipeline
        for place in pipeline.due_joins(query.open, query.ended) if pipeline.joins else ():
            self._make(now_ns, query, place, 1, -1, made)
        if not query.parts and not pipeline.called:
            in_time = now_ns <= query.deadline_ns
            self._end(now_ns, query, GOOD if in_time else DropReason.LATE)

    def _make(
        self,
        now_ns: int,
        query: Query,
        place: int,
        count: int,
        parent: int,
        made: dict[int, list[Request]],
    ) -> None:
        """Make requests of a stage; `made` collects them by application."""
        flow = self.flows[query.pipeline]
        application = flow.pipeline.stages[place].application
        deadline_ns, start_by_ns = self.dates(now_ns, query, place)
        if place == 0 and query.frame is not None:
            # Held for longer, it would be superseded by the next.
            start_by_ns = min(start_by_ns, query.frame.start_by_ns)
        query.open[place] += count
        flow.open[place] += count
        for _ in range(count):
            request = self.new_request(query, application, now_ns, deadline_ns)
            rid = request.rid
            request.start_by_ns = start_by_ns
            self.parts[rid] = Part(rid, query, place, parent, now_ns)
            query.parts.add(rid)
            made.setdefault(application, []).append(request)

    def new_request(self, query: Query, application: int, now_ns: int, deadline_ns: int) -> Request:
        """A request of a stage; drivers with more to say of it have their own."""
        request = PartRequest(self.new_rid(), application, now_ns, deadline_ns)
        request.client, request.priority = query.client, query.priority
        request.tenant = query.tenant
        return request

    def _close(self, part: Part) -> None:
        del self.parts[part.rid]
        query = part.query
        query.parts.discard(part.rid)
        query.open[part.stage] -= 1
        self.flows[query.pipeline].open[part.stage] -= 1

    def _end(self, now_ns: int, query: Query, outcome: str) -> None:
        """End a query once. Requests of it that wait are withdrawn; results of those that run are
        of no use any more."""
        assert not query.outcome, "a query ends once"
        query.outcome, query.ended_at_ns = outcome, now_ns
        del self.queries[query.qid]
        flow = self.flows[query.pipeline]
        if query.called:
            learns = outcome in (GOOD, DropReason.LATE)
            flow.on_calls_end(query.called, query.rounds, learns)
        if self.choosing and outcome not in LEFT:
            self.variants.on_end(outcome == GOOD)
        if outcome not in LEFT:
            flow.note_end(outcome == GOOD)
        if outcome == GOOD:
            flow.good += 1
            if self.choosing:
                flow.note_reached(query.ended)
        elif outcome not in LEFT and not query.refused:
            if any(query.ended):
                flow.lost += 1
            else:
                flow.waited += 1
        if query.frame is not None and outcome != GOOD:
            streams = self.streams[query.pipeline]
            if streams is not None:
                streams.on_lost(query.frame, outcome)
        for rid in sorted(query.parts):
            self._close(self.parts[rid])
            self.engine.withdraw(now_ns, rid, DropReason.CANCELLED)
        self.ended.append(query)

    # Time

    def dates(self, now_ns: int, query: Query, place: int) -> tuple[int, int]:
        """The deadline of a request at a stage, and when it is held no longer.

        The first is hard: after it, target batches of the stages behind would not end in time. The
        time to spare is shared among the stages that are left, by how long their batches fill.
        """
        flow = self.flows[query.pipeline]
        tail_ns, quickest_ns = flow.tail_ns[place], flow.quickest_ns[place]
        if query.called:
            tail_ns = quickest_ns = self._tail_ns(query, flow, place)
        run_ns = self.budgets[flow.pipeline.stages[place].application].run_ns
        spare_ns = max(0, query.deadline_ns - tail_ns - now_ns - run_ns)
        deadline_ns = query.deadline_ns - quickest_ns
        return deadline_ns, now_ns + int(spare_ns * flow.hold[place])

    def _tail_ns(self, query: Query, flow: Flow, place: int) -> int:
        """Run times of target batches that a function has still to call, as far as it usually goes
        on: of stages behind one, and of those again that it calls several times."""
        total_ns = 0
        for each, stage in enumerate(flow.pipeline.stages):
            if each >= place or query.rounds[each]:
                left = max(0, flow.times[each] - query.rounds[each])
                total_ns += left * self.budgets[stage.application].run_ns
        return total_ns

    def admits(self, now_ns: int, query: Query, flow: Flow) -> bool:
        """Whether a query is estimated to end within the share of its time that is learnt.

        Runs of its own count by half. Those of others that are under way are not counted, and are
        done by half on average. Some of that time is left to others by whoever has the most.
        """
        end_ns = self.wait_ns(flow) + 0.5 * flow.path_ns
        until_ns = flow.share * (query.deadline_ns - now_ns)
        fits = end_ns <= until_ns
        if end_ns > (1.0 - self.shares.rules.room) * until_ns:
            yields = self.shares.yields(now_ns, query)
            flow.yielded += yields
            fits = fits and not yields
        self.shares.count(not fits)
        return fits

    def wait_ns(self, flow: Flow) -> float:
        """Time until the backends have done what waits in a pipeline's stages, and what is
        expected to come out of it."""
        work_ns: dict[Pool, float] = {}
        sources = self.engine.sources
        for application, budget in self.budgets.items():
            source = sources[application]
            places = source.queued_places()
            if places:
                pool = source.pool
                work_ns[pool] = work_ns.get(pool, 0.0) + places * budget.work_ns
        for each in self.flows:
            if not (each.pipeline.called or any(each.open)):
                continue
            awaited = each.awaited()
            for place, stage in enumerate(each.pipeline.stages):
                if awaited[place]:
                    pool = sources[stage.application].pool
                    coming_ns = awaited[place] * each.after_ns[place]
                    work_ns[pool] = work_ns.get(pool, 0.0) + coming_ns
        pools = {sources[each].pool for each in flow.pipeline.applications}
        return sum(work_ns.get(pool, 0.0) / max(1, pool.backends) for pool in pools)

    def _plan(self, now_ns: int) -> None:
        """Choose the target batches anew, and tell the sources."""
        rules, budgets = self.rules, self.budgets
        self.plan_at_ns = now_ns + rules.plan_ns
        self.speeds.look(self.flows)
        for application, budget in budgets.items():
            budget.rps, budget.makers = 0.0, []
            budget.share, budget.quick_ns = 0.0, 0
            budget.use(self.speeds.cost(application, self.serving[application]))
        for flow in self.flows:
            flow.demand(budgets)
            if flow.pipeline.called:
                flow.unroll(budgets)
        self.rooms.look()
        timed = [(each.planned, int(each.room * each.pipeline.slo_ns)) for each in self.flows]
        self.choosing = self.chooses and self.variants.plan(now_ns, timed)
        if self.choosing:
            # All of them are chosen together, and all anew where there is no choice any more.
            self.turns.restart()
            self.plan_at_ns += (self.turns.rounds - 1) * rules.plan_ns
        else:
            self._fit(timed)
        for application, budget in budgets.items():
            if not (self.choosing and self.engine.sources[application].choices):
                serving = self.serving[application]
                budget.pace = self.speeds.pace(application, serving, budget.size)
        self._take_over()

    def _fit(self, timed: Timed) -> None:
        """Choose the batches of the pipelines whose turn it is, or whose batches cannot run."""
        unfit = {each for each, budget in self.budgets.items() if not budget.runs}
        urgent = [
            place
            for place, flow in enumerate(self.flows if unfit else ())
            if not unfit.isdisjoint(flow.pipeline.applications)
        ]
        some = [timed[place] for place in self.turns.take(urgent)]
        applications = sorted({each for pipeline, _ in some for each in pipeline.applications})
        fit(some, {each: self.budgets[each] for each in applications})

    def _choose(self, now_ns: int, query: Query, flow: Flow) -> None:
        """Serve cheaper variants before queries have to be refused, and better ones again."""
        flow.offered.on_arrival(now_ns)
        left_ns = query.deadline_ns - now_ns
        if self.variants.press(now_ns, flow, self.wait_ns(flow), left_ns):
            self.variants.serve()
            self._take_over()

    def _take_over(self) -> None:
        """Tell stages and sources of the target batches."""
        for flow in self.flows:
            flow.plan(self.budgets)
        self.aim()

    def aim(self) -> None:
        """Tell every source what its batches are to be."""
        firsts = {flow.pipeline.stages[0].application for flow in self.flows}
        ahead_ns = dict.fromkeys(self.budgets, NEVER)
        for flow in self.flows:
            for place, stage in enumerate(flow.pipeline.stages):
                before_ns = ahead_ns[stage.application]
                ahead_ns[stage.application] = min(before_ns, flow.head_ns[place])
        for application, budget in self.budgets.items():
            first = application in firsts
            size_max, window = self.limits(budget.size, first)
            aim = BatchAim(budget.size, size_max, window, ahead_ns[application], first)
            if self.choosing:
                aim = self._of_variants(application, aim)
            self.engine.sources[application].aim_at(aim)

    def _of_variants(self, application: int, aim: BatchAim) -> BatchAim:
        """The aim with the variants that are served; the same where there is no choice."""
        variant, *others = self.variants.variants(application) or (-1,)
        if not others:
            return replace(aim, variant=variant)
        budget = self.budgets[application]
        size = budget.other_size
        size_max, window = self.limits(size, aim.first)
        # Whoever leaves room for enough requests of the cheaper variant need not go.
        window = min(window, aim.window)
        other = replace(aim, variant=others[0], size=size, size_max=size_max, window=window)
        return replace(aim, variant=variant, share=budget.share, other=other)

    def limits(self, size: int, first: bool) -> tuple[int, int]:
        """The largest batch, and the window, for a target; `first`: of a first stage."""
        if not first:
            return NEVER, 1
        return max(1, int(self.rules.cap * size)), max(1, int(self.rules.window * size))
