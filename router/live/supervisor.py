"""Acts on backends that hang, drag or die, and on models that take them along."""

import logging
from collections import deque

from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import NEVER
from fermata.router.assembly import Assembly
from fermata.router.core.events import Batch, Blame, DropReason, Verdict
from fermata.router.health.hang_detector import HangDetector
from fermata.router.health.outliers import Outliers, UntriedErrors
from fermata.router.health.quarantine import Quarantine
from fermata.router.links.closing import Closed
from fermata.router.links.messages import Retire
from fermata.router.live.fleet.fleet import Fleet
from fermata.router.live.notifier import FrontendNotifier
from fermata.router.live.separation import party_of


class BackendSupervisor:
    """Carries out the findings of `HangDetector` and `Quarantine` for one router."""

    def __init__(
        self, built: Assembly, fleet: Fleet, notifier: FrontendNotifier, losses_max: int = 20
    ) -> None:
        """`losses_max` of the last losses are kept, for `/status`."""
        self.engine = built.engine
        self.applications = tuple(built.applications)
        self.fleet = fleet
        self.notifier = notifier
        self.hang_detector = HangDetector()
        self.quarantine = Quarantine()
        self.outliers = Outliers()
        self.untried = UntriedErrors()
        self.given_up: deque[int] = deque(maxlen=losses_max)
        """The last backends whose batch did not end."""
        self.losses: deque[tuple[int, str]] = deque(maxlen=losses_max)
        """The last backends that went, and why."""
        self.retired: dict[int, str] = {}
        """Backends that get nothing more until they are replaced, and why."""

    def expect(self, now_ns: int, backend: int, batch: Batch) -> None:
        """Expect the end of the batch that runs there next."""
        swaps = batch.swap_in_ns > 0
        self.hang_detector.begin(now_ns, backend, batch.start_at_ns, batch.plan_ns, swaps)

    def on_up(self, now_ns: int, backend: int) -> None:
        self.quarantine.on_up(now_ns, backend)
        LOG.info("backend up", extra=fields(backend=backend))

    def on_gone(self, backend: int, closed: Closed, held: int) -> None:
        """Forget a backend that is gone, and `held` so many requests."""
        reason = f"{closed} ({held} requests there)"
        self.losses.append((backend, reason))
        self.hang_detector.end(backend)
        self.quarantine.on_gone(backend)
        self.outliers.on_gone(backend)
        self.untried.on_gone(backend)
        self.retired.pop(backend, None)
        # A backend that said goodbye, or that the router sends away, was meant to go.
        level = logging.WARNING if closed.unmeant else logging.INFO
        LOG.log(level, "backend gone", extra=fields(backend=backend, reason=reason))

    def on_done(self, now_ns: int, backend: int, batch: Batch, ran: bool) -> None:
        """Judge a backend by a batch that has ended; `ran` is false where it gave no results."""
        self.hang_detector.end(backend)
        following = self.fleet.state_of(backend).running
        # A batch that was granted just now is expected once it has been sent.
        if following is not None and following.batch_id in self.fleet.backends[backend].sent:
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
        """Note that a batch failed; a backend on trial gets nothing more for now, wherever the
        blame lies. To be called before the backend is offered anew."""
        self.untried.on_failure(backend, batch.requests[0].application)
        if self.outliers.on_trial(backend) and self._serving(backend) > 1:
            self._eject(now_ns, backend, "the first batch failed after it was given back")

    def on_verdict(self, now_ns: int, verdict: Verdict) -> None:
        """Count an error of a backend, now that the blame for it is known."""
        backend = verdict.backend
        if backend not in self.fleet.backends:
            return
        if self.outliers.takes_verdict(backend):
            if verdict.blame == Blame.INPUT:
                self.outliers.repeat_trial(now_ns, backend)
                self._give_back(now_ns, backend)
            elif verdict.blame == Blame.BACKEND:
                # Its device works, or it would have ended itself: perhaps a new process does.
                self._send_retire(backend, self.outliers.ejected[backend])
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
        rank, state = self.engine.backend_rank[backend], self.fleet.state_of(backend)
        peers = [
            each
            for each in rank.backends.values()
            if each.owner is state.owner and (each.ejected or not each.draining)
        ]
        ejected = sum(each.ejected for each in peers)
        if state.draining or not self.outliers.may_eject(backend, len(peers), ejected):
            return False
        return self.fleet.can_spare(backend)

    def _eject(self, now_ns: int, backend: int, reason: str) -> None:
        if self.fleet.state_of(backend).draining:
            # It leaves, and will not be given back.
            return
        self.outliers.eject(now_ns, backend, reason)
        self.engine.on_eject(now_ns, backend)
        self.fleet.changed = True
        LOG.warning("backend ejected", extra=fields(backend=backend, reason=reason))

    def _give_back(self, now_ns: int, backend: int) -> None:
        self.engine.on_give_back(now_ns, backend)
        self.fleet.changed = True
        LOG.info("backend given back", extra=fields(backend=backend))

    def _serving(self, backend: int) -> int:
        """Number of its peers, itself among them, that may be given batches."""
        owner = self.fleet.state_of(backend).owner
        pool = self.engine.backend_rank[backend].pool if owner is None else owner.pool
        return pool.backends

    def _retire(self, now_ns: int, backend: int, reason: str) -> None:
        others = self.fleet.backends.keys() - self.retired.keys() - self.outliers.ejected.keys()
        # Better a bad one than none.
        if backend not in self.retired and others - {backend}:
            self.retired[backend] = reason
            LOG.warning("backend retired", extra=fields(backend=backend, reason=reason))
            self.fleet.drain(now_ns, backend)
            self._send_retire(backend, reason)

    def _send_retire(self, backend: int, reason: str) -> None:
        self.fleet.send(self.fleet.backends[backend].link, Retire(reason))

    def on_crash(self, now_ns: int, backend: int, node: str, batch: Batch) -> None:
        """Note that a backend died while it ran this; a model that repeats it is quarantined."""
        application = batch.requests[0].application
        elsewhere = any(each.link.peer.node != node for each in self.fleet.backends.values())
        # Where there is no other machine, waiting for proof would cost the last of its backends.
        machine = node if elsewhere else ""
        reason = self.quarantine.on_crash(now_ns, backend, application, machine)
        if not reason:
            return
        name = self.applications[application]
        LOG.warning("model quarantined", extra=fields(application=name, reason=reason))
        self.fleet.availability.quarantine(name, reason)
        self.notifier.publish_unavailable()
        for request in list(self.engine.outbox.queued.values()):
            if request.application == application:
                self.engine.withdraw(now_ns, request.rid, DropReason.QUARANTINED)

    def on_hang(self, now_ns: int, backend: int, node: str, batch: Batch) -> None:
        """Note that a batch did not end. Parties that repeat it are refused, and a model that does
        so whoever asks is quarantined."""
        application = batch.requests[0].application
        parties = {party_of(request) for request in batch.requests}
        suspects = self.fleet.separation.suspects
        news, refused = suspects.on_hang(now_ns, application, parties)
        for party in refused:
            name = self.applications[application]
            LOG.warning("tenant or client refused", extra=fields(application=name, party=party))
        if refused:
            for request in list(self.engine.outbox.queued.values()):
                if request.application == application and party_of(request) in refused:
                    self.engine.withdraw(now_ns, request.rid, DropReason.BLAMED)
        if news:
            self.on_crash(now_ns, backend, node, batch)

    def hung(self, now_ns: int) -> list[int]:
        """Backends whose batch should have ended long ago, to be given up; at `wake_at_ns`."""
        found = self.hang_detector.overdue(now_ns)
        self.given_up.extend(found)
        return found

    def check(self, now_ns: int) -> None:
        """Let backends and models be tried again whose time has come; at `wake_at_ns`."""
        if self.outliers.ejected:
            due = self.outliers.due(now_ns)
            for backend in [*self.outliers.ejected]:
                # Better a bad one than none.
                if backend in due or not self._serving(backend):
                    self.outliers.give_back(now_ns, backend)
                    self._give_back(now_ns, backend)
        for application in self.quarantine.released(now_ns):
            if self.fleet.availability.release(self.applications[application]):
                self.notifier.publish_unavailable()

    def wake_at_ns(self) -> int:
        quarantined = self.fleet.availability.quarantined
        release_at_ns = self.quarantine.wake_at_ns() if quarantined else NEVER
        return min(self.hang_detector.check_at_ns, self.outliers.wake_at_ns(), release_at_ns)
