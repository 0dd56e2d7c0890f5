"""Acts on backends that hang, drag or die, and on models that take them along."""

import logging
from collections import deque
from collections.abc import Callable

from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import NEVER
from fermata.router.assembly import Assembly
from fermata.router.core.events import Batch, Blame, DropReason, Verdict
from fermata.router.core.lane import BackendState
from fermata.router.health.availability import Availability
from fermata.router.health.hang_detector import HangDetector
from fermata.router.health.outliers import Outliers, UntriedErrors
from fermata.router.health.quarantine import Quarantine
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import Retire
from fermata.router.live.notifier import FrontendNotifier
from fermata.router.live.peers import BackendPeer

LOSSES = 20
"""Remembered for whoever looks."""
OVERDUE = Closed(CloseCode.OVERDUE, "its batch should have ended long ago")


class BackendSupervisor:
    """Carries out the findings of `HangDetector` and `Quarantine` for one router."""

    def __init__(
        self,
        built: Assembly,
        backends: dict[int, BackendPeer],
        presence: Availability,
        word: FrontendNotifier,
        lose: Callable[[int, int, Closed], None],
        spare: Callable[[int, int], None],
    ) -> None:
        """`lose` forgets a backend, `spare` gives it nothing more; both take a time and a
        backend, the first also why."""
        self.engine = built.engine
        self.applications = tuple(built.applications)
        self.backends = backends
        self.presence = presence
        self.word = word
        self.lose = lose
        self.spare = spare
        self.watch = HangDetector()
        self.quarantine = Quarantine()
        self.outliers = Outliers()
        self.untried = UntriedErrors()
        self.given_up: deque[int] = deque(maxlen=LOSSES)
        """The last backends whose batch did not end."""
        self.losses: deque[tuple[int, str]] = deque(maxlen=LOSSES)
        """The last backends that went, and why."""
        self.retired: dict[int, str] = {}
        """Backends that get nothing more until they are replaced, and why."""

    def expect(self, now_ns: int, backend: int, batch: Batch) -> None:
        """This batch runs there next, and should end some time."""
        swaps = batch.swap_in_ns > 0
        self.watch.begin(now_ns, backend, batch.start_at_ns, batch.plan_ns, swaps)

    def on_up(self, now_ns: int, backend: int) -> None:
        self.quarantine.on_up(now_ns, backend)
        LOG.info("backend up", extra=fields(backend=backend))

    def on_gone(self, backend: int, closed: Closed, held: int) -> None:
        """A backend is gone, and with it so many requests that it held."""
        reason = f"{closed} ({held} requests there)"
        self.losses.append((backend, reason))
        self.word.outdated = True
        self.watch.end(backend)
        self.quarantine.on_gone(backend)
        self.outliers.on_gone(backend)
        self.untried.on_gone(backend)
        self.retired.pop(backend, None)
        # One that said goodbye, or that the router itself sends away, was meant to go.
        level = logging.WARNING if closed.unmeant else logging.INFO
        LOG.log(level, "backend gone", extra=fields(backend=backend, reason=reason))

    def on_done(self, now_ns: int, backend: int, batch: Batch, ran: bool) -> None:
        """A batch has ended there; `ran` is false where it gave no results."""
        self.watch.end(backend)
        following = self._state(backend).running
        # One that was granted just now is expected once it has been sent.
        if following is not None and following.batch_id in self.backends[backend].sent:
            self.expect(now_ns, backend, following)
        if ran:
            application = batch.requests[0].application
            factor = self.engine.costs.backend_factor.get(backend, 1.0)
            self.outliers.on_success(backend)
            reason = self.quarantine.on_done(backend, application, factor, failed=False)
            if reason:
                self._retire(now_ns, backend, reason)
            for each in self.untried.on_success(backend, application):
                self._blame(now_ns, each, self.quarantine.on_error(each, application))

    def on_failed(self, now_ns: int, backend: int, batch: Batch) -> None:
        """A batch failed there; one on trial gets nothing more for now, whoever was to blame.
        Called before the backend is offered anew."""
        self.untried.on_failure(backend, batch.requests[0].application)
        if self.outliers.on_trial(backend) and self._serving(backend) > 1:
            self._eject(now_ns, backend, "the first batch failed after it was given back")

    def on_verdict(self, now_ns: int, verdict: Verdict) -> None:
        """Count an error of a backend, now that it is known who is to blame for it."""
        backend = verdict.backend
        if backend not in self.backends:
            return
        if self.outliers.takes_verdict(backend):
            if verdict.blame == Blame.INPUT:
                self.outliers.repeat_trial(now_ns, backend)
                self._give_back(now_ns, backend)
            elif verdict.blame == Blame.BACKEND:
                # Its device works, or it would have ended itself: perhaps a new process does.
                self.word.say(self.backends[backend].link, Retire(self.outliers.ejected[backend]))
            return
        if verdict.blame == Blame.BACKEND:
            self._blame(now_ns, backend, self.outliers.on_error(backend))
        elif verdict.blame == Blame.UNKNOWN:
            self.untried.on_untried(backend, verdict.application)

    def _blame(self, now_ns: int, backend: int, reason: str) -> None:
        """Eject a backend for this reason, if there is one and it can be spared."""
        if reason and self._can_spare(backend):
            self._eject(now_ns, backend, reason)

    def _can_spare(self, backend: int) -> bool:
        """Whether enough of its peers are left without it, and every model is still served."""
        rank, state = self.engine.backend_rank[backend], self._state(backend)
        peers = [
            each
            for each in rank.backends.values()
            if each.owner is state.owner and (each.ejected or not each.draining)
        ]
        ejected = sum(each.ejected for each in peers)
        if state.draining or not self.outliers.may_eject(backend, len(peers), ejected):
            return False
        serving = [each for each in self.backends if not self._state(each).draining]
        before = len(self.presence.not_loaded(serving))
        serving.remove(backend)
        return len(self.presence.not_loaded(serving)) == before

    def _eject(self, now_ns: int, backend: int, reason: str) -> None:
        if self._state(backend).draining:
            # It leaves, and is not to be had back.
            return
        self.outliers.eject(now_ns, backend, reason)
        self.engine.on_eject(now_ns, backend)
        self.word.outdated = True
        LOG.warning("backend ejected", extra=fields(backend=backend, reason=reason))

    def _give_back(self, now_ns: int, backend: int) -> None:
        self.engine.on_give_back(now_ns, backend)
        self.word.outdated = True
        LOG.info("backend given back", extra=fields(backend=backend))

    def _serving(self, backend: int) -> int:
        """How many of its peers, itself among them, may be given batches."""
        owner = self._state(backend).owner
        pool = self.engine.backend_rank[backend].pool if owner is None else owner.pool
        return pool.backends

    def _state(self, backend: int) -> BackendState:
        return self.engine.backend_rank[backend].backends[backend]

    def _retire(self, now_ns: int, backend: int, reason: str) -> None:
        others = self.backends.keys() - self.retired.keys() - self.outliers.ejected.keys()
        # Better a bad one than none.
        if backend not in self.retired and others - {backend}:
            self.retired[backend] = reason
            LOG.warning("backend retired", extra=fields(backend=backend, reason=reason))
            self.spare(now_ns, backend)
            self.word.outdated = True
            self.word.say(self.backends[backend].link, Retire(reason))

    def on_crash(self, now_ns: int, backend: int, node: str, batch: Batch) -> None:
        """A backend died while it ran this; a model that does it again and again is to rest."""
        application = batch.requests[0].application
        elsewhere = any(each.link.peer.node != node for each in self.backends.values())
        # Where there is no other machine, waiting for proof would cost the last of its backends.
        machine = node if elsewhere else ""
        reason = self.quarantine.on_crash(now_ns, backend, application, machine)
        if not reason:
            return
        name = self.applications[application]
        LOG.warning("model rests", extra=fields(application=name, reason=reason))
        self.presence.quarantine(name, reason)
        self.word.absent()
        for request in list(self.engine.outbox.queued.values()):
            if request.application == application:
                self.engine.withdraw(now_ns, request.rid, DropReason.QUARANTINED)

    def look(self, now_ns: int) -> None:
        """Give up who hangs, and let those try again that have rested; at `wake_at_ns`."""
        for backend in self.watch.overdue(now_ns):
            self.given_up.append(backend)
            link = self.backends[backend].link
            # Its batch runs elsewhere, if there is time; it may come back when it has ended it.
            self.lose(now_ns, backend, OVERDUE)
            link.close(OVERDUE.code, OVERDUE.detail)
        if self.outliers.ejected:
            due = self.outliers.due(now_ns)
            for backend in [*self.outliers.ejected]:
                # Better a bad one than none.
                if backend in due or not self._serving(backend):
                    self.outliers.give_back(now_ns, backend)
                    self._give_back(now_ns, backend)
        for application in self.quarantine.rested(now_ns):
            if self.presence.release(self.applications[application]):
                self.word.absent()

    def wake_at_ns(self) -> int:
        resting = self.quarantine.wake_at_ns() if self.presence.quarantined else NEVER
        return min(self.watch.look_at_ns, self.outliers.wake_at_ns(), resting)
