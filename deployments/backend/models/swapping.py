"""Backends that hold one model at a time: a batch of another one waits until it is loaded."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fermata.deployments.backend.device import run_small_kernel
from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.execution.tensors import Item, Outputs, copy_of
from fermata.deployments.models.model import Card
from fermata.deployments.specs.backend import ModelSpec


class SwapSpace:
    """Room for one loaded model. Only the thread that runs batches may use it."""

    def __init__(self, load: Callable[[ModelSpec], Runner]) -> None:
        self.load = load
        self.resident = ""
        self.runner: Runner | None = None
        self.swaps = 0

    def bring_in(self, spec: ModelSpec) -> Runner:
        """Load the model, unless it is here; the one before it is unloaded first."""
        if self.runner is None or self.resident != spec.name:
            self.clear()
            self.runner = self.load(spec)
            self.resident = spec.name
            self.swaps += 1
        return self.runner

    def clear(self) -> None:
        if self.runner is not None:
            self.runner.close()
        self.runner, self.resident = None, ""


@dataclass(frozen=True, slots=True)
class Described:
    """Facts about a model that is not loaded."""

    card: Card | None


class SwappingRunner:
    """A model that is loaded when a batch needs it; its swap-in is part of that batch's run."""

    def __init__(self, spec: ModelSpec, space: SwapSpace) -> None:
        self.spec = spec
        self.space = space
        # Loaded once to learn its input, and that it can be loaded at all.
        runner = space.bring_in(spec)
        self.batch_size_max = runner.batch_size_max
        self.model = Described(getattr(getattr(runner, "model", None), "card", None))
        self._check = runner.check
        self._alike = runner.alike

    def check(self, item: Item) -> None:
        self._check(item)

    def alike(self, item: Item) -> Hashable:
        return self._alike(item)

    def stage(self, items: Sequence[Item]) -> list[Item]:
        """Copy the inputs alone: the model may not be loaded yet."""
        return [copy_of(item) for item in items]

    def run(self, staged: Any) -> Outputs:
        runner = self.space.bring_in(self.spec)
        return runner.run(runner.stage(staged))

    def check_device(self) -> None:
        runner = self.space.runner
        (run_small_kernel if runner is None else runner.check_device)()

    def close(self) -> None:
        if self.space.resident == self.spec.name:
            self.space.clear()
