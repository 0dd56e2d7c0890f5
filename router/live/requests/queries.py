"""Queries of a live router: a driver of the query table within that of the engine.

Frontends make the inputs of the stages that follow. They submit those, and then say that the
result has been handed on (`HandedOn`), which is when the query table hears of its end. A stage
that nothing follows has ended with its batch. So has one that a function calls, whose end is told
in the same way: by the id of its query.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from fermata.foundation.learnt_time import LearntTime
from fermata.router.assembly import Assembly
from fermata.router.core.events import (
    GOOD,
    Batch,
    Drop,
    DropReason,
    Request,
    rows_of,
)
from fermata.router.core.outbox import FOR_WANT
from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.core.queries.query_table import Part, Query
from fermata.router.links.messages import Dropped, HandedOn, QueryPart, Submit, frontend_of
from fermata.router.live.fleet.fleet import Fleet
from fermata.router.live.fleet.peers import LinkPeer
from fermata.router.live.requests.made_parts import in_order
from fermata.router.live.requests.submitted_table import SubmittedTable

DIED: Final = frozenset((DropReason.LOST, DropReason.HUNG))
"""Ends of requests whose backend was lost."""
Refuse = Callable[[int, Request, str], None]


class StageTimes:
    """Requests of a stage that have run, their time since they came, and that of backends."""

    __slots__ = ("busy_ns", "results", "took_ns")

    def __init__(self) -> None:
        self.results = self.took_ns = 0
        self.busy_ns = 0.0


class LiveQueries:
    """Tells a query table what frontends and backends say of its requests."""

    def __init__(self, built: Assembly, fleet: Fleet, refuse: Refuse) -> None:
        """`refuse` answers a request that never enters a queue."""
        self.engine = built.engine
        self.fleet = fleet
        self.refuse = refuse
        pipelines = built.config.pipelines
        self.numbers = {name: number for number, name in enumerate(pipelines)}
        serving = [family.serving for family in built.families]
        graphs = list(pipelines.values())
        self.table = SubmittedTable(self.engine, graphs, serving, _unnumbered).attach(fleet)
        self.arrived: dict[int, list[Submit]] = {}
        """By part whose result has not been handed on yet: what was submitted of it."""
        self.waiting: set[int] = set()
        """Ids of all that has arrived so."""
        self.doubts: dict[int, str] = {}
        """By query: why a part of it was dropped that may have its result all the same."""
        self.calling: list[Submit] = []
        """Calls of functions that have come with the messages that are being read."""
        self.handed: dict[int, tuple[list[Submit], list[int]]] = {}
        """By part whose result has been handed on with these messages: what was made of it, and
        how much on each edge."""
        self.ran_last: dict[int, Part] = {}
        """By query with a function: the call whose batch ended last, until another call comes."""
        self.hand_on = {application: LearntTime() for application in self.table.budgets}
        """By application: time from the end of a batch to the requests made of its results."""
        self.outcomes: list[dict[str, int]] = [{} for _ in graphs]
        """By pipeline: ends of queries."""
        self.ran = [[StageTimes() for _ in each.stages] for each in graphs]
        """By pipeline and stage."""
        self.spent_ns: dict[int, float] = {}
        """By query: backend time that has gone into it."""
        self.wasted_ns = [0.0] * len(graphs)
        """By pipeline: the same in vain, of queries that ended without a good answer."""

    def pipeline_of(self, part: Part) -> Pipeline:
        return self.table.flows[part.query.pipeline].pipeline

    # Frontends

    def on_submit(self, now_ns: int, submit: Submit) -> bool:
        """Take a request that is part of a query; false where there is no such pipeline."""
        part = submit.part
        assert part is not None
        if part.pipeline not in self.numbers:
            return False
        if self.table.flows[self.numbers[part.pipeline]].pipeline.called:
            return self._on_call(now_ns, submit, part)
        if part.parent >= 0:
            self.arrived.setdefault(part.parent, []).append(submit)
            self.waiting.add(submit.rid)
            return True
        self.table.coming.append(submit)
        try:
            self._admit(now_ns, submit.rid, submit, 0)
            assert not self.table.coming
        finally:
            # Or the next query would be taken for this one.
            self.table.coming.clear()
        self._note_ends()
        return True

    def on_siblings(self, parts: Sequence[Submit]) -> bool:
        """Take parts of one result, of which nothing is known here but for what has arrived; false
        where each is to be taken by itself."""
        part = parts[0].part
        number = -1 if part is None else self.numbers.get(part.pipeline, -1)
        if part is None or number < 0 or part.parent < 0:
            return False
        if self.table.flows[number].pipeline.called:
            return False
        rids = [each.rid for each in parts]
        if not self.waiting.isdisjoint(rids):
            return False
        self.arrived.setdefault(part.parent, []).extend(parts)
        self.waiting.update(rids)
        return True

    def _admit(self, now_ns: int, qid: int, submit: Submit, stage: int) -> bool:
        """Let a query in, or refuse its first request, which is of this stage."""
        assert submit.part is not None
        table, number = self.table, self.numbers[submit.part.pipeline]
        who = submit.client, submit.priority, submit.tenant
        query = Query(qid, number, now_ns, now_ns + submit.slo_ns, *who)
        table.on_query(now_ns, query)
        if query.refused:
            application = table.flows[number].pipeline.stages[stage].application
            request = table.new_request(query, application, now_ns, query.deadline_ns)
            self.refuse(now_ns, request, DropReason.SHED)
        return not query.refused

    def _on_call(self, now_ns: int, submit: Submit, part: QueryPart) -> bool:
        """A query's function calls a stage: the first time that it does so, its query is let in or
        refused. What is called together is passed on together, by `pass_on`."""
        table, qid = self.table, part.query
        query, flow = table.queries.get(qid), table.flows[self.numbers[part.pipeline]]
        fits = query is None or table.flows[query.pipeline] is flow
        if qid < 0 or not fits or not 0 <= part.stage < len(flow.pipeline.stages):
            return False
        ran = self.ran_last.pop(qid, None)
        if ran is not None:
            self._learn(now_ns, ran)
        if part.parent < 0 and query is None:
            table.coming.append(submit)
            try:
                is_open = self._admit(now_ns, qid, submit, part.stage)
            finally:
                table.coming.clear()
            self._note_ends()
            if not is_open:
                return True
        self.calling.append(submit)
        return True

    def pass_on(self, now_ns: int, link: LinkPeer) -> None:
        """Begin what has come with the messages so far."""
        if self.handed:
            self._begin_handed(now_ns, link)
        if self.calling:
            self._begin_calls(now_ns, link)

    def _begin_handed(self, now_ns: int, link: LinkPeer) -> None:
        """End the parts whose results have been handed on, and begin all that is made of them at
        once: results of one batch are to have a batch together again."""
        table, handed = self.table, self.handed
        self.handed = {}
        done: list[tuple[int, Sequence[int]]] = []
        for rid, (coming, fan_out) in handed.items():
            self.waiting.difference_update([each.rid for each in coming])
            part = table.parts.get(rid)
            if part is None:
                # A newer frame of its stream has come meanwhile.
                for each in coming:
                    self._drop_unread(link, each)
                continue
            self.doubts.pop(part.query.qid, None)
            self._learn(now_ns, part)
            table.coming.extend(coming)
            done.append((rid, fan_out))
        try:
            table.on_done(now_ns, done)
            assert not table.coming
        finally:
            table.coming.clear()
        self._note_ends()

    def _begin_calls(self, now_ns: int, link: LinkPeer) -> None:
        """Begin the calls that have come. Nothing is left of those whose query has ended, of which
        their frontend has heard."""
        calls: list[tuple[int, int]] = []
        for each in self.calling:
            assert each.part is not None
            if each.part.query in self.table.queries:
                self.table.coming.append(each)
                calls.append((each.part.query, each.part.stage))
            else:
                self._drop_unread(link, each)
        self.calling.clear()
        try:
            self.table.on_calls(now_ns, calls)
            assert not self.table.coming
        finally:
            self.table.coming.clear()

    def stages_of(self, submit: Submit) -> Collection[int]:
        """Applications that a query needs; none where a request is not one."""
        part = submit.part
        if part is None or part.parent >= 0 or part.pipeline not in self.numbers:
            return ()
        return self.table.flows[self.numbers[part.pipeline]].pipeline.applications

    def on_handed_on(self, now_ns: int, link: LinkPeer, message: HandedOn) -> bool:
        """End a part, and begin what was submitted of it, with `pass_on`; false where that does
        not fit."""
        query = self.table.queries.get(message.rid)
        if query is not None and query.called:
            self.pass_on(now_ns, link)
            self.table.on_return(now_ns, message.rid, message.lost or GOOD)
            self._note_ends()
            return True
        submits = self.arrived.pop(message.rid, [])
        self.waiting.difference_update([each.rid for each in submits])
        given_up = [each for each in submits if each.rid in self.table.given_up]
        if self._comes_after(message, given_up):
            self._begin_handed(now_ns, link)
        # Its backend may have died after it gave the result: it waits for another one in vain.
        self.engine.on_cancel(now_ns, message.rid)
        part = self.table.parts.get(message.rid)
        if part is None:
            # Its query has ended here, and its frontend hears of that, or has.
            for each in submits:
                self.table.given_up.discard(each.rid)
                self._drop_unread(link, each)
            return True
        made = in_order(self.pipeline_of(part), part, submits, bool(message.lost))
        if made is None:
            self.table.given_up.difference_update([each.rid for each in given_up])
            return False
        if not message.lost:
            self.handed[message.rid] = made
            self.waiting.update([each.rid for each in made[0]])
            if given_up:
                self._begin_handed(now_ns, link)
        else:
            self.table.coming.extend(made[0])
            self.table.on_drop(now_ns, message.rid, message.lost)
            for each in self.table.coming:
                self._drop_unread(link, each)
            self.table.coming.clear()
            self._note_ends()
        for each in given_up:
            self.table.given_up.remove(each.rid)
            self._drop_unread(link, each)
            self.on_cancel(now_ns, each.rid)
            self._lose(now_ns, each.rid, DropReason.CANCELLED)
        return True

    def _comes_after(self, message: HandedOn, given_up: Collection[Submit]) -> bool:
        """Whether what was handed on before has to begin first."""
        if message.lost or given_up or message.rid in self.handed:
            return True
        part = self.table.parts.get(message.rid)
        if part is None or not self.pipeline_of(part).joins:
            return False
        # A join is due when the last part before it ends.
        others = [self.table.parts.get(each) for each in self.handed]
        return any(each is not None and each.query is part.query for each in others)

    def _drop_unread(self, link: LinkPeer, submit: Submit) -> None:
        unread = submit.payload is not None
        self.fleet.send(link, Dropped(submit.rid, DropReason.CANCELLED, unread=unread))

    def on_cancel(self, now_ns: int, rid: int) -> None:
        """Its client has left, and the query ends; or a part is given up by a function or where
        answers may have gaps, which is dropped alone."""
        if rid in self.waiting:
            self.table.given_up.add(rid)
            return
        part = self.table.parts.get(rid)
        if part is not None and rid != part.query.qid:
            pipeline = self.pipeline_of(part)
            if pipeline.partial or pipeline.called:
                return
        self.table.on_cancel(now_ns, rid if part is None else part.query.qid)
        self._note_ends()

    def on_away(self, now_ns: int, away: Collection[int]) -> None:
        """These applications live at other routers now, and so do queries that need them. Parts
        that wait for a result to be handed on are handed back; the engine has the others."""
        flows = enumerate(self.table.flows)
        gone = [at for at, each in flows if not each.pipeline.applications.isdisjoint(away)]
        for number in gone:
            self.table.forget(now_ns, number)
        self._note_ends()
        for parent, (first, *others) in list(self.arrived.items()):
            if first.part is not None and self.numbers[first.part.pipeline] in gone:
                self._take_arrived(parent)
                for each in (first, *others):
                    link, unread = self.fleet.frontend_of(each.rid), each.payload is not None
                    if link is not None:
                        self.fleet.send(link, Dropped(each.rid, DropReason.MOVED, unread=unread))

    def _take_arrived(self, parent: int) -> None:
        gone = [each.rid for each in self.arrived.pop(parent)]
        self.waiting.difference_update(gone)
        self.table.given_up.difference_update(gone)

    def on_frontend_down(self, now_ns: int, number: int) -> None:
        """A frontend is gone, and its queries with it. One that comes again submits what it has as
        requests that stand alone."""
        for qid in [each for each in self.table.queries if frontend_of(each) == number]:
            self.table.on_cancel(now_ns, qid)
        for rid in [each for each in self.arrived if frontend_of(each) == number]:
            self._take_arrived(rid)
        self._note_ends()

    # The engine

    def on_batch(
        self, now_ns: int, batch: Batch, without: Collection[Request], run_ns: int
    ) -> None:
        """A batch has given results, those apart that are left out. The engine has not been told
        yet: what comes next may want the same backend."""
        done: list[tuple[int, Sequence[int]]] = []
        row_ns = run_ns / max(1, batch.size - rows_of(list(without)))
        for request in batch.requests:
            if request in without:
                continue
            busy_ns = row_ns * request.rows
            part = self.table.parts.get(request.rid)
            if part is None:
                self._note_vain(request.rid, busy_ns)
                continue
            times = self.ran[part.query.pipeline][part.stage]
            times.busy_ns += busy_ns
            qid = part.query.qid
            self.spent_ns[qid] = self.spent_ns.get(qid, 0.0) + busy_ns
            times.results += 1
            times.took_ns += now_ns - part.made_at_ns
            pipeline = self.pipeline_of(part)
            if pipeline.follows(part.stage) or pipeline.called:
                part.ran_at_ns = now_ns
            if pipeline.called:
                self.ran_last[part.query.qid] = part
            if not pipeline.follows(part.stage):
                done.append((request.rid, ()))
        if done:
            self.table.on_done(now_ns, done)
            self._note_ends()

    def on_failed(self, batch: Batch, left: Collection[Request]) -> None:
        """A batch has failed: those of it that are left are dropped, or run once more. The others
        are of frontends that have gone."""
        for request in batch.requests:
            if request not in left:
                self.table.in_vain.pop(request.rid, None)

    def _note_vain(self, rid: int, busy_ns: float) -> None:
        """A request has run that stands alone, or whose query had ended."""
        found = self.table.in_vain.pop(rid, None)
        if found is not None:
            pipeline, stage = found
            self.ran[pipeline][stage].busy_ns += busy_ns
            self.wasted_ns[pipeline] += busy_ns

    def on_drop(self, now_ns: int, drop: Drop) -> None:
        """A request has ended without a result, as far as is known here.

        One whose backend died may have its result all the same. Its frontend ends the query where
        it has none, and goes on otherwise. Where the answer may be partial, a stage that others
        follow ends when its frontend says so: a join may be due, which it has to make.
        """
        request = drop.request
        self.table.in_vain.pop(request.rid, None)
        part = self.table.parts.get(request.rid)
        in_doubt = request.retried or request.left_out or drop.reason in DIED
        if part is not None and in_doubt and not part.query.called:
            if not (self.pipeline_of(part).partial and part.stage > 0):
                # Otherwise its query is answered in any case.
                self.doubts[part.query.qid] = drop.reason
            if not self.pipeline_of(part).follows(part.stage):
                self.table.on_done(now_ns, [(part.rid, ())])
                self._note_ends()
        else:
            self._lose(now_ns, request.rid, drop.reason)

    def _lose(self, now_ns: int, rid: int, reason: str) -> None:
        """End a part that has no result, unless its frontend has to."""
        part = self.table.parts.get(rid)
        if part is None:
            return
        pipeline = self.pipeline_of(part)
        follows = pipeline.follows(part.stage)
        if not (pipeline.partial and follows and part.stage > 0):
            self.table.on_drop(now_ns, rid, reason)
            self._note_ends()

    # Learning

    def _learn(self, now_ns: int, part: Part) -> None:
        """Plan with the time that results take from their batch to the next stage."""
        application = self.pipeline_of(part).stages[part.stage].application
        if part.ran_at_ns:
            self.hand_on[application].learn(now_ns, now_ns - part.ran_at_ns)
            self._plan_lead(application)

    def _plan_lead(self, application: int) -> None:
        budget, hand_on_ns = self.table.budgets[application], self.hand_on[application].planned_ns
        budget.lead_ns = self.engine.leads[application].ns(budget.size) + hand_on_ns

    def _doubt(self, now_ns: int, pipeline: int) -> None:
        """A query had no time: what lies between its stages may have been learnt too long."""
        for application in self.table.flows[pipeline].pipeline.applications:
            if self.hand_on[application].doubt(now_ns):
                self._plan_lead(application)

    def _note_ends(self) -> None:
        for query in self.table.take_ended():
            counts = self.outcomes[query.pipeline]
            self.ran_last.pop(query.qid, None)
            outcome = self.doubts.pop(query.qid, query.outcome)
            counts[outcome] = counts.get(outcome, 0) + 1
            spent_ns = self.spent_ns.pop(query.qid, 0.0)
            if outcome not in (GOOD, DropReason.MOVED):
                self.wasted_ns[query.pipeline] += spent_ns
            if outcome in FOR_WANT:
                self._doubt(query.ended_at_ns, query.pipeline)


def _unnumbered() -> int:
    raise AssertionError("frontends number requests")
