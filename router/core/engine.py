"""The engine: every request-time decision of a router, driven by events and a time."""

from collections.abc import Collection, Sequence

from fermata.router.core.costs import Costs
from fermata.router.core.events import (
    Answer,
    Batch,
    Blame,
    Dispatch,
    Drop,
    DropReason,
    Effect,
    Request,
    Retry,
    Verdict,
)
from fermata.router.core.intake import Intake
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.rank import RankThread
from fermata.router.core.source import NO_LANES

SEQUENCE_LOST = DropReason.SEQUENCE_LOST
NOT_LOAD = frozenset(
    (
        DropReason.CANCELLED,
        DropReason.FAILED,
        DropReason.SEQUENCE_LOST,
        DropReason.NO_SEQUENCE,
        DropReason.MOVED,
    )
)
"""Ends that do not say that too much was let in."""


class Engine(Intake):
    """Takes events, gives effects. The driver carries them out and calls `on_time` at
    `wake_at_ns()`; it is the only timer it needs."""

    def __init__(self, costs: Costs, ranks: int = 1) -> None:
        super().__init__(costs, ranks)
        self.backend_rank: dict[int, RankThread] = {}
        self.foreign: list[Batch] = []
        """Batches of sources that were replaced since; see `fermata.router.core.replacement`."""

    # Backends

    def backend(self, number: int) -> BackendState:
        """The state of a backend that is up, whichever sub-cluster it is in."""
        return self.backend_rank[number].backends[number]

    def on_backend_up(
        self,
        now_ns: int,
        backend: int,
        kind: int = 0,
        rank: int = 0,
        owner: int | None = None,
        resident: frozenset[int] | None = None,
    ) -> None:
        """A backend has come up; `owner` is an application whose source runs it by itself."""
        assert backend not in self.backend_rank
        source = None if owner is None else self.sources[owner]
        self.backend_rank[backend] = self.ranks[rank]
        self.ranks[rank].add_backend(now_ns, backend, kind, source, resident)

    def on_backend_down(self, now_ns: int, backend: int, hung: bool = False) -> None:
        """A backend has died: what it had runs elsewhere once more, if there is time.

        Whatever ran there may have killed it, and is tried again alone. Where it hangs, whatever
        ran there is not tried again: it would hang the next one too.
        """
        running = self.backend(backend).running
        rank = self.backend_rank.pop(backend)
        for batch in rank.remove_backend(now_ns, backend):
            if batch.retry is not None:
                rank.retries.on_lost(batch, began=batch is running)
            for request in batch.requests:
                if request.sequence is not None:
                    reason = DropReason.HUNG if hung and batch is running else SEQUENCE_LOST
                    lanes = self._break(now_ns, request, reason)
                    self._refresh(now_ns, request.application, lanes)
                elif hung and batch is running:
                    self._queue_again(request)
                    self.outbox.drop(request, DropReason.HUNG)
                else:
                    alone = batch.variant if batch is running else None
                    self._run_again(now_ns, request, alone)

    def vacate(self, now_ns: int, backend: int) -> bool:
        """Prepare for a backend to go; returns whether no sequence needs it any more."""
        # Each of them has to hear of it.
        left = [each for each in set(self.sources) if not each.vacate(now_ns, backend)]
        return not left

    def on_drain(self, now_ns: int, backend: int) -> None:
        """Give a backend nothing more; it finishes what it has and then goes down."""
        self.backend_rank[backend].drain(now_ns, backend)
        self.backend(backend).ejected = False

    def on_resident(self, now_ns: int, backend: int, resident: frozenset[int] | None) -> None:
        """Loads and unloads have left these variants on the backend; None: every one."""
        self.backend_rank[backend].set_resident(now_ns, backend, resident)

    def on_near(self, near: Collection[int]) -> None:
        """Requests come from the nodes of these backends now: they are given first, others being
        equal."""
        self.near.clear()
        self.near.update(near)
        for rank in self.ranks:
            rank.set_near()

    def on_dispatch_failed(self, now_ns: int, backend: int) -> None:
        """A batch never reached its backend: the backend is as good as gone."""
        self.on_backend_down(now_ns, backend)

    def on_eject(self, now_ns: int, backend: int) -> None:
        """Give a backend nothing more until it is given back."""
        self.backend_rank[backend].drain(now_ns, backend)
        self.backend(backend).ejected = True

    def on_give_back(self, now_ns: int, backend: int) -> None:
        """Try a backend again that was ejected: one batch at a time until one succeeds."""
        state = self.backend(backend)
        if state.ejected:
            state.ejected = False
            state.trial = True
            self.backend_rank[backend].undrain(now_ns, backend)

    # Batches

    def _refresh(self, now_ns: int, application: int, lanes: Sequence[int]) -> None:
        source = self.sources[application]
        source.desk.refresh(now_ns, source, lanes)

    def _break(self, now_ns: int, request: Request, reason: str) -> Sequence[int]:
        """End a request of a sequence without a result; returns lanes to refresh. Run again it
        would change a state twice, or one that is gone."""
        self._queue_again(request)
        self.outbox.drop(request, reason)
        return self.sources[request.application].on_broken(now_ns, request)

    def _break_sequences(
        self, now_ns: int, requests: Sequence[Request], error: str, lanes: list[int]
    ) -> Sequence[Request]:
        """End those of a batch's requests without an answer that are of sequences; returns the
        others. Lanes to refresh go to `lanes`."""
        reason = DropReason.FAILED if error else SEQUENCE_LOST
        for request in requests:
            if request.sequence is not None:
                request.error = error
                lanes.extend(self._break(now_ns, request, reason))
        return [each for each in requests if each.sequence is None]

    def _run_again(
        self,
        now_ns: int,
        request: Request,
        alone: int | None = None,
        lost: str = DropReason.LOST,
    ) -> None:
        """Queue a request once more; alone, where it is to have no company on that variant. One
        that has had its second chance, or has no time for it, is dropped as `lost`. It has one for
        each cause: a batch that ran without it has shown nothing against it."""
        self._queue_again(request)
        late = lost == DropReason.INPUT_LATE
        had_it = request.left_out if late else request.retried
        if had_it or request.deadline_ns <= now_ns:
            self.outbox.drop(request, lost)
            return
        if late:
            request.left_out = True
        else:
            request.retried = True
        if request.application in self.away:
            self.outbox.drop(request, DropReason.MOVED)
            return
        source = self.sources[request.application]
        if alone is not None:
            self._retry(now_ns, Retry([request], alone, -1, complete=True))
            return
        if request.apart is not None:
            self._queue_apart(now_ns, request, request.apart)
            return
        self._refresh(now_ns, request.application, source.on_request(now_ns, request))

    def _queue_again(self, request: Request) -> None:
        assert request.rid not in self.outbox.queued
        self.outbox.queued[request.rid] = request
        admission = self.admissions[request.application]
        if admission is not None:
            admission.on_queued(request)

    def _retry(self, now_ns: int, retry: Retry) -> None:
        source = self.sources[retry.requests[0].application]
        rank = self.home(source)
        lanes = rank.retries.add(source if source.owns_backends else None, retry)
        rank.refresh(now_ns, rank.retries, lanes)

    def _try_elsewhere(
        self, now_ns: int, backend: int, batch: Batch, requests: Sequence[Request], error: str
    ) -> None:
        """A batch failed: run these of it once more on another backend, or drop them."""
        application = batch.requests[0].application
        source, away = self.sources[application], application in self.away
        again: list[Request] = []
        # Those that are kept apart come from the retries the first time too.
        if batch.retry is None or batch.retry.first:
            rank, blame = self.home(source), Blame.UNKNOWN
            owner = source if source.owns_backends else None
            if not away and not rank.retries.worth_it(owner, application):
                blame = Blame.INPUT
            elif away or rank.runs_elsewhere(owner, backend, batch.variant):
                again = [each for each in requests if not each.retried]
                again = [each for each in again if each.deadline_ns > now_ns]
            if away or not again:
                self.outbox.effects.append(Verdict(backend, application, blame))
        for request in requests:
            request.error = error
            self._queue_again(request)
            if request not in again:
                self.outbox.drop(request, DropReason.FAILED)
                continue
            request.retried = True
            if away:
                self.outbox.drop(request, DropReason.MOVED)
        if again and not away:
            complete = len(again) == len(batch.requests)
            self._retry(now_ns, Retry(again, batch.variant, backend, complete))

    def on_done(
        self,
        now_ns: int,
        backend: int,
        run_ns: int,
        size: int = -1,
        failed: str = "",
        left_out: Sequence[Request] = (),
        spoilt: Sequence[Request] = (),
        error: str = "",
    ) -> Batch:
        """The batch that ran on this backend has ended; returns it.

        `size` is how many of its requests really ran, where some had ended before: run times are
        learnt for that size. A batch that `failed` teaches nothing. Those of it that were
        `left_out` have no answer: they run elsewhere once more, if there is time, and where they
        cannot, they are dropped; of one that failed, with its error. `spoilt` are those that failed
        together with this `error`, while others of their batch ran: each runs alone once more.
        """
        rank = self.backend_rank[backend]
        batch = rank.finish(backend, run_ns, 0 if failed else size)
        if failed or size != 0:
            rank.note_end(now_ns, backend, bool(failed))
        application = batch.requests[0].application
        self.ledger.applications[application].busy_ns += run_ns
        source = self.sources[application]
        if batch.retry is not None:
            source = rank.retries
            batch.retry.complete = batch.retry.complete and not left_out
        ran, broken = batch.requests, list[int]()
        if left_out or spoilt:
            ran = [each for each in ran if each not in left_out and each not in spoilt]
            ended = len(ran) + len(left_out) + len(spoilt)
            assert ended == len(batch.requests), "strangers were left out"
            # Before their source hears of the batch: what comes after them has to know.
            left_out = self._break_sequences(now_ns, left_out, failed, broken)
            spoilt = self._break_sequences(now_ns, spoilt, error, broken)
        if failed:
            for request in ran:
                self.ledger.on_drop(request, DropReason.FAILED)
        else:
            self.ledger.on_done(now_ns, ran)
        lanes: Sequence[int] = NO_LANES
        if self.foreign and any(each is batch for each in self.foreign):
            self.foreign = [each for each in self.foreign if each is not batch]
        elif failed:
            lanes = source.on_failed(now_ns, backend, batch)
        else:
            lanes = source.on_done(now_ns, backend, batch, run_ns)
        # What waits there comes first: a new bid could take its place.
        rank.start_next(now_ns, backend)
        if lanes:
            source.desk.refresh(now_ns, source, lanes)
        if broken:
            self._refresh(now_ns, application, broken)
        if failed:
            self._try_elsewhere(now_ns, backend, batch, left_out, failed)
        elif left_out or spoilt:
            self._run_rest(now_ns, batch, left_out, spoilt, error)
        return batch

    def _run_rest(
        self,
        now_ns: int,
        batch: Batch,
        left_out: Sequence[Request],
        spoilt: Sequence[Request],
        error: str,
    ) -> None:
        """Run those of a batch once more that have no answer, while others of it have one."""
        retry = batch.retry
        # One that may have killed a backend is in nobody's company again.
        alone = None if retry is None or retry.first else batch.variant
        for request in left_out:
            self._run_again(now_ns, request, alone, DropReason.INPUT_LATE)
        if spoilt:
            self._run_alone(now_ns, batch, spoilt, error)

    def _run_alone(self, now_ns: int, batch: Batch, spoilt: Sequence[Request], error: str) -> None:
        """Run each of these once more by itself, where that is worth it: only one may be bad."""
        source = self.sources[batch.requests[0].application]
        owner = source if source.owns_backends else None
        retries = self.home(source).retries
        for request in spoilt:
            request.error = error
            if not retries.worth_it(owner, request.application):
                self._queue_again(request)
                self.outbox.drop(request, DropReason.FAILED)
            else:
                self._run_again(now_ns, request, batch.variant)

    def is_current(self, dispatch: Dispatch) -> bool:
        """Whether a dispatch still has to be carried out: its backend may have gone since."""
        if dispatch.backend not in self.backend_rank:
            return False
        state = self.backend(dispatch.backend)
        return any(dispatch.batch is each for each in state.batches())

    # Time and effects

    def on_time(self, now_ns: int) -> None:
        self.timers.fire_due(now_ns)

    def wake_at_ns(self) -> int:
        return self.timers.next_ns()

    def take_effects(self) -> list[Effect]:
        """The effects that the driver has to carry out now, in order."""
        effects = self.outbox.effects
        if not effects:
            return []
        taken = effects[:]
        effects.clear()
        self.outbox.granted.clear()
        for effect in taken:
            if isinstance(effect, Drop):
                self._tell_of_drop(effect)
            elif self.admits and isinstance(effect, Dispatch):
                for request in effect.batch.requests:
                    self._tell_of_end(request)
            elif self.admits and isinstance(effect, Answer):
                self._tell_of_end(effect.request)
        return taken

    def _tell_of_drop(self, drop: Drop) -> None:
        admission = self.admissions[drop.request.application]
        if admission is None or drop.reason == DropReason.SHED:
            return
        admission.on_left(drop.request, drop.reason)
        if drop.reason not in NOT_LOAD:
            admission.on_lost(drop.request)

    def _tell_of_end(self, request: Request) -> None:
        admission = self.admissions[request.application]
        if admission is not None:
            admission.on_left(request, "")
