"""Requests of one frontend go to the routers of several sub-clusters."""

from collections import Counter

from request_tables import answers, result

from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.pending_request import RequestTerms, ToRouter
from fermata.deployments.frontend.requests.router_homes import NOWHERE, RouterHomes
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import ms, seconds
from fermata.router.core.events import DropReason
from fermata.router.links.directory import Directory, Home
from fermata.router.links.messages import Cancel, Dropped, Fetch, Submit
from fermata.router.links.unavailability import LOADING

LIMITS = TableLimits(reply_ns=ms(1), router_wait_ns=seconds(1))
HOMES = (Home(0), Home(1))
APART = Directory(1, HOMES, {"a": ((0, 1.0),), "b": ((1, 1.0),), "c": ((0, 0.75), (1, 0.25))})


def make(directory: Directory | None = APART) -> RequestTable:
    table = RequestTable(300, LIMITS, sub_clusters=2)
    for home, term in ((0, 5), (1, 9)):
        table.on_router_up(0, term, home)
    if directory is not None:
        assert table.on_directory(0, directory)
    return table


def terms(application: str, slo_ns: int = ms(500), client: int = 0) -> RequestTerms:
    return RequestTerms(application, slo_ns, slo_ns, 10, client=client)


def admit(table: RequestTable, now_ns: int, given: RequestTerms) -> int:
    rid = table.admit(now_ns, given)
    assert isinstance(rid, int)
    return rid


def told(table: RequestTable) -> list[tuple[int, int]]:
    """(rid, sub-cluster) of what was submitted since the last look."""
    return [
        (each.message.rid, each.home)
        for each in table.take_effects()
        if isinstance(each, ToRouter) and isinstance(each.message, Submit)
    ]


def test_submits_straight_to_the_home() -> None:
    table = make()
    first, second = admit(table, 0, terms("a")), admit(table, 0, terms("b"))
    assert told(table) == [(first, 0), (second, 1)]


def test_ids_of_frontends_above_256_differ() -> None:
    table = make()
    assert admit(table, 0, terms("a")) >> 40 == 300


def test_splits_an_application_by_shares() -> None:
    table = make()
    for _ in range(40):
        admit(table, 0, terms("c"))
    assert Counter(home for _, home in told(table)) == {0: 30, 1: 10}


def test_keeps_the_turns_over_a_new_directory() -> None:
    homes = RouterHomes(2)
    homes.on_up(0, 1)
    homes.on_up(1, 1)
    found = Counter[int]()
    for version in range(1, 101):
        homes.on_directory(Directory(version, HOMES, {"c": ((0, 0.5), (1, 0.5))}))
        found[homes.pick("c")] += 1
    assert found == {0: 50, 1: 50}


def test_keeps_a_sticky_client_at_one_home() -> None:
    homes = RouterHomes(2)
    homes.on_directory(Directory(1, HOMES, {"c": ((0, 0.5), (1, 0.5))}, ("c",)))
    chosen = {client: {homes.pick("c", client) for _ in range(3)} for client in range(1, 201)}
    assert all(len(each) == 1 for each in chosen.values())
    assert 70 <= sum(each == {0} for each in chosen.values()) <= 130


def test_goes_where_a_router_is_linked() -> None:
    table = make()
    table.on_router_down(0, 1)
    for _ in range(8):
        admit(table, 0, terms("c"))
    assert {home for _, home in told(table)} == {0}


def test_a_lost_router_leaves_requests_of_others_alone() -> None:
    table = make()
    first, second = admit(table, 0, terms("a")), admit(table, 0, terms("b"))
    told(table)
    table.on_router_down(ms(1), 0)
    assert told(table) == []
    table.on_result(ms(2), 3, result(second))
    assert answers(table) == [(second, "OK")]
    table.on_router_up(ms(3), 6, 0)
    assert told(table) == [(first, 0)]


def test_asks_again_at_the_other_home_of_a_lost_router() -> None:
    table = make()
    rids = [admit(table, 0, terms("c")) for _ in range(4)]
    at = dict(told(table))
    lost = [rid for rid in rids if at[rid] == 0]
    table.on_router_down(ms(1), 0)
    assert told(table) == [(rid, 1) for rid in lost]
    # It is not asked twice once the first router is back.
    table.on_router_up(ms(2), 6, 0)
    assert told(table) == []


def test_waits_for_its_router_rather_than_for_one_that_serves_nothing() -> None:
    table = make(Directory(1, HOMES, {"c": ((0, 1.0), (1, 0.0))}))
    first = admit(table, 0, terms("c"))
    assert told(table) == [(first, 0)]
    table.on_router_down(ms(1), 0)
    second = admit(table, ms(2), terms("c"))
    assert told(table) == []
    table.on_router_up(ms(3), 6, 0)
    assert told(table) == [(first, 0), (second, 0)]
    # It is lost once its own router stays away, whoever else is linked.
    table.on_router_down(ms(4), 0)
    refusal = table.admit(seconds(2), terms("c"))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "no-router"


def test_cancels_at_the_home() -> None:
    table = make()
    rid = admit(table, 0, terms("b"))
    table.take_effects()
    table.on_cancel(ms(1), rid)
    assert table.take_effects()[0] == ToRouter(Cancel(rid), 1)


def test_refuses_at_once_what_has_no_home() -> None:
    table = make(None)
    found = table.admit(0, terms("a"))
    assert isinstance(found, Refusal)
    assert found.reason == "no-router"


def test_refuses_only_the_applications_of_a_router_that_stays_away() -> None:
    table = make()
    table.on_router_down(ms(1), 0)
    assert isinstance(table.admit(ms(500), terms("a", seconds(2))), int)
    assert isinstance(table.admit(seconds(2), terms("a")), Refusal)
    assert isinstance(table.admit(seconds(2), terms("b")), int)
    assert isinstance(table.admit(seconds(2), terms("c")), int)


def test_sends_a_request_on_that_reached_an_old_home() -> None:
    table = make()
    rid = admit(table, 0, terms("a"))
    told(table)
    moved = Directory(2, HOMES, {"a": ((1, 1.0),)})
    assert table.on_directory(ms(1), moved)
    # Its old home may still serve it.
    assert told(table) == []
    table.on_dropped(ms(2), Dropped(rid, DropReason.MOVED))
    assert told(table) == [(rid, 1)]


def test_a_new_home_hears_that_a_request_has_cost_a_backend_already() -> None:
    table = make()
    rid = admit(table, 0, terms("a"))
    told(table)
    table.on_directory(ms(1), Directory(2, HOMES, {"a": ((1, 1.0),)}))
    table.on_dropped(ms(2), Dropped(rid, DropReason.MOVED, retried=True))
    # It may be handed back once more, by a router that never had it in a batch.
    table.on_directory(ms(3), Directory(3, HOMES, {"a": ((0, 1.0),)}))
    table.on_dropped(ms(4), Dropped(rid, DropReason.MOVED), home=1)
    said = [each.message for each in table.take_effects() if isinstance(each, ToRouter)]
    assert [each.retried for each in said if isinstance(each, Submit)] == [True, True]


def test_waits_for_the_directory_that_an_old_home_knows_of() -> None:
    table = make()
    rid = admit(table, 0, terms("a"))
    told(table)
    table.on_dropped(ms(2), Dropped(rid, DropReason.MOVED))
    assert told(table) == []
    assert table.entries[rid].home == NOWHERE
    assert table.on_directory(ms(3), Directory(2, HOMES, {"a": ((1, 1.0),)}))
    assert told(table) == [(rid, 1)]


def test_an_old_home_may_hand_a_request_back_twice() -> None:
    table = make()
    rid = admit(table, 0, terms("a"))
    assert table.on_directory(ms(1), Directory(2, HOMES, {"a": ((1, 1.0),)}))
    table.on_dropped(ms(2), Dropped(rid, DropReason.MOVED), home=0)
    told(table)
    # It was asked for once more there, before the first answer came.
    table.on_dropped(ms(3), Dropped(rid, DropReason.MOVED), home=0)
    assert table.entries[rid].home == 1
    table.on_dropped(ms(3), Dropped(rid, "late"), home=0)
    assert rid in table.entries
    table.on_dropped(ms(4), Dropped(rid, "late"), home=1)
    assert rid not in table.entries


def test_what_was_fetched_before_it_was_handed_back_finds_its_new_home() -> None:
    table = make()
    rid = admit(table, 0, terms("a"))
    table.on_fetch(ms(1), 7, Fetch(1, (rid,)))
    told(table)
    table.on_dropped(ms(2), Dropped(rid, DropReason.MOVED))
    assert table.on_directory(ms(3), Directory(2, HOMES, {"a": ((1, 1.0),)}))
    assert told(table) == [(rid, 1)]


def test_a_request_without_a_home_ends_in_time() -> None:
    table = make()
    rid = admit(table, 0, terms("a"))
    table.on_dropped(ms(2), Dropped(rid, DropReason.MOVED))
    table.take_effects()
    table.on_time(seconds(1))
    assert answers(table) == [(rid, "UNAVAILABLE")]


def test_ignores_an_older_directory() -> None:
    table = make(Directory(5, HOMES, {"a": ((1, 1.0),)}))
    assert not table.on_directory(ms(1), APART)
    assert table.homes.of("a") == (1,)


def test_ignores_sub_clusters_that_it_has_no_link_to() -> None:
    homes = RouterHomes(2)
    homes.on_directory(Directory(1, (Home(4),), {"a": ((4, 1.0),), "b": ((1, 1.0), (4, 9.0))}))
    assert homes.of("a") == ()
    assert homes.pick("a") == NOWHERE
    assert homes.pick("b") == 1


def test_an_application_is_available_while_one_home_serves_it() -> None:
    homes = RouterHomes(2)
    homes.on_directory(APART)
    assert homes.unavailable(0, {"a": LOADING, "c": LOADING}) == {"a": LOADING}
    assert homes.unavailable(1, {"c": LOADING}) == {"a": LOADING, "c": LOADING}
    assert homes.unavailable(0, {}) == {}


def test_one_sub_cluster_needs_no_directory() -> None:
    homes = RouterHomes()
    assert not homes.on_directory(APART)
    assert homes.of("anything") == (0,)
    assert homes.pick("anything", 7) == 0
