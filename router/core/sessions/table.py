"""The table of sessions: one for each open sequence of requests with a state between them.

Pure. Requests of a sequence take turns: one is current, the others wait in order of arrival. The
router's table knows the backend that holds a state; a frontend's holds the state itself.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from fermata.foundation.units import NEVER
from fermata.router.core.events import DropReason, SequenceStep

Item = TypeVar("Item")
NOWHERE: Final = -1
ITS_TURN: Final = ""
"""The verdict on a request that may run now; others that may not have the reason."""
WAITS: Final = "waits"
"""The verdict on a request whose predecessor has not ended."""


class StepEnd:
    """Effects that the end of a request may have on its session."""

    RAN: Final = "ran"
    SKIPPED: Final = "skipped"
    """It never ran, so the state is as it was."""
    BROKEN: Final = "broken"
    """The state is gone or unknown. Whatever ended the request has told its client so."""


class OpenSequence(Generic[Item]):
    """One open sequence."""

    __slots__ = ("current", "home", "key", "lost", "step", "used_at_ns", "waiting")

    def __init__(self, key: int) -> None:
        self.key = key
        self.home = NOWHERE
        """The backend that holds its state."""
        self.lost = False
        """Its state is gone, and its client has not been told."""
        self.current: Item | None = None
        """The request whose turn it is; None between two requests."""
        self.step: SequenceStep | None = None
        """The step of that request."""
        self.waiting: deque[tuple[SequenceStep, Item | None]] = deque()
        """Requests behind it. None stands for a start whose request has gone: the sequence that it
        would have begun is not the one before it."""
        self.used_at_ns = 0


class SessionTable(Generic[Item]):
    """Open sequences by key, the one that was used longest ago first."""

    def __init__(self, idle_ns: int, sessions_max: int) -> None:
        self.idle_ns = idle_ns
        """A session without a request for so long ends."""
        self.sessions_max = sessions_max
        self.sessions: dict[int, OpenSequence[Item]] = {}
        self.homes: dict[int, dict[int, OpenSequence[Item]]] = {}
        """By backend: sessions whose state it holds, by key."""
        self.closed: list[tuple[int, int]] = []
        """(backend, key) of states that nobody needs any more, for the owner of the table to
        take. States whose last request has ended them are not among them."""

    def __len__(self) -> int:
        return len(self.sessions)

    def enter(self, now_ns: int, step: SequenceStep, item: Item) -> str:
        """Take a request in: `ITS_TURN`, `WAITS`, or the reason to refuse it."""
        session = self.sessions.get(step.key)
        if session is not None and session.current is None and session.lost:
            self._forget(session)
            if not step.start:
                return DropReason.SEQUENCE_LOST
            session = None
        if session is None:
            if not step.start:
                return DropReason.NO_SEQUENCE
            if len(self.sessions) >= self.sessions_max:
                return DropReason.FULL
            session = self.sessions[step.key] = OpenSequence(step.key)
        self._use(now_ns, session)
        if session.current is not None:
            session.waiting.append((step, item))
            return WAITS
        session.current, session.step = item, step
        return ITS_TURN

    def leave(self, now_ns: int, key: int, item: Item, end: str) -> list[tuple[Item, str]]:
        """End the current request of a session; returns requests that waited for that, each with
        a verdict. News of any other request is ignored."""
        session = self.sessions.get(key)
        if session is None or session.current is not item or session.step is None:
            return []
        step, session.current, session.step = session.step, None, None
        self._use(now_ns, session)
        over = step.end or end == StepEnd.BROKEN or (step.start and end == StepEnd.SKIPPED)
        if over and not (step.end and end == StepEnd.RAN):
            self._close(session)
        found: list[tuple[Item, str]] = []
        while session.waiting and session.current is None:
            step, waiting = session.waiting.popleft()
            if waiting is None:
                self._close(session)
                over = True
            elif step.start or not (over or session.lost):
                if over or session.lost:
                    self.settle(session, NOWHERE)
                    over = session.lost = False
                session.current, session.step = waiting, step
                found.append((waiting, ITS_TURN))
            else:
                found.append((waiting, _refusal(over)))
                over = True
        if over:
            self._forget(session)
        return found

    def cancel(self, now_ns: int, step: SequenceStep, item: Item) -> list[tuple[Item, str]]:
        """Take a request out that has not run; as `leave`."""
        session = self.sessions.get(step.key)
        if session is None:
            return []
        if session.current is item:
            return self.leave(now_ns, step.key, item, StepEnd.SKIPPED)
        for place, (_, waiting) in enumerate(session.waiting):
            if waiting is item:
                if step.start:
                    session.waiting[place] = (step, None)
                else:
                    del session.waiting[place]
                break
        return []

    def void(self, now_ns: int, key: int) -> None:
        """A request that would have started this sequence anew has been refused: requests that
        follow belong to no sequence."""
        session = self.sessions.get(key)
        if session is None:
            return
        if session.current is None:
            self._close(session)
            self._forget(session)
        else:
            session.waiting.append((SequenceStep(key, start=True), None))

    def settle(self, session: OpenSequence[Item], home: int) -> None:
        """Note that a backend holds the state of a session from now on."""
        if session.home != NOWHERE:
            del self.homes[session.home][session.key]
        session.home = home
        if home != NOWHERE:
            self.homes.setdefault(home, {})[session.key] = session

    def at(self, home: int) -> int:
        """Sessions whose state this backend holds."""
        return len(self.homes.get(home, ()))

    def lose(self, home: int) -> list[OpenSequence[Item]]:
        """A backend has gone with all states that it held; returns their sessions."""
        found = list(self.homes.pop(home, {}).values())
        for session in found:
            session.home = NOWHERE
            session.lost = True
        return found

    def expire(self, now_ns: int) -> None:
        """End the sessions that have been idle for too long."""
        for session in list(self._idle(now_ns)):
            if session.current is None:
                self._close(session)
                self._forget(session)
            else:
                self._use(now_ns, session)

    def wake_at_ns(self) -> int:
        """The time of the next call to `expire`."""
        for session in self.sessions.values():
            return session.used_at_ns + self.idle_ns
        return NEVER

    def take_closed(self) -> list[tuple[int, int]]:
        """States that nobody needs any more, each told once."""
        closed, self.closed = self.closed, []
        return closed

    def _idle(self, now_ns: int) -> Iterator[OpenSequence[Item]]:
        for session in self.sessions.values():
            if session.used_at_ns + self.idle_ns > now_ns:
                return
            yield session

    def _use(self, now_ns: int, session: OpenSequence[Item]) -> None:
        session.used_at_ns = now_ns
        # The order of the dict is that of use.
        self.sessions[session.key] = self.sessions.pop(session.key)

    def _close(self, session: OpenSequence[Item]) -> None:
        if session.home != NOWHERE:
            self.closed.append((session.home, session.key))

    def _forget(self, session: OpenSequence[Item]) -> None:
        self.settle(session, NOWHERE)
        del self.sessions[session.key]


def _refusal(over: bool) -> str:
    """The reason to refuse a request that starts nothing: it is told once that a state is gone."""
    return DropReason.NO_SEQUENCE if over else DropReason.SEQUENCE_LOST
