"""Looks that backends take for a frontend: which of them is asked, and what is under way."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from fermata.deployments.sneakpeek.look_queue import LookLimits, LookTimes
from fermata.foundation.units import seconds
from fermata.router.links.messages import Looked

SendLook = Callable[[int, int, str, int], bool]
"""Ask a backend for a look at a request of an application, of use within a time; false where the
input cannot be sent there."""
FORGOTTEN_NS = seconds(10)
"""A look that has not come back by then never will."""
WITHIN_NS_MAX = FORGOTTEN_NS // 2
"""A backend begins no look later, however long its request may take. So it reads no input whose
memory was lent for too long and is free."""


@dataclass(slots=True)
class LookingBackend:
    """A backend that takes looks."""

    applications: frozenset[str]
    near: bool
    """It reads inputs in this machine's memory."""
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class AskedLook:
    """A look that a backend was asked for."""

    looker: LookingBackend
    application: str
    answers: bool
    """The client takes the look's answer for the model's."""
    asked_at_ns: int


class BackendLooks:
    """Asks the backend with the fewest looks under way, of those that share memory first."""

    def __init__(self, send: SendLook | None, limits: LookLimits, clock: Callable[[], int]) -> None:
        self.send = send
        self.limits = limits
        self.clock = clock
        self.lookers: dict[int, LookingBackend] = {}
        """By the number of the backend."""
        self.asked: dict[int, AskedLook] = {}
        """Looks under way, by request, the oldest first."""
        self.times = LookTimes(limits.smoothing)
        self.looked = 0
        self.lost = 0
        """Looks that never came back."""

    def on_ready(self, backend: int, applications: Collection[str], near: bool) -> None:
        """A backend takes looks at requests of these applications."""
        before = self.lookers.get(backend)
        if before is None:
            self.lookers[backend] = LookingBackend(frozenset(applications), near)
        else:
            before.applications, before.near = frozenset(applications), near

    def on_down(self, backend: int) -> None:
        """Its looks will not come back. The memory of their inputs stays lent for a while: the
        backend may be alive, and read it."""
        looker = self.lookers.pop(backend, None)
        if looker is not None and looker.under_way:
            gone = [rid for rid, each in self.asked.items() if each.looker is looker]
            for rid in gone:
                self._forget(rid)

    def ask(self, rid: int, application: str, answers: bool, within_ns: int) -> bool:
        """Ask for a look at a request, where it would come in time."""
        now_ns = self.clock()
        while self.asked and now_ns - self._oldest_ns() > FORGOTTEN_NS:
            self._forget(next(iter(self.asked)))
        found = self._pick(application)
        if found is None or self.send is None:
            return False
        backend, looker = found
        full = looker.under_way >= self.limits.waiting_max
        if full or self.times.is_late(application, looker.under_way, within_ns):
            return False
        if not self.send(backend, rid, application, min(within_ns, WITHIN_NS_MAX)):
            return False
        looker.under_way += 1
        self.asked[rid] = AskedLook(looker, application, answers, now_ns)
        return True

    def _pick(self, application: str) -> tuple[int, LookingBackend] | None:
        able = [each for each in self.lookers.items() if application in each[1].applications]
        return min(able, key=lambda each: (not each[1].near, each[1].under_way), default=None)

    def _oldest_ns(self) -> int:
        return next(iter(self.asked.values())).asked_at_ns

    def _forget(self, rid: int) -> None:
        self.asked.pop(rid).looker.under_way -= 1
        self.lost += 1

    def on_looked(self, backend: int, looked: Looked) -> AskedLook | None:
        """A look has come back; None where nobody waits for it any more."""
        asked = self.asked.get(looked.rid)
        if asked is None or self.lookers.get(backend) is not asked.looker:
            return None
        del self.asked[looked.rid]
        asked.looker.under_way -= 1
        if looked.votes:
            self.looked += 1
            self.times.learn(asked.application, looked.took_ns)
        return asked
