"""Routers run for months: what they remember does not grow with what they have done."""

import gc
import time
from types import FunctionType, ModuleType

import pytest
from policy_zoo import SOURCES
from small_world import US, Workload, World

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Request
from fermata.router.policies.baselines.batch_queues import BatchQueues, BatchQueuesOptions

SHARED = (type, ModuleType, FunctionType)
"""Parts of the program, not of the engine."""
REMEMBERED_MAX = 10_000
"""Objects: windows of samples, timers up to a compaction, and the engine itself."""


def remembered(engine: Engine) -> int:
    """How many objects the engine holds on to, directly or not."""
    found: dict[int, object] = {id(engine): engine}
    ahead: list[object] = [engine]
    while ahead:
        for each in gc.get_referents(ahead.pop()):
            if id(each) not in found and not isinstance(each, SHARED):
                found[id(each)] = each
                ahead.append(each)
    return len(found)


@pytest.mark.parametrize("name", SOURCES)
def test_light_load_leaves_nothing_behind(name: str) -> None:
    world = World(name, Workload(1, 2, 4, False, 300, 0, 0.02, 0, 0, []))
    for rid in range(4000):
        world.run_until(rid * 9_700 * US)
        world.send(rid, 5)
    assert remembered(world.engine) < REMEMBERED_MAX


def test_first_saturation_after_a_long_light_load_is_as_quick_as_any() -> None:
    costs = Costs()
    costs.add(0, [ms(1)])
    engine = Engine(costs)
    engine.add_application(BatchQueues(0, BatchQueuesOptions()))
    for backend in range(8):
        engine.on_backend_up(0, backend)
    now_ns = 0
    for rid in range(40_000):
        now_ns = rid * ms(2)
        engine.on_request(now_ns, Request(rid, 0, now_ns, now_ns + ms(50)))
        (effect,) = engine.take_effects()
        assert isinstance(effect, Dispatch)
        engine.on_done(now_ns + ms(1), effect.backend, ms(1))
    assert remembered(engine) < REMEMBERED_MAX
    began_s = time.process_time()
    for rid in range(40_000, 40_010):
        engine.on_request(now_ns + ms(2), Request(rid, 0, now_ns, now_ns + ms(50)))
    assert len(engine.take_effects()) == 8
    # Here a fraction of a millisecond; a router that hangs for two seconds is replaced.
    assert time.process_time() - began_s < 0.05


def test_moves_between_sub_clusters_leave_nothing_behind() -> None:
    costs = Costs()
    costs.add(0, [ms(1)])
    engine = Engine(costs, ranks=2)
    for _ in range(2):
        engine.add_application(BatchQueues(0, BatchQueuesOptions()))
    before = remembered(engine)
    for step in range(1000):
        engine.move_application(ms(step), step % 2, 1 - step // 2 % 2)
    assert remembered(engine) < before + 50
