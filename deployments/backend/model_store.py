"""Variants that a backend may hold, loaded and measured on its device."""

import os
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fermata.deployments.backend.execution.finite import FiniteRunner, NonFiniteCounts
from fermata.deployments.backend.execution.pace import Pace
from fermata.deployments.backend.execution.runner import Runner
from fermata.deployments.backend.kernels.background import BackgroundTuning
from fermata.deployments.backend.loaders import MemoryBudget, load_runner, pick_device
from fermata.deployments.backend.meter import LoadCounts
from fermata.deployments.backend.profiling import profile_runner
from fermata.deployments.backend.swapping import SwappingRunner, SwapSpace
from fermata.deployments.models.cache import cache_folder
from fermata.deployments.specs.backend import ModelSpec, StoreOptions
from fermata.profiles.devices import Cuda
from fermata.profiles.profile import Profile

CONTEXT_BYTES = 2**30
"""Memory of a process on a GPU beside its models, at most: context, kernels, libraries."""
ROOM = 0.1
"""Share of a GPU's memory that stays free beside a backend and its spare."""


def spare_fits(free: int, total: int, models: int) -> bool:
    """Whether models of this size fit once more beside the process that holds them."""
    return free - models - CONTEXT_BYTES >= ROOM * total


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """Runners and run times of the variants that a backend has loaded."""

    runners: dict[str, Runner]
    profiles: dict[str, Profile]


class ModelStore:
    """Loads variants by name; its methods take long and are called from threads, one at a time."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.device = pick_device(options.device)
        self.called = Cuda().name if self.device == "cuda" else self.device
        self.kind = options.kind or self.called
        """Accelerator type; backends of one type share run times."""
        self.budget = MemoryBudget(options.memory_bytes_max)
        self.loads = LoadCounts()
        self.non_finite = NonFiniteCounts()
        self.space = SwapSpace(self._swap_in) if options.swap else None
        """Set if the backend holds one model at a time."""
        self.specs = {spec.name: spec for spec in options.specs}
        self.pace = Pace()
        self.tuning = self._tuning()
        """Set if other kernels than the plain ones are tried."""

    def _tuning(self) -> BackgroundTuning | None:
        options = self.options
        # Other kernels need memory of their own, which no budget has counted.
        limited = options.swap or options.memory_bytes_max is not None
        if self.device != "cuda" or options.kernels == "plain" or limited:
            return None
        return BackgroundTuning(cache_folder(os.environ), self.called)

    def begin_tuning(self) -> None:
        """Try other kernels from now on, beside the batches that are served."""
        if self.tuning is not None:
            self.tuning.begin()

    def load(self, variant: str) -> Runner:
        """The variant, warm; ConfigError where it cannot be loaded or does not fit."""
        spec = self.specs[variant]
        return FiniteRunner(self._load(spec), variant, self.non_finite, spec.finite_outputs)

    def _load(self, spec: ModelSpec) -> Runner:
        if self.space is not None:
            return SwappingRunner(spec, self.space)
        from_ns = time.monotonic_ns()
        runner = load_runner(spec, self.device, self.budget, pace=self.pace)
        if self.tuning is not None:
            self.tuning.add(spec, runner)
        self.loads.add(spec.name, time.monotonic_ns() - from_ns)
        return runner

    def _swap_in(self, spec: ModelSpec) -> Runner:
        from_ns = time.monotonic_ns()
        budget = MemoryBudget(self.budget.bytes_max)
        runner = load_runner(spec, self.device, budget, warm=False)
        self.loads.add(spec.name, time.monotonic_ns() - from_ns)
        return runner

    def has_room_for_spare(self, placed: bool) -> bool:
        """Whether a second process with the same models fits the GPU, with room to work in; where
        models are `placed` or asked for later, by the budget that they have."""
        if self.device != "cuda" or self.options.swap:
            return False
        torch: Any = import_module("torch")
        free, total = torch.cuda.mem_get_info()
        # Models in processes of their own are part of the budget alone.
        models = max(int(torch.cuda.memory_reserved()), self.budget.total())
        if placed or self.options.on_demand:
            models = self.options.memory_bytes_max or total
        return spare_fits(free, total, models)

    def held_bytes(self) -> int:
        """Memory of all loaded models."""
        return self.budget.total()

    def release(self, variant: str) -> None:
        """Free the budget of a variant whose runner has been closed."""
        self.budget.release(variant)

    def measure(self, variant: str, runner: Runner) -> Profile:
        """Run times of a loaded variant on this device."""
        options = self.options
        folder = cache_folder(os.environ)
        spec = self.specs[variant]
        return profile_runner(spec, runner, self.device, options.threads, folder, options.measure)
