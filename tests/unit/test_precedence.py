"""Precedence among applications of several policies, where not everyone can be served."""

from math import log

from fermata.foundation.units import ms
from fermata.router.core.deadline_queue import DeadlineQueue
from fermata.router.core.fairness.precedence import Precedence

TABLE = [0, ms(4), ms(6), ms(8), ms(10)]
"""The largest batch within 8 ms is of 3, within 100 ms of 4: 2.5 ms each."""
SLOWER = [2 * each for each in TABLE]


def losing(lost: float) -> DeadlineQueue:
    queue = DeadlineQueue()
    queue.lost = lost
    return queue


def mixed() -> Precedence:
    found = Precedence()
    found.mixed = True
    return found


def test_whoever_loses_more_is_brought_forward() -> None:
    pool, some, many = mixed(), losing(0.1), losing(0.2)
    pool.tell(some, ms(100), TABLE)
    pool.tell(many, ms(50), TABLE)
    # Twice the shortest SLO for each factor of e above a loss of one in twenty.
    assert pool.ahead_ns(some) == int(2 * ms(50) * log(2))
    assert pool.ahead_ns(many) == int(2 * ms(50) * log(4))


def test_those_of_one_cost_and_loss_are_level_whatever_their_slo() -> None:
    pool, short, long = mixed(), losing(0.3), losing(0.3)
    pool.tell(short, ms(50), TABLE)
    pool.tell(long, ms(500), TABLE)
    assert pool.ahead_ns(short) == pool.ahead_ns(long) > 0


def test_whoever_costs_twice_as_much_loses_twice_the_share() -> None:
    pool, cheap, dear = mixed(), losing(0.2), losing(0.4)
    pool.tell(cheap, ms(100), TABLE)
    pool.tell(dear, ms(100), SLOWER)
    assert pool.ahead_ns(cheap) == pool.ahead_ns(dear) == int(2 * ms(100) * log(4))


def test_few_losses_change_nothing() -> None:
    pool, few = mixed(), losing(0.05)
    pool.tell(few, ms(100), TABLE)
    assert pool.ahead_ns(few) == 0


def test_where_all_bids_are_of_one_sort_their_latest_starts_decide() -> None:
    pool, many = Precedence(), losing(0.9)
    pool.tell(many, ms(100), TABLE)
    assert pool.ahead_ns(many) == 0
    assert mixed().ahead_ns(losing(0.9)) == 0  # Nobody knows what it costs.


def test_those_who_leave_or_change_count_no_longer() -> None:
    pool, cheap, dear = mixed(), losing(0.0), losing(0.4)
    pool.tell(dear, ms(100), SLOWER)
    assert pool.ahead_ns(dear) == int(2 * ms(100) * log(8))
    pool.tell(cheap, ms(8), TABLE)
    assert (pool.least_ns, pool.shortest_ns) == (ms(8) / 3, ms(8))
    pool.tell(cheap, ms(300), TABLE)
    assert (pool.least_ns, pool.shortest_ns) == (ms(2.5), ms(100))
    pool.leave(cheap)
    pool.leave(cheap)
    assert (pool.least_ns, pool.shortest_ns) == (ms(5), ms(100))
    pool.leave(dear)
    assert pool.ahead_ns(dear) == 0


def test_where_all_bids_are_of_one_sort_nobody_is_brought_forward() -> None:
    pool, some, other = Precedence(), losing(0.3), losing(0.1)
    pool.tell(some, ms(100), TABLE)
    pool.join(some, of_request=True)
    pool.join(other, of_request=True)
    assert pool.ahead_ns(some) == 0
    pool.join(other, of_request=False)
    assert pool.ahead_ns(some) > 0
    pool.leave(other)
    assert pool.ahead_ns(some) == 0
