"""Retries: what failed or was lost on one backend runs once more on another.

A batch that raised an error runs again as it was, so that what happens elsewhere tells who is to
blame. A request whose backend died while it ran may be the cause: it runs alone. Requests that are
kept apart run from here the first time too, each kind of them together.
"""

from bisect import insort
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from fermata.foundation.units import NEVER
from fermata.router.core.events import (
    Apart,
    Batch,
    Blame,
    DropReason,
    Request,
    Retry,
    Verdict,
    count_within,
    rows_of,
)
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, POOL, Bid, Source, SourceTimer, own_lane


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Limits of retries."""

    looks: int = 8
    """Retries that are considered for one backend."""
    blamed: int = 8
    """Retries in a row that failed elsewhere too. From then on one in so many is tried while all
    backends are busy: others wait for them."""


RULES: Final = RetryRules()


class Retries(Source):
    """The retries of one sub-cluster. They bid beside the sources that the requests came from."""

    application = -1

    def __init__(self, rules: RetryRules = RULES) -> None:
        self.rules = rules
        self.waiting: dict[Source | None, list[Retry]] = {}
        """By the owner of the backends that may run them, earliest deadline first."""
        self.of_request: dict[int, tuple[Source | None, Retry]] = {}
        """By request that waits."""
        self.bids: dict[int, Bid] = {}
        """By lane."""
        self.timer = SourceTimer(self)
        """For those that wait where no backend is left."""
        self.due_at_ns = 0
        self.groups: dict[Apart, Retry] = {}
        """Those that wait for their first run, by whom they may meet with."""
        self.blamed: dict[int, int] = {}
        """By application: failures in a row that were those of an input or of the model."""

    def worth_it(self, owner: Source | None, application: int) -> bool:
        """Whether a batch that failed should run again: not where the model fails everywhere, and
        others wait for the backend."""
        blamed = self.blamed.get(application, 0)
        if blamed < self.rules.blamed or self.desk.has_idle(owner):
            return True
        self.blamed[application] = blamed + 1
        return blamed % self.rules.blamed == 0

    def add(self, owner: Source | None, retry: Retry) -> Sequence[int]:
        """Run these once more, on a backend of this owner; returns the lanes to be asked again."""
        retry.requests.sort(key=_deadline)
        insort(self.waiting.setdefault(owner, []), retry, key=_first_deadline)
        for request in retry.requests:
            assert request.rid not in self.of_request
            self.of_request[request.rid] = (owner, retry)
        self._arm(_first_deadline(retry))
        return self.desk.lanes_of(owner)

    def add_apart(self, owner: Source | None, request: Request, apart: Apart) -> Sequence[int]:
        """Run a request with others of its kind, or alone; returns the lanes to be asked again."""
        group = self.groups.get(apart)
        if group is None:
            self.groups[apart] = group = Retry([request], apart.variant, -1, complete=True)
            group.first = True
            return self.add(owner, group)
        waiting = self.waiting[owner]
        waiting.remove(group)
        insort(group.requests, request, key=_deadline)
        group.left += 1
        insort(waiting, group, key=_first_deadline)
        self.of_request[request.rid] = (owner, group)
        self._arm(_first_deadline(group))
        return self.desk.lanes_of(owner)

    def take(self, applications: Container[int]) -> list[Retry]:
        """Take out those that wait for these applications: another source serves them."""
        taken: list[Retry] = []
        for waiting in self.waiting.values():
            taken += [each for each in waiting if each.requests[0].application in applications]
            waiting[:] = [each for each in waiting if each not in taken]
        for retry in taken:
            self._forget(retry)
            for request in retry.requests:
                del self.of_request[request.rid]
        return taken

    def put_back(self, owner: Source | None, retry: Retry) -> Sequence[int]:
        """Have one wait again that was taken out; returns the lanes to be asked again."""
        if retry.first and retry.apart is not None:
            self.groups[retry.apart] = retry
        return self.add(owner, retry)

    # Source

    def on_cancel(self, now_ns: int, request: Request) -> Sequence[int]:
        owner, retry = self.of_request.pop(request.rid)
        retry.requests.remove(request)
        if not retry.requests:
            self.waiting[owner].remove(retry)
            self._forget(retry)
        self._leave_out(retry, request.application)
        return self.desk.lanes_of(owner)

    def on_time(self, now_ns: int) -> Sequence[int]:
        for owner, waiting in self.waiting.items():
            self._drop_hopeless(now_ns, owner, waiting)
        firsts = [_first_deadline(waiting[0]) for waiting in self.waiting.values() if waiting]
        if firsts:
            self._arm(min(firsts))
        return NO_LANES

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        owner = self.desk.owner(lane - own_lane(0)) if lane != POOL else None
        waiting = self.waiting.get(owner)
        if not waiting:
            return None
        self._drop_hopeless(now_ns, owner, waiting)
        if not waiting:
            return None
        first = waiting[0]
        application = first.requests[0].application
        latest_ns = _first_deadline(first) - self.desk.lead_ns(1, application)
        cost = self.costs.of(first.variant)
        bid = self.bids.setdefault(lane, Bid())
        bid.application = application
        bid.size = min(rows_of(first.requests), cost.size_max)
        bid.ripe_at_ns = now_ns
        bid.key = latest_ns - cost.plan_ns[1]
        bid.expires_at_ns = latest_ns - 1
        # A request that does not suit the first of them may suit the next.
        bid.again = True
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        owner = self.desk.owner(slot.backend)
        waiting = self.waiting.get(owner, [])
        for retry in waiting[: self.rules.looks]:
            size = self._size_on(slot, owner, retry)
            if size > 0:
                taken, retry.requests = retry.requests[:size], retry.requests[size:]
                for request in taken:
                    del self.of_request[request.rid]
                waiting.remove(retry)
                if retry.requests:
                    insort(waiting, retry, key=_first_deadline)
                else:
                    self._forget(retry)
                batch = Batch(retry.variant, taken, rows_of(taken))
                batch.retry = retry
                return batch
        return None

    def on_done(self, now_ns: int, backend: int, batch: Batch, run_ns: int) -> Sequence[int]:
        """A retry has ended well."""
        return self._end(batch, failed=False)

    def on_failed(self, now_ns: int, backend: int, batch: Batch) -> Sequence[int]:
        """A retry has failed."""
        return self._end(batch, failed=True)

    def on_lost(self, batch: Batch, began: bool) -> None:
        """The backend of a retry has died, perhaps of it."""
        assert batch.retry is not None
        batch.retry.complete = False
        self._end(batch, failed=began)

    # Within

    def _forget(self, retry: Retry) -> None:
        """None of them waits any more."""
        if retry.first and retry.apart is not None:
            del self.groups[retry.apart]

    def _arm(self, at_ns: int) -> None:
        if self.timer.stamp == 0 or at_ns < self.due_at_ns:
            self.due_at_ns = at_ns
            self.timers.arm(self.timer, at_ns)

    def _size_on(self, slot: Slot, owner: Source | None, retry: Retry) -> int:
        """How many of them, the most urgent ones, may run here together; 0: none."""
        variant, desk = retry.variant, self.desk
        if slot.backend == retry.backend or not slot.runs(variant):
            return 0
        if retry.apart is not None and slot.backend in retry.apart.avoid:
            return 0
        judges = retry.backend >= 0 and desk.errors(slot.backend) > 0
        if judges and desk.runs_elsewhere(owner, retry.backend, variant, True):
            return 0
        fits = slot.size_that_fits(variant, _first_deadline(retry) - slot.start_at_ns)
        return count_within(retry.requests, fits)

    def _drop_hopeless(self, now_ns: int, owner: Source | None, waiting: list[Retry]) -> None:
        """End those that have no time left, or nowhere to run."""
        for retry in list(waiting):
            judged = retry.backend >= 0
            until_ns = now_ns + self.desk.lead_ns(1, retry.requests[0].application)
            if retry.first:
                until_ns += self.costs.of(retry.variant).plan_ns[1] - 1
            if judged and not self.desk.runs_elsewhere(owner, retry.backend, retry.variant):
                until_ns = NEVER
            if _first_deadline(retry) > until_ns:
                continue
            waiting.remove(retry)
            gone = [request for request in retry.requests if request.deadline_ns <= until_ns]
            retry.requests = retry.requests[len(gone) :]
            assert not retry.requests or _first_deadline(retry) > until_ns, "not by deadline"
            if retry.requests:
                insort(waiting, retry, key=_first_deadline)
            else:
                self._forget(retry)
            for request in gone:
                del self.of_request[request.rid]
                self.outbox.drop(request, self._why_dropped(owner, retry))
                self._leave_out(retry, request.application)

    def _why_dropped(self, owner: Source | None, retry: Retry) -> str:
        if retry.apart is not None and not self.desk.reaches(owner, retry.variant, retry.apart):
            return DropReason.NO_BACKEND
        return DropReason.LATE if retry.first else DropReason.LOST

    def _leave_out(self, retry: Retry, application: int) -> None:
        """One of them ends without having been tried."""
        retry.complete = False
        self._end_some(retry, 1, application)

    def _end(self, batch: Batch, failed: bool) -> Sequence[int]:
        retry, application = batch.retry, batch.requests[0].application
        assert retry is not None
        if failed:
            retry.failed = True
        elif retry.complete:
            self.blamed.pop(application, None)
        self._end_some(retry, len(batch.requests), application)
        return NO_LANES

    def _end_some(self, retry: Retry, count: int, application: int) -> None:
        """So many of them have ended; with the last one it is known who was to blame."""
        retry.left -= count
        assert retry.left >= 0, "a request has ended twice"
        if retry.left > 0 or retry.backend < 0:
            return
        blame = Blame.BACKEND if retry.complete else Blame.UNKNOWN
        if retry.failed:
            blame = Blame.INPUT
            self.blamed[application] = self.blamed.get(application, 0) + 1
        self.outbox.effects.append(Verdict(retry.backend, application, blame))


def _deadline(request: Request) -> int:
    return request.deadline_ns


def _first_deadline(retry: Retry) -> int:
    return retry.requests[0].deadline_ns
