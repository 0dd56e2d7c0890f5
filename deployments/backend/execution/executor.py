"""One thread runs batches, in order; a second one stages the inputs of the next meanwhile."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from fermata.deployments.backend.batch_pipeline import PipelineJob
from fermata.deployments.backend.execution.emulated import sharpen_sleep
from fermata.deployments.backend.execution.out_of_memory import (
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.runner import Runner
from fermata.deployments.backend.execution.tensors import Array, Outputs

INLINE_BYTES = 1 << 18
"""Less than this is staged by the thread that runs it: another one would take longer to wake."""
SWITCH_S = 0.0005


@dataclass(frozen=True, slots=True)
class Group:
    """Inputs of a batch that are alike, by their place in it."""

    places: list[int]
    items: list[Array]
    staged: Callable[[], tuple[Any, int]]
    """Waits for the staged inputs, once; with the time when they were."""


@dataclass(frozen=True, slots=True)
class ExecutorJob:
    """A batch to run."""

    job: PipelineJob
    runner: Runner
    groups: list[Group]
    errors: dict[int, str]


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """How a batch went."""

    job: PipelineJob
    staged_at_ns: int
    started_at_ns: int
    run_ns: int
    errors: dict[int, str]
    """Why an input could not be used, by its place in the batch."""
    outputs: list[tuple[list[int], Outputs]]
    """Of each group: places in the batch and what the model returned for them."""
    failed: str = ""
    fits: int = 0
    """The largest part that ran, where memory did not suffice for all at once; 0: it did."""


class BatchExecutor(Protocol):
    """What runs the batches of one backend, in order."""

    def begin(
        self,
        job: PipelineJob,
        runner: Runner,
        items: Sequence[tuple[int, Array]],
        errors: dict[int, str],
    ) -> None:
        """Stage these inputs, given with their place in the batch, and run them in turn."""

    def stop(self) -> None:
        """End, after what it has been given."""


class Executor:
    """Runs the batches of one backend; `report` is called from its thread."""

    def __init__(self, report: Callable[[BatchOutcome], None]) -> None:
        self.report = report
        self.orders: queue.SimpleQueue[ExecutorJob | None] = queue.SimpleQueue()
        self.stager = ThreadPoolExecutor(1, "stager")
        self.thread = threading.Thread(target=self._serve, name="executor", daemon=True)
        self.thread.start()

    def begin(
        self,
        job: PipelineJob,
        runner: Runner,
        items: Sequence[tuple[int, Array]],
        errors: dict[int, str],
    ) -> None:
        """Stage these inputs, given with their place in the batch, and run them in turn."""
        alike: dict[Hashable, list[tuple[int, Array]]] = {}
        for place, item in items:
            alike.setdefault(runner.alike(item), []).append((place, item))
        groups = []
        for members in alike.values():
            arrays = [item for _, item in members]
            places = [place for place, _ in members]
            groups.append(Group(places, arrays, self._stage(runner, arrays)))
        self.orders.put(ExecutorJob(job, runner, groups, errors))

    def _stage(self, runner: Runner, arrays: list[Array]) -> Callable[[], tuple[Any, int]]:
        if sum(array.nbytes for array in arrays) < INLINE_BYTES:
            # As part of the run; its time says nothing about when the inputs were there.
            return lambda: (runner.stage(arrays), 0)
        return partial(take_result, [self.stager.submit(stage, runner, arrays)])

    def stop(self) -> None:
        """End both threads, after what they have been given."""
        self.orders.put(None)
        self.thread.join()
        self.stager.shutdown()

    def _serve(self) -> None:
        sharpen_sleep()
        while (order := self.orders.get()) is not None:
            self.report(self._run(order))

    def _run(self, order: ExecutorJob) -> BatchOutcome:
        errors = order.errors
        outputs: list[tuple[list[int], Outputs]] = []
        staged_at_ns = started_at_ns = run_ns = 0
        failed = ""
        fits = 0
        for group in order.groups:
            from_ns = time.monotonic_ns()
            try:
                box, staged_at_ns = stage_or_not(group.staged, len(group.places))
                from_ns = time.monotonic_ns()
                started_at_ns = started_at_ns or from_ns
                parts = run_or_halve(order.runner, box, group.places, group.items, errors)
                if len(parts) > 1:
                    fits = max(fits, *(len(places) for places, _ in parts))
                outputs += parts
            # A model is a user's code and may raise anything; this is the thread's outermost loop.
            except Exception as error:
                failed = describe(error)
                errors.update(dict.fromkeys(group.places, failed))
                started_at_ns = started_at_ns or from_ns
                again = len(group.places) > 1 and not is_out_of_memory(error)
                drop_references(error)
                if again:
                    outputs += run_halves(order.runner, group, errors)
            run_ns += time.monotonic_ns() - from_ns
        failed = "" if outputs else failed
        return BatchOutcome(
            order.job, staged_at_ns, started_at_ns, run_ns, errors, outputs, failed, fits
        )


def take_result(staging: "list[Future[tuple[Any, int]]]") -> tuple[Any, int]:
    """What a thread has staged, kept by nobody else: a future would hold it, or its error with all
    that it had allocated, until the whole batch has ended."""
    return staging.pop().result()


def stage_or_not(staged: Callable[[], tuple[Any, int]], count: int) -> tuple[list[Any], int]:
    """So many inputs, staged, in a box that `run_or_halve` empties; it is empty where memory does
    not suffice for all of them at once."""
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
    items: list[Array],
    errors: dict[int, str],
) -> list[tuple[list[int], Outputs]]:
    """Run what is in the box together; where memory does not suffice, one half after the other.
    Who fits not even alone is told in `errors`; where nobody does, that is raised."""
    try:
        if box:
            return [(places, runner.run(box.pop()))]
    # Every library has an error of its own for that.
    except Exception as error:
        if len(places) == 1 or not is_out_of_memory(error):
            raise
        drop_references(error)
    # Out of the handler, which holds the error.
    release_memory()
    middle = len(places) // 2
    found: list[tuple[list[int], Outputs]] = []
    for part in (slice(middle), slice(middle, None)):
        half = items[part]
        try:
            staged, _ = stage_or_not(partial(stage, runner, half), len(half))
            found += run_or_halve(runner, staged, places[part], half, errors)
        except Exception as error:
            # The first half's answers are not lost with the second.
            if not is_out_of_memory(error) or (part.start is not None and not found):
                raise
            errors.update(dict.fromkeys(places[part], describe(error)))
            drop_references(error)
    return found


def run_halves(
    runner: Runner, group: Group, errors: dict[int, str]
) -> list[tuple[list[int], Outputs]]:
    """Run what failed together once more, each half for itself: a bad input is to spoil no more
    than its own. Not smaller parts, or a batch would take so long as if it hung."""
    middle = len(group.places) // 2
    found: list[tuple[list[int], Outputs]] = []
    for part in (slice(middle), slice(middle, None)):
        places, items = group.places[part], group.items[part]
        for place in places:
            del errors[place]
        try:
            box, _ = stage_or_not(partial(stage, runner, items), len(items))
            found += run_or_halve(runner, box, places, items, errors)
        # As above: whatever a model raises.
        except Exception as error:
            errors.update(dict.fromkeys(places, describe(error)))
            drop_references(error)
    return found


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def stage(runner: Runner, arrays: list[Array]) -> tuple[Any, int]:
    return runner.stage(arrays), time.monotonic_ns()


def tune() -> None:
    """For a process that is a backend and nothing else: threads take turns quickly, so that the
    executor is not kept from starting a batch by a busy loop, nor the loop by a model."""
    sys.setswitchinterval(SWITCH_S)
