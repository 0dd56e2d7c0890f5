"""Jellyfish's mapping and selection, on numbers worked by hand."""

import random

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.policies.jellyfish.decision import Decider, SearchEffort, never
from fermata.router.policies.jellyfish.mapping import find_optimal_clients, map_clients
from fermata.router.policies.jellyfish.mapping_problem import Post
from fermata.router.policies.jellyfish.placement import HitCount, assign, neighbours
from fermata.router.policies.jellyfish.problem import (
    UNITS_PER_FPS,
    Client,
    MappingPlan,
    Zoo,
    check_plan,
    load_of,
    make_client,
    make_share,
    make_zoo,
    servable,
)
from fermata.router.policies.jellyfish.rotation import Rotation
from fermata.router.policies.jellyfish.selection import perturbation
from fermata.router.policies.jellyfish.selection.annealing import Cooling, select_dnns
from fermata.router.policies.jellyfish.selection.initial_plan import cut
from fermata.router.policies.jellyfish.selection.search import Search
from fermata.router.policies.jellyfish.selection.split import best_split


def zoo() -> Zoo:
    """A small DNN of 10, 15, 20 ms and a large one of 20, 35, 50 ms for batches of 1, 2, 3."""
    return make_zoo((0.5, 0.8), [[ms(10), ms(15), ms(20)], [ms(20), ms(35), ms(50)]])


def client(number: int, fps: float, budget_ms: float, **more: float) -> Client:
    return make_client(zoo(), number, fps, [ms(budget_ms)] * 2, **more)  # type: ignore[arg-type]


def test_budget_is_twice_the_run() -> None:
    # 2 x 15 ms fit 39 ms on the small DNN, not 2 x 20; on the large one 2 x 20 do not fit.
    assert client(0, 10, 39).batch_max == (2, 0)
    assert client(0, 10, 40).batch_max == (3, 1)


def test_load_stays_strictly_under_the_throughput() -> None:
    capacity = zoo().capacity
    # One frame each 10 ms is 100 frames/s: a load of exactly that is too much.
    assert capacity[0][1] == 100 * UNITS_PER_FPS - 1
    # 2 frames in 15 ms are 133.3/s.
    assert capacity[0][2] == int(133.33 * UNITS_PER_FPS)


def test_rates_are_rounded_up_to_a_unit() -> None:
    assert load_of(15) == 15 * UNITS_PER_FPS
    assert load_of(14.9) == 60


def test_tails_that_fall_are_raised_to_those_of_smaller_batches() -> None:
    # A more accurate DNN may be faster: it takes larger pictures, or is just better made.
    raised = make_zoo((0.5, 0.8), [[ms(10), ms(9)], [ms(8), ms(20)]])
    assert raised.latency_ns == ((ms(10), ms(10)), (ms(8), ms(20)))


def test_floor_and_pin_shut_the_other_dnns_out() -> None:
    assert client(0, 10, 100, floor=0.6).batch_max == (0, 3)
    assert client(0, 10, 100, pinned=0).batch_max == (3, 0)


def test_finds_the_highest_rate_as_in_figure_5() -> None:
    """Section IV-B's example: three clients at batch 3, or four of five at batch 2."""
    figure = make_zoo((0.5,), [[ms(20), 2 * SECOND // 61, 3 * SECOND // 81]])
    generous, tight = [ms(100)], [ms(70)]
    clients = [
        make_client(figure, 1, 15, generous),
        make_client(figure, 2, 15, generous),
        make_client(figure, 3, 10, generous),
        make_client(figure, 4, 20, tight),
        make_client(figure, 5, 10, tight),
    ]
    chosen = find_optimal_clients(figure, 0, clients)
    assert sum(each.load for each in chosen) == 60 * UNITS_PER_FPS
    assert {4} < {each.number for each in chosen}


def test_mapping_serves_the_accurate_dnn_first() -> None:
    clients = [client(0, 25, 40), client(1, 20, 40), client(2, 25, 40)]
    plan = map_clients(zoo(), clients, [0, 1])
    check_plan(zoo(), plan)
    # The large DNN carries 49.75 frames/s at batch 1: 25 + 20, not 25 + 25.
    assert [each.load for each in plan.shares] == [25 * UNITS_PER_FPS, 45 * UNITS_PER_FPS]
    # The smallest batch that carries the load.
    assert [each.batch for each in plan.shares] == [1, 1]


def test_pair_is_split_exactly() -> None:
    clients = [client(0, 25, 40), client(1, 20, 40), client(2, 25, 40)]
    split = best_split(zoo(), clients, -1.0)
    assert split is not None
    assert (split.first_dnn, split.second_dnn) == (1, 1)
    assert split.value == 0.8 * 70 * UNITS_PER_FPS
    assert best_split(zoo(), clients, split.value) is None


def test_annealing_degrades_until_all_are_served() -> None:
    clients = [client(number, 25, 40) for number in range(6)]
    plan = select_dnns(zoo(), clients, [1, 1], random.Random(0), Cooling(), never)
    assert plan.served == 6


def test_cut_leaves_out_only_what_no_run_carries() -> None:
    clients = [client(number, 45, 40) for number in range(5)]
    runs = cut(zoo(), clients, 2)
    assert sorted(len(each) for each in runs) == [2, 3]


def test_who_cannot_be_served_holds_nobody_up() -> None:
    hopeless, fine = client(0, 10, 10), client(1, 10, 100)
    assert not servable(zoo(), hopeless)
    plan = Decider(zoo(), SearchEffort(), 4, random.Random(0)).decide([hopeless, fine], 1)
    assert [each.number for each in plan.left_out] == [0]
    assert plan.shares[0].dnn == 1


def test_nobody_is_left_out_for_ever() -> None:
    decider = Decider(zoo(), SearchEffort(), 2, random.Random(0))
    clients = [client(number, 60, 40) for number in range(3)]
    seen: dict[int, int] = {}
    for _ in range(24):
        plan = decider.decide(clients, 1)
        check_plan(zoo(), plan)
        for each in plan.shares[0].clients:
            seen[each.number] = seen.get(each.number, 0) + 1
    assert min(seen.get(number, 0) for number in range(3)) >= 12


def test_many_small_clients_are_served_before_one_large() -> None:
    # The small DNN carries 149.75 frames/s in batches of 3; 60 + 5 x 29 is more.
    clients = [client(0, 60, 100), *(client(number, 29, 100) for number in range(1, 6))]
    search = Search(zoo(), clients, 1, random.Random(0), never, 10)
    search.start_from([(0, [0, 1, 2, 3])])
    assert len(search.left_out) == 2
    search.settle()
    assert [each.number for each in search.left_out] == [0]


def test_who_has_made_room_is_tried_elsewhere() -> None:
    """Three workers of batch 1 carry 99.75 frames/s each; the turn of the client of 90 has come."""
    clients = [client(0, 60, 20), client(1, 60, 20), client(2, 80, 20), client(3, 90, 20)]
    clients.append(client(4, 30, 20))
    decider = Decider(zoo(), SearchEffort(splits=60), 1, random.Random(0))
    decider.previous = MappingPlan(
        (
            make_share(zoo(), 0, (clients[0],)),
            make_share(zoo(), 0, (clients[1],)),
            make_share(zoo(), 0, (clients[2],)),
        ),
        (clients[3], clients[4]),
    )
    decider.turns.streaks = {0: 3, 1: 1, 2: 1, 3: -1, 4: -1}
    decider.turns.contested = True
    plan = decider.decide(clients, 3)
    check_plan(zoo(), plan)
    served = {each.number for share in plan.shares for each in share.clients}
    assert {3, 4} <= served
    assert plan.served == 4


def test_one_more_served_is_kept_although_accuracy_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two large DNNs serve two clients; both small, they would serve the third as well.
    group = [client(number, 45, 100) for number in range(3)]
    search = Search(zoo(), group, 3, random.Random(1), never, 450)
    for worker, each in zip(search.workers[:2], group[:2], strict=True):
        search.set(worker, 1, (each,))
    search.left_out = [group[2]]
    value = sum(worker.value for worker in search.workers)

    def serve_all_worse(search: Search, *_: object) -> None:
        for worker, each in zip(search.workers, group, strict=True):
            search.set(worker, 0, (each,))
        search.left_out = []

    monkeypatch.setattr(perturbation, "_look_for_room", serve_all_worse)
    monkeypatch.setattr(Search, "sweep", lambda self, pairs: False)
    perturbation.perturb(search)
    assert not search.left_out
    assert sum(worker.value for worker in search.workers) < value


def test_more_clients_than_bits_of_a_word() -> None:
    clients = [client(number, 1, 40 + number) for number in range(150)]
    split = best_split(zoo(), clients, -1.0)
    assert split is not None
    assert len(split.first) + len(split.second) == 150
    plan = Decider(zoo(), SearchEffort(), 4, random.Random(0)).decide(clients, 2)
    check_plan(zoo(), plan)
    # Two large DNNs in batches of 3 carry 2 x 59.75 frames/s.
    assert plan.served == 150
    assert plan.value(zoo()) == 0.8 * 59 + 0.5 * 91


def test_turn_is_not_cut_short() -> None:
    turns = Rotation(2)
    turns.streaks = {1: -2, 2: 5, 3: 1}
    turns.contested = True
    assert turns.owed([1, 2]) == [1]
    assert turns.kept() == {3}


def test_floor_holds_although_more_could_be_served_below_it() -> None:
    clients = [client(number, 40, 40, floor=0.6) for number in range(3)]
    plan = Decider(zoo(), SearchEffort(), 4, random.Random(0)).decide(clients, 2)
    assert all(share.dnn == 1 for share in plan.shares if share.clients)
    assert plan.served == 2


def test_expired_time_still_gives_a_sound_plan() -> None:
    clients = [client(number, 20, 40 + number) for number in range(8)]
    plan = Decider(zoo(), SearchEffort(), 4, random.Random(0)).decide(clients, 4, lambda: True)
    check_plan(zoo(), plan)
    assert plan.served > 0


def test_order_preserving_assignment_moves_least() -> None:
    posts = [Post(3, 1, ()), Post(1, 1, ()), Post(2, 1, ())]
    assert [each.dnn for each in assign([2, 0, 5], posts)] == [2, 1, 3]


def test_hits_are_counted_among_neighbours() -> None:
    assert neighbours(0, 3, 16) == {0, 1, 2}
    assert neighbours(8, 3, 16) == {7, 8, 9}
    hits = HitCount()
    assert hits.ratio == 1.0
    hits.note(True)
    hits.note(False)
    assert hits.ratio == 0.5
