"""Frames under way: sent again when time allows, given up when not, released in order."""

from fermata.clients.pending import NEVER, FrameResult, Pending

MS = 1_000_000


def make() -> Pending:
    return Pending(slo_ns=100 * MS, grace_ns=50 * MS, attempts_max=2)


def send(pending: Pending, now_ns: int, *indices: int) -> None:
    for index in indices:
        pending.add(now_ns, index)
        pending.on_sent(index)


def ready(pending: Pending) -> list[tuple[int, str]]:
    return [(each.index, each.status) for each in pending.take_ready()]


def test_results_are_released_in_order_of_capture() -> None:
    pending = make()
    send(pending, 0, 0, 1, 2)
    second = pending.on_result(30 * MS, 1)
    assert isinstance(second, FrameResult)
    assert second.latency_ns == 30 * MS
    assert ready(pending) == []
    pending.on_result(40 * MS, 0)
    assert ready(pending) == [(0, "OK"), (1, "OK")]
    assert pending.on_result(50 * MS, 1) is None


def test_a_refusal_with_a_hint_is_tried_again_if_that_is_in_time() -> None:
    pending = make()
    send(pending, 0, 0, 1)
    pending.on_refusal(10 * MS, 0, "RESOURCE_EXHAUSTED", "shed", 60 * MS)
    pending.on_refusal(10 * MS, 1, "RESOURCE_EXHAUSTED", "shed", 95 * MS)
    assert pending.wake_at_ns() == 70 * MS
    assert pending.due(70 * MS - 1) == []
    assert pending.due(70 * MS) == [0]
    pending.on_sent(0)
    pending.on_refusal(75 * MS, 0, "RESOURCE_EXHAUSTED", "shed again", 1 * MS)
    assert ready(pending) == [(0, "RESOURCE_EXHAUSTED"), (1, "RESOURCE_EXHAUSTED")]


def test_a_refusal_that_would_only_be_repeated_is_final() -> None:
    pending = make()
    send(pending, 0, 0)
    pending.on_refusal(1 * MS, 0, "INVALID_ARGUMENT", "no JPEG", 0)
    assert ready(pending) == [(0, "INVALID_ARGUMENT")]


def test_a_broken_stream_sends_again_what_was_under_way() -> None:
    pending = make()
    send(pending, 0, 0)
    send(pending, 40 * MS, 1)
    pending.add(45 * MS, 2)
    pending.on_disconnect(110 * MS, "gone")
    # The first is too old, the last was never sent and still waits to be.
    assert ready(pending) == [(0, "UNAVAILABLE")]
    assert pending.due(110 * MS) == [1]
    assert set(pending.open) == {1, 2}


def test_silence_ends_a_frame_after_its_grace() -> None:
    pending = make()
    send(pending, 0, 0)
    send(pending, 20 * MS, 1)
    assert pending.wake_at_ns() == 150 * MS
    pending.on_time(150 * MS)
    assert ready(pending) == [(0, "DEADLINE_EXCEEDED")]
    assert pending.wake_at_ns() == 170 * MS
    pending.on_result(160 * MS, 1)
    assert ready(pending) == [(1, "OK")]
    assert pending.wake_at_ns() == NEVER


def test_time_left_counts_from_capture() -> None:
    pending = make()
    pending.add(0, 0)
    assert pending.left_ns(30 * MS, 0) == 70 * MS
    pending.give_up(120 * MS, 0, "too late")
    assert pending.left_ns(120 * MS, 0) == 0
    assert ready(pending) == [(0, "DEADLINE_EXCEEDED")]
