"""A policy's view of the instances when a slot begins, as numbers of about one."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
AGE_MAX = 4.0
"""Ages count in SLOs; what is older than this is as old as this."""
AGE_SCALE = 4.0
"""Most ages are small parts of an SLO."""
MARKS = (1, 2, 3, 5, 8)
"""Whether a queue is at least this long: whether one or two wait says far more about the
workload than whether it is eleven or twelve."""
PER_INSTANCE = 4 + len(MARKS)


@dataclass(frozen=True, slots=True)
class InstanceStates:
    """States of instances (RL-edge Eq. 1), the last axis being the instances. The paper shows all
    ages; the oldest and the youngest say as much of queues that are served in order."""

    length: Floats
    """Requests there, the running ones included."""
    elapsed_ns: Floats
    """How long the running ones have been running; 0 when idle."""
    oldest_ns: Floats
    """Age of the oldest request; 0 when there is none, here and below."""
    youngest_ns: Floats


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales that numbers are measured by."""

    buffer: int
    slo_ns: int
    arrivals: float = 0.0
    """Arrivals in a busy slot; 0: the policy does not see how many there were."""
    memory: int = 1
    """Slots whose beginnings the policy sees, this one included."""


def encode(states: InstanceStates, arrivals: Floats, scales: Scales) -> Floats:
    """One slot's beginning; `arrivals` counts those of the slot before, without the last axis."""
    ages = [states.elapsed_ns, states.oldest_ns, states.youngest_ns]
    parts = [
        states.length / scales.buffer,
        *((states.length >= mark).astype(np.float64) for mark in MARKS),
        *(AGE_SCALE * np.minimum(age_ns / scales.slo_ns, AGE_MAX) for age_ns in ages),
    ]
    if scales.arrivals > 0.0:
        parts.append(arrivals[..., None] / scales.arrivals)
    return np.concatenate(parts, axis=-1)


class Memory:
    """The beginnings of the last slots, of one system or of many side by side.

    What a slot began with says little of the workload: a burst, too, leaves instances idle for a
    moment. It seldom does so twice.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        """This one included."""
        self.past: deque[Floats] = deque(maxlen=slots - 1)
        """The latest first."""

    def recall(self, seen: Floats) -> Floats:
        """The observation, of this slot and those before; as if it had always been so as far back
        as nothing is remembered."""
        known = [seen, *self.past]
        return np.concatenate([*known, *known[-1:] * (self.slots - len(known))], axis=-1)

    def keep(self, seen: Floats) -> None:
        self.past.appendleft(seen)

    def forget(self) -> None:
        self.past.clear()


def width(instances: int, scales: Scales) -> int:
    """Numbers in an observation."""
    return scales.memory * (PER_INSTANCE * instances + (1 if scales.arrivals > 0.0 else 0))
