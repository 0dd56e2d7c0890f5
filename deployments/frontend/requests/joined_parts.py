"""A request of more rows than a batch takes: its parts, and the answer that they make together."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from fermata.clients.wire.tensors import join_rows
from fermata.deployments.frontend.outcomes import OnAnswer, Outcome, Refusal
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.router.links.messages import Result

Begin = Callable[[int, ParsedRequest, OnAnswer], "int | Refusal"]
"""Admits one request."""


class JoinedParts:
    """Joins the results of parts; the first refusal is the refusal of all. Pure."""

    def __init__(self, rows: list[int], on_answer: OnAnswer) -> None:
        self.rows = rows
        """Rows of each part."""
        self.on_answer = on_answer
        self.rids: list[int] = []
        """The id of each part; the first one stands for the request."""
        self.settled = False
        """It has its answer, or nobody waits for it."""
        self._results: dict[int, Result] = {}

    def take(self, index: int, outcome: Outcome) -> Outcome | None:
        """Take the outcome of a part; returns that of the request once it is known."""
        if self.settled:
            return None
        if isinstance(outcome, Refusal):
            self.settled = True
            return outcome
        self._results[index] = outcome
        if len(self._results) < len(self.rows):
            return None
        self.settled = True
        return self._join([self._results[index] for index in range(len(self.rows))])

    def _join(self, results: list[Result]) -> Outcome:
        try:
            tensors = join_rows([each.tensors for each in results], self.rows)
        except ValueError as error:
            message = f"failed: answers to its rows do not fit together: {error}"
            return Refusal("INTERNAL", RefusalReason.FAILED, message)
        return msgspec.structs.replace(
            results[0],
            batch_size=max(each.batch_size for each in results),
            queue_ns=max(each.queue_ns for each in results),
            run_ns=max(each.run_ns for each in results),
            tensors=tensors,
        )


class SplitRequests:
    """Requests of which all parts are served, or none."""

    def __init__(self, begin: Begin, cancel: Callable[[int], object]) -> None:
        """`begin` admits a part; `cancel` withdraws one soon, which may have ended."""
        self.begin = begin
        self.cancel = cancel
        self.open_parts: dict[int, JoinedParts] = {}
        """By the id of the first part."""

    def open(self, now_ns: int, request: ParsedRequest, on_answer: OnAnswer) -> int | Refusal:
        """Admit every part: the id of the first, or the refusal of one, which ends all."""
        parts = request.split()
        joined = JoinedParts([part.input.rows for part in parts], on_answer)
        for index, part in enumerate(parts):
            rid = self.begin(now_ns, part, partial(self._on_part, joined, index))
            if isinstance(rid, Refusal):
                joined.settled = True
                self._cancel(joined.rids)
                return rid
            joined.rids.append(rid)
        self.open_parts[joined.rids[0]] = joined
        return joined.rids[0]

    def forget(self, rid: int) -> Sequence[int]:
        """Ids of all parts of a request whose client has left; none where it was not split."""
        joined = self.open_parts.pop(rid, None)
        if joined is None:
            return ()
        # Its client is told that it was cancelled, once.
        return joined.rids

    def _on_part(self, joined: JoinedParts, index: int, rid: int, outcome: Outcome) -> None:
        final = joined.take(index, outcome)
        if final is None:
            return
        self.open_parts.pop(joined.rids[0], None)
        joined.on_answer(joined.rids[0], final)
        if isinstance(final, Refusal):
            self._cancel([each for each in joined.rids if each != rid])

    def _cancel(self, rids: Sequence[int]) -> None:
        for rid in rids:
            self.cancel(rid)
