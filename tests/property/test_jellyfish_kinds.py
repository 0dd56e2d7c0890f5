"""Jellyfish on workers of two kinds: each planned with its own run times."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Advise, ClientReport
from fermata.router.policies.family import family_of
from fermata.router.policies.jellyfish.decision import Decider, SearchEffort
from fermata.router.policies.jellyfish.mapping_problem import Assignment, Post
from fermata.router.policies.jellyfish.options import JellyfishOptions
from fermata.router.policies.jellyfish.problem import Client, check_plan, make_client, make_zoo
from fermata.router.policies.jellyfish.selection.annealing import Cooling
from fermata.router.policies.jellyfish.source import Jellyfish

FAST = ([10, 14, 18, 22], [15, 22, 29, 36], [25, 40, 55, 70])
SLOWER = 3
ACCURACY = (0.3, 0.5, 0.6)
KINDS = 2
ZOO = make_zoo(
    [each for each in ACCURACY for _ in range(KINDS)],
    [[ms(run * times) for run in table] for table in FAST for times in (1, SLOWER)],
    KINDS,
)


@st.composite
def clients(draw: st.DrawFn, most: int = 5) -> list[Client]:
    made: list[Client] = []
    times = draw(st.sampled_from((1, 2)))
    for number in range(draw(st.integers(1, most))):
        fps = draw(st.sampled_from((10, 15, 25, 33.3)))
        slo_ms = draw(st.sampled_from((60, 90, 140, 300)))
        budgets = [ms(slo_ms - size / 30) for size in (50, 150, 300)]
        pinned = draw(st.sampled_from((None, None, None, 1)))
        client = make_client(ZOO, number, fps, budgets, pinned=pinned)
        made.append(replace(client, load=client.load * times))
    return made


def fits(place: int, group: Sequence[Client]) -> bool:
    if not group:
        return True
    batch = min(each.batch_max[place] for each in group)
    return batch > 0 and sum(each.load for each in group) <= ZOO.capacity[place][batch]


def brute_force(group: list[Client], kinds: Sequence[int]) -> tuple[int, float]:
    best = (0, 0.0)
    choices = [range(kind, len(ZOO.accuracy), KINDS) for kind in kinds]
    for dnns in product(*choices):
        for places in product(range(len(kinds) + 1), repeat=len(group)):
            shares = [
                [each for each, place in zip(group, places, strict=True) if place == worker]
                for worker in range(len(kinds))
            ]
            if all(fits(dnn, share) for dnn, share in zip(dnns, shares, strict=True)):
                value = sum(
                    ZOO.accuracy[dnn] * each.load
                    for dnn, share in zip(dnns, shares, strict=True)
                    for each in share
                )
                best = max(best, (sum(map(len, shares)), round(value / 4, 9)))
    return best


@given(clients(), st.sampled_from(((0, 1), (1, 0), (1, 1), (0, 0), (1,))))
@settings(max_examples=80, deadline=None)
def test_two_workers_of_any_kinds_serve_as_many_as_can_be(
    group: list[Client], kinds: tuple[int, ...]
) -> None:
    plan = Decider(ZOO, SearchEffort(), 4, random.Random(0)).decide(group, len(kinds), kinds=kinds)
    check_plan(ZOO, plan)
    assert [share.dnn % KINDS for share in plan.shares] == list(kinds)
    served, value = plan.score(ZOO)
    best = brute_force(group, kinds)
    assert served == best[0]
    if served == len(group):
        assert round(value, 9) == best[1]


def test_a_worker_that_can_serve_nobody_stands_idle_beside_the_other() -> None:
    budgets = [ms(60 - size / 30) for size in (50, 150, 300)]
    group = [make_client(ZOO, number, 10, budgets) for number in range(3)]
    group.append(make_client(ZOO, 3, 33.3, budgets, pinned=1))
    group = [replace(each, load=each.load * 2) for each in group]
    assert not any(each.batch_max[place] for each in group for place in (1, 3, 5))
    for kinds in ((0, 1), (1, 0)):
        decider = Decider(ZOO, SearchEffort(), 4, random.Random(0))
        plan = decider.decide(group, 2, kinds=kinds)
        # The one that asks most makes room for all the others.
        assert [each.number for each in plan.left_out] == [3]


@given(clients(most=12), st.lists(st.integers(0, 1), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("selection", ["resplit", "published"])
def test_every_worker_runs_what_was_planned_for_its_kind(
    selection: str, group: list[Client], kinds: list[int]
) -> None:
    effort = SearchEffort(selection, splits=60, cooling=Cooling(ratio=0.8))
    decider = Decider(ZOO, effort, 2, random.Random(7))
    for _ in range(4):
        plan = decider.decide(group, len(kinds), kinds=kinds)
        check_plan(ZOO, plan)
        assert [share.dnn % KINDS for share in plan.shares] == kinds
        everyone = [c.number for s in plan.shares for c in s.clients]
        everyone += [c.number for c in plan.left_out]
        assert sorted(everyone) == [each.number for each in group]


def engine(kinds: Sequence[int]) -> tuple[Engine, Jellyfish]:
    costs = Costs()
    for variant, table in enumerate(FAST):
        costs.add(variant, [ms(run) for run in table], None)
        costs.add(variant, [ms(run * SLOWER) for run in table], None, kind=1)
    made = Engine(costs)
    family = family_of(0, "cameras", ms(100), (0, 1, 2), 0, ACCURACY, (128, 224, 320))
    source = Jellyfish(family, JellyfishOptions(), random.Random(0))
    made.add_application(source)
    for backend, kind in enumerate(kinds):
        made.on_backend_up(0, backend, kind=kind, owner=0)
    return made, source


def advice(made: Engine, client: int) -> Advise:
    (found,) = [
        each for each in made.take_effects() if isinstance(each, Advise) and each.client == client
    ]
    return found


def test_a_slow_backend_alone_is_planned_with_its_own_times() -> None:
    for kinds, size, run_ms in (((0,), 320, 25), ((1,), 224, 45)):
        made, _ = engine(kinds)
        made.on_report(0, 0, ClientReport(1, ms(100), 10.0, 50e6, 128, 100_000))
        made.on_time(1)
        found = advice(made, 1)
        assert found.input_size == size
        # 100 ms less twice its run on that very kind.
        assert found.network_ns == ms(100) - 2 * ms(run_ms)


def test_the_demanding_camera_gets_the_fast_backend() -> None:
    for kinds in ((0, 1), (1, 0)):
        made, source = engine(kinds)
        # 60 ms leave no time for the slow one's 75 ms, nor for twice its 30 ms.
        for client, slo_ms, fps in ((1, 60, 37.0), (2, 300, 5.0)):
            report = ClientReport(client, ms(slo_ms), fps, 500e6, 128, 100_000)
            made.on_report(0, 0, report)
        made.on_time(1)
        assert source.mapped == {1: kinds.index(0), 2: kinds.index(1)}


def test_a_plan_for_other_kinds_is_not_taken() -> None:
    made, source = engine((0, 0))
    made.on_report(0, 0, ClientReport(1, ms(100), 10.0, 50e6, 128, 100_000))
    made.on_time(1)
    before = dict(source.mapped)
    question = source.question(ms(600))
    assert question.kinds == ()
    made.on_backend_down(ms(600), 1)
    made.on_backend_up(ms(600), 1, kind=1, owner=0)
    source.take_plan(ms(601), Assignment((Post(2, 1, ()), Post(2, 1, (1,))), ()))
    assert source.mapped == {who: where for who, where in before.items() if where != 1}
    assert source.question(ms(700)).kinds == (0, 1)
