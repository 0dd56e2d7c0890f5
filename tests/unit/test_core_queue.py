"""The queue by deadline, and the requests in it."""

import random

from fermata.foundation.units import NEVER
from fermata.router.core.deadline_queue import COMPACT_AFTER, DeadlineQueue
from fermata.router.core.events import Request


def request(rid: int, deadline_ns: int) -> Request:
    return Request(rid, 0, 0, deadline_ns)


def queue_of(*deadlines_ns: int) -> tuple[DeadlineQueue, list[Request]]:
    queue = DeadlineQueue()
    requests = [request(rid, deadline_ns) for rid, deadline_ns in enumerate(deadlines_ns)]
    for each in requests:
        queue.push(each)
    return queue, requests


def rids(requests: list[Request]) -> list[int]:
    return [each.rid for each in requests]


def test_order_is_by_deadline_and_ties_by_arrival() -> None:
    queue, _ = queue_of(30, 10, 20, 10, 30)
    assert rids(queue.pop_many(5)) == [1, 3, 2, 0, 4]
    assert len(queue) == 0


def test_push_says_whether_the_first_has_changed() -> None:
    queue = DeadlineQueue()
    assert queue.push(request(0, 20))
    assert not queue.push(request(1, 20))
    assert not queue.push(request(2, 30))
    assert queue.push(request(3, 10))
    assert queue.first().rid == 3


def test_remove_finds_one_among_equal_deadlines() -> None:
    queue, requests = queue_of(10, 20, 20, 20, 30)
    assert queue.remove(requests[2])
    assert not queue.remove(requests[2])
    assert not queue.remove(request(9, 20))
    assert rids(queue.pop_many(4)) == [0, 1, 3, 4]


def test_popped_requests_cannot_be_removed() -> None:
    queue, requests = queue_of(10, 20)
    assert queue.pop() is requests[0]
    assert not queue.remove(requests[0])
    assert queue.remove(requests[1])
    assert len(queue) == 0
    assert queue.push(requests[0])
    assert queue.first() is requests[0]


def test_pop_from_takes_out_of_the_middle() -> None:
    queue, _ = queue_of(10, 20, 30, 40, 50)
    queue.pop()
    assert rids(queue.pop_from(queue.head + 1, 2)) == [2, 3]
    assert rids(queue.pop_from(queue.head, 2)) == [1, 4]
    assert len(queue) == 0


def test_slots_in_front_of_the_head_are_freed() -> None:
    count = 3 * COMPACT_AFTER
    queue, _ = queue_of(*range(count))
    for expected in range(count - 1):
        assert queue.pop().rid == expected
        # No more free slots than it takes to be worth a move, or than there are requests.
        assert queue.head <= max(COMPACT_AFTER, len(queue))
    assert queue.first().rid == count - 1
    queue.pop()
    assert queue.items == []


def test_queue_agrees_with_a_sorted_list() -> None:
    rng = random.Random(5)
    queue, model = DeadlineQueue(), []
    for rid in range(400):
        each = request(rid, rng.randrange(50))
        queue.push(each)
        model.append(each)
        model.sort(key=lambda other: other.deadline_ns)
        if rng.random() < 0.4:
            assert queue.pop() is model.pop(0)
        elif rng.random() < 0.3 and model:
            gone = rng.choice(model)
            model.remove(gone)
            assert queue.remove(gone)
        assert len(queue) == len(model)
    assert queue.pop_many(len(model)) == model


def test_request_expires_at_its_deadline_unless_told_otherwise() -> None:
    assert Request(0, 0, 0, 10).expires_at_ns == 10
    assert Request(0, 0, 0, 10, 25).expires_at_ns == 25
    assert Request(0, 0, 0, 10).start_by_ns == NEVER
