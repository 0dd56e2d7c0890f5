"""Turns of clients, on a loop without anything else."""

import asyncio

from fermata.deployments.frontend.access.turns import AT_ONCE, BACKLOG_NS, SLOT_NS, Turns
from fermata.foundation.units import seconds


def test_few_requests_never_wait() -> None:
    turns = Turns()
    assert all(turns.is_free(number * SLOT_NS) for number in range(1000))
    assert not turns.waiting


def test_a_crowd_is_let_through_up_to_the_backlog_and_again_once_that_is_done() -> None:
    turns = Turns()
    let_through = sum(turns.is_free(0) for _ in range(1000))
    assert let_through == BACKLOG_NS // SLOT_NS + 1
    assert not turns.is_free(SLOT_NS // 2)
    assert turns.is_free(seconds(1))


def test_addresses_take_turns_whoever_came_first() -> None:
    async def test() -> list[str]:
        turns, order = Turns(), []

        async def one(address: str) -> None:
            await turns.wait(address)
            order.append(address)

        tasks = [asyncio.ensure_future(one("greedy")) for _ in range(100)]
        await asyncio.sleep(0)
        tasks += [asyncio.ensure_future(one("honest")) for _ in range(3)]
        await asyncio.gather(*tasks)
        assert not turns.waiting
        return order

    order = asyncio.run(test())
    assert len(order) == 103
    assert max(at for at, who in enumerate(order) if who == "honest") <= 3 * AT_ONCE


def test_one_that_left_while_it_waited_takes_no_turn() -> None:
    async def test() -> None:
        turns = Turns()
        gone = [asyncio.ensure_future(turns.wait("a")) for _ in range(50)]
        stays = asyncio.ensure_future(turns.wait("a"))
        await asyncio.sleep(0)
        for each in gone:
            each.cancel()
        await stays
        assert not turns.waiting

    asyncio.run(test())


def test_an_address_that_needs_more_turns_than_the_greedy_ones_keeps_up() -> None:
    async def test() -> list[int]:
        turns, begun, behind = Turns(), 0, []

        def begin() -> bool:
            nonlocal begun
            begun += 1
            return True

        for greedy in ("a", "b", "c"):
            for _ in range(200):
                turns.add(greedy, lambda: True)
        # Between two looks at the sockets two requests come, half of all turns.
        for sent in range(2, 100, 2):
            turns.add("honest", begin)
            turns.add("honest", begin)
            await asyncio.sleep(0)
            behind.append(sent - begun)
        return behind

    assert max(asyncio.run(test())) <= 2


def test_small_addresses_do_not_keep_a_large_one_waiting() -> None:
    async def test() -> int:
        turns, begun = Turns(), 0

        def begin() -> bool:
            nonlocal begun
            begun += 1
            return True

        for _ in range(200):
            turns.add("large", begin)
        for _ in range(50):
            for number in range(AT_ONCE):
                turns.add(f"small-{number}", lambda: True)
            await asyncio.sleep(0)
        return begun

    # Of the turns that go round, one in five is its own.
    assert asyncio.run(test()) >= 50 * AT_ONCE // 2 // (AT_ONCE + 1)


def test_what_has_nothing_to_begin_takes_no_turn() -> None:
    async def test() -> bool:
        turns, begun = Turns(), asyncio.Event()

        def begin() -> bool:
            begun.set()
            return True

        for _ in range(50):
            turns.add("gone", lambda: False)
        turns.add("gone", begin)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return begun.is_set() and not turns.waiting

    assert asyncio.run(test())
