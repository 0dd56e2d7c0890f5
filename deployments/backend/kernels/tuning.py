"""Tries other ways to run a network while it is served, and switches to the faster ones."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fermata.deployments.backend.execution.captured import PLAIN, CapturedGraph
from fermata.deployments.backend.execution.graphs import GraphRunner
from fermata.deployments.backend.execution.ladder import powers_of_two
from fermata.deployments.backend.execution.out_of_memory import drop_references, release_memory
from fermata.deployments.backend.kernels.agreement import Agreement, compare
from fermata.deployments.backend.kernels.choice import Choice, choose
from fermata.deployments.backend.kernels.substitution import input_of, substituted
from fermata.foundation.errors import ServingError
from fermata.foundation.logs import LOG, fields

Build = Callable[[Any, Any], Callable[..., Any]]
"""Takes a network and an input of it; returns the function to run in its place."""


@dataclass(frozen=True, slots=True)
class TuningEffort:
    """Care that is taken of the batches served meanwhile."""

    sample: int = 16
    """Inputs by which answers are compared."""
    runs: int = 7
    """Timed runs of each way and size; the first one warms up."""
    pause_s: float = 0.01
    """Between steps that take the GPU or the interpreter from served batches."""
    idle_wait_s: float = 0.2
    """Time to wait for a moment without a batch, before a timed run goes in between."""


class TuningError(ServingError):
    """A network that has no other way to run."""


@dataclass(slots=True)
class WayTrial:
    """One way on one model: the function, and graphs of it."""

    name: str
    function: Callable[..., Any]
    agreement: Agreement
    pool: Any
    graphs: dict[int, CapturedGraph] = field(default_factory=dict)


class KernelTuner:
    """Builds, checks, times and installs the ways of one runner; may take minutes."""

    def __init__(
        self,
        runner: GraphRunner,
        builds: Mapping[str, Build],
        effort: TuningEffort | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.runner = runner
        self.builds = builds
        self.effort = effort or TuningEffort()
        self.sleep = sleep
        self.stream = runner.open_stream()

    def tune(self) -> Choice:
        """Choose by measurement, and switch; TuningError where there is nothing to choose."""
        trials = self._trials(list(self.builds))
        if not trials:
            raise TuningError("no other way to run it gives the same answers")
        sizes = [size for size in powers_of_two(self.runner.room) if size in self.runner.graphs]
        times_ns: dict[str, dict[int, int]] = {PLAIN: {}, **{name: {} for name in trials}}
        for size in reversed(sizes):
            graphs = {PLAIN: self.runner.graphs[size]}
            for trial in trials.values():
                graphs[trial.name] = self._capture(trial, size)
            for way, took_ns in self._time(graphs).items():
                times_ns[way][size] = took_ns
        choice = choose(times_ns, self.runner.sizes)
        self._install(choice, trials)
        return choice

    def apply(self, choice: Choice) -> None:
        """Switch to ways that were chosen before, once their answers were checked again."""
        wanted = sorted(set(choice.ways.values()))
        trials = self._trials([way for way in wanted if way in self.builds])
        known = {size: way for size, way in choice.ways.items() if way in trials}
        self._install(Choice(known, choice.times_ns), trials)

    def _trials(self, names: list[str]) -> dict[str, WayTrial]:
        """Build these ways; those that cannot be built, or answer otherwise, are left out."""
        runner = self.runner
        with runner.on_stream(self.stream):
            batch = runner.sample(min(self.effort.sample, runner.room))
            network: Any = runner.model.module
            plain = _rows(runner.compute(*batch))
            taken = input_of(network, lambda: runner.compute(*batch))
            if taken is None:
                raise TuningError("its network does not take one tensor")
            found: dict[str, WayTrial] = {}
            for name in names:
                self.sleep(self.effort.pause_s)
                try:
                    function = self.builds[name](network, taken)
                    with substituted(network, function):
                        agreement = compare(plain, _rows(runner.compute(*batch)))
                # Compilers and a user's network may raise anything; the plain way goes on.
                except Exception as error:
                    self._say("another way cannot be built", name, reason=_line(error))
                    drop_references(error)
                    release_memory()
                    continue
                if not agreement.holds:
                    self._say("another way answers otherwise", name, **_told(agreement))
                    continue
                found[name] = WayTrial(name, function, agreement, runner.open_pool())
        return found

    def _capture(self, trial: WayTrial, size: int) -> CapturedGraph:
        if size not in trial.graphs:
            self.sleep(self.effort.pause_s)
            runner = self.runner
            with substituted(runner.model.module, trial.function):
                graph = runner.capture(size, trial.pool, trial.name, self.stream)
            trial.graphs[size] = graph
        return trial.graphs[size]

    def _time(self, graphs: Mapping[str, CapturedGraph]) -> dict[str, int]:
        """Median run time of each way, taken in turns so that all meet the same conditions."""
        taken: dict[str, list[int]] = {way: [] for way in graphs}
        for _ in range(self.effort.runs):
            for way, graph in graphs.items():
                self._wait_for_idle()
                taken[way].append(self.runner.time_ns(graph))
        return {way: int(statistics.median(runs[1:])) for way, runs in taken.items()}

    def _wait_for_idle(self) -> None:
        self.sleep(self.effort.pause_s)
        step_s = self.effort.pause_s / 10
        left = round(self.effort.idle_wait_s / step_s)
        while self.runner.flying and left:
            self.sleep(step_s)
            left -= 1

    def _install(self, choice: Choice, trials: Mapping[str, WayTrial]) -> None:
        found: dict[int, CapturedGraph] = {}
        for size in sorted(choice.ways, reverse=True):
            if size in self.runner.graphs:
                found[size] = self._capture(trials[choice.ways[size]], size)
        if found:
            self.runner.install(found)
        for trial in trials.values():
            sizes = sorted(size for size, graph in found.items() if graph.way == trial.name)
            if sizes:
                told = {"sizes": f"{len(sizes)} from {sizes[0]} to {sizes[-1]}"}
                self._say("faster kernels in use", trial.name, **told, **_told(trial.agreement))

    def _say(self, what: str, way: str, **more: Any) -> None:
        LOG.info(what, extra=fields(model=self.runner.model.card.name, way=way, **more))


def _rows(outputs: Sequence[Any]) -> Any:
    """All outputs of each request in one row."""
    arrays = [each.float().cpu().numpy() for each in outputs]
    return np.concatenate([each.reshape(len(each), -1) for each in arrays], axis=1)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _told(agreement: Agreement) -> dict[str, float]:
    return {
        "difference": round(agreement.difference, 5),
        "bound": agreement.bound,
        "other_classes": agreement.classes,
    }
