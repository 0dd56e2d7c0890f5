"""A router and the cluster's record of terms: whom it stands down for."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fermata.foundation.errors import NoAnswerError
from fermata.router.leadership.terms import RecordTiming, Terms

MINE = 7


class Record:
    """The cluster's; away for the first few times that it is asked."""

    def __init__(self, highest: int = MINE, away: int = 0) -> None:
        self.last = highest
        self.away = away
        self.asked = 0
        self.silent = False

    async def _answer(self) -> None:
        self.asked += 1
        if self.silent:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        if self.asked <= self.away:
            raise NoAnswerError("the cluster does not answer")

    async def highest(self) -> int:
        await self._answer()
        return self.last

    async def note(self, term: int) -> None:
        await self._answer()
        self.last = max(self.last, term)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


async def stood_down(record: Record | None, claimed: int = MINE + 1) -> int:
    """How often a router stands down that a peer has told, once, of a newer one."""
    calls: list[bool] = []
    terms = Terms(record, lambda: MINE, RecordTiming(answer_s=0.5))
    terms.confirm(claimed, lambda: calls.append(True))
    if terms.asking is not None:
        await terms.asking
    return len(calls)


@pytest.mark.parametrize(
    ("record", "down"),
    [
        (None, 1),
        (Record(MINE + 1), 1),
        (Record(MINE), 0),
        (Record(MINE - 1), 0),
        (Record(0), 0),
        (Record(MINE, away=1), 1),
    ],
)
def test_the_record_decides_and_where_it_is_away_the_peer_does(
    record: Record | None, down: int
) -> None:
    async def test() -> None:
        assert await stood_down(record) == down

    run(test)


@pytest.mark.parametrize(
    ("claimed", "down"),
    [(0, 0), (MINE, 0), (MINE + 1, 1), (MINE + 2, 1), (MINE + 3, 0), (2**62, 0)],
)
def test_a_term_that_nobody_has_had_is_not_believed_though_a_router_waits(
    claimed: int, down: int
) -> None:
    async def test() -> None:
        assert await stood_down(Record(MINE + 2), claimed) == down

    run(test)


def test_a_record_that_does_not_answer_is_not_waited_for() -> None:
    async def test() -> None:
        record = Record(MINE)
        record.silent = True
        assert await stood_down(record) == 1

    run(test)


def test_many_claims_are_one_question() -> None:
    async def test() -> None:
        record, calls = Record(MINE), list[bool]()
        terms = Terms(record, lambda: MINE)
        for _ in range(100):
            terms.confirm(MINE + 1, lambda: calls.append(True))
        assert terms.asking is not None
        await terms.asking
        assert record.asked == 1
        # What was true then may not be true the next time.
        record.last = MINE + 1
        terms.confirm(MINE + 1, lambda: calls.append(True))
        await terms.asking
        assert calls == [True]

    run(test)


def test_a_term_that_the_cluster_did_not_give_is_recorded_however_long_it_takes() -> None:
    async def test() -> None:
        record = Record(MINE, away=5)
        terms = Terms(record, lambda: MINE, RecordTiming(retry_s=0.001))
        terms.note(MINE + 2)
        assert terms.noting is not None
        await terms.noting
        assert record.last == MINE + 2

    run(test)


def test_a_higher_term_takes_the_place_of_one_that_is_on_its_way() -> None:
    async def test() -> None:
        record = Record(MINE)
        terms = Terms(record, lambda: MINE)
        terms.note(MINE + 2)
        terms.note(MINE + 4)
        assert terms.noting is not None
        await terms.noting
        assert record.last == MINE + 4
        terms.stop()

    run(test)
