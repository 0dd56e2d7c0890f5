"""A vectorised environment: many copies of a system, stepped slot by slot."""

import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.foundation.units import SECOND
from fermata.router.policies.rl.batching import LIMITS
from fermata.router.policies.rl.observation import Floats, InstanceStates, Memory, encode
from fermata.router.policies.rl.sampling import even_draw
from fermata.simulator.learning.lanes import BatchingLanes, Ints, LaneCounts, Lanes
from fermata.simulator.learning.system import TrainingSystem

VIOLATION = 0.5
"""The cost of a late or lost request beside its answer: 1 / beta of RL-edge's Eq. 2, alpha 1."""
SWITCH = 0.05
"""Chance that a state of the workload ends within a slot of training."""


@dataclass(frozen=True, slots=True)
class Coming:
    """Arrivals of a slot in each copy, whatever its policy does."""

    times_ns: Ints
    """Times of arrival, in order."""
    counts: Ints
    switches: npt.NDArray[np.bool_]
    """Copies whose workload changes its state."""
    draws: Floats
    """For each arrival, where in the shares it falls."""


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one slot, by copy."""

    rewards: Floats
    weights: Floats
    """How much more often such a slot comes in the workload than in training: training sees both
    states equally and many switches, or it would see hardly a burst."""
    states: Ints
    """State of the workload, at the slot's beginning."""
    arrivals: Ints
    good: Floats
    """Expected right answers in time."""
    bad: Ints


class Environment:
    """Copies of one system, each in a state of the workload of its own."""

    def __init__(
        self,
        system: TrainingSystem,
        copies: int,
        slot_ns: int,
        rng: np.random.Generator,
        batching: bool = False,
        with_arrivals: bool = False,
        even: bool = True,
        memory: int = 1,
    ) -> None:
        self.system = system
        self.copies = copies
        self.slot_ns = slot_ns
        self.rng = rng
        self.scales = system.scales(with_arrivals, memory)
        self.instances = len(system.tiers)
        self.tier = np.array(system.tiers)
        self.accuracy = np.array(system.accuracy)[self.tier]
        self.now_ns = 0
        self.state = rng.integers(0, 2, copies)
        self.switched = np.zeros(copies, np.bool_)
        self.arrivals = np.zeros(copies, np.int64)
        self.first_draw = rng.random(copies)
        self.drawn = np.zeros(copies, np.int64)
        self.even = even
        self.coming: Coming | None = None
        self.memory = Memory(memory)
        self.seen: Floats | None = None
        """As this slot begins; known once it has been asked for."""
        self.lanes: Lanes | BatchingLanes
        if batching:
            tables = np.tile(system.lane_tables(), (copies, 1))
            self.lanes = BatchingLanes(tables, system.buffer, system.slo_ns)
        else:
            service_ns = np.array([system.batch_ns[tier][1] for tier in system.tiers], np.int64)
            self.lanes = Lanes(np.tile(service_ns, copies), system.buffer, system.slo_ns)

    def observe(self) -> Floats:
        """The observation of each copy as the slot begins."""
        return self.memory.recall(self._see())

    def _see(self) -> Floats:
        if self.seen is not None:
            return self.seen
        states = self.lanes.states(self.now_ns)
        shape = (self.copies, self.instances)
        shaped = InstanceStates(
            states.length.reshape(shape),
            states.elapsed_ns.reshape(shape),
            states.oldest_ns.reshape(shape),
            states.youngest_ns.reshape(shape),
        )
        self.seen = encode(shaped, self.arrivals.astype(np.float64), self.scales)
        return self.seen

    def look_ahead(self) -> Coming:
        """The slot to come; the same until it has been played."""
        if self.coming is None:
            self.coming = self._draw()
        return self.coming

    def preview(self, shares: Floats, choices: Ints | None = None) -> Floats:
        """The rewards that the slot to come would bring with these shares."""
        coming = self.look_ahead()
        tally = self._play(copy.deepcopy(self.lanes), coming, shares, choices)
        return self._reward(tally, coming, np.zeros(self.copies)).rewards

    def step(self, shares: Floats, choices: Ints | None = None) -> Step:
        """Play a slot with these shares of the instances, by copy; `choices` are indices of
        `LIMITS`, by copy and tier."""
        self.memory.keep(self._see())
        self.seen = None
        coming = self.look_ahead()
        weights = self._weigh(self.state, coming.switches)
        tally = self._play(self.lanes, coming, shares, choices)
        step = self._reward(tally, coming, weights)
        self.coming = None
        self.now_ns += self.slot_ns
        self.state = np.where(coming.switches, 1 - self.state, self.state)
        self.switched = coming.switches
        self.arrivals = coming.counts
        self.drawn += coming.counts
        return step

    def _play(
        self, lanes: Lanes | BatchingLanes, coming: Coming, shares: Floats, choices: Ints | None
    ) -> LaneCounts:
        lanes_ns, lane_counts = self._split(coming, shares)
        if isinstance(lanes, Lanes):
            return lanes.play(lanes_ns, lane_counts)
        assert choices is not None
        limits = np.array(LIMITS)[choices][:, self.tier]
        lanes.set_limits(self.now_ns, limits.reshape(-1, 2))
        return lanes.play(lanes_ns, lane_counts, self.now_ns + self.slot_ns)

    def _draw(self) -> Coming:
        copies, slot_s = self.copies, self.slot_ns / SECOND
        rates = np.array(self.system.rates_rps)
        switches = self.rng.random(copies) < SWITCH
        until = np.where(switches, self.rng.random(copies), 1.0)
        before = self.rng.poisson(rates[self.state] * until * slot_s)
        after = self.rng.poisson(rates[1 - self.state] * (1.0 - until) * slot_s)
        counts = before + after
        at = self.rng.random((copies, int(counts.max(initial=1))))
        column = np.arange(at.shape[1])
        at = np.where(
            column < before[:, None],
            at * until[:, None],
            until[:, None] + at * (1.0 - until[:, None]),
        )
        at[column >= counts[:, None]] = 2.0
        at.sort(axis=1)
        times_ns = self.now_ns + (at * self.slot_ns).astype(np.int64)
        if self.even:
            draws = even_draw(self.first_draw[:, None], self.drawn[:, None] + column)
        else:
            draws = self.rng.random(at.shape)
        return Coming(times_ns, counts, switches, draws)

    def _split(self, coming: Coming, shares: Floats) -> tuple[Ints, Ints]:
        """The instance of each arrival; a row of times for each lane."""
        cumulative = np.cumsum(shares, axis=1)
        times_ns = coming.times_ns
        valid = np.arange(times_ns.shape[1]) < coming.counts[:, None]
        instance = np.zeros(times_ns.shape, np.int64)
        for edge in range(self.instances - 1):
            instance += coming.draws >= cumulative[:, edge : edge + 1]
        lane_counts = np.zeros((self.copies, self.instances), np.int64)
        chosen = [valid & (instance == each) for each in range(self.instances)]
        for each, mine in enumerate(chosen):
            lane_counts[:, each] = mine.sum(axis=1)
        width = int(lane_counts.max(initial=1))
        lanes_ns = np.zeros((self.copies, self.instances, max(1, width)), np.int64)
        for each, mine in enumerate(chosen):
            row, column = np.nonzero(mine)
            place = (np.cumsum(mine, axis=1) - 1)[row, column]
            lanes_ns[row, each, place] = times_ns[row, column]
        return lanes_ns.reshape(-1, lanes_ns.shape[2]), lane_counts.reshape(-1)

    def _weigh(self, state: Ints, switches: npt.NDArray[np.bool_]) -> Floats:
        slot_s = self.slot_ns / SECOND
        leaves = 1.0 - np.exp(-np.array(self.system.leave_rps) * slot_s)
        shares = np.array(self.system.time_shares)
        # A slot after a switch began in the other state.
        came_from = np.where(self.switched, 1 - state, state)
        weights = shares[came_from] / 0.5
        weights = weights * _ratio(leaves[came_from], self.switched)
        return np.asarray(weights * _ratio(leaves[state], switches))

    def _reward(self, tally: LaneCounts, coming: Coming, weights: Floats) -> Step:
        shape = (self.copies, self.instances)
        good = tally.good.reshape(shape) @ self.accuracy
        bad = (tally.late + tally.refused).reshape(shape).sum(axis=1)
        # RL-edge Eq. 2, less what the worst variant alone would have earned: a constant of the
        # arrivals, which no action changes.
        rewards = good - VIOLATION * bad - self.accuracy.min() * coming.counts
        return Step(rewards, weights, self.state, coming.counts, good, bad)


def _ratio(leaves: Floats, switches: npt.NDArray[np.bool_]) -> Floats:
    return np.where(switches, leaves / SWITCH, (1.0 - leaves) / (1.0 - SWITCH))
