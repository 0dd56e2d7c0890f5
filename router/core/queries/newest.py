"""Pipelines of which only the newest query of each stream waits."""

from collections.abc import Container, Mapping

from fermata.router.core.engine import NOT_LOAD
from fermata.router.core.events import Request
from fermata.router.core.fairness.admission import Admission, StreamAdmission
from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.core.queries.query import Query


class WaitingQueries:
    """Numbers of queries that wait: nothing of them runs, or has run."""

    __slots__ = ("queries", "requests")

    def __init__(self, queries: Mapping[int, Query], requests: Container[int]) -> None:
        """`requests`: numbers of those that are queued."""
        self.queries = queries
        self.requests = requests

    @property
    def queued(self) -> "WaitingQueries":
        return self

    def __contains__(self, qid: object) -> bool:
        query = self.queries.get(qid) if isinstance(qid, int) else None
        if query is None or query.missing or any(query.ended):
            return False
        if not query.parts:
            # A function whose first calls have come, and have not begun.
            return bool(query.called) and not any(query.rounds)
        return all(rid in self.requests for rid in query.parts)


class QueryStreams:
    """The queries of a pipeline as frames of streams, by the admission that requests have.

    So a pipeline's overload is shared evenly among its streams, whether the door refuses their
    queries or the queues lose them.
    """

    __slots__ = ("admission", "application")

    def __init__(self, pipeline: Pipeline, waiting: WaitingQueries) -> None:
        self.admission: Admission = StreamAdmission(waiting, True, {})
        self.application = pipeline.stages[0].application

    def admit(self, now_ns: int, query: Query) -> Request | None:
        """The query as a frame; None where it is its stream's turn to go."""
        frame = Request(query.qid, self.application, now_ns, query.deadline_ns)
        frame.client, frame.tenant, frame.priority = query.client, query.tenant, query.priority
        return frame if self.admission.admit(now_ns, frame) is None else None

    def superseded(self, frame: Request) -> int | None:
        """The number of the query whose place this one takes."""
        older = self.admission.superseded(frame)
        return None if older is None else older.rid

    def on_lost(self, frame: Request, reason: str) -> None:
        """The door has no time for a query, or it was let in and has no good answer."""
        if reason not in NOT_LOAD:
            self.admission.on_lost(frame)
