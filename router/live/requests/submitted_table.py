"""The query table of a live router: its requests are those that frontends have submitted."""

from collections import deque

from fermata.router.core.events import PartRequest, Request
from fermata.router.core.queries.query_table import Query, QueryTable
from fermata.router.links.messages import Submit
from fermata.router.live.fleet.fleet import Fleet


class SubmittedTable(QueryTable):
    """A query table whose requests have been submitted by frontends."""

    def attach(self, fleet: Fleet) -> "SubmittedTable":
        self.separation = fleet.separation
        self.in_flight = fleet.in_flight
        self.coming: deque[Submit] = deque()
        """Requests that are about to be made, in that order."""
        self.given_up: set[int] = set()
        """Those among them, and among what has arrived, that their frontend has cancelled."""
        self.in_vain: dict[int, tuple[int, int]] = {}
        """Requests that run though their query has ended: its pipeline, and their stage."""
        return self

    def _end(self, now_ns: int, query: Query, outcome: str) -> None:
        for rid in query.parts:
            if rid in self.in_flight.rids:
                self.in_vain[rid] = query.pipeline, self.parts[rid].stage
        super()._end(now_ns, query, outcome)

    def _submit(self, now_ns: int, made: dict[int, list[Request]]) -> None:
        if self.given_up:
            kept = {
                application: [each for each in requests if each.rid not in self.given_up]
                for application, requests in made.items()
            }
            made = {application: requests for application, requests in kept.items() if requests}
        super()._submit(now_ns, made)

    def new_request(self, query: Query, application: int, now_ns: int, deadline_ns: int) -> Request:
        submit = self.coming.popleft()
        request = PartRequest(submit.rid, application, now_ns, deadline_ns)
        request.client, request.tenant = submit.client, submit.tenant
        request.priority, request.ticket = submit.priority, submit.payload
        if self.separation.active:
            request.apart = self.separation.apart(now_ns, request)
        return request
