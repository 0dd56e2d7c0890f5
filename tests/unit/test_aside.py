"""Work done by another process, and the router that waits for it."""

import asyncio
import math
from functools import partial

from router.aside import Aside, call_elsewhere
from router.core.units import ms
from router.policies.ramsis.problem import WorkerProblem
from router.policies.ramsis.solve import solve


def test_results_come_back_in_order() -> None:
    results: list[object] = []

    async def wait() -> None:
        aside = Aside()
        aside.do(partial(math.factorial, 5), results.append)
        aside.do(partial(math.sqrt, 16.0), results.append)
        assert aside.running is not None
        await aside.running
        assert aside.failed == 0

    asyncio.run(wait())
    assert results == [120, 4.0]


def test_a_failure_is_counted_and_hands_nothing_over() -> None:
    results: list[object] = []

    async def wait() -> None:
        aside = Aside()
        aside.do(partial(math.sqrt, -1.0), results.append)
        assert aside.running is not None
        await aside.running
        assert aside.failed == 1

    asyncio.run(wait())
    assert results == []


def test_tables_travel() -> None:
    latency_ns = ((ms(8), ms(12)), (ms(16), ms(26)))
    problem = WorkerProblem(latency_ns, (0.6, 0.9), ms(40), 2, 100.0)
    done, result = asyncio.run(call_elsewhere(partial(solve, problem)))
    assert done
    assert result == solve(problem)
