"""How early batches are sent: learnt by application and pair of nodes, bounded, and forgotten."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from fetch_world import USUAL_NS, Fetch, FetchWorld
from snapshots import snapshot

from fermata.foundation.units import SECOND, ms
from fermata.router.core.events import DropReason
from fermata.router.core.lead import Lead
from fermata.router.live.lead.application_lead import RARELY, ApplicationLead
from fermata.router.live.lead.fetch_times import PATIENCE_NS, PATIENCE_NS_MAX, FetchTimes
from fermata.router.live.lead.lead_time import QuantileWindow

ROOM_NS = ms(15)
"""What an SLO of 20 ms leaves for the fetch beside a run of 5 ms."""


def test_quantiles_forget() -> None:
    window = QuantileWindow(size=2)
    for value in (9, 1, 2):
        window.add(value)
    assert (window.quantile(0.0), window.quantile(1.0)) == (1, 2)


def test_the_older_half_of_a_window_is_forgotten() -> None:
    window = QuantileWindow()
    for value in (9, 8, 1, 2):
        window.add(value)
    window.halve()
    assert window.quantile(1.0) == 2


# Fetch times


def learn(times: FetchTimes, *took_ms: float, size: int = 1, gap_ns: int = ms(25)) -> None:
    for took in took_ms:
        times.add(times.used_at_ns + gap_ns, size, ms(took), ROOM_NS)


def test_a_slow_fetch_counts_at_once_and_is_forgotten_after_a_second() -> None:
    times = FetchTimes()
    learn(times, *[0.3] * 100, 9)
    assert times.start_ns == ms(9)
    learn(times, *[0.3] * 39)
    assert times.start_ns == ms(9)
    learn(times, *[0.3] * 3)
    assert times.start_ns == times.usual_ns == ms(0.3)


def test_sparse_traffic_forgets_slow_fetches_too() -> None:
    times = FetchTimes()
    learn(times, 9, 9, 0.3, 0.3, 0.3, gap_ns=SECOND)
    assert times.start_ns == ms(9)
    learn(times, 0.3, gap_ns=SECOND)
    assert times.start_ns == ms(0.3)


def test_sparse_traffic_remembers_what_is_always_slow() -> None:
    times = FetchTimes()
    learn(times, *[8] * 5, gap_ns=60 * SECOND)
    assert times.start_ns == times.usual_ns == ms(8)


def test_five_of_nine_fetches_make_the_usual_one() -> None:
    times = FetchTimes()
    learn(times, *[0.3] * 20, *[12] * 4)
    assert times.usual_ns == ms(0.3)
    learn(times, 12)
    assert times.usual_ns == ms(12)


def test_a_part_per_request_is_learnt_from_small_and_large_batches() -> None:
    times = FetchTimes()
    for _ in range(10):
        learn(times, 0.8, size=1)
        learn(times, 4.3, size=8)
    assert (times.start_ns, times.per_request_ns) == (ms(0.3), ms(0.5))
    assert times.usual_ns == ms(0.8)


def test_the_first_fetch_in_time_refutes_those_that_were_too_slow() -> None:
    times = FetchTimes()
    learn(times, *[18] * 100)
    assert times.too_slow(ROOM_NS)
    learn(times, 0.3)
    assert not times.too_slow(ROOM_NS)
    assert times.start_ns == ms(0.3)


def test_two_slow_fetches_may_be_accidents() -> None:
    times = FetchTimes()
    learn(times, 18, 18)
    assert not times.too_slow(ROOM_NS)
    learn(times, 18)
    assert times.too_slow(ROOM_NS)


def test_trials_in_vain_become_rare_but_do_not_end() -> None:
    times = FetchTimes()
    tried = [at_ns for at_ns in range(0, 10 * SECOND, ms(5)) if times.try_again(at_ns)]
    gaps = [later - sooner for sooner, later in pairwise(tried)]
    assert gaps[0] == PATIENCE_NS
    assert gaps == sorted(gaps)
    assert gaps[-1] == PATIENCE_NS_MAX


# The lead of an application


def make_lead() -> ApplicationLead:
    lead = ApplicationLead(Lead(), ms(20), ms(1))
    lead.run_ns = lead.plan_ns = ms(5)
    return lead


def note(lead: ApplicationLead, origin: str, node: str, *took_ms: float) -> None:
    learn(lead.times_of((origin,), node), *took_ms)
    lead.nodes[node].changed = True


def test_an_unknown_lead_leaves_half_of_the_room() -> None:
    lead = make_lead()
    lead.set(0, 0, ("a",))
    assert lead.lead.ns(1) == ms(1)
    lead.set(0, ms(9), ("a",))
    assert lead.lead.ns(1) == ROOM_NS // 2


def test_late_timers_count() -> None:
    lead = make_lead()
    note(lead, "a", "a", 0.5)
    lead.set(0, ms(2), ("a",))
    assert lead.lead.ns(1) == ms(2.5)


def test_rare_slow_fetches_take_half_of_the_room_beside_the_usual_one() -> None:
    lead = make_lead()
    note(lead, "a", "a", 3, 3, 3, 18)
    lead.set(0, 0, ("a",))
    assert lead.lead.ns(1) == ms(9)


def test_nodes_have_leads_of_their_own_and_bids_the_longest() -> None:
    lead = make_lead()
    note(lead, "a", "a", *[0.3] * 3)
    note(lead, "a", "b", *[8] * 3)
    lead.set(ms(100), 0, ("a", "b"))
    assert lead.lead.ns(1) == ms(8)
    assert {node: each.ns(1) for node, each in lead.lead.by_node.items()} == {
        "a": ms(0.3),
        "b": ms(8),
    }


def test_a_node_that_is_too_far_is_no_part_of_the_lead() -> None:
    lead = make_lead()
    note(lead, "a", "a", *[0.3] * 3)
    note(lead, "a", "b", *[18] * 3)
    lead.set(ms(100), 0, ("a", "b"))
    assert lead.lead.ns(1) == ms(0.3)
    assert lead.lead.by_node["b"].ns(1) == ms(18)


def test_a_batch_from_several_nodes_tells_of_the_slowest() -> None:
    lead = make_lead()
    note(lead, "a", "a", *[0.3] * 3)
    far = lead.times_of(("a", "b"), "a")
    assert far is lead.nodes["a"].origins["b"]
    learn(far, *[8] * 3)
    assert lead.times_of(("a", "b"), "a") is far


def test_a_frontend_that_is_gone_is_forgotten() -> None:
    lead = make_lead()
    note(lead, "b", "a", *[8] * 3)
    learn(lead.times_of(("a",), "a"), *[0.3] * 500)
    lead.set(lead.nodes["a"].used_at_ns, 0, ("a",))
    assert lead.lead.ns(1) == ms(0.3)
    assert list(lead.nodes["a"].origins) == ["a"]


def test_a_node_without_backends_is_forgotten() -> None:
    lead = make_lead()
    note(lead, "a", "a", *[0.3] * 3)
    note(lead, "a", "b", *[18] * 3)
    lead.trial = "b"
    lead.set(ms(100), 0, ("a",))
    assert list(lead.nodes) == ["a"]
    assert lead.trial is None
    assert lead.slowest_ns() == ms(0.3)


def test_a_node_too_far_is_tried_again_after_many_batches_or_a_drop() -> None:
    lead = make_lead()
    note(lead, "a", "a", *[0.3] * 3)
    note(lead, "a", "b", *[18] * 3)
    lead.batches = RARELY
    lead.set(ms(100), 0, ("a", "b"))
    assert lead.trial is None
    assert not lead.on_late(ms(100), ms(20))
    lead.set(ms(100), 0, ("a", "b"))
    assert lead.trial == "b"
    assert list(lead.lead.by_node) == ["a"]
    assert lead.on_dispatch("b")
    lead.set(ms(100), 0, ("a", "b"))
    assert list(lead.lead.by_node) == ["a", "b"]


def test_a_lead_that_starves_requests_with_little_time_loses_its_slower_half() -> None:
    lead = make_lead()
    note(lead, "a", "a", 0.3, 0.3, 9, 9)
    lead.set(ms(100), 0, ("a",))
    assert lead.lead.ns(1) == ms(9)
    assert lead.on_late(ms(200), ms(14))
    lead.set(ms(200), 0, ("a",))
    assert lead.lead.ns(1) == ms(0.3)
    assert not lead.on_late(ms(250), ms(14))


def test_a_trial_that_was_dropped_is_made_again() -> None:
    lead = make_lead()
    note(lead, "b", "a", *[18] * 3)
    lead.set(0, 0, ("a",))
    assert not lead.refuses(ms(100), "b", ms(20), ("a",))
    assert lead.refuses(ms(101), "b", ms(20), ("a",))
    lead.on_late(ms(102), ms(20))
    assert not lead.refuses(ms(103), "b", ms(20), ("a",))
    lead.on_dispatch("a")
    lead.on_late(ms(104), ms(20))
    assert lead.refuses(ms(105), "b", ms(20), ("a",))


def test_inputs_too_far_from_every_backend_are_refused_but_for_trials() -> None:
    lead = make_lead()
    note(lead, "b", "a", *[18] * 3)
    lead.set(0, 0, ("a",))
    asked = [lead.refuses(at_ns, "b", ms(20), ("a",)) for at_ns in range(0, SECOND, ms(10))]
    assert asked.count(False) == 4
    assert not lead.refuses(SECOND, "b", ms(50), ("a",))
    assert not lead.refuses(SECOND, "a", ms(20), ("a",))
    assert not lead.refuses(SECOND, "b", ms(20), ("a", "unknown"))


# The live router


def good_share(counts: tuple[int, int]) -> float:
    good, sent = counts
    assert sent > 8
    return good / sent


def slow_between(from_s: float, to_s: float, took_ms: float) -> Callable[[Fetch], int]:
    def fetch_ns(fetch: Fetch) -> int:
        slow = from_s <= (fetch.now_ns - SECOND) / SECOND < to_s
        return ms(took_ms) if slow else USUAL_NS

    return fetch_ns


@pytest.mark.parametrize("hold", ["auto", "deferred", "eager"])
@pytest.mark.parametrize("took_ms", [7.4, 14.9, 15.1, 18, 60])
def test_one_slow_fetch_of_a_young_router_costs_no_request_after_it(
    hold: str, took_ms: float
) -> None:
    world = FetchWorld(
        lambda fetch: ms(took_ms) if fetch.batch == 0 else USUAL_NS, options={"hold": hold}
    )
    world.offer(40, 10)
    world.run(11)
    assert good_share(world.good(0.2)) == 1.0


def test_six_slow_fetches_of_256_stop_nothing() -> None:
    world = FetchWorld(lambda fetch: ms(18) if fetch.batch in range(250, 256) else USUAL_NS)
    world.offer(40, 60)
    world.run(61)
    good, sent = world.good(0)
    assert sent > 2300
    assert sent - good < 20


@pytest.mark.parametrize("took_ms", [8, 14.9, 15.1, 18, 40])
@pytest.mark.parametrize(("rps", "backends"), [(8, 1), (40, 1), (400, 4)])
def test_all_is_well_two_seconds_after_slow_fetches_end(
    took_ms: float, rps: float, backends: int
) -> None:
    world = FetchWorld(slow_between(1, 6, took_ms), backends=["node"] * backends)
    world.offer(rps, 10)
    world.run(11)
    assert good_share(world.good(8)) > 0.99


@pytest.mark.parametrize(("slo_ms", "l_ms"), [(8, 1.5), (12, 6), (50, 12), (250, 100)])
@pytest.mark.parametrize("share", [0.5, 0.99, 1.01, 2.0])
def test_other_slos_recover_as_well(slo_ms: float, l_ms: float, share: float) -> None:
    took_ms = share * (slo_ms - l_ms)
    table = tuple(ms(0.9 * l_ms + 0.1 * l_ms * size) for size in range(1, 9))
    world = FetchWorld(slow_between(1, 4, took_ms), {"cats": slo_ms}, table=table)
    world.offer(120 / l_ms, 16)
    world.run(17)
    assert good_share(world.good(6)) > 0.99


def test_clients_with_less_time_than_the_application_recover_as_well() -> None:
    world = FetchWorld(slow_between(0, 3, 18), {"cats": 100})
    world.offer(40, 10, slo_ms=20)
    world.run(11)
    assert good_share(world.good(5)) == 1.0


@pytest.mark.parametrize("took_ms", [8, 14.95, 18])
def test_silence_after_slow_fetches_keeps_nothing_from_running(took_ms: float) -> None:
    world = FetchWorld(slow_between(0, 3, took_ms))
    world.offer(40, 3)
    world.run(600)
    world.offer(40, 5)
    world.run(6)
    good, sent = world.good(600)
    assert sent - good <= 3


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_a_share_of_slow_fetches_costs_little_more_than_those(share: float) -> None:
    rng = random.Random(1)
    world = FetchWorld(
        lambda fetch: ms(18) if rng.random() < share else USUAL_NS, backends=["node"] * 2
    )
    world.offer(40, 30)
    world.run(31)
    assert good_share(world.good(1)) > 1 - 2 * share


@pytest.mark.parametrize("hold", ["auto", "deferred"])
@pytest.mark.parametrize("rps", [0.5, 5, 40])
def test_a_lead_that_is_truly_long_is_learnt(hold: str, rps: float) -> None:
    rng = random.Random(1)
    world = FetchWorld(
        lambda fetch: ms(rng.uniform(7.5, 8)), backends=["node"] * 4, options={"hold": hold}
    )
    world.offer(rps, 60 if rps < 5 else 10)
    world.run(61)
    assert world.good(1) == (world.good(1)[1],) * 2
    assert ms(7.5) < snapshot(world.router)["lead_ns"] <= ms(8)


def test_batches_are_sent_earlier_the_larger_they_are() -> None:
    rng = random.Random(1)
    world = FetchWorld(
        lambda fetch: ms(0.3 + 1.0 * fetch.size + rng.uniform(0, 0.2)),
        {"cats": 50},
        backends=["node"] * 2,
        options={"hold": "auto"},
    )
    world.offer(300, 8)
    world.run(9)
    assert good_share(world.good(1)) > 0.99
    lead = world.router.engine.leads[0]
    assert lead.per_request_ns == pytest.approx(ms(1), rel=0.3)


# Neighbours and nodes


def test_an_application_with_slow_fetches_takes_nothing_from_its_neighbour() -> None:
    world = FetchWorld(
        lambda fetch: ms(18) if fetch.application == "dogs" else USUAL_NS,
        {"cats": 20, "dogs": 20},
        backends=["node"] * 2,
    )
    world.offer(60, 6)
    world.offer(20, 6, "dogs")
    world.run(7)
    assert good_share(world.good(0, application="cats")) > 0.99
    told = snapshot(world.router)["applications"]
    assert told["cats"]["lead_ns"] == USUAL_NS
    assert told["dogs"]["lead_ns"] == ms(18)
    assert told["dogs"]["dropped"][DropReason.LATE] > 100


def test_a_long_lead_of_one_application_leaves_a_tight_one_its_room() -> None:
    world = FetchWorld(
        lambda fetch: ms(8) if fetch.application == "dogs" else USUAL_NS,
        {"cats": 10, "dogs": 20},
        backends=["node"] * 4,
        policy="timeout",
    )
    world.offer(30, 10)
    world.offer(10, 10, "dogs")
    world.run(11)
    assert good_share(world.good(1, application="cats")) > 0.97
    assert good_share(world.good(1, application="dogs")) > 0.97


@pytest.mark.parametrize("backends", ["abab", "bbbbbbaa"])
def test_backends_too_far_for_their_inputs_leave_the_work_to_near_ones(backends: str) -> None:
    world = FetchWorld(
        lambda fetch: ms(18) if fetch.node == "b" else USUAL_NS,
        frontends=("a",),
        backends=backends,
    )
    world.offer(150, 10)
    world.run(11)
    assert good_share(world.good(2)) > 0.99


def test_a_frontend_too_far_from_every_backend_spares_the_requests_of_another() -> None:
    world = FetchWorld(
        lambda fetch: ms(18) if "b" in fetch.origins else USUAL_NS,
        frontends=("a", "b"),
        backends=("a", "a"),
    )
    world.offer(60, 10)
    world.offer(60, 10, frontend=1)
    world.run(11)
    assert good_share(world.good(2, node="a")) > 0.99


def test_far_backends_get_batches_earlier() -> None:
    world = FetchWorld(
        lambda fetch: ms(8) if fetch.node == "b" else USUAL_NS,
        frontends=("a",),
        backends=("b", "b", "a"),
    )
    world.offer(100, 10)
    world.run(11)
    assert good_share(world.good(1)) > 0.99


def test_a_node_that_is_near_again_is_used_again() -> None:
    def fetch_ns(fetch: Fetch) -> int:
        return slow_between(1, 4, 18)(fetch) if fetch.node == "b" else USUAL_NS

    world = FetchWorld(fetch_ns, frontends=("a",), backends=("b", "a"))
    world.offer(450, 9)
    world.run(10)
    assert good_share(world.good(6)) > 0.99
