"""Looks taken together on a thread: batches, limits, late ones, and errors."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from fermata.deployments.sneakpeek.look_queue import LookLimits, LookQueue, Votes, WaitingLook
from fermata.foundation.units import ms


class HeldPool(Executor):
    """Runs nothing before it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Any, /, *args: Any, **given: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **given)))
        return future

    def run(self) -> None:
        """Run the only job that there is."""
        ((future, work),) = self.jobs
        self.jobs.clear()
        try:
            future.set_result(work())
        except ValueError as error:
            future.set_exception(error)


class Looks:
    """A queue whose samples are numbers; a look at 13 fails."""

    def __init__(self, limits: LookLimits | None = None) -> None:
        self.pool = HeldPool()
        self.seen: list[tuple[str, list[int]]] = []
        self.answers: dict[int, Votes] = {}
        self.now_ns = 0
        self.queue = LookQueue(self.look, self.pool, self.answer, limits, lambda: self.now_ns)

    def look(self, application: str, samples: Sequence[int]) -> list[Votes]:
        self.seen.append((application, list(samples)))
        if 13 in samples:
            raise ValueError("13")
        return [(float(each), 1.0) for each in samples]

    def answer(self, look: WaitingLook, votes: Votes) -> None:
        self.answers[look.rid] = votes

    def add(self, *rids: int, application: str = "cats", until_ns: int = ms(1000)) -> None:
        for rid in rids:
            self.queue.add(WaitingLook(rid, application, rid, until_ns=until_ns))

    async def run(self) -> None:
        self.pool.run()
        # The executor's future tells the loop's.
        for _ in range(3):
            await asyncio.sleep(0)


def test_samples_that_come_meanwhile_make_up_the_next_job() -> None:
    async def play() -> Looks:
        looks = Looks()
        looks.add(1, 2, 3)
        looks.add(4, application="dogs")
        await looks.run()
        await looks.run()
        return looks

    looks = asyncio.run(play())
    assert looks.seen == [("cats", [1]), ("cats", [2, 3]), ("dogs", [4])]
    assert looks.answers == {rid: (float(rid), 1.0) for rid in (1, 2, 3, 4)}


def test_preparation_comes_first() -> None:
    async def play() -> tuple[Looks, list[str]]:
        looks, done = Looks(), ["begun"]
        looks.queue.prepare(lambda: done.append("prepared"))
        looks.add(1)
        assert looks.seen == []
        await looks.run()
        await looks.run()
        return looks, done

    looks, done = asyncio.run(play())
    assert done == ["begun", "prepared"]
    assert looks.seen == [("cats", [1])]


def test_late_samples_are_answered_unseen() -> None:
    async def play() -> Looks:
        looks = Looks()
        looks.add(1)
        looks.add(2, until_ns=ms(10))
        looks.add(3)
        looks.now_ns = ms(11)
        await looks.run()
        await looks.run()
        return looks

    looks = asyncio.run(play())
    assert looks.seen == [("cats", [1]), ("cats", [3])]
    assert looks.answers[2] == ()


def test_job_that_fails_is_answered_without_votes() -> None:
    async def play() -> Looks:
        looks = Looks()
        looks.add(13, 1)
        await looks.run()
        await looks.run()
        return looks

    looks = asyncio.run(play())
    assert looks.answers == {13: (), 1: (1.0, 1.0)}
    assert looks.queue.failed == 1


def test_jobs_are_as_large_as_their_time_allows() -> None:
    async def play() -> Looks:
        looks = Looks(LookLimits(waiting_max=6, batch_ns=ms(50)))
        looks.queue.times.learn("cats", ms(20))
        looks.add(1, 2, 3, 4)
        # Three wait, of 20 ms each.
        assert looks.queue.has_room("cats", ms(60))
        assert not looks.queue.has_room("cats", ms(59))
        looks.add(5, 6, 7)
        assert not looks.queue.has_room("cats", ms(1000))
        for _ in range(3):
            await looks.run()
        return looks

    looks = asyncio.run(play())
    # A job that takes no time makes 20 ms a look 16 of them, then 12.8.
    assert [samples for _, samples in looks.seen] == [[1], [2, 3, 4], [5, 6, 7]]
