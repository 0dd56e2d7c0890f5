"""Work done by another process, and the router that waits for it."""

import asyncio
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from fermata.foundation.units import ms
from fermata.router.live.subprocess_worker import Failed, SubprocessWorker
from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.solve import TableSolution, solve


def test_results_come_back_in_order() -> None:
    results: list[object] = []

    async def wait() -> None:
        worker = SubprocessWorker()
        worker.submit(partial(math.factorial, 5), results.append)
        worker.submit(partial(math.sqrt, 16.0), results.append)
        assert worker.running is not None
        await worker.running
        assert worker.running is None
        await worker.stop()

    asyncio.run(wait())
    assert results == [120, 4.0]


def outcome(worker: SubprocessWorker, *works: Callable[[], object]) -> list[object]:
    results: list[object] = []

    async def wait() -> None:
        for work in works:
            worker.submit(work, results.append)
        assert worker.running is not None
        await worker.running
        await worker.stop()

    asyncio.run(wait())
    return results


def test_one_process_does_all_of_it() -> None:
    first, second = outcome(SubprocessWorker(), os.getpid, os.getpid)
    assert first == second != os.getpid()


def test_what_work_prints_is_no_result() -> None:
    assert outcome(SubprocessWorker(), partial(print, "aside"), os.getpid)[0] is None


def test_a_process_that_was_killed_between_two_pieces_is_replaced() -> None:
    results: list[object] = []

    async def wait() -> None:
        worker = SubprocessWorker()
        for _ in range(3):
            worker.submit(partial(math.sqrt, 16.0), results.append)
            assert worker.running is not None
            await worker.running
            if worker.process is not None:
                worker.process.kill()
                await worker.process.wait()
        await worker.stop()

    asyncio.run(wait())
    assert results == [4.0] * 3


def test_a_failure_is_handed_over_and_others_go_on() -> None:
    failed, result = outcome(SubprocessWorker(), partial(math.sqrt, -1.0), partial(math.sqrt, 9.0))
    assert failed == Failed("ended with status 1")
    assert result == 3.0


def test_what_hangs_is_ended() -> None:
    (failed,) = outcome(SubprocessWorker(lasts_s_max=0.2), partial(time.sleep, 60.0))
    assert failed == Failed("took more than 0.2 s")


def test_what_dies_without_a_word_has_failed() -> None:
    (failed,) = outcome(SubprocessWorker(), partial(os._exit, 9))
    assert failed == Failed("ended with status 9")


def test_tables_travel() -> None:
    latency_ns = ((ms(8), ms(12)), (ms(16), ms(26)))
    problem = WorkerProblem(latency_ns, (0.6, 0.9), ms(40), 2, 100.0)
    table = solve(problem)
    same, solved = outcome(SubprocessWorker(), partial(replace, table), partial(solve, problem))
    assert same == table
    assert isinstance(solved, TableSolution)
    # There its promises may differ in the last digit: the library has threads here.
    assert solved.choice == table.choice
    assert solved.accuracy == pytest.approx(table.accuracy, rel=1e-12)


def test_a_worker_stops_in_the_middle_of_its_work() -> None:
    results: list[object] = []

    async def wait() -> None:
        worker = SubprocessWorker()
        worker.submit(partial(math.sqrt, 16.0), results.append)
        assert worker.running is not None
        await worker.running
        worker.submit(partial(time.sleep, 60.0), results.append)
        await asyncio.sleep(0)
        await worker.stop()
        assert worker.process is not None
        assert worker.process.returncode == -9

    asyncio.run(wait())
    assert results == [4.0]
