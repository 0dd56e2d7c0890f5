"""A vectorised environment: many copies of a system, stepped slot by slot."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router.core.units import SECOND
from router.policies.rl.batching import LIMITS
from router.policies.rl.draws import even_draw
from router.policies.rl.observation import Floats, InstanceStates, encode
from simulator.learning.lanes import BatchingLanes, Ints, Lanes, Tally
from simulator.learning.system import System

SWITCH = 0.05
"""Chance that a state of the workload ends within a slot of training."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one slot brought, by copy."""

    rewards: Floats
    weights: Floats
    """How much more often such a slot comes in the workload than in training: training sees both
    states equally and many switches, or it would see hardly a burst."""
    states: Ints
    """Of the workload, at the slot's beginning."""
    arrivals: Ints
    good: Floats
    """Expected right answers in time."""
    bad: Ints


class Environment:
    """Copies of one system, each in a state of the workload of its own."""

    def __init__(
        self,
        system: System,
        copies: int,
        slot_ns: int,
        rng: np.random.Generator,
        batching: bool = False,
        with_arrivals: bool = False,
    ) -> None:
        self.system = system
        self.copies = copies
        self.slot_ns = slot_ns
        self.rng = rng
        self.scales = system.scales(with_arrivals)
        self.instances = len(system.tiers)
        self.tier = np.array(system.tiers)
        self.accuracy = np.array(system.accuracy)[self.tier]
        self.now_ns = 0
        self.state = rng.integers(0, 2, copies)
        self.switched = np.zeros(copies, np.bool_)
        self.arrivals = np.zeros(copies, np.int64)
        self.first_draw = rng.random(copies)
        self.drawn = np.zeros(copies, np.int64)
        self.lanes: Lanes | BatchingLanes
        if batching:
            width = max(len(table) for table in system.batch_ns)
            table = np.array([[*row, *[row[-1]] * (width - len(row))] for row in system.batch_ns])
            self.lanes = BatchingLanes(
                np.tile(table[self.tier], (copies, 1)), system.buffer, system.slo_ns
            )
        else:
            service_ns = np.array([system.batch_ns[tier][1] for tier in system.tiers], np.int64)
            self.lanes = Lanes(np.tile(service_ns, copies), system.buffer, system.slo_ns)

    def observe(self) -> Floats:
        """The observation of each copy as the slot begins."""
        states = self.lanes.states(self.now_ns)
        shape = (self.copies, self.instances)
        shaped = InstanceStates(
            states.length.reshape(shape),
            states.elapsed_ns.reshape(shape),
            states.oldest_ns.reshape(shape),
            states.youngest_ns.reshape(shape),
        )
        return encode(shaped, self.arrivals.astype(np.float64), self.scales)

    def step(self, shares: Floats, choices: Ints | None = None) -> Step:
        """Play a slot with these shares of the instances, by copy; `choices` are indices of
        `LIMITS`, by copy and tier."""
        state = self.state
        times_ns, counts, switches = self._arrive()
        weights = self._weigh(state, switches)
        lanes_ns, lane_counts = self._split(times_ns, counts, shares)
        end_ns = self.now_ns + self.slot_ns
        if isinstance(self.lanes, BatchingLanes):
            assert choices is not None
            limits = np.array(LIMITS)[choices][:, self.tier]
            self.lanes.set_limits(self.now_ns, limits.reshape(-1, 2))
            tally = self.lanes.play(lanes_ns, lane_counts, end_ns)
        else:
            tally = self.lanes.play(lanes_ns, lane_counts)
        self.now_ns = end_ns
        self.state = np.where(switches, 1 - state, state)
        self.switched = switches
        self.arrivals = counts
        return self._reward(tally, state, weights, counts)

    def _arrive(self) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Times of arrival by copy, in order, how many they are, and who switches its state."""
        copies, slot_s = self.copies, self.slot_ns / SECOND
        rates = np.array(self.system.rates_rps)
        switches = self.rng.random(copies) < SWITCH
        until = np.where(switches, self.rng.random(copies), 1.0)
        before = self.rng.poisson(rates[self.state] * until * slot_s)
        after = self.rng.poisson(rates[1 - self.state] * (1.0 - until) * slot_s)
        counts = before + after
        draws = self.rng.random((copies, int(counts.max(initial=1))))
        column = np.arange(draws.shape[1])
        draws = np.where(
            column < before[:, None],
            draws * until[:, None],
            until[:, None] + draws * (1.0 - until[:, None]),
        )
        draws[column >= counts[:, None]] = 2.0
        draws.sort(axis=1)
        return self.now_ns + (draws * self.slot_ns).astype(np.int64), counts, switches

    def _split(self, times_ns: Ints, counts: Ints, shares: Floats) -> tuple[Ints, Ints]:
        """Draw an instance for each arrival; a row of times for each lane."""
        numbers = self.drawn[:, None] + np.arange(times_ns.shape[1])
        draws = even_draw(self.first_draw[:, None], numbers)
        self.drawn += counts
        cumulative = np.cumsum(shares, axis=1)
        valid = np.arange(times_ns.shape[1]) < counts[:, None]
        instance = np.zeros(times_ns.shape, np.int64)
        for edge in range(self.instances - 1):
            instance += draws >= cumulative[:, edge : edge + 1]
        lane_counts = np.zeros((self.copies, self.instances), np.int64)
        chosen = [valid & (instance == each) for each in range(self.instances)]
        for each, mine in enumerate(chosen):
            lane_counts[:, each] = mine.sum(axis=1)
        width = int(lane_counts.max(initial=1))
        lanes_ns = np.zeros((self.copies, self.instances, max(1, width)), np.int64)
        for each, mine in enumerate(chosen):
            copy, column = np.nonzero(mine)
            place = (np.cumsum(mine, axis=1) - 1)[copy, column]
            lanes_ns[copy, each, place] = times_ns[copy, column]
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

    def _reward(self, tally: Tally, state: Ints, weights: Floats, counts: Ints) -> Step:
        shape = (self.copies, self.instances)
        good = tally.good.reshape(shape) @ self.accuracy
        bad = (tally.late + tally.refused).reshape(shape).sum(axis=1)
        # RL-edge Eq. 2 with both weights 1, less what the worst variant alone would have earned:
        # a constant of the arrivals, which no action changes.
        rewards = good - bad - self.accuracy.min() * counts
        return Step(rewards, weights, state, counts, good, bad)


def _ratio(leaves: Floats, switches: npt.NDArray[np.bool_]) -> Floats:
    return np.where(switches, leaves / SWITCH, (1.0 - leaves) / (1.0 - SWITCH))
