"""What a router counts of batches, streams and of what others tell it; l(b) = 4 + b ms."""

from hypothesis import given, settings
from hypothesis import strategies as st
from router_world import LOST, FakeLink, World, rid
from snapshots import snapshot

from fermata.foundation.units import ms, seconds
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import (
    Answered,
    BackendStats,
    Done,
    FrontendStats,
    Ready,
    Run,
    Submit,
)
from fermata.router.telemetry.histogram import LATENCY_NS
from fermata.router.telemetry.meters import RecentBatch
from fermata.router.telemetry.stream_counts import WINDOW, StreamCounts

BUCKETS = len(LATENCY_NS) + 1


def counts(told: object) -> dict[int, int]:
    """Buckets with something in them, by their upper bound in ms."""
    assert isinstance(told, dict)
    bounds = [bound // ms(1) for bound in told["bounds"]]
    return {
        bound: count
        for bound, count in zip([*bounds, 1 << 40], told["counts"], strict=True)
        if count
    }


def test_a_batch_adds_its_requests_delays_and_slack() -> None:
    world = World(policy="eager")
    world.submit(1, 2)
    world.advance(ms(6))
    world.hear(world.backend, Done(1, ms(6), 0))
    told = world.application()
    # They ran from 0 to 6 ms; deadlines were at 20.
    assert counts(told["queue_delay"]) == {1: 2}
    assert counts(told["slack"]) == {20: 2}
    assert snapshot(world.router)["busy_ns"] == {"cats": ms(6)}


def test_a_batch_that_failed_took_time_and_nothing_else() -> None:
    world = World(policy="eager")
    world.submit(1)
    world.advance(ms(1))
    world.hear(world.backend, Done(1, ms(1), 0, "boom"))
    assert counts(world.application()["slack"]) == {}
    assert snapshot(world.router)["busy_ns"] == {"cats": ms(1)}
    assert world.router.meters.recent_batches(world.now_ns, 0, ("v",)) == {}


def test_recent_batches_are_told_in_times_before_now() -> None:
    world = World(policy="eager")
    world.submit(1, 2)
    world.advance(ms(25))
    world.hear(world.backend, Done(1, ms(6), 0))
    world.advance(ms(10))
    found = world.router.meters.recent_batches(world.now_ns, 0, ("v",))
    assert found == {
        "5": [
            RecentBatch(
                batch=1,
                ended_ns=ms(10),
                run_ns=ms(6),
                variant="v",
                size=2,
                # It was at 20 ms, now is 35.
                deadline_ns=ms(15),
                late=2,
            )
        ]
    }
    assert world.router.meters.recent_batches(world.now_ns, 1, ("v",)) == {"5": []}


def test_frontends_counts_are_added_and_stay_when_they_go() -> None:
    world = World()
    latency = (2,) + (0,) * (BUCKETS - 1)
    told = Answered("cats", {"good": 1, "expired": 1}, latency, ms(1))
    other = world.link("frontend", 3)
    world.hear(world.frontend, FrontendStats((told,), open=7))
    world.hear(other, FrontendStats((told,), open=1))
    found = snapshot(world.router)
    assert found["applications"]["cats"]["answered"] == {"good": 2, "expired": 2}
    assert counts(found["applications"]["cats"]["latency"]) == {1: 4}
    assert found["processes"]["frontends"][2]["open"] == 7
    world.router.on_down(other, LOST)
    found = snapshot(world.router)
    assert found["applications"]["cats"]["answered"] == {"good": 2, "expired": 2}
    assert list(found["processes"]["frontends"]) == [2]


def test_a_frontend_with_other_buckets_is_cut() -> None:
    world = World()
    world.hear(world.frontend, FrontendStats((Answered("cats", {}, (1, 2), 3),)))
    assert world.frontend.closed == Closed(CloseCode.MALFORMED, "FrontendStats that do not add up")


def test_backends_loads_and_failures_are_added() -> None:
    world = World()
    stats = BackendStats((("v", 1, ms(30)),), 2, models_bytes=9, non_finite=(("v", 3),))
    for _ in range(2):
        world.hear(world.backend, stats)
    found = snapshot(world.router)
    assert found["loads"] == {"v": [2, ms(60)]}
    assert found["failures"] == 4
    assert found["non_finite"] == {"v": 6}
    assert found["processes"]["backends"][5]["models_bytes"] == 9


def test_the_worst_stream_is_found_among_good_ones() -> None:
    world = World(policy="eager")
    backend: FakeLink = world.backend
    for counter in range(12):
        client = 1 + counter % 2
        # The second client allows 3 ms, which nothing can meet.
        slo_ns = ms(20) if client == 1 else ms(3)
        world.hear(world.frontend, Submit(rid(counter), "cats", slo_ns, slo_ns, client))
        world.advance(ms(5))
        for run in backend.take(Run):
            world.hear(backend, Done(run.batch, ms(5), 0))
    assert world.application()["streams"] == {"seen": 2, "worst": 2, "worst_bad_rate": 1.0}


def test_streams_are_forgotten_after_a_minute() -> None:
    one = StreamCounts()
    for _ in range(5):
        one.count(seconds(100), 8, False)
    assert one.worst(seconds(110)) == (1, 8, 1.0)
    assert one.worst(seconds(131)) == (1, 8, 1.0)
    assert one.worst(seconds(162)) == (0, 0, 0.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.booleans()), max_size=80))
def test_the_worst_stream_is_the_plain_walk_s(told: list[tuple[int, int, bool]]) -> None:
    one, now_ns, turned_at_ns = StreamCounts(), seconds(100), 0
    now: dict[int, list[bool]] = {}
    before: dict[int, list[bool]] = {}
    for gap_s, client, good in told:
        now_ns += seconds(gap_s)
        one.count(now_ns, client, good)
        if now_ns - turned_at_ns > WINDOW.half_ns:
            before = now if now_ns - turned_at_ns <= 2 * WINDOW.half_ns else {}
            now, turned_at_ns = {}, now_ns
        now.setdefault(client, []).append(not good)
    bads = {who: [*now.get(who, ()), *before.get(who, ())] for who in range(1, 5)}
    enough = WINDOW.requests_min
    rates = {who: sum(bad) / len(bad) for who, bad in bads.items() if len(bad) >= enough}
    seen, worst, rate = one.worst(now_ns)
    assert seen == len(rates)
    assert (worst, rate) == (0, 0.0) if not rates else rate == max(rates.values()) == rates[worst]


def test_a_snapshot_names_where_backends_are_and_what_they_hold() -> None:
    world = World()
    other = world.link("backend", 6)
    world.hear(other, Ready("slow", ("v",)))
    told = snapshot(world.router)["backends"]
    assert (told[5]["kind"], told[6]["kind"]) == ("emulated", "slow")
    assert told[6]["models"] == ["v"]
    assert told[6]["sub_cluster"] == 0
