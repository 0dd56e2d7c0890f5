"""A worker whose frames have piled up."""

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.events import Request
from fermata.router.core.slot import Slot
from fermata.router.policies.jellyfish.backlog import FRAMES_MAX, dnn_in_time, first_of

TABLES = ([10.0, 14.0, 18.0], [15.0, 22.0, 29.0], [25.0, 40.0, 55.0])


def slot(resident: frozenset[int] | None = None, swap_in_ms: float = 0.0) -> Slot:
    costs = Costs()
    for variant, table in enumerate(TABLES):
        costs.add(variant, [ms(value) for value in table], None)
        if swap_in_ms:
            costs.swap_in_ns[variant] = ms(swap_in_ms)
    made = Slot(costs)
    made.offer(0, 0, 0, resident)
    return made


def frames(*left_ms: float) -> list[Request]:
    return [Request(rid, 0, 0, ms(left)) for rid, left in enumerate(left_ms)]


def chosen(*left_ms: float, own: int = 2, least: int = 0, on: Slot | None = None) -> int:
    return dnn_in_time(on or slot(), (0, 1, 2), own, frames(*left_ms), lambda _, dnn: dnn >= least)


def test_own_dnn_runs_where_all_stay_in_time() -> None:
    # One batch of three, or one of one and then one of two.
    assert chosen(55, 55, 55) == 2
    assert chosen(25, 65, 65) == 2


def test_smaller_one_runs_where_the_own_would_be_late_for_some() -> None:
    # Two in 40 ms, and the third ends at 65; in 29 ms all three at 224 pixels.
    assert chosen(50, 50, 50) == 1
    # Nor in 29: 18 ms at 128 pixels.
    assert chosen(20, 20, 20) == 0


def test_only_the_next_batch_is_smaller() -> None:
    # At 224 pixels one ends after 15 ms, and the own DNN runs the other two by 55.
    assert chosen(20, 55, 55) == 1


def test_larger_one_runs_where_a_smaller_one_saves_nobody() -> None:
    assert chosen(8, 80, 80) == 2


def test_frame_that_allows_no_smaller_one_keeps_the_own() -> None:
    assert chosen(20, 20, 20, least=2) == 2
    assert chosen(20, 20, 20, least=1) == 1


def test_dnn_that_is_not_loaded_is_no_help() -> None:
    assert chosen(50, 50, 50, on=slot(frozenset((0, 2)))) == 0
    assert chosen(50, 50, 50, on=slot(frozenset((0, 2)), swap_in_ms=1)) == 0


def test_choice_goes_by_as_many_frames_however_long_the_queue_is() -> None:
    queue = DeadlineQueue()
    for request in frames(*range(1000)):
        queue.push(request)
    queue.pop_many(10)
    assert [each.rid for each in first_of(queue)] == list(range(10, 10 + FRAMES_MAX))
