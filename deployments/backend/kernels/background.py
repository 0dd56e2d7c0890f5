"""Tunes the models of a backend one after the other, in a thread, and keeps what it finds."""

import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fermata.deployments.backend.execution.graphs import GraphRunner
from fermata.deployments.backend.execution.out_of_memory import drop_references, release_memory
from fermata.deployments.backend.execution.runner import innermost
from fermata.deployments.backend.kernels.choice import Choice, load_choice, save_choice
from fermata.deployments.backend.kernels.tuning import Build, KernelTuner
from fermata.deployments.backend.profiling import digest_of, is_lasting
from fermata.deployments.specs.backend import ModelSpec
from fermata.foundation.logs import LOG, fields


def builds_of() -> Mapping[str, Build]:
    """Every other way to run a network, in the order in which they are tried."""
    from fermata.deployments.backend.kernels.fusing import fuse

    return {"fused": lambda network, sample: fuse(network, sample).module}


class BackgroundTuning:
    """Kernels of the runners of one backend: known ones at once, others while they serve."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self.device = device
        """Name of the accelerator, part of what a choice holds for."""
        self.waiting: queue.SimpleQueue[tuple[ModelSpec, GraphRunner]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="tuner", daemon=True)

    def add(self, spec: ModelSpec, runner: Any, later: bool = False) -> None:
        """Use what an earlier start has chosen; what was never tried waits for `begin`, and so
        does everything that is to be used `later`."""
        runner = innermost(runner)
        if not isinstance(runner, GraphRunner) or runner.eager:
            return
        if later or not self._use_known(spec, runner):
            self.waiting.put((spec, runner))

    def _use_known(self, spec: ModelSpec, runner: GraphRunner) -> bool:
        """Whether an earlier start has chosen; that is used then, where it works."""
        choice = load_choice(self._path(spec)) if is_lasting(spec) else None
        if choice is None:
            return False
        try:
            KernelTuner(runner, builds_of(), sleep=lambda _: None).apply(choice)
        # What worked before may not now; the plain way does.
        except Exception as error:
            self._give_up(spec, error)
        return True

    def begin(self) -> None:
        """Start to try, now that the plain ways serve."""
        self.thread.start()

    def _work(self) -> None:
        while True:
            spec, runner = self.waiting.get()
            try:
                if not self._use_known(spec, runner):
                    self.tune(spec, runner)
            # Compilers and networks may raise anything; this is the thread's outermost loop.
            except Exception as error:
                if not runner.closed:
                    self._give_up(spec, error)
            del runner

    def tune(self, spec: ModelSpec, runner: Any) -> Choice:
        """Choose the kernels of a runner now, and keep the choice for the next start."""
        choice = KernelTuner(innermost(runner), builds_of()).tune()
        if is_lasting(spec):
            save_choice(self._path(spec), choice)
        return choice

    def _give_up(self, spec: ModelSpec, error: Exception) -> None:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        LOG.warning("kernels stay plain", extra=fields(variant=spec.name, reason=reason))
        drop_references(error)
        release_memory()

    def _path(self, spec: ModelSpec) -> Path:
        return self.folder / f"kernels-{digest_of(spec, self.device)}.json"
