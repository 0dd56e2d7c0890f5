"""Events of a router cost the same with many models and backends as with few.

Work is counted in lines of code that run, so that the machine does not matter.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from router_world import FakeLink, FakeWake, World, rid

from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Drop, DropReason, Request
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import Ready
from fermata.router.live.driver import LiveRouter
from fermata.router.live.snapshot import snapshot_in_slices, take_snapshot
from fermata.router.placement.sub_clusters import SubClusters
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions

SLACK = 1.3


def work(call: Callable[[], object]) -> int:
    """Lines of Fermata that a call runs."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if "fermata" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def ripe_engine(models: int, idle: int) -> Engine:
    """Each model is held by one backend, which is busy with it, and has one more ripe bid."""
    costs = Costs()
    engine = Engine(costs)
    for model in range(models):
        costs.add(model, [ms(5)])
        engine.add_application(ModelThread(model, DeferredOptions(hold="eager")))
    for model in range(models):
        engine.on_backend_up(0, model, resident=frozenset((model,)))
    for backend in range(models, models + idle):
        engine.on_backend_up(0, backend, resident=frozenset((models,)))
    for again in range(2):
        for model in range(models):
            engine.on_request(again, Request(model + again * models, model, again, ms(100)))
        engine.on_time(again + 1)
    engine.take_effects()
    assert len(engine.outbox.queued) == models
    return engine


def of_an_event(models: int, idle: int) -> int:
    engine = ripe_engine(models, idle)

    def events() -> None:
        engine.on_done(ms(5), 3, ms(5))
        engine.on_request(ms(5), Request(10_000, 3, ms(5), ms(200)))
        engine.on_time(ms(5) + 1)

    # The first of them looks for its groups.
    engine.on_done(ms(5), 2, ms(5))
    work(events)
    engine.on_done(ms(10), 3, ms(5))
    return work(lambda: engine.on_request(ms(11), Request(10_001, 3, ms(11), ms(200))))


def test_ripe_bids_that_idle_backends_cannot_serve_cost_other_models_nothing() -> None:
    assert of_an_event(200, 50) <= SLACK * of_an_event(10, 5)


def of_a_batch_end(models: int) -> int:
    engine = ripe_engine(models, 5)
    engine.on_done(ms(5), 3, ms(5))
    engine.on_request(ms(6), Request(10_000, 3, ms(6), ms(200)))
    return work(lambda: engine.on_done(ms(10), 3, ms(5)))


def test_a_batch_that_ends_looks_at_no_bid_of_another_model() -> None:
    assert of_a_batch_end(200) <= SLACK * of_a_batch_end(10)


@pytest.mark.parametrize("event", ["idle", "come", "gone"])
def test_sub_clusters_look_at_one_backend_alone(event: str) -> None:
    def of(models: int, backends: int) -> int:
        costs = Costs()
        engine = Engine(costs, 2)
        for model in range(models):
            costs.add(model, [ms(5)])
            engine.add_application(ModelThread(model, DeferredOptions()))
        placed = SubClusters(engine, [(model,) for model in range(models)])
        some = frozenset((0, 1, 2))

        def come(number: int) -> None:
            rank = placed.take(number, some)
            engine.on_backend_up(0, number, rank=rank, resident=some)

        for number in range(backends):
            come(number)
        placed.home = [model % 2 for model in range(models)]
        calls = {
            "idle": lambda: placed.on_idle(0, 1),
            "come": lambda: placed.take(backends, some),
            "gone": lambda: placed.on_gone(0, 1),
        }
        return work(calls[event])

    assert of(400, 200) <= SLACK * of(10, 10)


class Wide:
    """A router of many applications and backends; each backend holds three models."""

    def __init__(self, applications: int, backends: int) -> None:
        self.soon: list[Callable[[], None]] = []
        table = tuple(ms(4 + size) for size in range(1, 17))
        specs = tuple(
            ApplicationSpec(f"a{number}", ms(20), (VariantSpec(f"v{number}", table),))
            for number in range(applications)
        )
        config = RouterConfig(specs, "deferred", {"hold": "auto"}, lead_ns=0)
        self.router = LiveRouter(config, 3, lambda: ms(1000), self.soon.append, FakeWake)
        self.frontend = self._link("frontend", 2)
        self.backends = [self._link("backend", 10 + number) for number in range(backends)]
        for number, link in enumerate(self.backends):
            names = tuple(f"v{(3 * number + each) % applications}" for each in range(3))
            self.hear(link, Ready("emulated", names))

    def _link(self, role: str, number: int) -> FakeLink:
        link = FakeLink(role, number)
        self.router.on_up(link)
        return link

    def hear(self, link: FakeLink, ready: Ready) -> None:
        self.router.on_messages(link, [ready])
        while self.soon:
            self.soon.pop(0)()


def of_ready(applications: int, backends: int) -> int:
    wide = Wide(applications, backends)
    # The same announced again, and one model more.
    wide.hear(wide.backends[0], Ready("emulated", ("v0", "v1", "v2")))
    fleet, link = wide.router.fleet, wide.backends[0]
    ready = Ready("emulated", ("v0", "v1", "v2", "v5"))
    return work(lambda: fleet.on_ready(ms(1000), link, ready))


def test_a_backend_that_announces_itself_is_all_that_is_looked_at() -> None:
    assert of_ready(300, 100) <= SLACK * of_ready(10, 5)


def of_slices(applications: int, backends: int) -> int:
    """The most that a slice of a snapshot takes."""
    slices = snapshot_in_slices(Wide(applications, backends).router)
    found: list[int] = []
    done = False

    def step() -> None:
        nonlocal done
        done = next(slices, True) is True

    while not done:
        found.append(work(step))
    return max(found)


def test_a_slice_of_a_snapshot_is_short() -> None:
    # Names, homes and signals are read in one go: a line or two for each of them.
    assert of_slices(400, 200) <= of_slices(80, 64) + 4 * 400


def test_a_snapshot_in_slices_is_the_same_and_bears_departures() -> None:
    wide = Wide(40, 150)
    whole = take_snapshot(wide.router)
    assert len(whole.applications) == len(whole.policies) == len(whole.variants) == 40
    assert len(whole.backends) == 150
    assert whole.backends[10].models == ["v0", "v1", "v2"]
    assert sum(pool.backends for pool in whole.ranks[0].pools) == 150
    slices = snapshot_in_slices(wide.router)
    next(slices)
    gone = wide.backends[140]
    wide.router.on_down(gone, Closed(CloseCode.LOST, "end of file"))
    while True:
        try:
            next(slices)
        except StopIteration as read:
            taken = read.value
            break
    assert taken.backends.keys() == whole.backends.keys() - {gone.peer.number}


def test_answers_that_are_held_back_cost_nothing_while_no_batch_ends() -> None:
    def of(held: int) -> int:
        world = World(hold="eager")
        world.submit(1, slo_ns=ms(2000))
        world.advance(ms(30))
        now_ns, doubtful = world.now_ns, world.router.doubtful
        for counter in range(held):
            request = Request(rid(10 + counter), 0, now_ns, now_ns + ms(1000) - counter)
            assert doubtful.hold(now_ns, Drop(request, DropReason.SHED))
        world.hear(world.frontend)
        return work(lambda: world.hear(world.frontend))

    assert of(500) <= SLACK * of(5)
