"""The one hook before the queue: who may enter when not everyone can be served."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Final, Protocol

from fermata.router.core.events import HIGHEST, DropReason, Request
from fermata.router.core.fairness.pool import Pool


@dataclass(frozen=True, slots=True)
class StreamRules:
    """Windows and limits of the shares that streams lose."""

    window_ns: int = 500_000_000
    """How often the share is set."""
    quiet_ns: int = 2_000_000_000
    """After so long without a request, overload is over."""
    loss_tolerated: float = 0.005
    """Share of admitted requests that the queue may lose."""
    ease: float = 0.95
    """Kept of the share in a window without losses."""
    credit_max: float = 2.0
    """A stream spared this many turns and still losing frames is starving."""
    shed_max: float = 0.95
    owed_max: int = 8
    """Frames of the highest priority that others of the same tenant may still have to go for."""
    stream_ended_ns: int = 30_000_000_000
    streams_kept: int = 1024
    start_within: float = 0.8
    """Share of its stream's period: a frame held longer would be superseded by the next."""


RULES: Final = StreamRules()
NO_STREAM = 0
"""The client of requests that stand alone; they share one turn, and none replaces another."""


class Stream:
    """One client's stream of frames."""

    __slots__ = ("debt", "last_at_ns", "newest", "period_ns", "weight")

    def __init__(self, client: int, weight: float) -> None:
        # Streams start at different points of the cycle, or all would be refused in one round.
        self.debt = (client * 0.6180339887498949) % 1.0
        """Frames this stream owes to the overload; a frame lost in the queue pays one off."""
        self.newest: Request | None = None
        self.weight = weight
        self.last_at_ns = -1
        self.period_ns = 0
        """Moving average of the time between two frames; 0 until there have been two."""

    def on_frame(self, now_ns: int) -> None:
        if self.last_at_ns >= 0:
            gap_ns = now_ns - self.last_at_ns
            assert gap_ns >= 0
            self.period_ns += (gap_ns - self.period_ns) // 8 if self.period_ns else gap_ns
        self.last_at_ns = now_ns


class Queued(Protocol):
    """Knows by their numbers who waits: an outbox of requests, and a table of queries."""

    @property
    def queued(self) -> Container[int]: ...


class Admission:
    """Admits everything; what a policy-free engine uses."""

    def admit(self, now_ns: int, request: Request) -> str | None:
        """The reason to refuse this request, or None."""
        return None

    def let_in(self, now_ns: int, request: Request) -> None:
        """Count a request that was let in elsewhere, with the query that it is a part of."""

    def superseded(self, request: Request) -> Request | None:
        """The queued request whose place this one takes."""
        return None

    def on_lost(self, request: Request) -> None:
        """The queue gave this request up."""

    def on_queued(self, request: Request) -> None:
        """A request that was let in before is queued once more."""

    def on_left(self, request: Request, reason: str) -> None:
        """A request that was let in waits no longer: it runs, or why it does not."""

    def on_move(self, before: Pool) -> None:
        """Its application has been served from this pool until now."""


class StreamAdmission(Admission):
    """Shares an application's overload evenly among its streams.

    Cameras are periodic and phase-locked, so whatever order the queue drops in hits the same ones
    for ever. Here the share of frames that has to go is refused on arrival, from each stream in
    turn, and a stream that loses a frame in the queue is spared its next turn.
    """

    def __init__(
        self,
        outbox: Queued,
        newest: bool,
        weights: dict[int, float],
        rules: StreamRules = RULES,
    ) -> None:
        self.rules = rules
        self.outbox = outbox
        self.newest = newest
        self.weights = weights
        self.streams: dict[int, Stream] = {}
        self.shed = 0.0
        """Share of frames refused on arrival."""
        self.owed: dict[int, int] = {}
        """By tenant, or by client where there are none: frames of the highest priority that were
        spared. Others of the same tenant go in their place."""
        self.window_ends_at_ns = 0
        self.offered = 0
        self.admitted = 0
        self.lost = 0
        self.capacity = 0.0
        """Requests per nanosecond that were served when the queue last lost some."""
        self.starved = False
        """Some stream has lost frames in the queue again and again."""
        self.sweep_at = self.rules.streams_kept
        """With this many streams, look for those that have ended."""

    def admit(self, now_ns: int, request: Request) -> str | None:
        if now_ns >= self.window_ends_at_ns:
            self._adjust(now_ns - (self.window_ends_at_ns - self.rules.window_ns))
            if len(self.streams) >= self.sweep_at:
                self._sweep(now_ns)
            self.window_ends_at_ns = now_ns + self.rules.window_ns
        stream = self.streams.get(request.client)
        if stream is None:
            weight = self.weights.get(request.client, 1.0)
            stream = self.streams[request.client] = Stream(request.client, weight)
        stream.on_frame(now_ns)
        self.offered += 1
        if self.newest and stream.period_ns and request.client != NO_STREAM:
            request.start_by_ns = now_ns + int(self.rules.start_within * stream.period_ns)
        if self.shed > 0.0 and self._has_to_go(stream, request):
            return DropReason.SHED
        self.admitted += 1
        return None

    def _has_to_go(self, stream: Stream, request: Request) -> bool:
        """Whether it is this frame's turn, or it takes the turn of a more important one."""
        party = request.tenant or request.client
        owed = self.owed.get(party, 0)
        stream.debt += min(1.0, self.shed / stream.weight)
        if stream.debt < 1.0:
            if owed == 0 or request.priority == HIGHEST:
                return False
            self.owed[party] = owed - 1
            return True
        stream.debt -= 1.0
        if request.priority != HIGHEST or owed >= self.rules.owed_max:
            return True
        self.owed[party] = owed + 1
        return False

    def superseded(self, request: Request) -> Request | None:
        if not self.newest or request.client == NO_STREAM:
            return None
        stream = self.streams[request.client]
        older = stream.newest
        stream.newest = request
        if older is None or older.rid not in self.outbox.queued:
            return None
        return older

    def on_lost(self, request: Request) -> None:
        self.lost += 1
        stream = self.streams.get(request.client)
        if stream is not None:
            stream.debt -= 1.0
            if stream.debt < -self.rules.credit_max:
                stream.debt = -self.rules.credit_max
                self.starved = True

    def _sweep(self, now_ns: int) -> None:
        """Forget streams that have ended; doubling the mark keeps the cost per stream constant."""
        self.owed.clear()
        since_ns = now_ns - self.rules.stream_ended_ns
        self.streams = {
            client: stream
            for client, stream in self.streams.items()
            if stream.last_at_ns >= since_ns
        }
        self.sweep_at = max(self.rules.streams_kept, 2 * len(self.streams))

    def _adjust(self, elapsed_ns: int) -> None:
        """Refuse more while the queue loses requests, less while it does not, and none once what
        is offered is no more than could be served."""
        rules, tolerated = self.rules, self.rules.loss_tolerated
        if elapsed_ns > rules.quiet_ns:
            # Nothing has come for a while: whatever overload there was is over.
            self.shed = 0.0
        elif self.admitted and (self.lost > tolerated * self.admitted or self.starved):
            loss = min(1.0, self.lost / self.admitted)
            self.capacity = (self.admitted - min(self.lost, self.admitted)) / elapsed_ns
            shed = self.shed + (1.0 - self.shed) * max(loss, tolerated)
            self.shed = min(rules.shed_max, shed)
        elif self.shed > 0.0:
            excess = 1.0 - self.capacity * elapsed_ns / self.offered if self.offered else 0.0
            self.shed = max(0.0, min(rules.ease * self.shed, excess))
        assert 0.0 <= self.shed <= rules.shed_max
        if self.shed == 0.0:
            self.owed.clear()
        self.offered = 0
        self.admitted = 0
        self.lost = 0
        self.starved = False
