"""Weighted fair shares of backends, for when not everyone can be served.

A request is refused on arrival when its client, or its application, has lately been given more
backend time than a fixed multiple of what is left. So those who ask for much meet a limit that is
the same for all of them, those who ask for little never meet it, and nobody has to be counted as
active (dynamic thresholds of shared-memory switches, Choudhury and Hahne 1998). What is left is
less when many wait: the backlog empties as fast as backends serve, whatever they were thought to
be able to do.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import exp
from typing import Final

from fermata.router.core.events import HIGHEST, DropReason, Request
from fermata.router.core.fairness.admission import Admission
from fermata.router.core.fairness.pool import Pool
from fermata.router.core.source import Source

LOSSES = (DropReason.LATE, DropReason.WINDOW, DropReason.FULL)


@dataclass(frozen=True, slots=True)
class ShareRules:
    """How much one may have."""

    wide: float = 1.0
    """How many times what is left one may have. More would let whoever comes first have it all;
    less would leave more unused where few ask for much."""
    forgotten: float = 1e-9
    """Backends: a client that was given less than that lately is as good as new."""

    @property
    def alone(self) -> float:
        """With it one client of one application, all alone, may have all backends, times the
        gain."""
        return 1.0 + 1.0 / self.wide + 1.0 / (self.wide * self.wide)


RULES: Final = ShareRules()


class FairAdmission(Admission):
    """One application at the door of its pool, with its clients."""

    def __init__(
        self,
        source: Source,
        variants: tuple[int, ...],
        slo_ns: int,
        weight: float = 1.0,
        weights: dict[int, float] | None = None,
        rules: ShareRules = RULES,
    ) -> None:
        """`variants` are those that may serve it: the cheapest says what a request costs within
        its SLO, whatever a client asks for. `weight` is relative to the lightest application."""
        self.wide, self.alone, self.forgotten = rules.wide, rules.alone, rules.forgotten
        self.source = source
        self.variants = variants
        self.slo_ns = slo_ns
        self.weight = weight
        self.weights = weights or {}
        """Weights of clients; 1 where absent."""
        self.lightest = min([1.0, *self.weights.values()])
        assert self.lightest > 0.0
        self.used = 0.0
        """Backends kept busy by requests that were let in lately, on the pool's scale."""
        self.clients: dict[int, float] = {}
        """The same by tenant, or by client where there are none."""
        self.urgent: dict[int, float] = {}
        """The part of that which went to requests of the highest priority."""
        self.began_at_ns = 0
        """When the scale was 1 that this is written in: the pool's, or the one before it."""
        self.queued = 0.0
        """Those who wait; who may wait for ten times the SLO counts as a tenth."""
        self.cost_ns = 0.0
        """Backend time that one request takes in a batch as large as the SLO allows."""
        self.slack_ns = 1
        """How long it may wait for a backend then."""
        self.look_at_ns = 0

    def admit(self, now_ns: int, request: Request, always: bool = False) -> str | None:
        pool = self.source.pool
        if now_ns >= self.look_at_ns:
            self._look(now_ns, request.application)
        pool.review(now_ns)
        pool.at(now_ns)
        if self.began_at_ns != pool.began_at_ns:
            self._rescale(pool)
        given = request.rows * self.cost_ns / pool.rules.memory_ns * pool.scale
        if pool.backends > 0 and not always and not self._fits(pool, request):
            pool.refused += 1
            pool.missed += given
            if self.slack_ns > pool.sojourn_ns:
                pool.sojourn_ns = self.slack_ns
            return DropReason.SHED
        pool.used += given
        self.used += given
        party = request.tenant or request.client
        self.clients[party] = self.clients.get(party, 0.0) + given
        if request.priority == HIGHEST:
            self.urgent[party] = self.urgent.get(party, 0.0) + given
        self.on_queued(request)
        return None

    def let_in(self, now_ns: int, request: Request) -> None:
        self.admit(now_ns, request, always=True)

    def _fits(self, pool: Pool, request: Request) -> bool:
        room = self.wide * self.weight * pool.headroom(self.alone) - self.used
        party = request.tenant or request.client
        weight = self.weights.get(party, 1.0) / self.lightest
        # The highest priority meets a limit only of its own kind, and what it takes counts for
        # all: it goes first within what its client may have, and takes nothing from others.
        used = self.urgent if request.priority == HIGHEST else self.clients
        return used.get(party, 0.0) < self.wide * weight * room

    def lately(self, now_ns: int, party: int, urgent: bool = False) -> float:
        """Backends kept busy by what a tenant or client was lately given, over its weight; with
        `urgent`, by its requests of the highest priority."""
        pool = self.source.pool
        pool.at(now_ns)
        if self.began_at_ns != pool.began_at_ns:
            self._rescale(pool)
        used = self.urgent if urgent else self.clients
        weight = self.weights.get(party, 1.0) / self.lightest
        return used.get(party, 0.0) / (weight * pool.scale)

    def on_queued(self, request: Request) -> None:
        hurry = self._hurry(request)
        self.queued += hurry
        self.source.pool.reserved += hurry * self.cost_ns / self.slack_ns

    def on_left(self, request: Request, reason: str) -> None:
        pool = self.source.pool
        if not reason:
            pool.served += 1
        elif reason in LOSSES and self._had_a_chance(request):
            pool.on_lost()
        hurry = self._hurry(request)
        self.queued -= hurry
        assert self.queued > -0.5, "somebody has left who did not wait"
        pool.reserved -= hurry * self.cost_ns / self.slack_ns

    def _hurry(self, request: Request) -> float:
        """A request with less time than the SLO is not hurried: that would be at others' cost."""
        hurry = min(1.0, self.slo_ns / max(1, request.deadline_ns - request.arrived_at_ns))
        return request.rows * hurry

    def _had_a_chance(self, request: Request) -> bool:
        """Whether its loss says that too many were let in, not that it asked for too much."""
        return 2 * (request.deadline_ns - request.arrived_at_ns) > self.slo_ns

    def on_move(self, before: Pool) -> None:
        """Its source has another pool now; what it was given elsewhere does not count there."""
        waiting = self.queued * self.cost_ns / self.slack_ns
        before.reserved -= waiting
        self._rescale(before)
        before.used -= self.used
        pool = self.source.pool
        pool.reserved += waiting
        self.used, self.began_at_ns = 0.0, pool.began_at_ns
        self.clients.clear()
        self.urgent.clear()

    def _rescale(self, pool: Pool) -> None:
        """The pool's scale has begun anew; a good time to forget clients that have left."""
        faded = exp((self.began_at_ns - pool.began_at_ns) / pool.rules.memory_ns)
        self.used *= faded
        self.clients, self.urgent = (
            {party: used * faded for party, used in each.items() if used * faded > self.forgotten}
            for each in (self.clients, self.urgent)
        )
        self.began_at_ns = pool.began_at_ns

    def _look(self, now_ns: int, application: int) -> None:
        """The cost of one request when backends take turns with batches as large as the SLO allows
        (Symphony Eqn 2), and how long it may wait for its own."""
        self.look_at_ns = now_ns + self.source.pool.rules.look_ns
        source = self.source
        pool = source.pool
        slo_ns = self.slo_ns - source.desk.lead_ns(1, application)
        pool.reserved -= self.queued * self.cost_ns / self.slack_ns
        self.cost_ns, self.slack_ns = self._turns(slo_ns)
        assert self.cost_ns > 0.0, "an application has a variant"
        pool.reserved += self.queued * self.cost_ns / self.slack_ns

    def _turns(self, slo_ns: int) -> tuple[float, int]:
        """Cost and slack, the mean over requests that all backends together could serve. A kind
        on which nothing ends in time serves none, unless there is no other."""
        desk = self.source.desk
        there = {kind: desk.backends_of_kind(kind) for kind in range(len(desk.costs.by_kind))}
        backends = sum(there.values())
        if backends in there.values():
            only = next((kind for kind, count in there.items() if count > 0), 0)
            return self._turn(slo_ns, only)[:2]
        turns = [(count, *self._turn(slo_ns, kind)) for kind, count in there.items() if count > 0]
        if any(in_time for *_, in_time in turns):
            turns = [turn for turn in turns if turn[-1]]
        served = [count / cost_ns for count, cost_ns, _, _ in turns]
        slack_ns = sum((part * turn[2] for part, turn in zip(served, turns, strict=True)), 0.0)
        rate = sum(served, 0.0)
        return backends / rate, max(1, int(slack_ns / rate))

    def _turn(self, slo_ns: int, kind: int) -> tuple[float, int, bool]:
        """Cost and slack on backends of one kind, and whether anything ends in time there."""
        backends = max(1, self.source.pool.backends)
        best: tuple[float, int, bool] = (0.0, 1, False)
        for variant in self.variants:
            cost = self.source.costs.of(variant, kind)
            plan_ns = cost.plan_ns
            size = max(1, bisect_right(plan_ns, slo_ns * backends // (backends + 1)) - 1)
            # Margins are for deadlines: a backend's time is spent as batches take it on average.
            cost_ns = cost.mean_ratio(size) * cost.p50_ns[size] / size
            if best[0] == 0.0 or cost_ns < best[0]:
                slack_ns = max(slo_ns - plan_ns[size], plan_ns[size] // backends, 1)
                best = (cost_ns, slack_ns, plan_ns[size] <= slo_ns)
        return best
