"""Jellyfish's decision against brute force, and what every plan must keep."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product

from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.foundation.units import ms
from fermata.router.policies.jellyfish.decision import Decider, SearchEffort
from fermata.router.policies.jellyfish.mapping import find_optimal_clients
from fermata.router.policies.jellyfish.overload import most_served
from fermata.router.policies.jellyfish.problem import (
    Client,
    Zoo,
    check_plan,
    make_client,
    make_zoo,
    servable,
)
from fermata.router.policies.jellyfish.selection.annealing import Cooling

ZOO = make_zoo(
    (0.3, 0.5, 0.6),
    [
        [ms(10), ms(14), ms(18), ms(22)],
        [ms(15), ms(22), ms(29), ms(36)],
        [ms(25), ms(40), ms(55), ms(70)],
    ],
)


@st.composite
def clients(draw: st.DrawFn, most: int = 5) -> list[Client]:
    made: list[Client] = []
    for number in range(draw(st.integers(1, most))):
        fps = draw(st.sampled_from((10, 15, 25, 33.3)))
        slo_ms = draw(st.sampled_from((40, 60, 90, 140)))
        mbps = draw(st.sampled_from((5.0, 10.0, 30.0)))
        budgets = [ms(slo_ms - size / mbps) for size in (50, 150, 300)]
        floor = draw(st.sampled_from((0.0, 0.0, 0.45)))
        pinned = draw(st.sampled_from((None, None, None, 1)))
        made.append(make_client(ZOO, number, fps, budgets, floor, pinned))
    return made


def cramped(group: list[Client], times: int) -> list[Client]:
    """The same clients, each asking for more than once as much: not all can be served."""
    return [replace(each, load=each.load * times) for each in group]


def fits(zoo: Zoo, dnn: int, group: Sequence[Client]) -> bool:
    if not group:
        return True
    batch = min(each.batch_max[dnn] for each in group)
    return batch > 0 and sum(each.load for each in group) <= zoo.capacity[dnn][batch]


def brute_force(group: list[Client], workers: int) -> tuple[int, float]:
    """The best score over all DNNs and all mappings."""
    best = (0, 0.0)
    for dnns in combinations_with_replacement(range(len(ZOO.accuracy)), workers):
        for places in product(range(workers + 1), repeat=len(group)):
            shares = [
                [each for each, place in zip(group, places, strict=True) if place == worker]
                for worker in range(workers)
            ]
            if all(fits(ZOO, dnn, share) for dnn, share in zip(dnns, shares, strict=True)):
                value = sum(
                    ZOO.accuracy[dnn] * each.load
                    for dnn, share in zip(dnns, shares, strict=True)
                    for each in share
                )
                best = max(best, (sum(map(len, shares)), round(value / 4, 9)))
    return best


@given(clients())
@settings(max_examples=60, deadline=None)
def test_programme_finds_the_highest_rate(group: list[Client]) -> None:
    for dnn in range(len(ZOO.accuracy)):
        chosen = find_optimal_clients(ZOO, dnn, group)
        assert fits(ZOO, dnn, chosen)
        best = max(
            sum(each.load for each in subset)
            for mask in range(1 << len(group))
            if fits(ZOO, dnn, subset := [each for i, each in enumerate(group) if mask >> i & 1])
        )
        assert sum(each.load for each in chosen) == best


@given(clients(), st.sampled_from((1, 3)))
@settings(max_examples=60, deadline=None)
def test_two_workers_serve_as_many_as_can_be(group: list[Client], times: int) -> None:
    group = cramped(group, times)
    best = brute_force(group, 2)
    plan = Decider(ZOO, SearchEffort(), 4, random.Random(0)).decide(group, 2)
    check_plan(ZOO, plan)
    served, value = plan.score(ZOO)
    assert served == best[0]
    if served == len(group):
        assert round(value, 9) == best[1]


@given(clients(most=7), st.sampled_from((1, 2)))
@settings(max_examples=60, deadline=None)
def test_one_worker_serves_as_many_as_can_be_and_these_best(
    group: list[Client], times: int
) -> None:
    group = cramped(group, times)
    plan = Decider(ZOO, SearchEffort(), 4, random.Random(0)).decide(group, 1)
    check_plan(ZOO, plan)
    served, value = plan.score(ZOO)
    assert (served, round(value, 9)) == brute_force(group, 1)


@given(clients(most=5), st.sampled_from((1, 2)), st.data())
@settings(max_examples=60, deadline=None)
def test_whoever_is_forced_is_served_with_as_many_as_can_be(
    group: list[Client], workers: int, data: st.DataObject
) -> None:
    group = [each for each in cramped(group, 2) if servable(ZOO, each)]
    forced = {each.number for each in group if data.draw(st.booleans())}
    found = most_served(ZOO, group, workers, forced, int)
    best = -1
    for mask in range(1 << len(group)):
        chosen = [each for i, each in enumerate(group) if mask >> i & 1]
        served = brute_force(chosen, workers)[0] == len(chosen)
        if served and forced <= {each.number for each in chosen}:
            best = max(best, len(chosen))
    assert (-1 if found is None else len(found)) == best
    if found is not None:
        assert forced <= {each.number for each in found}
        assert brute_force(found, workers)[0] == len(found)


@given(clients(most=12), st.integers(1, 5), st.sampled_from(("resplit", "published")))
@settings(max_examples=60, deadline=None)
def test_every_plan_is_sound(group: list[Client], workers: int, selection: str) -> None:
    effort = SearchEffort(selection, splits=60, cooling=Cooling(ratio=0.8))
    plans = []
    for _ in range(2):
        decider = Decider(ZOO, effort, 2, random.Random(7))
        rounds = [decider.decide(group, workers) for _ in range(4)]
        for plan in rounds:
            check_plan(ZOO, plan)
            assert len(plan.shares) == workers
            everyone = [*(c.number for s in plan.shares for c in s.clients)]
            everyone += [c.number for c in plan.left_out]
            assert sorted(everyone) == [each.number for each in group]
            for share in plan.shares:
                assert all(servable(ZOO, each) for each in share.clients)
        plans.append(rounds)
    assert plans[0] == plans[1], "the same seed gave two plans"


@given(clients(most=8))
@settings(max_examples=30, deadline=None)
def test_everyone_who_can_be_served_has_a_turn(group: list[Client]) -> None:
    decider = Decider(ZOO, SearchEffort(splits=0), 2, random.Random(1))
    served: set[int] = set()
    for _ in range(8 * len(group)):
        plan = decider.decide(group, 1)
        served.update(each.number for share in plan.shares for each in share.clients)
    assert served == {each.number for each in group if servable(ZOO, each)}
