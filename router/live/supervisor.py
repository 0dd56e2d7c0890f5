"""Acts on backends that hang, drag or die, and on models that take them along."""

import logging
from collections import deque
from collections.abc import Callable

from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import NEVER
from fermata.router.assembly import Assembly
from fermata.router.core.events import Batch, DropReason
from fermata.router.health.availability import Availability
from fermata.router.health.hang_detector import HangDetector
from fermata.router.health.quarantine import Quarantine
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import Retire
from fermata.router.live.notifier import FrontendNotifier
from fermata.router.live.peers import BackendPeer

LOSSES = 20
"""Remembered for whoever looks."""
OVERDUE = Closed(CloseCode.OVERDUE, "its batch should have ended long ago")


class BackendSupervisor:
    """What `HangDetector` and `Quarantine` find, carried out for one router."""

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
        self.retired.pop(backend, None)
        # One that said goodbye, or that the router itself sends away, was meant to go.
        level = logging.WARNING if closed.unmeant else logging.INFO
        LOG.log(level, "backend gone", extra=fields(backend=backend, reason=reason))

    def on_done(self, now_ns: int, backend: int, batch: Batch, ran: bool, failed: bool) -> None:
        """A batch has ended there; `ran` is false where nobody was left in it."""
        self.watch.end(backend)
        following = self.engine.backend_rank[backend].backends[backend].running
        # One that was granted just now is expected once it has been sent.
        if following is not None and following.batch_id in self.backends[backend].sent:
            self.expect(now_ns, backend, following)
        if ran or failed:
            application = batch.requests[0].application
            factor = self.engine.costs.backend_factor.get(backend, 1.0)
            reason = self.quarantine.on_done(backend, application, factor, failed)
            if reason:
                self._retire(now_ns, backend, reason)

    def _retire(self, now_ns: int, backend: int, reason: str) -> None:
        others = self.backends.keys() - self.retired.keys() - {backend}
        # Better a bad one than none.
        if backend not in self.retired and others:
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
        for application in self.quarantine.rested(now_ns):
            if self.presence.release(self.applications[application]):
                self.word.absent()

    def wake_at_ns(self) -> int:
        resting = self.quarantine.wake_at_ns() if self.presence.barred else NEVER
        return min(self.watch.look_at_ns, resting)
