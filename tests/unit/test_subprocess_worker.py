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
from fermata.router.live.subprocess_worker import Failed, SubprocessWorker, run_in_subprocess
from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.solve import solve


def test_results_come_back_in_order() -> None:
    results: list[object] = []

    async def wait() -> None:
        worker = SubprocessWorker()
        worker.submit(partial(math.factorial, 5), results.append)
        worker.submit(partial(math.sqrt, 16.0), results.append)
        assert worker.running is not None
        await worker.running
        assert worker.running is None

    asyncio.run(wait())
    assert results == [120, 4.0]


def outcome(worker: SubprocessWorker, *works: Callable[[], object]) -> list[object]:
    results: list[object] = []

    async def wait() -> None:
        for work in works:
            worker.submit(work, results.append)
        assert worker.running is not None
        await worker.running

    asyncio.run(wait())
    return results


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
    assert asyncio.run(run_in_subprocess(partial(replace, table), 60.0)) == table
    # There its promises may differ in the last digit: the library has threads here.
    solved = asyncio.run(run_in_subprocess(partial(solve, problem), 60.0))
    assert solved.choice == table.choice
    assert solved.accuracy == pytest.approx(table.accuracy, rel=1e-12)
