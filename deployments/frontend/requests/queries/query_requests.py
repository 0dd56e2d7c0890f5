"""Queries of a frontend: runs their stages as requests, and answers each query once.

A stage's result comes to the frontend that holds the query. It makes the inputs of the next stage,
keeps them in its memory and submits them. So a backend that dies takes nothing with it that cannot
run again.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.outcomes import OnAnswer, Outcome, Refusal, answer, drop_refusal
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import PartTicket
from fermata.deployments.frontend.requests.queries.answers import answer_of
from fermata.deployments.frontend.requests.queries.called_query import CalledQuery
from fermata.deployments.frontend.requests.queries.open_query import OpenQuery
from fermata.deployments.frontend.requests.queries.parts import (
    QueryPartRecord,
    bytes_read,
)
from fermata.deployments.frontend.requests.queries.query_means import QueryMeans
from fermata.deployments.frontend.requests.queries.refusals import failed, held, told_of, unfit
from fermata.deployments.frontend.requests.queries.stage_inputs import (
    Made,
    MadeInputs,
    inputs_after,
    join_inputs,
)
from fermata.deployments.frontend.requests.queries.transforms import cut_by_backends, reads_picture
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.foundation.learnt_time import LearntTime
from fermata.router.core.events import DropReason
from fermata.router.core.outbox import FOR_WANT
from fermata.router.links.messages import Cancel, HandedOn, Result

WITHOUT_TIME = FOR_WANT | {RefusalReason.EXPIRED}
"""Reasons of refusals for which too little time may have been left beside the answer's."""


class QueryRequests:
    """Queries that came in and have no answer yet."""

    def __init__(self, means: QueryMeans) -> None:
        self.means = means
        self.queries: dict[int, OpenQuery] = {}
        """By the id of their first part."""
        self.router_takes = True
        """The router knows parts of queries; one of an earlier version does not."""
        self.backends_cut = True
        """All backends cut pictures themselves; some of an earlier version do not."""
        self.costs: dict[tuple[str, str, int, int], LearntTime] = {}
        """By pipeline, kind of work, stage and power of two of the bytes: how long it takes."""
        self.answer_times: dict[str, LearntTime] = {}
        """By pipeline: from the last result of a query to its answer."""

    def cost_of(
        self, query: OpenQuery, work: str, stage: int, size_bytes: int | None
    ) -> LearntTime | None:
        """What is learnt of such work on about so many bytes; None where these are not known."""
        if size_bytes is None:
            return None
        # Not of all sizes alike: after many small ones, a large one would hold the loop.
        key = query.pipeline.name, work, stage, size_bytes.bit_length()
        return self.costs.setdefault(key, LearntTime())

    def _reads(
        self, query: OpenQuery, parts: Sequence[QueryPartRecord], made: Sequence[int]
    ) -> int | None:
        """Bytes of these parts, of which inputs of these stages are made. None where a function of
        the user's makes some: short as it was so far, it may wait for something the next time."""
        stages, cut = [query.pipeline.stages[each] for each in made], self.backends_cut
        if any(each.transform.kind == "function" for each in stages):
            return None
        looked_at = any(reads_picture(part.given, stage, cut) for part in parts for stage in stages)
        return bytes_read(parts, looked_at)

    def answer_time(self, pipeline: str) -> LearntTime:
        return self.answer_times.setdefault(pipeline, LearntTime())

    def open(self, now_ns: int, request: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        """Admit a query: the id of its first part, or a refusal."""
        refusal = unfit(request)
        answer_ns = self.answer_time(request.model.name).planned_ns
        query = OpenQuery(request, on_answer, now_ns, self.router_takes, answer_ns)
        if self.means.observer is not None:
            query.trace = self.means.observer.begin_query(
                now_ns, query.application, request.traceparent
            )
        if refusal is None:
            rid = self._begin_call(query) if query.pipeline.function else self._enter(now_ns, query)
            if not isinstance(rid, Refusal):
                query.rid = rid
                self.queries[rid] = query
                wait_ns = min(query.deadline_ns, query.gone_at_ns) - now_ns + self.means.grace_ns
                query.timer = self.means.call_later(wait_ns, partial(self._expire, query))
                return rid
            refusal = rid
        if query.trace is not None:
            query.trace.end(now_ns, query.rid, refusal)
        self._on_refused(now_ns, query, refusal)
        return refusal

    def _enter(self, now_ns: int, query: OpenQuery) -> int | Refusal:
        """Submit the first part of a graph."""
        stage = query.pipeline.stages[0]
        first = QueryPartRecord(0, replace(query.request.input, model=stage.model))
        query.add(first)
        return self._begin(now_ns, query, first, -1)

    def _begin_call(self, query: OpenQuery) -> int | Refusal:
        """Begin the function that calls the stages."""
        loop = self.means.function_loop(query.pipeline.function)
        if loop is None:
            return held(query.pipeline.function)
        query.rid = self.means.new_rid()
        query.function = CalledQuery(self, query, loop)
        return query.rid

    def cancel(self, rid: int) -> bool:
        """The client has left; false where there is no such query."""
        query = self.queries.get(rid)
        if query is None:
            return False
        self._end(query, drop_refusal(DropReason.CANCELLED))
        return True

    def loosen(self, router_takes: bool, home: int = 0) -> None:
        """The router of a sub-cluster knows nothing of open queries any more: their parts stand
        alone from now on, each with the deadline of its query."""
        self.router_takes = router_takes
        for query in self.queries.values():
            if not query.bond.told or query.bond.home == home:
                query.bond.loosen()
                query.bond.is_known = query.bond.is_known and router_takes

    # Parts

    def _begin(
        self, now_ns: int, query: OpenQuery, record: QueryPartRecord, parent: int
    ) -> int | Refusal:
        """Submit a part of a graph."""
        ticket = PartTicket(query.bond, record.stage, parent)
        return self.begin(now_ns, query, record, ticket, partial(self._on_part, query, record))

    def begin(
        self,
        now_ns: int,
        query: OpenQuery,
        record: QueryPartRecord,
        ticket: PartTicket,
        on_answer: OnAnswer,
    ) -> int | Refusal:
        """Submit a part."""
        if now_ns >= query.deadline_ns:
            return drop_refusal(DropReason.LATE)
        part = self._part(now_ns, query, record, ticket)
        rid = self.means.begin(now_ns, part, on_answer)
        if not isinstance(rid, Refusal):
            query.running.add(rid)
        return rid

    def _part(
        self, now_ns: int, query: OpenQuery, record: QueryPartRecord, ticket: PartTicket
    ) -> ParsedRequest:
        """The request of a part."""
        stage = query.pipeline.stages[record.stage]
        return ParsedRequest(
            stage.version,
            query.request.request_id,
            query.terms_of(now_ns, stage, record.given, ticket),
            self._given(query, record),
            acknowledge=query.request.acknowledge,
            traceparent="" if query.trace is None else query.trace.traceparent,
            sequence_id=query.request.sequence_id,
        )

    def _given(self, query: OpenQuery, record: QueryPartRecord) -> RequestInput:
        """Its input; a backend hears where boxes are to be cut out of it."""
        stages, given = query.pipeline.stages, record.given
        for each in query.pipeline.graph.stages[record.stage].children:
            if cut_by_backends(given, stages[each], self.backends_cut):
                return replace(given, is_cut_later=True)
        return given

    def _on_part(
        self, query: OpenQuery, record: QueryPartRecord, rid: int, outcome: Outcome
    ) -> None:
        query.running.discard(rid)
        if query.settled:
            return
        if query.joining:
            query.later.append(partial(self._on_part, query, record, rid, outcome))
        elif not isinstance(outcome, Refusal):
            self._on_result(query, record, rid, outcome)
        elif outcome.reason != DropReason.CANCELLED:
            self._lose(query, record, rid, outcome)
        # Nobody here has cancelled it. The router has ended the query for the sake of another part,
        # whose end is on its way and says why.

    def _on_result(
        self, query: OpenQuery, record: QueryPartRecord, rid: int, outcome: Result
    ) -> None:
        record.result = outcome
        stages = query.pipeline.graph.stages
        edges = [each for each in stages[record.stage].children if not stages[each].join]
        if edges:
            cut = self.backends_cut
            work = partial(inputs_after, query, record, edges, self.means.pixels_max, cut)
            then = partial(self._on_made, query, record, rid, self.means.now_ns())
            size = self._reads(query, (record,), edges)
            self.means.run_aside(work, then, self.cost_of(query, "transform", record.stage, size))
        else:
            self._hand_on(query, record, rid, [])

    def _on_made(
        self,
        query: OpenQuery,
        record: QueryPartRecord,
        rid: int,
        from_ns: int,
        made: MadeInputs | Exception,
    ) -> None:
        if query.settled:
            return
        if query.trace is not None:
            stage = query.pipeline.stages[record.stage].name
            query.trace.worked("transform", stage, from_ns, self.means.now_ns())
        self._on_transformed(query, record, rid, made)

    def _on_transformed(
        self, query: OpenQuery, record: QueryPartRecord, rid: int, made: MadeInputs | Exception
    ) -> None:
        if query.settled:
            return
        if query.joining:
            query.later.append(partial(self._on_transformed, query, record, rid, made))
        elif isinstance(made, Exception):
            record.result = None
            self._lose(query, record, rid, failed(made))
        else:
            query.left_out += made.left_out
            self._hand_on(query, record, rid, made.inputs)

    def _lose(self, query: OpenQuery, record: QueryPartRecord, rid: int, refusal: Refusal) -> None:
        """A part has no result: the query has a gap, or none either."""
        if query.pipeline.graph.partial and record.stage > 0:
            record.missing = refusal.reason
            self._hand_on(query, record, rid, [])
        else:
            self._end(query, told_of(query.pipeline.stages[record.stage], record.stage, refusal))

    def _hand_on(self, query: OpenQuery, record: QueryPartRecord, rid: int, made: Made) -> None:
        """Submit what is made of a part, and the joins that have waited for it last."""
        now_ns, graph = self.means.now_ns(), query.pipeline.graph
        query.open[record.stage] -= 1
        # A join is tried once: without a result it has ended, too.
        query.ended[record.stage] += record.result is not None or graph.stages[record.stage].join
        for place, siblings in groupby(made, lambda each: each[0]):
            children = [
                QueryPartRecord(place, each.given, 0, record, each.origin, each.lies)
                for _, each in siblings
            ]
            # All are open before any is submitted: other parts may end meanwhile, and the query
            # with the last of them.
            for child in children:
                query.add(child)
            if len(children) == 1 or not self._submit_together(now_ns, query, children, rid):
                for child in children:
                    self._submit(now_ns, query, child, rid)
        due = graph.due_joins(query.open, query.ended) if graph.joins else []
        if not due or query.settled:
            self._tell(query, record, rid)
            return
        query.joining = True
        for place in due:
            # It is open from now on, so that nothing else makes it due again.
            query.open[place] += 1
        work = partial(join_inputs, query, due, self.means.pixels_max)
        then = partial(self._on_joined, query, record, rid, due, now_ns)
        before = {each for place in due for each in graph.before[place]}
        size = self._reads(query, [part for each in before for part in query.parts[each]], due)
        self.means.run_aside(work, then, self.cost_of(query, "join", due[0], size))

    def _submit(self, now_ns: int, query: OpenQuery, child: QueryPartRecord, parent: int) -> None:
        """Submit a part that has been added."""
        if query.settled:
            return
        rid = self._begin(now_ns, query, child, parent)
        if not isinstance(rid, Refusal):
            return
        query.open[child.stage] -= 1
        # A join has no gap in its place: the router waits for it.
        if query.pipeline.graph.partial and not query.pipeline.graph.stages[child.stage].join:
            child.missing = rid.reason
        else:
            self._end(query, told_of(query.pipeline.stages[child.stage], child.stage, rid))

    def _submit_together(
        self, now_ns: int, query: OpenQuery, children: list[QueryPartRecord], parent: int
    ) -> bool:
        """Submit parts of one stage, which have been added, in one message; false where each has
        to be submitted by itself."""
        if query.settled or now_ns >= query.deadline_ns:
            return False
        first = children[0]
        tickets = [PartTicket(query.bond, first.stage, parent) for _ in children]
        rids = self.means.begin_together(
            now_ns,
            self._part(now_ns, query, first, tickets[0]),
            [self._given(query, child) for child in children],
            tickets,
            [partial(self._on_part, query, child) for child in children],
        )
        if rids is None:
            return False
        query.running.update(rids)
        return True

    def _on_joined(
        self,
        query: OpenQuery,
        record: QueryPartRecord,
        rid: int,
        due: list[int],
        from_ns: int,
        made: Made | Exception,
    ) -> None:
        for place in due:
            query.open[place] -= 1
        if query.trace is not None:
            stage = query.pipeline.stages[due[0]].name
            query.trace.worked("join", stage, from_ns, self.means.now_ns())
        if isinstance(made, Exception):
            if not query.settled:
                self._end(query, failed(made))
        else:
            for place, each in made:
                child = QueryPartRecord(place, each.given)
                query.add(child)
                self._submit(self.means.now_ns(), query, child, rid)
        self._tell(query, record, rid)
        query.joining, later, query.later = False, query.later, []
        for go_on in later:
            # One of them may have another join made: then those behind it wait again.
            go_on()

    def _tell(self, query: OpenQuery, record: QueryPartRecord, rid: int) -> None:
        """Say that a part's result has been handed on. A stage that nothing follows has ended for
        the router already."""
        follows = query.pipeline.graph.stages[record.stage].children
        if follows and query.bond.is_known:
            self.means.to_router(HandedOn(rid, record.missing), query.bond.home)
        if not query.settled and not any(query.open):
            query.ended_at_ns = self.means.now_ns()
            found = query.parts, query.rid, self.means.pixels_max, query.left_out
            work = partial(answer_of, query.pipeline, *found)
            # Boxes are moved by the sizes of pictures, which their headers have told.
            size = bytes_read((part for parts in query.parts for part in parts), False)
            cost = self.cost_of(query, "answer", 0, size)
            self.means.run_aside(work, partial(self.on_answer, query), cost)

    # Ends

    def on_answer(self, query: OpenQuery, answer: Result | Exception) -> None:
        """Answer a query, unless it has ended meanwhile."""
        if not query.settled:
            now_ns, from_ns = self.means.now_ns(), query.ended_at_ns
            # A function that called no stage has made its answer of nothing but its input.
            if from_ns:
                self.answer_time(query.pipeline.name).learn(now_ns, now_ns - from_ns)
            if query.trace is not None:
                query.trace.worked("answer", "", from_ns or query.arrived_at_ns, now_ns)
            self._settle(query, failed(answer) if isinstance(answer, Exception) else answer)

    def _expire(self, query: OpenQuery) -> None:
        """No answer came in time, whatever is to blame."""
        if not query.settled:
            waited_ms = (self.means.now_ns() - query.arrived_at_ns) / 1e6
            what = "its stages had not ended" if query.function is None else query.function.state
            message = f"expired: {what} after {waited_ms:.0f} ms"
            self._end(query, Refusal("DEADLINE_EXCEEDED", RefusalReason.EXPIRED, message))

    def _end(self, query: OpenQuery, refusal: Refusal) -> None:
        """End a query without a result; whatever it has is withdrawn."""
        if query.function is not None:
            query.function.end(refusal)
            return
        if query.bond.is_known and query.bond.told:
            self.means.to_router(Cancel(query.rid), query.bond.home)
        self.withdraw(query, refusal)

    def withdraw(self, query: OpenQuery, refusal: Refusal) -> None:
        """Refuse a query, and withdraw what it has."""
        for rid in query.running:
            self.means.cancel_soon(rid)
        self._settle(query, refusal)

    def _settle(self, query: OpenQuery, outcome: Outcome) -> None:
        assert not query.settled, "a query is answered once"
        query.settled = True
        self.queries.pop(query.rid, None)
        if query.timer is not None:
            query.timer.cancel()
        if query.function is not None:
            query.function.stop()
            query.function = None
        if query.trace is not None:
            query.trace.end(self.means.now_ns(), query.rid, outcome)
        if isinstance(outcome, Refusal):
            self._on_refused(self.means.now_ns(), query, outcome)
        else:
            self.means.counts.serve(self.means.now_ns(), query, outcome)
        answer(query.on_answer, query.rid, outcome)

    def _on_refused(self, now_ns: int, query: OpenQuery, refusal: Refusal) -> None:
        self.means.counts.refuse(query.application, refusal.reason)
        if refusal.reason in WITHOUT_TIME:
            self.answer_time(query.pipeline.name).doubt(now_ns)
