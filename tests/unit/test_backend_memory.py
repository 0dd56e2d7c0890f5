"""Batches for which the memory does not suffice; a hung accelerator."""

import queue
import weakref
from typing import Any

import numpy as np
import pytest

from fermata.deployments.backend.batch_pipeline import BatchPipeline
from fermata.deployments.backend.execution.executor import BatchOutcome, Executor, run_or_halve
from fermata.deployments.backend.execution.out_of_memory import NoRoomError, is_out_of_memory
from fermata.deployments.backend.execution.runners.runner import PlainRunner
from fermata.deployments.backend.execution.tensors import Array
from fermata.deployments.backend.limits import BatchLimits
from fermata.foundation.units import ms, seconds
from fermata.router.assembly import Assembly, RouterConfig, assemble
from fermata.router.core.events import Dispatch, Request
from fermata.router.links.messages import Payload, Run
from fermata.router.live.fleet.batch_limits import BatchSizeLimits
from fermata.router.policies.application import ApplicationSpec, VariantSpec


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


def runner(room: int, error: type[Exception]) -> tuple[PlainRunner, list[int]]:
    sizes: list[int] = []

    def model(batch: Array) -> Any:
        sizes.append(len(batch))
        if len(batch) > room:
            raise error("no room")
        return batch[:, 0] * 2

    return PlainRunner(model, 16), sizes


class FakeJob:
    """All that an executor needs to know of one."""


class Held:
    """Something that a run had allocated."""


def test_nothing_of_a_run_that_failed_is_held_when_its_halves_run() -> None:
    """Neither what was staged, by this thread or another, nor what the run itself had made."""
    made: list[weakref.ref[Held]] = []

    class Greedy(PlainRunner):
        def stage(self, items: Any) -> Any:
            assert not [ref for ref in made if ref() is not None]
            staged = Held()
            made.append(weakref.ref(staged))
            if len(items) > 8:
                raise OutOfMemoryError("no room to stage")
            return staged, np.stack(items)

        def run(self, staged: Any) -> Any:
            within = Held()
            made.append(weakref.ref(within))
            if len(staged[1]) > 2:
                try:
                    raise OutOfMemoryError("no room")
                except OutOfMemoryError:
                    raise RuntimeError("the library's own handler failed too") from None
            return staged[1][:, 0] * 2

    heard: queue.SimpleQueue[BatchOutcome] = queue.SimpleQueue()
    executor = Executor(heard.put)
    job: Any = FakeJob()
    for size, width in ((16, 1), (16, 1 << 15), (8, 1 << 15)):
        made.clear()
        items = [(place, np.full(width, place)) for place in range(size)]
        executor.begin(job, Greedy(lambda batch: batch, 16), items, {})
        outcome = heard.get(timeout=10)
        assert (outcome.fits, outcome.failed, outcome.errors) == (2, "", {})
    executor.stop()


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("The shapes of memory and target do not fit"), False),
        (ValueError("out of memory"), False),
        (NoRoomError("v does not fit (out of memory)"), False),
    ],
)
def test_libraries_say_in_different_words_that_memory_does_not_suffice(
    error: Exception, is_one: bool
) -> None:
    assert is_out_of_memory(error) is is_one


def test_what_was_raised_in_place_of_it_counts_too() -> None:
    error = RuntimeError("capture has ended in error")
    error.__context__ = OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [MemoryError, OutOfMemoryError])
def test_a_batch_without_room_is_halved_until_it_fits(error: type[Exception]) -> None:
    plain, sizes = runner(3, error)
    items = [np.array([value]) for value in range(8)]
    found = run_or_halve(plain, [plain.stage(items)], list(range(8)), items, {})
    assert sizes == [8, 4, 2, 2, 4, 2, 2]
    values = {
        place: int(row) for places, rows in found for place, row in zip(places, rows, strict=True)
    }
    assert values == {place: 2 * place for place in range(8)}


@pytest.mark.parametrize("greedy", [0, 5, 7])
def test_one_that_fits_not_even_alone_costs_nobody_else_their_answer(greedy: int) -> None:
    def model(batch: Array) -> Any:
        if greedy in batch[:, 0]:
            raise MemoryError("no room")
        return batch[:, 0] * 2

    plain = PlainRunner(model, 16)
    items = [np.array([value]) for value in range(8)]
    errors: dict[int, str] = {}
    found = run_or_halve(plain, [plain.stage(items)], list(range(8)), items, errors)
    assert errors == {greedy: "MemoryError: no room"}
    assert sorted(place for places, _ in found for place in places) == [
        place for place in range(8) if place != greedy
    ]


def test_what_fits_not_even_alone_fails() -> None:
    plain, _ = runner(0, MemoryError)
    items = [np.array([value]) for value in range(2)]
    with pytest.raises(MemoryError):
        run_or_halve(plain, [plain.stage(items)], [0, 1], items, {})


def test_other_errors_are_not_tried_again() -> None:
    plain, sizes = runner(0, ValueError)
    items = [np.array([value]) for value in range(4)]
    with pytest.raises(ValueError, match="no room"):
        run_or_halve(plain, [plain.stage(items)], [0, 1, 2, 3], items, {})
    assert sizes == [4]


def test_a_slot_tells_how_far_its_batch_is_past_its_plan() -> None:
    pipeline = BatchPipeline()
    pipeline.on_router_up(1)
    pipeline.on_run(0, 1, Run(1, "v", (1,), 0, ms(5)))
    assert pipeline.overrun_ns(ms(1000)) < 0
    pipeline.on_payload(ms(10), Payload(1, "UINT8", (1,), b"x"))
    assert pipeline.overrun_ns(ms(1000)) == ms(1000) - ms(10) - ms(5)
    job = pipeline.jobs[0]
    pipeline.on_finished(ms(20), job, 0, ms(10), ms(10), [()])
    assert pipeline.overrun_ns(ms(1000)) < 0


def test_a_limit_holds_for_a_minute_and_then_for_two() -> None:
    limits = BatchLimits()
    assert limits.set(0, "v", 4)
    assert not limits.set(seconds(1), "v", 4)
    assert limits.items() == (("v", 4),)
    assert limits.set(seconds(2), "v", 2)
    assert not limits.lift(seconds(60))
    assert limits.lift(seconds(2 + 120))
    assert limits.items() == ()
    limits.set(seconds(200), "v", 4)
    assert not limits.lift(seconds(200 + 119))
    assert limits.lift(seconds(200 + 120))


def test_an_outcome_tells_what_fitted_even_where_staging_did_not() -> None:
    class Crowded(PlainRunner):
        def stage(self, items: Any) -> Any:
            if len(items) > 3:
                raise MemoryError("no room to stage")
            return super().stage(items)

    heard: queue.SimpleQueue[BatchOutcome] = queue.SimpleQueue()
    executor = Executor(heard.put)
    model = Crowded(lambda batch: batch[:, 0] * 2, 16)
    items = [(place, np.array([place])) for place in range(8)]
    job: Any = FakeJob()
    executor.begin(job, model, items, {})
    outcome = heard.get(timeout=10)
    executor.begin(job, model, items[:2], {})
    whole = heard.get(timeout=10)
    executor.stop()
    assert (outcome.fits, outcome.failed, outcome.errors) == (2, "", {})
    assert sorted(place for places, _ in outcome.outputs for place in places) == list(range(8))
    assert whole.fits == 0


# The router


def make_room() -> tuple[BatchSizeLimits, Assembly]:
    variant = VariantSpec("v", tuple(ms(10 + n) for n in range(1, 9)))
    built = assemble(RouterConfig((ApplicationSpec("a", ms(100), (variant,)),)))
    return BatchSizeLimits(built), built


def test_batches_are_planned_as_large_as_fits_half_of_the_backends() -> None:
    room, built = make_room()
    plan_ns = built.engine.costs.of(0).plan_ns
    before = list(plan_ns)
    for backend, size in ((1, 4), (2, 6), (3, 2)):
        room.on_ready(backend, ("v",), (("v", size), ("unknown", 2)))
    assert plan_ns[:5] == before[:5]
    assert plan_ns[5] > seconds(1_000_000)
    assert built.engine.costs.of(0).factor == 1.0
    room.on_gone(3)
    assert plan_ns[:7] == before[:7]
    assert plan_ns[7] > seconds(1_000_000)
    room.on_ready(2, ("v",), ())
    assert plan_ns == before


def test_one_backend_short_of_memory_makes_no_batches_small_but_its_own() -> None:
    room, built = make_room()
    engine = built.engine
    for backend in (1, 2):
        room.on_ready(backend, ("v",), (("v", 2),) if backend == 1 else ())
        engine.on_backend_up(0, backend)
    for rid in range(10):
        engine.on_request(0, Request(rid, 0, 0, ms(100)))
    while len(engine.outbox.effects) < 2:
        engine.on_time(engine.wake_at_ns())
    sizes = {
        each.backend: len(each.batch.requests)
        for each in engine.take_effects()
        if isinstance(each, Dispatch)
    }
    assert sizes == {1: 2, 2: 8}
    # Once it has room again, or another process in its place, nothing is left of it.
    room.on_ready(1, ("v",), ())
    assert engine.costs.backend_room == {}


def test_a_limit_after_a_long_time_without_one_holds_for_a_minute_again() -> None:
    limits = BatchLimits()
    limits.set(0, "v", 4)
    assert limits.lift(seconds(60))
    limits.set(seconds(60 + 121), "v", 4)
    assert limits.lift(seconds(60 + 121 + 60))
