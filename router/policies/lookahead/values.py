"""The worth of a backlog: a semi-Markov decision process of one queue, solved aside.

A state is the backlog: requests that wait, and for the batches under way the arrivals of the time
they still take. A batch takes its requests out of the backlog and puts its own run time in; for
each of its requests one more arrives meanwhile. What is best in the long run then follows for
every state by policy iteration, with no rule of thumb for what backend time is worth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fermata.foundation.units import ms
from fermata.router.core.signals import Promise
from fermata.router.policies.lookahead.outcomes import Outcomes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Choice = tuple[int, int, int, float, int]
"""Run time, size and variant of a batch, its worth, and the largest size that is worth more."""

DROP = -1
"""Stands for the variant where a request is dropped."""
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
"""Sizes that are solved for; those between them are filled up when a batch is formed."""
NODES = np.array((-1.65, -0.8, -0.4, 0.0, 0.4, 0.8, 1.65))
NODES /= np.sqrt((NODES**2).mean())
"""Equally likely places of a normal deviate."""


@dataclass(frozen=True, slots=True)
class ValueRules:
    """The grid of states, and costs that decide where accuracy does not."""

    horizon: float = 30.0
    """Rewards are discounted over this many times the time that requests have."""
    whole: int = 12
    """States are whole numbers up to here, then a constant factor apart."""
    spacing: float = 1.15
    fine: float = 1.05
    """The same factor of the states for which batches are ranked."""
    top: float = 300_000.0
    rounds: int = 40
    patience: float = 0.7
    """Share of the time a batch leaves that its requests may have waited. Rates, run times and
    ages are never just what they were planned to be."""
    hold_cost: float = 1e-3
    """Part of an answer that waiting for company costs, over all the time a request has."""
    backlog_cost: float = 3e-3
    """Part of an answer that a full backlog costs. Where nothing else decides, it stays short."""


RULES = ValueRules()


@dataclass(frozen=True, slots=True)
class QueueProblem:
    """One application's queue: what a batch takes and earns, and what arrives."""

    plan_ns: tuple[tuple[int, ...], ...]
    """Run times to allow for, by variant and size; size 0 is unused."""
    expect_ns: tuple[tuple[int, ...], ...]
    """Run times to expect."""
    accuracy: tuple[float, ...]
    end_in_ns: float
    """Time from arrival to the end of the run."""
    gap_ns: float
    """Mean time between arrivals, as if the application had all backends to itself."""
    backends: float
    dispersion: float = 1.0
    part: float = 1.0
    """Part of the backends' time that is the application's."""

    def __call__(self) -> "ValueTable":
        return solve(self)


def told_apart(
    tables: Sequence[Sequence[int]], accuracy: Sequence[float], end_in_ns: int
) -> tuple[float, ...]:
    """Tells the variants of two problems apart, as far as decisions notice."""
    ends = tuple(
        round(math.log(table[size]) / 0.01)
        for table in tables
        for size in {1, len(table) // 4, len(table) // 2, len(table) - 1}
        if size > 0
    )
    return (*accuracy, round(end_in_ns / ms(0.05)), *ends)


@dataclass(frozen=True, slots=True)
class ValueTable:
    """The worth of every batch in every state."""

    problem: QueueProblem
    states: list[float]
    """Backlogs in requests, ascending from 0."""
    value: list[float]
    accuracy: float
    """Expected of all requests, those that are dropped counted as 0."""
    worth: Floats
    """By state and batch."""
    batches: list[tuple[int, int, int]]
    """Run time, size and variant."""
    larger: list[int]
    """The next larger batch of the same variant; -1: none."""
    foretold: Promise
    """The outcome of the process in the long run."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    """Outcomes while it was in use."""
    rankings: dict[int, list[Choice]] = field(default_factory=dict)

    def ranked(self, state: int) -> list[Choice]:
        """Batches for a state, best first; without those that an earlier one beats in size and run
        time as well."""
        known = self.rankings.get(state)
        if known is None:
            known = self.rankings[state] = self._rank(state)
        return known

    def _rank(self, state: int) -> list[Choice]:
        worth = self.worth[state]
        fastest_ns = min(run_ns for run_ns, size, variant in self.batches if variant != DROP)
        ranked: list[Choice] = []
        for place in np.argsort(-worth, kind="stable").tolist():
            run_ns, size, variant = self.batches[place]
            if variant == DROP or any(run <= run_ns and one <= size for run, one, *_ in ranked):
                continue
            further, limit = self.larger[place], size
            if further >= 0 and worth[further] > worth[place]:
                limit = self.batches[further][1] - 1
            ranked.append((run_ns, size, variant, float(worth[place]), limit))
            if size == 1 and run_ns == fastest_ns:
                break
        return ranked

    def slope(self, state: int) -> float:
        """Accuracy that one more request of backlog costs."""
        low, high = max(0, state - 1), min(len(self.states) - 1, state + 1)
        fall = self.value[low] - self.value[high]
        return max(0.0, fall / (self.states[high] - self.states[low]))


class _Model:
    """The process as arrays: by batch, and by state and batch."""

    def __init__(self, problem: QueueProblem, rules: ValueRules) -> None:
        self.problem, self.rules = problem, rules
        self.rate = 1.0 / problem.gap_ns
        self.batches = [*_batches(problem), (0, 1, DROP)]
        self.run_ns = np.array([run_ns for run_ns, _, _ in self.batches], float)
        self.size = np.array([size for _, size, _ in self.batches], float)
        expected = [
            0 if variant == DROP else problem.expect_ns[variant][size]
            for _, size, variant in self.batches
        ]
        self.busy = self.rate * np.array(expected, float) / problem.backends
        """Arrivals for which the batch keeps the backends."""
        horizon = rules.horizon * problem.end_in_ns * self.rate
        self.kept = np.exp(-self.size / horizon)
        """Worth that is left of what comes after the batch."""
        earned = [
            0.0 if variant == DROP else problem.accuracy[variant] + 1e-6
            for _, _, variant in self.batches
        ]
        # Earned one by one, as they arrive.
        self.reward = np.array(earned) * (1.0 - self.kept) / (1.0 - np.exp(-1.0 / horizon))
        self.cheapest = earned[int((self.size[:-1] / self.busy[:-1]).argmax())]
        """Accuracy of the batch that clears a backlog soonest."""
        self.arrived = _arrivals(self.size, problem.dispersion)
        self.states = self._grid(rules.whole, rules.spacing)

    def _grid(self, whole: int, spacing: float) -> Floats:
        """States from none to what the fastest batches can clear within the time there is."""
        speed = (self.size[:-1] / self.busy[:-1]).max() * self.rate
        top = max(4.0, max(self.rate, speed) * self.problem.end_in_ns) + 1.0 + self.busy.max()
        states = [float(each) for each in range(int(min(top, whole)) + 1)]
        while states[-1] < min(top, self.rules.top):
            states.append(min(top, max(states[-1] + 1.0, states[-1] * spacing)))
        return np.array(states)

    def feasible(self) -> npt.NDArray[np.bool_]:
        """Batches that end in time for their oldest request, by state; dropping always does."""
        problem, patience = self.problem, self.rules.patience
        # On average, the other backends are half through their batches.
        others = 0.5 * max(0.0, problem.backends - 1.0) / problem.backends
        waiting = self.states[:, None] - others * self.rate * self.run_ns[None]
        age_ns = np.maximum(0.0, waiting - 1.0) / self.rate
        gather_ns = (self.size - 1.0) / (self.rate * problem.part)
        wait_ns = np.maximum(age_ns, gather_ns[None]) / patience
        fits: npt.NDArray[np.bool_] = wait_ns + self.run_ns[None] <= problem.end_in_ns
        fits[:, -1] = True
        return fits

    def outcomes(self, states: Floats) -> tuple[Floats, Ints, Floats]:
        """Rewards by state and batch; states after it, as a place on the grid and the way to the
        next."""
        problem, rules = self.problem, self.rules
        after = np.maximum(0.0, states[:, None, None] - self.arrived[None])
        after += self.busy[None, :, None]
        place, along = self.locate(np.minimum(after, self.states[-1]))
        # Beyond the grid's end nothing is in time: each request more costs an answer.
        lost = np.maximum(0.0, after - self.states[-1]).mean(2) * self.kept * self.cheapest
        full = self.rate * problem.end_in_ns
        best = max(problem.accuracy)
        held = np.maximum(0.0, self.size[None] - states[:, None]) / (full * problem.part)
        backlog = np.minimum(3.0, states / full)[:, None] ** 2 * self.size[None]
        costs = rules.hold_cost * held + rules.backlog_cost * backlog
        return self.reward[None] - best * costs - lost, place, along

    def locate(self, states: Floats) -> tuple[Ints, Floats]:
        """Places on the grid, and the way to the next."""
        grid = self.states
        place = np.clip(np.searchsorted(grid, states, side="right") - 1, 0, len(grid) - 2)
        return place, (states - grid[place]) / (grid[place + 1] - grid[place])


def solve(problem: QueueProblem, rules: ValueRules = RULES) -> ValueTable:
    """The worth of every state and batch, by policy iteration."""
    model = _Model(problem, rules)
    fits = model.feasible()
    reward, place, along = model.outcomes(model.states)
    rows = np.arange(len(model.states))
    value = np.zeros(len(rows))
    policy: Ints | None = None
    for _ in range(rules.rounds):
        worth = np.where(fits, reward + model.kept * _mean(value, place, along), -np.inf)
        better = worth.argmax(1)
        if policy is not None:
            least = 1e-9 * max(1.0, float(np.abs(value).max()))
            better = np.where(worth.max(1) > worth[rows, policy] + least, better, policy)
            if (better == policy).all():
                break
        policy = better
        value = _evaluate(model, policy, reward, place, along)
    assert policy is not None
    return _tabulate(model, value, _foretell(model, policy, place, along))


def _mean(value: Floats, place: Ints, along: Floats) -> Floats:
    """Mean over equally likely next states."""
    mean: Floats = ((1.0 - along) * value[place] + along * value[place + 1]).mean(2)
    return mean


def _moves(model: _Model, policy: Ints, place: Ints, along: Floats) -> Floats:
    """Chances of the next state from each one, times the worth that is left of it."""
    count = len(policy)
    rows = np.arange(count)
    weight = model.kept[policy][:, None] / place.shape[2]
    at, way = place[rows, policy], along[rows, policy]
    cells = np.concatenate((rows[:, None] * count + at, rows[:, None] * count + at + 1), axis=1)
    shares = np.concatenate((weight * (1.0 - way), weight * way), axis=1)
    found = np.bincount(cells.ravel(), shares.ravel(), count * count)
    return found.reshape(count, count).astype(np.float64, copy=False)


def _evaluate(model: _Model, policy: Ints, reward: Floats, place: Ints, along: Floats) -> Floats:
    """What following the policy for ever is worth, from each state."""
    moves = _moves(model, policy, place, along)
    rows = np.arange(len(policy))
    return np.linalg.solve(np.eye(len(rows)) - moves, reward[rows, policy]).astype(np.float64)


def _foretell(model: _Model, policy: Ints, place: Ints, along: Floats) -> Promise:
    """Accuracy of the answers and share of requests dropped, from an empty queue on."""
    moves = _moves(model, policy, place, along)
    start = np.zeros(len(policy))
    start[0] = 1.0
    visits = np.linalg.solve((np.eye(len(policy)) - moves).T, start)
    variants = np.array([variant for _, _, variant in model.batches])[policy]
    requests = visits * model.size[policy]
    answered = requests * (variants != DROP)
    accuracy = np.array([*model.problem.accuracy, 0.0])[variants]
    total = float(answered.sum())
    if total <= 0.0:
        return Promise(min(model.problem.accuracy), 1.0)
    return Promise(float(answered @ accuracy) / total, 1.0 - total / float(requests.sum()))


def _tabulate(model: _Model, value: Floats, foretold: Promise) -> ValueTable:
    """The worth of all batches on a finer grid, whatever time the oldest request has left."""
    states = model._grid(model.rules.whole, model.rules.fine)
    reward, place, along = model.outcomes(states)
    worth = reward + model.kept * _mean(value, place, along)
    at, way = model.locate(states)
    return ValueTable(
        model.problem,
        states.tolist(),
        ((1.0 - way) * value[at] + way * value[at + 1]).tolist(),
        max(0.0, float(value[0] * (1.0 - model.kept[-1]))),
        worth,
        model.batches,
        _larger(model.batches),
        foretold,
    )


def _larger(batches: Sequence[tuple[int, int, int]]) -> list[int]:
    """For each batch the next larger one of its variant."""
    found: dict[int, int] = {}
    larger = [-1] * len(batches)
    for place in sorted(range(len(batches)), key=lambda each: -batches[each][1]):
        variant = batches[place][2]
        larger[place] = found.get(variant, -1)
        found[variant] = place
    return larger


def _batches(problem: QueueProblem) -> list[tuple[int, int, int]]:
    """Batches worth a thought: run time, size, variant. At each size those are left out that
    another one beats in everything."""
    found: list[tuple[int, int, int]] = []
    lasts = {len(plan_ns) - 1 for plan_ns in problem.plan_ns}
    for size in sorted({*SIZES, *lasts}):
        here = [
            (expect_ns[size], plan_ns[size], -problem.accuracy[variant], variant)
            for variant, (plan_ns, expect_ns) in enumerate(
                zip(problem.plan_ns, problem.expect_ns, strict=True)
            )
            if size < len(plan_ns) and plan_ns[size] <= problem.end_in_ns
        ]
        for one in here:
            beaten = any(
                other < one and all(a <= b for a, b in zip(other[:3], one[:3], strict=True))
                for other in here
            )
            if not beaten:
                found.append((one[1], size, one[3]))
    if found:
        return found
    runs_ns = [plan_ns[1] for plan_ns in problem.plan_ns]
    return [(min(runs_ns), 1, runs_ns.index(min(runs_ns)))]


def _arrivals(mean: Floats, dispersion: float) -> Floats:
    """Equally likely numbers of arrivals, as a gamma law has them (Wilson and Hilferty)."""
    shape = (mean / dispersion)[:, None]
    cubed = 1.0 - 1.0 / (9.0 * shape) + NODES[None] / (3.0 * np.sqrt(shape))
    counts = np.maximum(0.0, cubed) ** 3
    # Where next to nothing is left of the approximation, one node has it all.
    counts[counts.mean(1) <= 1e-12, -1] = 1.0
    scaled: Floats = counts * (mean / counts.mean(1))[:, None]
    return scaled
