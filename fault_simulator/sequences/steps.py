"""A model that keeps the state of sequences, in the world of simulated faults.

The model's answer depends on every step before it. So a step that ran twice, out of order, on the
state of another sequence, or after its client was told that the state is gone, shows.
"""

from collections.abc import Mapping

import numpy as np

from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.execution.runners.sequences import SequenceRunner
from fermata.deployments.backend.execution.tensors import Array
from fermata.deployments.specs.served_model import (
    CONTROLS,
    OUTPUT,
    SEQUENCE_ID,
    SEQUENCE_START,
    SequenceSpec,
    ServedModel,
    TensorSpec,
)
from fermata.fault_simulator.deployment import MoreModels
from fermata.fault_simulator.environment.world import InvariantViolationError
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms, seconds

STEPS = ServedModel(
    "steps",
    TensorSpec("input", "INT64", (1,)),
    ms(150),
    ms(220),
    stateful=SequenceSpec(seconds(60), CONTROLS),
)
INPUTS = (STEPS.input, *CONTROLS)
TABLE = tuple(ms(3 + size) for size in range(1, 9))
STEPS_VARIANT = "steps-1"
STEPS_ENTRY: JsonObject = {
    "name": STEPS.name,
    "slo_ms": STEPS.slo_ns / 1e6,
    "hard_limit_ms": STEPS.hard_limit_ns / 1e6,
    "sequences": True,
    "variants": [
        {
            "name": STEPS_VARIANT,
            "latency_ms": [each / 1e6 for each in TABLE],
            "batch_size_max": len(TABLE),
        }
    ],
}
MODULUS = (1 << 61) - 1


def next_total(total: int, number: int) -> int:
    """The state after one more step; the order of steps matters."""
    return (total * 31 + number) % MODULUS


class StepsModel:
    """Answers with each step's number, and the state after it."""

    def __init__(self) -> None:
        self.totals: dict[int, int] = {}

    def __call__(self, given: Mapping[str, Array]) -> dict[str, Array]:
        keys, starts = given[SEQUENCE_ID].tolist(), given[SEQUENCE_START].tolist()
        values = given[STEPS.input.name]
        numbers = values[:, 0].tolist()
        if len(set(keys)) < len(keys):
            raise InvariantViolationError(f"a batch has steps of one sequence twice: {keys}")
        totals: list[int] = []
        for key, start, number in zip(keys, starts, numbers, strict=True):
            self.totals[key] = next_total(0 if start else self.totals[key], number)
            totals.append(self.totals[key])
        return {OUTPUT: values.copy(), "total": np.array(totals, np.int64)[:, None]}

    def end_sequences(self, keys: list[int]) -> None:
        """Forget these."""
        for key in keys:
            self.totals.pop(key, None)


def steps_runners() -> dict[str, Runner]:
    """The model of a backend's process, with an empty state."""
    return {STEPS_VARIANT: SequenceRunner(StepsModel(), len(TABLE), INPUTS)}


SEQUENCES = MoreModels((STEPS_ENTRY,), {STEPS_VARIANT: TABLE}, (STEPS,), runners=steps_runners)
