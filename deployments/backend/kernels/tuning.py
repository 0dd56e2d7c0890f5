"""Tries other ways to run a network while it is served, and switches to the faster ones."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from fermata.deployments.backend.execution.cuda.captured import PLAIN, CapturedGraph
from fermata.deployments.backend.execution.cuda.graphs import GraphRunner
from fermata.deployments.backend.execution.cuda.ladder import powers_of_two
from fermata.deployments.backend.execution.out_of_memory import drop_references, release_memory
from fermata.deployments.backend.kernels.agreement import BOUND, Agreement, bound_of, compare
from fermata.deployments.backend.kernels.choice import (
    WORTH,
    Choice,
    choose,
    larger,
    most_served,
    sizes_used,
)
from fermata.deployments.backend.kernels.rounding import in_32_bits
from fermata.deployments.backend.kernels.substitution import input_of, substituted
from fermata.foundation.errors import ServingError
from fermata.foundation.logs import LOG, fields

Result = TypeVar("Result")
Build = Callable[[Any, Any], Callable[..., Any]]
"""Takes a network and an input of it; returns the function to run in its place."""
SizedBuild = Callable[[Any, Any, int], Callable[..., Any]]
"""The same for batches of one size alone, which may take a minute."""


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
    patience: int = 2
    """Sizes that a way is built for, before it is given up for having gained nothing."""


class TuningError(ServingError):
    """A network that has no other way to run."""


@dataclass(slots=True)
class WayTrial:
    """One way on one model: its functions, and graphs of them."""

    name: str
    agreement: Agreement
    pool: Any
    function: Callable[..., Any] | None = None
    """For batches of any size; None where each size has its own."""
    functions: dict[int, Callable[..., Any]] = field(default_factory=dict)
    """By size."""
    graphs: dict[int, CapturedGraph] = field(default_factory=dict)

    def fits(self, size: int) -> bool:
        """Whether batches of this size can be run."""
        return self.function is not None or larger(self.functions, size) is not None

    def size_for(self, size: int) -> int:
        """The size that batches of this one run at."""
        return size if self.function is not None else larger(self.functions, size) or size


class KernelTuner:
    """Builds, checks, times and installs the ways of one runner; may take minutes."""

    def __init__(
        self,
        runner: GraphRunner,
        builds: Mapping[str, Build],
        effort: TuningEffort | None = None,
        sleep: Callable[[float], None] = time.sleep,
        sized: Mapping[str, SizedBuild] | None = None,
    ) -> None:
        self.runner = runner
        self.builds = builds
        self.sized = sized or {}
        """Ways that are built size by size, after the others."""
        self.effort = effort or TuningEffort()
        self.sleep = sleep
        self.stream = runner.open_stream()
        self.trials: dict[str, WayTrial] = {}
        self.times_ns: dict[str, dict[int, int]] = {}
        self.left: dict[str, list[int]] = {}
        """Sizes that ways are yet to be built for."""
        self.gained: set[str] = set()
        """Ways that were faster at one of their sizes."""
        self.bound: float | None = None
        """Largest difference of a score that rounding may make; found before the first way."""

    def tune(self) -> Choice:
        """Choose by measurement, and switch; TuningError where there is nothing to choose."""
        self.begin()
        while self.build_next():
            pass
        return self.finish()

    def begin(self) -> None:
        """Switch to what can be built at once; TuningError where there is nothing to choose."""
        self.trials = self._trials(list(self.builds))
        if not self.trials and not self.sized:
            raise TuningError("no other way to run it gives the same answers")
        sizes = [size for size in powers_of_two(self.runner.room) if size in self.runner.graphs]
        self.times_ns = {PLAIN: {}, **{name: {} for name in self.trials}}
        for size in reversed(sizes):
            graphs = {PLAIN: self.runner.graphs[size]}
            for trial in self.trials.values():
                graphs[trial.name] = self._capture(trial, size)
            for way, took_ns in self._time(graphs).items():
                self.times_ns[way][size] = took_ns
        self._install(self._choice(), self.trials)
        self.left = {name: list(sizes) for name in self.sized}
        # Graphs share a workspace with whatever else runs on the stream that they were captured on.
        self.stream = self.runner.open_stream()

    def build_next(self) -> bool:
        """Build, check and time a way for the size that serves most; false if none is left."""
        name = next((each for each, sizes in self.left.items() if sizes), None)
        if name is None:
            return False
        left = self.left[name]
        size = most_served(left, powers_of_two(self.runner.room), self.runner.served)
        left.remove(size)
        gains = self._guarded(name, size, self._try_size)
        if gains is None:
            left.clear()
            return True
        if gains:
            self.gained.add(name)
        elif name not in self.gained and len(self.times_ns[name]) >= self.effort.patience:
            left.clear()
        return True

    def _guarded(self, name: str, size: int, work: Callable[[str, int], Result]) -> Result | None:
        """Do `work`, and hand on its result; None where it fails, and the other ways go on."""
        try:
            return work(name, size)
        # Compilers and a user's network may raise anything.
        except Exception as error:
            if not self.runner.closed:
                self._say("another way cannot be built", name, size=size, reason=_line(error))
            drop_references(error)
            release_memory()
            return None

    def finish(self) -> Choice:
        """Switch to what was built size by size; returns all that was chosen."""
        choice = self._choice()
        self._install(choice, self.trials)
        if not choice.ways and not self.trials:
            raise TuningError("no other way to run it gives the same answers")
        return choice

    def apply(self, choice: Choice) -> None:
        """Switch to ways that were chosen before, once their answers were checked again."""
        wanted = sorted(set(choice.ways.values()))
        self.trials = self._trials([way for way in wanted if way in self.builds])
        for name in (way for way in wanted if way in self.sized):
            for size in sorted(sizes_used(choice, name), reverse=True):
                self._guarded(name, size, self._build_size)
        known = {
            size: way
            for size, way in choice.ways.items()
            if way in self.trials and self.trials[way].fits(size)
        }
        self._install(Choice(known, choice.times_ns), self.trials)

    def _choice(self) -> Choice:
        return choose(self.times_ns, self.runner.sizes, self.sized)

    def _try_size(self, name: str, size: int) -> bool:
        """Whether a way that was built for this size is faster than the one that serves it."""
        trial = self._build_size(name, size)
        serves = self.runner.graphs[size]
        found = self._time({"": serves, name: self._capture(trial, size)})
        # Held against what the other ways took, in a time when the GPU may have been slower.
        known_ns = self.times_ns[serves.way][size]
        took_ns = found[name] * known_ns / max(1, found[""])
        self.times_ns.setdefault(name, {})[size] = round(took_ns)
        return took_ns <= WORTH * known_ns

    def _build_size(self, name: str, size: int) -> WayTrial:
        """Add the function of one size to a way; TuningError if its answers are others."""
        runner = self.runner
        if runner.recorded:
            raise TuningError("it computes sizes as tensors")
        rows = min(self.effort.sample, size)
        with runner.on_stream(self.stream):
            network, batch = self._network(), runner.sample(size)
            few = [each[:rows] for each in batch]
            plain = _rows(runner.compute(*few))
            function = self.sized[name](network, self.taken(few), size)
            bound = self._bound(few, plain)
            with substituted(network, function):
                agreement = compare(plain, _rows(runner.compute(*batch))[:rows], bound)
        if not agreement.holds:
            raise TuningError(f"it answers otherwise: {_told(agreement)}")
        trial = self.trials.setdefault(name, WayTrial(name, agreement, runner.open_pool()))
        trial.agreement = max(trial.agreement, agreement, key=lambda each: each.difference)
        trial.functions[size] = function
        return trial

    def _network(self) -> Any:
        return self.runner.model.module

    def taken(self, batch: Sequence[Any]) -> Any:
        """The tensor that the network is given of a batch; TuningError unless it is one alone."""
        taken = input_of(self._network(), lambda: self.runner.compute(*batch))
        if taken is None:
            raise TuningError("its network does not take one tensor")
        return taken

    def _trials(self, names: list[str]) -> dict[str, WayTrial]:
        """Build these ways; those that cannot be built, or answer otherwise, are left out."""
        runner = self.runner
        with runner.on_stream(self.stream):
            batch = runner.sample(min(self.effort.sample, runner.room))
            network = self._network()
            plain = _rows(runner.compute(*batch))
            taken = self.taken(batch)
            bound = self._bound(batch, plain) if names else BOUND
            found: dict[str, WayTrial] = {}
            for name in names:
                self.sleep(self.effort.pause_s)
                try:
                    function = self.builds[name](network, taken)
                    with substituted(network, function):
                        agreement = compare(plain, _rows(runner.compute(*batch)), bound)
                # Compilers and a user's network may raise anything; the plain way goes on.
                except Exception as error:
                    self._say("another way cannot be built", name, reason=_line(error))
                    drop_references(error)
                    release_memory()
                    continue
                if not agreement.holds:
                    self._say("another way answers otherwise", name, **_told(agreement))
                    continue
                found[name] = WayTrial(name, agreement, runner.open_pool(), function)
        return found

    def _bound(self, batch: Sequence[Any], plain: Any) -> float:
        """Difference up to which another way agrees, by what the plain one owes to rounding."""
        if self.bound is None:
            self.bound = BOUND
            try:
                exact = in_32_bits(self._network())
                if exact is not None:
                    with substituted(self._network(), exact):
                        self.bound = bound_of(plain, _rows(self.runner.compute(*batch)))
            # No memory for it, or it cannot be copied: the usual bound holds.
            except Exception as error:
                drop_references(error)
                release_memory()
        return self.bound

    def _capture(self, trial: WayTrial, size: int) -> CapturedGraph:
        at = trial.size_for(size)
        if at not in trial.graphs:
            self.sleep(self.effort.pause_s)
            runner = self.runner
            function = trial.function or trial.functions[at]
            with substituted(runner.model.module, function):
                graph = runner.capture(at, trial.pool, trial.name, self.stream)
            # Its constants are the function's own, which nothing else keeps.
            trial.graphs[at] = replace(graph, network=(graph.network, function))
        return trial.graphs[at]

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
                graph = self._capture(trials[choice.ways[size]], size)
                if self.runner.graphs[size] is not graph:
                    found[size] = graph
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
