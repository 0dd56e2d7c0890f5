"""Batches that the device works on while this process does something else."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fermata.deployments.backend.execution.tensors import Outputs


class Flight(Protocol):
    """A batch that was launched, or is about to run."""

    @property
    def run_ns(self) -> int:
        """Time on the device; known once its outputs are."""

    def outputs(self) -> Outputs:
        """Wait for the answers; raises what the batch failed with. Called once."""


class OwnRun:
    """A batch that runs in the thread that asks for its outputs."""

    def __init__(self, run: Callable[[Any], Outputs], staged: Any) -> None:
        self.run = run
        self.staged = [staged]
        """Emptied by the run, so that nothing here keeps the inputs."""
        self.run_ns = 0

    def outputs(self) -> Outputs:
        from_ns = time.monotonic_ns()
        try:
            return self.run(self.staged.pop())
        finally:
            self.run_ns = time.monotonic_ns() - from_ns


class AnswerBuffer:
    """Pinned memory for the answers of one batch, with the events around its run."""

    def __init__(self, torch: Any, answers: Sequence[Any]) -> None:
        self.answers = answers
        """One for each output."""
        self.began = torch.cuda.Event(enable_timing=True)
        # A waiting thread sleeps; by default it would spin, and take a core from the others.
        self.ended = torch.cuda.Event(enable_timing=True, blocking=True)


class GraphFlight:
    """A batch on a GPU's stream."""

    def __init__(
        self,
        buffer: AnswerBuffer,
        size: int,
        finish: Callable[..., Outputs],
        land: Callable[[], None],
    ) -> None:
        self.buffer = buffer
        self.size = size
        self.finish = finish
        self.land = land
        """Gives back the buffers of its inputs and answers."""
        self.run_ns = 0

    def outputs(self) -> Outputs:
        buffer = self.buffer
        try:
            buffer.ended.synchronize()
            self.run_ns = round(1e6 * buffer.began.elapsed_time(buffer.ended))
            # Not numpy's copy: of large answers that takes longer than the run, with one core.
            answers = [each[: self.size].clone().numpy() for each in buffer.answers]
        finally:
            self.land()
        return self.finish(*answers)
