"""Variants that a backend may hold, loaded and measured on its device."""

import os
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fermata.deployments.backend.execution.cuda.graphs import GraphRunner
from fermata.deployments.backend.execution.pace import Pace
from fermata.deployments.backend.execution.runners.finite import FiniteRunner, NonFiniteCounts
from fermata.deployments.backend.execution.runners.runner import PlainRunner, Runner, innermost
from fermata.deployments.backend.execution.tensors import Array, Outputs
from fermata.deployments.backend.host_memory import host_memory
from fermata.deployments.backend.kernels.background import BackgroundTuning
from fermata.deployments.backend.meter import LoadCounts
from fermata.deployments.backend.models.loaders import load_runner, open_on_host, pick_device
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.backend.models.profiling import profile_runner
from fermata.deployments.backend.models.swapping import SwappingRunner, SwapSpace
from fermata.deployments.models.cache import cache_folder
from fermata.deployments.models.model import Model
from fermata.deployments.specs.backend import ModelSpec, StoreOptions
from fermata.foundation.logs import LOG, fields
from fermata.profiles.devices import Cuda
from fermata.profiles.profile import Profile

CONTEXT_BYTES = 2**30
"""Memory of a process on a GPU beside its models, at most: context, kernels, libraries."""
ROOM = 0.1
"""Share of a GPU's memory that stays free beside a backend and its spare."""


def spare_fits(free: int, total: int, models: int) -> bool:
    """Whether models of this size fit once more beside the process that holds them."""
    return free - models - CONTEXT_BYTES >= ROOM * total


def _run_nothing(batch: Array) -> Outputs:
    raise AssertionError("a model in host memory is not run")


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """Runners and run times of the variants that a backend has loaded."""

    runners: dict[str, Runner]
    profiles: dict[str, Profile]


class ModelStore:
    """Loads variants by name; its methods take long and are called from threads, one at a time."""

    def __init__(self, options: StoreOptions, on_host: bool = False) -> None:
        """`on_host`: models wait in host memory, and the device is left alone."""
        self.options = options
        self.on_host = on_host
        self.device = pick_device(options.device)
        self.kind = options.kind or (Cuda().name if self.device == "cuda" else self.device)
        """Accelerator type; backends of one type share run times."""
        self.budget = MemoryBudget(options.memory_bytes_max)
        self.loads = LoadCounts()
        self.non_finite = NonFiniteCounts()
        self.space = SwapSpace(self._swap_in) if options.swap else None
        """Set if the backend holds one model at a time."""
        self.specs = {spec.name: spec for spec in options.specs}
        self.pace = Pace()
        self.opened: dict[str, Model | None] = {}
        """Models in host memory, by variant; None where only code and libraries are."""
        self.hurried: list[GraphRunner] = []
        """Loaded while clients waited, or beside a process that serves, with the graphs that are
        needed at once."""
        self.tuning = None if on_host else self._tuning()
        """Set if other kernels than the plain ones are tried."""

    def _tuning(self) -> BackgroundTuning | None:
        options = self.options
        # Other kernels need memory of their own, which no budget has counted.
        limited = options.swap or options.memory_bytes_max is not None
        if self.device != "cuda" or options.kernels == "plain" or limited:
            return None
        compiles = options.kernels == "compiled"
        return BackgroundTuning(cache_folder(os.environ), Cuda().name, compiles)

    def use_device(self) -> None:
        """Load onto the device from now on, and in haste: clients wait."""
        self.on_host, self.pace.hurries = False, True
        self.tuning = self._tuning()

    def begin_tuning(self) -> None:
        """Do from now on what can be done beside the batches that are served: capture what was
        left out in haste, then try other kernels."""
        self.pace.hurries = False
        if self.hurried:
            threading.Thread(target=self._finish, name="capturer", daemon=True).start()
        elif self.tuning is not None:
            self.tuning.begin()

    def _finish(self) -> None:
        while self.hurried:
            runner = self.hurried.pop()
            try:
                runner.capture_finer()
            # A user's network may raise anything; larger graphs serve these sizes too.
            except Exception as error:
                LOG.warning("batch sizes stay coarse", extra=fields(reason=str(error)))
        if self.tuning is not None:
            self.tuning.begin()

    def load(self, variant: str) -> Runner:
        """The variant, warm; ConfigError where it cannot be loaded or does not fit. In host memory
        its place alone, which runs nothing."""
        spec = self.specs[variant]
        if self.on_host:
            self.opened[variant] = open_on_host(spec, self.device)
            return PlainRunner(_run_nothing, spec.batch_size_max)
        return FiniteRunner(self._load(spec), variant, self.non_finite, spec.finite_outputs)

    def _load(self, spec: ModelSpec) -> Runner:
        if self.space is not None:
            return SwappingRunner(spec, self.space)
        from_ns = time.monotonic_ns()
        opened = self.opened.pop(spec.name, None)
        runner = load_runner(spec, self.device, self.budget, pace=self.pace, opened=opened)
        inner = innermost(runner)
        if isinstance(inner, GraphRunner) and inner.finer and not inner.eager:
            self.hurried.append(inner)
        if self.tuning is not None:
            self.tuning.add(spec, runner, later=self.pace.puts_off)
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

    def has_room_on_host(self) -> bool:
        """Whether the memory of this machine or pod holds the models of a process that waits for
        the device, with room to work in."""
        free, total = host_memory()
        return spare_fits(free, total, self.budget.total())

    def held_bytes(self) -> int:
        """Memory of all loaded models."""
        return self.budget.total()

    def release(self, variant: str) -> None:
        """Free the budget of a variant whose runner has been closed."""
        self.opened.pop(variant, None)
        self.budget.release(variant)

    def measure(self, variant: str, runner: Runner) -> Profile:
        """Run times of a loaded variant on this device."""
        options = self.options
        folder = cache_folder(os.environ)
        spec = self.specs[variant]
        return profile_runner(spec, runner, self.device, options.threads, folder, options.measure)
