"""Promises of policies, and what is observed beside them, as Prometheus and the page read them."""

import pytest
from prometheus_client import parser
from router_world import TABLE, World
from snapshots import rated

from fermata.deployments.control.page.history import History
from fermata.deployments.control.page.page_frames import live_frame
from fermata.deployments.metrics.families import prometheus_text
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig
from fermata.router.links.messages import Answered, Done, FrontendStats, Ready, Run
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.telemetry.histogram import LATENCY_NS

NO_LATENCY = (0,) * (len(LATENCY_NS) + 1)
VARIANTS = (
    VariantSpec("v", TABLE, accuracy=0.7),
    VariantSpec("w", tuple(2 * each for each in TABLE), accuracy=0.8),
)


def ramsis_world(options: dict[str, object]) -> World:
    """A router whose tables are there at once, with one backend."""
    world = World()
    world.router = LiveRouter(
        RouterConfig((ApplicationSpec("cats", ms(50), VARIANTS),), "ramsis", options, lead_ns=0),
        3,
        lambda: world.now_ns,
        world.soon.append,
        world._wake,
        lambda work, then: then(work()),
    )
    world.wakes[0] = world.wakes[1]
    world.frontend, world.backend = world.link("frontend", 2), world.link("backend", 5)
    world.hear(world.backend, Ready("emulated", ("v", "w")))
    world.advance(ms(60))
    return world


def serve_second(world: World, first: int, outcomes: dict[str, int]) -> None:
    """Twenty requests, one each 50 ms, served at once; then the frontend's report."""
    for counter in range(first, first + 20):
        world.submit(counter, slo_ns=ms(50))
        for run in world.backend.take(Run):
            world.advance(ms(9))
            world.hear(world.backend, Done(run.batch, ms(9), 0))
        world.advance(ms(41))
    world.hear(world.frontend, FrontendStats((Answered("cats", outcomes, NO_LATENCY, 0),)))


def shown(world: World, history: History) -> dict[str, float]:
    """The figures of promises in the text that Prometheus scrapes."""
    families = parser.text_string_to_metric_families(prometheus_text(rated(world.router, history)))
    return {
        sample.name.removeprefix("fermata_"): sample.value
        for family in families
        for sample in family.samples
        if "promised" in sample.name or "observed" in sample.name
    }


def test_nothing_is_said_of_policies_that_promise_nothing() -> None:
    assert shown(World(policy="eager"), History()) == {}


def test_a_promise_stands_beside_what_was_observed() -> None:
    world, history = ramsis_world({"load_rps": 20.0}), History()
    history.add(rated(world.router, history).router)
    assert shown(world, history).keys() == {"promised_accuracy", "promised_violation"}
    for second in range(3):
        serve_second(world, 1 + 20 * second, {"good": 20})
        history.add(rated(world.router, history).router)
    told = shown(world, history)
    assert abs(told["promised_accuracy"] - told["observed_accuracy"]) < 0.005
    assert told["observed_violation"] == 0.0 <= told["promised_violation"] < 0.005


def test_a_promise_that_is_broken_is_seen_to_be() -> None:
    world, history = ramsis_world({"load_rps": 20.0}), History()
    for second in range(4):
        history.add(rated(world.router, history).router)
        serve_second(world, 1 + 20 * second, {"good": 15, "expired": 5, "cancelled": 9})
    told = shown(world, history)
    assert told["observed_violation"] == 0.25
    assert told["promised_violation"] < 0.01
    (frame,) = live_frame(rated(world.router, history), history, "here").applications
    assert frame.promised_accuracy == told["promised_accuracy"]
    assert frame.promised_violation == told["promised_violation"]
    assert frame.bad_rate == 0.25
    status = rated(world.router, history).to_json()
    assert status["promises"]["cats"]["bad_rate"] == 0.25  # type: ignore[index, call-overload]


def test_only_seconds_with_a_promise_are_compared_and_only_those_of_this_router() -> None:
    world, history = ramsis_world({"load_rps": 20.0}), History()
    silent, promising = World(accuracy=0.7), rated(world.router, history).router
    history.add(rated(silent.router, history).router)
    serve_second(world, 1, {"good": 20})
    told = history.promises(rated(world.router, history).router)["cats"]
    # The second before it knew nothing, this one counts in full.
    assert (told.bad_rate, told.promised.violation < 0.01) == (0.0, True)
    history.seen.clear()
    history.add(promising)
    assert history.promises(rated(world.router, history).router)["cats"].bad_rate == 0.0


def test_classes_of_slos_promise_together_by_their_loads() -> None:
    world = ramsis_world({"slos_ms": [50, 200], "bins": 8})
    again = world.link("backend", 6)
    world.hear(again, Ready("emulated", ("v", "w")))
    world.advance(ms(60))
    source = world.router.engine.sources[0]
    assert source.promise(0) is not None
    serve_second(world, 1, {"good": 20})
    told, figures = source.promise(0), source.figures()
    # All of them ask for 50 ms, so the other class has no part in it.
    assert told is not None
    assert told.accuracy == pytest.approx(figures["promised_accuracy_50ms"])
