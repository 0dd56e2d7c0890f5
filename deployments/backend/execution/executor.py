"""Batches run in order: one thread stages inputs, one launches, one waits for the answers.

A batch whose runner has no `launch` runs in the thread that launches others.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from fermata.deployments.backend.batch_pipeline import PipelineJob, Tensors
from fermata.deployments.backend.execution.emulated_gpu import sharpen_sleep
from fermata.deployments.backend.execution.flights import Flight, OwnRun
from fermata.deployments.backend.execution.out_of_memory import (
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.runners.runner import Runner, innermost
from fermata.deployments.backend.execution.tensors import (
    Item,
    Outputs,
    each_row,
    first_row,
    is_encoded,
    item_bytes,
    rows_in,
    split,
)

INLINE_BYTES = 1 << 18
"""Less than this is staged by the thread that runs it: another one would take longer to wake."""
SWITCH_S = 0.0005
DECODERS = 2
"""Batches of pictures staged at once. The decoder takes one at a time, and the other is fitted
meanwhile."""


@dataclass(frozen=True, slots=True)
class Group:
    """Inputs of a batch that run together, with their positions in it."""

    places: list[int]
    items: list[Item]
    staged: Callable[[], tuple[Any, int]]
    """Returns the staged inputs and the time of their staging; may be called once."""


@dataclass(frozen=True, slots=True)
class ExecutorJob:
    """A batch to run."""

    job: PipelineJob
    runner: Runner
    groups: list[Group]
    errors: dict[int, str]


@dataclass(slots=True)
class LaunchedGroup:
    """A group that is on its way: its flight, or the reason why there is none."""

    group: Group
    box: list[Flight]
    """Emptied by the run; empty from the start if memory did not suffice for all at once."""
    staged_at_ns: int
    error: Exception | None = None
    refused: dict[int, str] = field(default_factory=dict)
    """Reasons why inputs could not be staged, by position in the batch."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """Outputs of a batch, or its failure, with times."""

    job: PipelineJob
    staged_at_ns: int
    started_at_ns: int
    run_ns: int
    errors: dict[int, str]
    """Reasons why inputs could not be used, by position in the batch."""
    outputs: list[tuple[list[int], Outputs]]
    """For each group: positions in the batch and the model's outputs for them."""
    failed: str = ""
    fits: int = 0
    """The largest part that ran, if memory did not suffice for the whole batch; else 0."""
    unusable: str = ""
    """Why nothing will run on this device any more; empty: it may."""
    spoilt: frozenset[int] = frozenset()
    """Positions that failed together: one of them may have spoilt the others."""


class BatchExecutor(Protocol):
    """Runs the batches of one backend, in given."""

    def begin(
        self,
        job: PipelineJob,
        runner: Runner,
        items: Sequence[tuple[int, Item]],
        errors: dict[int, str],
    ) -> None:
        """Stage these inputs, given with their place in the batch, and run them in turn."""

    def stop(self) -> None:
        """End, after the batches that it has."""


class Executor:
    """Runs the batches of one backend; `report` is called from its threads, in order."""

    def __init__(self, report: Callable[[BatchOutcome], None]) -> None:
        self.report = report
        self.jobs: queue.SimpleQueue[ExecutorJob | None] = queue.SimpleQueue()
        self.flying: queue.Queue[tuple[ExecutorJob, list[LaunchedGroup]] | None] = queue.Queue()
        self.stager = ThreadPoolExecutor(1, "stager")
        self.decoders = ThreadPoolExecutor(DECODERS, "decoder")
        self.thread = threading.Thread(target=self._serve, name="executor", daemon=True)
        self.finisher = threading.Thread(target=self._finish_flights, name="finisher", daemon=True)
        self.thread.start()
        self.finisher.start()

    def begin(
        self,
        job: PipelineJob,
        runner: Runner,
        items: Sequence[tuple[int, Item]],
        errors: dict[int, str],
    ) -> None:
        """Stage these inputs, given with their place in the batch, and run them in turn."""
        alike: dict[Hashable, list[tuple[int, Item]]] = {}
        for place, item in items:
            alike.setdefault(runner.alike(first_row(item)), []).append((place, item))
        groups = []
        for members in alike.values():
            arrays = [item for _, item in members]
            places = [place for place, _ in members]
            groups.append(Group(places, arrays, self._stage(runner, arrays)))
        self.jobs.put(ExecutorJob(job, runner, groups, errors))

    def _stage(self, runner: Runner, arrays: list[Item]) -> Callable[[], tuple[Any, int]]:
        long = getattr(runner, "stages_long", False) and any(map(is_encoded, arrays))
        if not long and sum(map(item_bytes, arrays)) < INLINE_BYTES:
            # Staged as part of the run, whose time does not show when the inputs arrived.
            return lambda: (runner.stage(each_row(arrays)), 0)
        stager = self.decoders if long else self.stager
        return partial(take_result, [stager.submit(stage, runner, arrays)])

    def stop(self) -> None:
        """End all threads, after the batches that they have."""
        self.jobs.put(None)
        self.thread.join()
        self.finisher.join()
        self.stager.shutdown()
        self.decoders.shutdown()

    def _serve(self) -> None:
        sharpen_sleep()
        while (given := self.jobs.get()) is not None:
            if hasattr(given.runner, "launch"):
                self.flying.put((given, [launch(given.runner, group) for group in given.groups]))
            else:
                # Ends are reported in order.
                self.flying.join()
                self.report(self._run(given, None))
        self.flying.put(None)

    def _finish_flights(self) -> None:
        while (given := self.flying.get()) is not None:
            self.report(self._run(*given))
            self.flying.task_done()

    def _run(self, given: ExecutorJob, launched: list[LaunchedGroup] | None) -> BatchOutcome:
        """Run groups one by one, or take the answers of those that were launched before."""
        errors = given.errors
        outputs: list[tuple[list[int], Outputs]] = []
        staged_at_ns = started_at_ns = run_ns = 0
        failed = ""
        fits = 0
        spoilt: set[int] = set()
        for number, group in enumerate(given.groups):
            from_ns = time.monotonic_ns()
            flown_ns = 0
            try:
                on_its_way = launched[number] if launched else launch(given.runner, group)
                if on_its_way.error is not None:
                    raise on_its_way.error
                staged_at_ns = on_its_way.staged_at_ns
                from_ns = time.monotonic_ns()
                flight = on_its_way.box[0] if on_its_way.box else None
                places, items = group.places, group.items
                parts = run_or_halve(
                    given.runner, on_its_way.box, places, items, errors, take_outputs
                )
                if len(parts) > 1:
                    fits = max(fits, *(rows_at(group, places) for places, _ in parts))
                elif flight is not None:
                    flown_ns = flight.run_ns
                outputs += parts
                errors.update(on_its_way.refused)
            # A model is a user's code and may raise anything; this is the thread's outermost loop.
            except Exception as error:
                failed = describe(error)
                errors.update(dict.fromkeys(group.places, failed))
                again = len(group.places) > 1 and not is_out_of_memory(error)
                again = again and not keeps_state(given.runner)
                drop_references(error)
                if again:
                    outputs += run_halves(given.runner, group, errors, spoilt)
            ended_ns = time.monotonic_ns()
            # A flight began when the device was free, which may be before anybody waited for it.
            took_ns = flown_ns or ended_ns - from_ns
            started_at_ns = started_at_ns or ended_ns - took_ns
            run_ns += took_ns
        unusable = why_unusable(given.runner) if failed else ""
        failed = "" if outputs else failed
        return BatchOutcome(
            given.job,
            staged_at_ns,
            started_at_ns,
            run_ns,
            errors,
            outputs,
            failed,
            fits,
            unusable,
            frozenset(spoilt),
        )


def launch(runner: Runner, group: Group) -> LaunchedGroup:
    """Stage a group and start it, where its runner can do so without waiting for the end."""
    try:
        box, staged_at_ns = stage_or_not(group.staged, len(group.places))
        start: Callable[[Any], Flight] = getattr(runner, "launch", partial(OwnRun, runner.run))
        refused = refusals(box, group.places, group.items)
        return LaunchedGroup(
            group, [start(box.pop())] if box else [], staged_at_ns, refused=refused
        )
    except Exception as error:
        if len(group.places) > 1 and is_out_of_memory(error):
            # The group is tried in halves.
            drop_references(error)
            return LaunchedGroup(group, [], 0)
        return LaunchedGroup(group, [], 0, error)


def refusals(box: list[Any], places: list[int], items: list[Item]) -> dict[int, str]:
    """Reasons why inputs in the box could not be staged, by position in the batch."""
    refused: Mapping[int, str] = getattr(box[0], "refused", {}) if box else {}
    if not refused:
        return {}
    # An input of several rows has been staged as so many.
    each = [
        place for place, item in zip(places, items, strict=True) for _ in range(rows_in([item]))
    ]
    return {each[row]: reason for row, reason in refused.items()}


def keeps_state(runner: Runner) -> bool:
    """Whether a second run of the same rows would change the state of sequences twice."""
    return getattr(innermost(runner), "keeps_state", False)


def take_outputs(flight: Flight) -> Outputs:
    return flight.outputs()


def rows_at(group: Group, places: list[int]) -> int:
    """Rows of those inputs of a group that stand at these places."""
    items = dict(zip(group.places, group.items, strict=True))
    return rows_in([items[place] for place in places])


def take_result(staging: "list[Future[tuple[Any, int]]]") -> tuple[Any, int]:
    """Staged inputs, taken out of their future.

    The future would hold them, or an error with all that it allocated, until the batch ends.
    """
    return staging.pop().result()


def stage_or_not(staged: Callable[[], tuple[Any, int]], count: int) -> tuple[list[Any], int]:
    """Staged inputs in a box that `run_or_halve` empties, and the time of their staging.

    The box is empty if memory does not suffice for all `count` of them at once.
    """
    try:
        found, staged_at_ns = staged()
        return [found], staged_at_ns
    except Exception as error:
        if count == 1 or not is_out_of_memory(error):
            raise
        drop_references(error)
    return [], 0


def run_or_halve(
    runner: Runner,
    box: list[Any],
    places: list[int],
    items: list[Item],
    errors: dict[int, str],
    run: Callable[[Any], Outputs] | None = None,
) -> list[tuple[list[int], Outputs]]:
    """Run the inputs in the box together; if memory does not suffice, one half after the other.

    `run` takes what is in the box; the runner does, unless given. An input that does not fit alone
    goes into `errors`; if none fits, the error is raised.
    """
    try:
        if box:
            return [(places, (run or runner.run)(box.pop()))]
    # Every library has an error of its own for a lack of memory.
    except Exception as error:
        if len(places) == 1 or not is_out_of_memory(error) or keeps_state(runner):
            raise
        drop_references(error)
    # Outside the handler, which holds the error.
    release_memory()
    middle = len(places) // 2
    found: list[tuple[list[int], Outputs]] = []
    for part in (slice(middle), slice(middle, None)):
        half = items[part]
        try:
            staged, _ = stage_or_not(partial(stage, runner, half), len(half))
            errors.update(refusals(staged, places[part], half))
            found += run_or_halve(runner, staged, places[part], half, errors)
        except Exception as error:
            # The first half's answers are not lost with the second.
            if not is_out_of_memory(error) or (part.start is not None and not found):
                raise
            errors.update(dict.fromkeys(places[part], describe(error)))
            drop_references(error)
    return found


def run_halves(
    runner: Runner, group: Group, errors: dict[int, str], spoilt: set[int]
) -> list[tuple[list[int], Outputs]]:
    """Run a group that failed once more, in two halves, so that a bad input spoils only one.

    Smaller parts would take so long that the batch would seem to hang. The half of several inputs
    that fails again is `spoilt`: its router has them run one by one.
    """
    middle = len(group.places) // 2
    found: list[tuple[list[int], Outputs]] = []
    for part in (slice(middle), slice(middle, None)):
        places, items = group.places[part], group.items[part]
        for place in places:
            del errors[place]
        try:
            box, _ = stage_or_not(partial(stage, runner, items), len(items))
            errors.update(refusals(box, places, items))
            found += run_or_halve(runner, box, places, items, errors)
        # A model may raise anything, as above.
        except Exception as error:
            errors.update(dict.fromkeys(places, describe(error)))
            if len(places) > 1:
                spoilt.update(places)
            drop_references(error)
    return found


def request_outputs(outcome: BatchOutcome) -> list[Tensors | str]:
    """Outputs of each request of a batch in its order, with the error in place of missing ones."""
    found: list[Tensors | str] = [""] * len(outcome.job.inputs)
    payloads = outcome.job.payloads()
    for places, returned in outcome.outputs:
        rows = [payloads[place].rows for place in places]
        for place, tensors in zip(places, split(returned, rows), strict=True):
            found[place] = tensors
    # An input that could not be staged ran as something else beside the others.
    for place, error in outcome.errors.items():
        found[place] = error
    return found


def why_unusable(runner: Runner) -> str:
    """Why the runner's device cannot run anything any more; empty where it can."""
    try:
        runner.check_device()
    # Every library has errors of its own.
    except Exception as error:
        # Somebody else may have taken all of its memory; that passes.
        return "" if is_out_of_memory(error) else describe(error)
    return ""


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def stage(runner: Runner, arrays: list[Item]) -> tuple[Any, int]:
    return runner.stage(each_row(arrays)), time.monotonic_ns()


def tune() -> None:
    """Let threads of a backend process take turns quickly.

    A busy loop then does not keep the executor from starting a batch, nor a model the loop.
    """
    sys.setswitchinterval(SWITCH_S)
