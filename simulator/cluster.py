"""Emulated backends: each runs one batch at a time, for as long as its profile and luck say."""

import math
import random
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from fermata.foundation.units import NEVER
from fermata.router.core.costs import Costs
from fermata.router.core.events import Batch
from fermata.router.core.matching.matcher import RULES
from fermata.simulator.scenario.scenario import Fault

START_FAULT = 0
END_FAULT = 1
COMPLETION = 2
CONTROL = 3
HAND_ON = 4


class EmulatedBackend:
    """One accelerator: a running batch, and those that wait behind it."""

    __slots__ = (
        "incarnation",
        "kind",
        "run_ns",
        "running",
        "slowness",
        "stalled_until_ns",
        "started_at_ns",
        "waiting",
    )

    def __init__(self, kind: int = 0) -> None:
        self.kind = kind
        self.incarnation = 0
        self.running: Batch | None = None
        self.started_at_ns = 0
        self.run_ns = 0
        self.waiting: deque[tuple[Batch, int]] = deque()
        """In order, each with the time of its arrival."""
        self.slowness = 1.0
        self.stalled_until_ns = 0


class EmulatedCluster:
    """Takes dispatched batches and says when they end; also plays the timetable of faults."""

    def __init__(
        self,
        backends: int,
        costs: Costs,
        dispatch_ns: int,
        jitter: Sequence[tuple[int, float]],
        faults: Sequence[Fault],
        start_ns: int,
        rng: random.Random,
        variation: float = 0.0,
        spreads: Sequence[Sequence[Sequence[float]]] | None = None,
        kind_of: Sequence[int] = (),
        slow: tuple[float, float] = (0.0, 1.0),
        fetch_ns: int = 0,
    ) -> None:
        """`spreads`: of the logarithm of run times, by kind, variant and batch size less one.
        `kind_of`: by backend; empty: all are alike. `slow`: the share of runs that are held up,
        and how many times as long they take."""
        self.backends = [EmulatedBackend(kind) for kind in kind_of or (0,) * backends]
        self.costs = costs
        self.dispatch_ns = dispatch_ns
        self.fetch_ns = fetch_ns
        """Beyond the dispatch, for each input."""
        self.jitter = [(start_ns + from_ns, spread) for from_ns, spread in jitter]
        self.rng = rng
        # Log-normal with mean 1: ln(1 + variation^2) is the variance of its logarithm.
        self.log_spread = math.sqrt(math.log1p(variation * variation))
        self.spreads = spreads
        self.slow_share, self.slow_factor = slow
        self.sequence = 0
        self.agenda: list[tuple[int, int, int, int, int]] = []
        """(when, kind, tie-break, backend or fault, incarnation), earliest first."""
        self.faults = faults
        for index, fault in enumerate(faults):
            self._enter(start_ns + fault.at_ns, START_FAULT, index, 0)

    def next_ns(self) -> int:
        return self.agenda[0][0] if self.agenda else NEVER

    def pop(self) -> tuple[int, int, int]:
        """The next entry: (kind, backend or fault, incarnation)."""
        _, kind, _, subject, incarnation = heappop(self.agenda)
        return kind, subject, incarnation

    def _enter(self, at_ns: int, kind: int, subject: int, incarnation: int) -> None:
        self.sequence += 1
        heappush(self.agenda, (at_ns, kind, self.sequence, subject, incarnation))

    def enter_control(self, at_ns: int, what: int, subject: int) -> None:
        """Have the autoscaler or the placement look at something then."""
        self._enter(at_ns, CONTROL, what, subject)

    def enter_hand_on(self, at_ns: int) -> None:
        """Have results that ended last be handed on then."""
        self._enter(at_ns, HAND_ON, 0, 0)

    def accept(self, now_ns: int, backend: int, batch: Batch) -> None:
        """A batch has been sent to this backend; it starts once it is there and the one before
        has ended."""
        while len(self.backends) <= backend:
            self.backends.append(EmulatedBackend())
        state = self.backends[backend]
        arrives_at_ns = now_ns + self.dispatch_ns + self.fetch_ns * batch.size
        if state.running is None:
            self._start(arrives_at_ns, backend, batch)
        else:
            assert len(state.waiting) < RULES.queued_max, "more batches wait than the rules allow"
            state.waiting.append((batch, arrives_at_ns))

    def _start(self, at_ns: int, backend: int, batch: Batch) -> None:
        state = self.backends[backend]
        at_ns = max(at_ns, state.stalled_until_ns)
        state.running = batch
        state.started_at_ns = at_ns
        run_ns = self.costs.of(batch.variant, state.kind).p50_ns[batch.size]
        if self.spreads is not None:
            own = self.spreads[state.kind][batch.variant][batch.size - 1]
            run_ns = int(run_ns * math.exp(self.rng.gauss(0.0, own)))
        spread = self._spread(at_ns)
        if spread > 0.0:
            run_ns = int(run_ns * (1.0 + abs(self.rng.gauss(0.0, spread))))
        if self.log_spread > 0.0:
            draw = self.rng.gauss(-0.5 * self.log_spread**2, self.log_spread)
            run_ns = max(1, int(run_ns * math.exp(draw)))
        if self.slow_share > 0.0 and self.rng.random() < self.slow_share:
            run_ns = max(1, int(run_ns * self.slow_factor))
        if state.slowness != 1.0:
            run_ns = int(run_ns * state.slowness)
        run_ns += batch.swap_in_ns
        state.run_ns = run_ns
        self._enter(at_ns + run_ns, COMPLETION, backend, state.incarnation)

    def _spread(self, now_ns: int) -> float:
        current = self.jitter[0][1]
        for from_ns, spread in self.jitter:
            if from_ns <= now_ns:
                current = spread
        return current

    def complete(self, now_ns: int, backend: int) -> tuple[Batch, int, int]:
        """End the running batch: (batch, when it started, how long it ran). The next one
        starts."""
        state = self.backends[backend]
        batch, started_at_ns, run_ns = state.running, state.started_at_ns, state.run_ns
        assert batch is not None
        state.running = None
        if state.waiting:
            following, arrives_at_ns = state.waiting.popleft()
            self._start(max(now_ns, arrives_at_ns), backend, following)
        return batch, started_at_ns, run_ns

    def kind(self, backend: int) -> int:
        """The number of a backend's kind."""
        return self.backends[backend].kind

    def stale(self, backend: int, incarnation: int) -> bool:
        return self.backends[backend].incarnation != incarnation

    # Faults

    def begin_fault(self, now_ns: int, index: int) -> Fault:
        """Play one fault and note its end; the driver tells the engine what it would notice."""
        fault = self.faults[index]
        state = self.backends[fault.backend]
        if fault.kind == "slow":
            state.slowness = fault.factor
        elif fault.kind == "crash":
            state.incarnation += 1
            state.running = None
            state.waiting.clear()
        else:
            self._hang(now_ns, fault)
        if fault.for_ns is not None:
            self._enter(now_ns + fault.for_ns, END_FAULT, index, state.incarnation)
        return fault

    def _hang(self, now_ns: int, fault: Fault) -> None:
        state = self.backends[fault.backend]
        state.stalled_until_ns = NEVER if fault.for_ns is None else now_ns + fault.for_ns
        if state.running is None:
            return
        # The running batch is picked up where it stopped.
        state.incarnation += 1
        if fault.for_ns is None:
            return
        left_ns = max(0, state.started_at_ns + state.run_ns - now_ns)
        ends_at_ns = state.stalled_until_ns + left_ns
        state.run_ns = ends_at_ns - state.started_at_ns
        self._enter(ends_at_ns, COMPLETION, fault.backend, state.incarnation)

    def end_fault(self, index: int) -> Fault:
        fault = self.faults[index]
        state = self.backends[fault.backend]
        if fault.kind == "slow":
            state.slowness = 1.0
        return fault
