"""Tunes the models of a backend one after the other, in a thread, and keeps what it finds."""

import os
import queue
import shutil
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fermata.deployments.backend.execution.cuda.graphs import GraphRunner
from fermata.deployments.backend.execution.out_of_memory import drop_references, release_memory
from fermata.deployments.backend.execution.runners.runner import innermost
from fermata.deployments.backend.kernels.choice import (
    Choice,
    load_choice,
    save_choice,
    sizes_used,
)
from fermata.deployments.backend.kernels.compiler import CompileOrder, weights_digest
from fermata.deployments.backend.kernels.crash_mark import CrashMark
from fermata.deployments.backend.kernels.packages import PackageCompiler
from fermata.deployments.backend.kernels.tuning import Build, KernelTuner
from fermata.deployments.backend.models.profiling import digest_of, is_lasting
from fermata.deployments.specs.backend import ModelSpec
from fermata.foundation.logs import LOG, fields

COMPILED = "compiled"
VERSION = 2
"""Part of the key of a choice: raise it when there are other ways to choose from."""


def builds_of() -> Mapping[str, Build]:
    """Every way to run a network that is built at once, in the order in which they are tried."""
    from fermata.deployments.backend.kernels.fusing import fuse

    return {"fused": lambda network, sample: fuse(network, sample).module}


class BackgroundTuning:
    """Kernels of the runners of one backend: known ones at once, others while they serve."""

    def __init__(self, folder: Path, device: str, compiles: bool = True) -> None:
        self.folder = folder
        self.device = device
        """Name of the accelerator, part of what a choice holds for."""
        self.compiles = compiles
        """Ways are tried that take a compiler minutes, too."""
        self.mark = CrashMark(folder)
        self.waiting: queue.SimpleQueue[tuple[ModelSpec, GraphRunner]] = queue.SimpleQueue()
        self.building: deque[tuple[ModelSpec, KernelTuner]] = deque()
        """Models that all quick ways were tried of, and that slow ones are built for."""
        self.thread = threading.Thread(target=self._work, name="tuner", daemon=True)

    def add(self, spec: ModelSpec, runner: Any, later: bool = False) -> None:
        """Use what an earlier start has chosen; what was never tried waits for `begin`, and so
        does everything that is to be used `later`."""
        runner = innermost(runner)
        if not isinstance(runner, GraphRunner) or runner.eager:
            return
        if later or not self._use_known(spec, runner, lambda _: None):
            self.waiting.put((spec, runner))

    def _use_known(
        self, spec: ModelSpec, runner: GraphRunner, sleep: Callable[[float], None] = time.sleep
    ) -> bool:
        """Whether an earlier start has chosen; that is used then, where it works."""
        choice = load_choice(self._path(spec)) if is_lasting(spec) else None
        if choice is None:
            return False
        used = sizes_used(choice, COMPILED)
        if used and not self._may_compile(spec):
            return False
        try:
            ways = {COMPILED: self._compiler(spec, runner)} if used else {}
            if not all(ways[COMPILED].has(size) for size in used):
                # Clients would wait for the compiler.
                return False
            KernelTuner(runner, builds_of(), sleep=sleep, sized=ways).apply(choice)
        # What worked before may not now; the plain way does.
        except Exception as error:
            self._give_up(spec, error)
        finally:
            self.mark.clear()
        return True

    def begin(self) -> None:
        """Start to try, now that the plain ways serve."""
        self.thread.start()

    def _work(self) -> None:
        while True:
            # Slow ways wait for every quick one, which serves until they are there.
            if self.building and self.waiting.empty():
                self._build(*self.building.popleft())
            else:
                self._try(*self.waiting.get())

    def _try(self, spec: ModelSpec, runner: GraphRunner) -> None:
        try:
            if not self._use_known(spec, runner):
                tuner = self.tuner(spec, runner)
                tuner.begin()
                self.building.append((spec, tuner))
        # Compilers and networks may raise anything, and the thread goes on with the next one.
        except Exception as error:
            if not runner.closed:
                self._give_up(spec, error)

    def _build(self, spec: ModelSpec, tuner: KernelTuner) -> None:
        """Build one size; switch to all of them after the last one."""
        try:
            if tuner.build_next():
                self.building.appendleft((spec, tuner))
            else:
                self.keep(spec, tuner.finish())
        except Exception as error:
            if not tuner.runner.closed:
                self._give_up(spec, error)
        finally:
            self.mark.clear()

    def tuner(self, spec: ModelSpec, runner: GraphRunner) -> KernelTuner:
        """Tries every way to run a model, none of which is kept for the next start yet."""
        ways = {COMPILED: self._compiler(spec, runner)} if self._may_compile(spec) else {}
        return KernelTuner(runner, builds_of(), sized=ways)

    def _may_compile(self, spec: ModelSpec) -> bool:
        left = self.mark.left(self._digest(spec)) if self.compiles else None
        if left is not None:
            about = fields(variant=spec.name, reason=f"a backend ended at it: {left}")
            LOG.warning("nothing is compiled", extra=about)
        return self.compiles and left is None

    def _compiler(self, spec: ModelSpec, runner: GraphRunner) -> PackageCompiler:
        if is_lasting(spec):
            folder = self.folder / f"compiled-{self._digest(spec)}"
        else:
            # It may be another network at the next start.
            folder = Path(tempfile.mkdtemp(prefix="fermata-compiled-"))
            weakref.finalize(runner, shutil.rmtree, folder, ignore_errors=True)
        return PackageCompiler(
            CompileOrder(spec, "cuda", weights_digest(runner.model.module), os.getpid()),
            folder,
            self.folder / "inductor",
            lambda: runner.closed,
            lambda: self.mark.set(self._digest(spec)),
        )

    def tune(self, spec: ModelSpec, runner: Any) -> Choice:
        """Choose the kernels of a runner now, and keep the choice for the next start."""
        try:
            choice = self.tuner(spec, innermost(runner)).tune()
        finally:
            self.mark.clear()
        self.keep(spec, choice)
        return choice

    def keep(self, spec: ModelSpec, choice: Choice) -> None:
        """Have the next start begin with a choice, where the model will be the same."""
        if not is_lasting(spec):
            return
        save_choice(self._path(spec), choice)
        used = {str(size) for size in sizes_used(choice, COMPILED)}
        for path in (self.folder / f"compiled-{self._digest(spec)}").glob("*.pt2"):
            # Each has all weights in it.
            if path.stem.partition("-")[0] not in used:
                path.unlink(missing_ok=True)

    def _give_up(self, spec: ModelSpec, error: Exception) -> None:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        LOG.warning("kernels stay plain", extra=fields(variant=spec.name, reason=reason))
        drop_references(error)
        release_memory()

    def _path(self, spec: ModelSpec) -> Path:
        return self.folder / f"kernels-{self._digest(spec)}.json"

    def _digest(self, spec: ModelSpec) -> str:
        ways = f"ways {VERSION}, compiled" if self.compiles else f"ways {VERSION}"
        return digest_of(spec, self.device, ways)
