"""The timer heap: one valid entry for each timer, and stale ones never wake anybody."""

from fermata.foundation.units import NEVER
from fermata.router.core.timers import Timer, Timers


class Alarm(Timer):
    """Notes when it rang, and arms itself again for the times it was given."""

    __slots__ = ("again", "rang", "timers")

    def __init__(self, timers: Timers, again: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.timers = timers
        self.again = list(again)
        self.rang: list[int] = []

    def fire(self, now_ns: int) -> None:
        self.rang.append(now_ns)
        if self.again:
            self.timers.arm(self, self.again.pop(0))


def test_nothing_armed_never_wakes() -> None:
    timers = Timers()
    assert timers.next_ns() == NEVER
    timers.fire_due(10)
    assert timers.next_ns() == NEVER


def test_arming_again_replaces_the_time() -> None:
    timers = Timers()
    alarm = Alarm(timers)
    timers.arm(alarm, 10)
    timers.arm(alarm, 30)
    assert timers.next_ns() == 30
    timers.fire_due(29)
    assert alarm.rang == []
    timers.arm(alarm, 20)
    timers.fire_due(40)
    assert alarm.rang == [40]
    assert timers.next_ns() == NEVER


def test_disarmed_timer_does_not_ring() -> None:
    timers = Timers()
    alarm, other = Alarm(timers), Alarm(timers)
    timers.arm(alarm, 10)
    timers.arm(other, 20)
    timers.disarm(alarm)
    assert timers.next_ns() == 20
    timers.fire_due(20)
    assert (alarm.rang, other.rang) == ([], [20])


def test_timers_armed_by_a_firing_ring_too_when_due() -> None:
    timers = Timers()
    alarm = Alarm(timers, again=(12, 50))
    timers.arm(alarm, 10)
    timers.fire_due(15)
    assert alarm.rang == [15, 15]
    assert timers.next_ns() == 50


def test_timers_of_one_instant_ring_in_the_order_they_were_armed() -> None:
    timers = Timers()
    order: list[int] = []

    class Numbered(Timer):
        __slots__ = ("number",)

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def fire(self, now_ns: int) -> None:
            order.append(self.number)

    for number in (2, 0, 1):
        timers.arm(Numbered(number), 10)
    timers.fire_due(10)
    assert order == [2, 0, 1]
