"""Variants of stages: the most accurate that time allows, and the cheapest before a refusal."""

from dataclasses import replace

import pytest
from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Request
from fermata.router.core.queries.aim import BatchAim
from fermata.router.core.queries.budgets import StageBudget, as_long
from fermata.router.core.queries.flow import Flow
from fermata.router.core.queries.ladder import Ladder
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.core.queries.speeds import StageSpeeds
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.deferred_kinds import KindCandidate
from fermata.router.policies.pipelines.stages import StageThread
from fermata.router.policies.pipelines.variant_stages import VariantStage

CHAIN = Pipeline((Stage(0, (1,)), Stage(1)), ms(100))
PAIR = ((1.0, 0.9), (0.4, 0.8))
"""A batch of b takes 4 + b ms, and 0.4 times that where 0.1 of the accuracy is given up."""
BEST, CHEAPEST = {0, 2}, {1, 3}
"""Variants of both stages."""


def crowd(world: QueryWorld, queries: int, gap_ms: float, first: int = 0) -> None:
    for qid in range(first, first + queries):
        world.send(qid, ms(100))
        world.advance(world.now_ns + ms(gap_ms))


def outcomes(world: QueryWorld) -> list[str]:
    return [end for ends in world.ends.values() for end in ends]


# The query table


def test_with_time_to_spare_the_most_accurate_serve() -> None:
    world = QueryWorld([CHAIN], variants=PAIR)
    crowd(world, 20, 40)
    assert set(world.served_by) == BEST
    assert set(outcomes(world)) == {"good"}


def test_the_order_of_the_variants_does_not_matter() -> None:
    world = QueryWorld([CHAIN], variants=PAIR[::-1])
    crowd(world, 20, 40)
    assert set(world.served_by) == CHEAPEST, "the second ones are the better ones here"


def test_cheaper_variants_serve_before_any_query_is_refused() -> None:
    # 16 in a batch take 20 ms at each stage: 0.4 queries a millisecond, and 1.0 with the cheap.
    world = QueryWorld([CHAIN], variants=PAIR)
    crowd(world, 1500, 1.6)
    late = world.served_by[len(world.served_by) // 2 :]
    assert set(late) & CHEAPEST
    assert outcomes(world).count("shed") == 0
    assert outcomes(world).count("good") > 0.97 * len(world.ends)
    alone = QueryWorld([CHAIN])
    crowd(alone, 1500, 1.6)
    assert outcomes(alone).count("shed") > 0, "what is served alone has to refuse some"


def test_beyond_what_the_cheapest_can_do_nothing_else_serves() -> None:
    world = QueryWorld([CHAIN], variants=PAIR)
    crowd(world, 3000, 0.5)
    assert set(world.served_by[len(world.served_by) // 2 :]) == CHEAPEST
    assert outcomes(world).count("shed") > 0


def test_the_accurate_serve_again_when_the_crowd_is_gone() -> None:
    world = QueryWorld([CHAIN], variants=PAIR)
    crowd(world, 2000, 0.5)
    before = len(world.served_by)
    crowd(world, 200, 40, first=2000)
    assert set(world.served_by[before + 100 :]) == BEST


def test_the_cheapest_are_no_trap() -> None:
    """Where so little time is planned with that only the cheapest are served, and nobody waits,
    more is planned with again. Half of the queries here could be served by the best."""
    world = QueryWorld([CHAIN], variants=PAIR)
    crowd(world, 200, 5)
    assert world.table.variants.planned == 0
    world.table.variants.usable = 0.1
    crowd(world, 50, 5, first=200)
    assert world.table.variants.planned == world.table.variants.lowest
    crowd(world, 6000, 5, first=250)
    assert world.table.variants.planned == 0
    assert set(world.served_by[-100:]) == BEST


def test_stages_without_a_choice_are_planned_as_ever() -> None:
    world = QueryWorld([CHAIN])
    crowd(world, 10, 5)
    assert not world.table.choosing
    assert all(budget.share == 0.0 for budget in world.table.budgets.values())
    assert world.table.flows[0].quickest_ns == world.table.flows[0].tail_ns


def test_too_slow_an_accurate_variant_never_serves() -> None:
    # One request takes 100 ms, all of the SLO; with the cheap ones 5 at each stage.
    world = QueryWorld([CHAIN], variants=((20.0, 0.9), (1.0, 0.8)))
    crowd(world, 20, 40)
    assert set(world.served_by) == CHEAPEST
    assert set(outcomes(world)) == {"good"}


def test_a_lowest_rung_that_rises_takes_the_place_with_it() -> None:
    world = QueryWorld([CHAIN], variants=PAIR)
    crowd(world, 400, 0.5)
    variants = world.table.variants
    assert variants.place == variants.lowest == 2
    variants.changed_at_ns = world.now_ns
    # The cheap ones of the second stage are found to be of hardly any use.
    source = world.engine.sources[1]
    (best, accuracy), (cheap, _) = source.choices
    source.choices = ((best, accuracy), (cheap, 0.1))
    world.table.plan_at_ns = world.now_ns
    world.send(9999, ms(100))
    assert variants.place <= variants.lowest < 2


# The ladder


def ladder(
    times: dict[int, tuple[int, int]],
    accuracy: dict[int, float],
    rps: float,
    largest: tuple[int, int] = (32, 32),
) -> Ladder:
    """Two stages, with variants 0 and 1 of the first, and 2 and 3 of the second; (fixed, each).
    `largest` are the batches of the first and the second variant of each."""
    costs = Costs()
    for variant, (fixed, each) in times.items():
        sizes = range(1, 1 + largest[variant % 2])
        costs.add(variant, [ms(fixed + each * size) for size in sizes])
    flow = Flow(CHAIN, 0.9)
    flow.offered.rps = rps
    budgets = {number: StageBudget(costs.of(2 * number).plan_ns, rps) for number in (0, 1)}
    found = Ladder(StageSpeeds(Engine(costs)), [flow], budgets)
    choices = {
        number: tuple((each, accuracy[each]) for each in (2 * number, 2 * number + 1))
        for number in (0, 1)
    }
    found.build(choices, [(CHAIN, ms(95))])
    return found


TIMES = {0: (4, 2), 1: (2, 1), 2: (4, 1), 3: (2, 1)}


def test_a_ladder_is_built_anew_from_larger_batches_than_its_first_rung_has() -> None:
    found = ladder(TIMES, {0: 0.9, 1: 0.8, 2: 0.9, 3: 0.8}, 1e6, largest=(4, 32))
    before = [each.places for each in found.rungs]
    assert found.budgets[0].size > 4, "those of the last rung"
    choices = {number: ((2 * number, 0.91), (2 * number + 1, 0.8)) for number in (0, 1)}
    found.build(choices, [(CHAIN, ms(95))])
    assert [each.places for each in found.rungs] == before


def test_the_exchange_that_loses_the_least_for_its_time_comes_first() -> None:
    # The first stage's exchange halves its time; that of the second saves little.
    cheap_first = ladder(TIMES, {0: 0.9, 1: 0.8, 2: 0.9, 3: 0.8}, 1e6)
    assert [each.places for each in cheap_first.rungs] == [
        {0: 0, 1: 0},
        {0: 1, 1: 0},
        {0: 1, 1: 1},
    ]
    dear_first = ladder(TIMES, {0: 0.9, 1: 0.3, 2: 0.9, 3: 0.89}, 1e6)
    assert dear_first.rungs[1].places == {0: 0, 1: 1}


def test_a_rung_needs_less_time_and_is_less_accurate_than_the_one_above() -> None:
    found = ladder(TIMES, {0: 0.9, 1: 0.8, 2: 0.9, 3: 0.8}, 1e6)
    needed = [rung.backends(found.offered()) for rung in found.rungs]
    assert needed == sorted(needed, reverse=True)
    accuracies = [found.accuracy(found.flows[0], rung.places) for rung in found.rungs]
    assert accuracies == pytest.approx([0.81, 0.72, 0.64])


def test_a_variant_that_saves_nothing_has_no_rung() -> None:
    found = ladder({**TIMES, 3: (4, 1)}, {0: 0.9, 1: 0.8, 2: 0.9, 3: 0.8}, 1e6)
    assert [each.places for each in found.rungs] == [{0: 0, 1: 0}, {0: 1, 1: 0}]


def test_it_goes_no_lower_than_accuracy_is_worth() -> None:
    # Two thirds of the accuracy for a little time: refusing a few queries loses less.
    found = ladder(TIMES, {0: 0.9, 1: 0.8, 2: 0.9, 3: 0.3}, 1e6)
    assert found.rungs[-1].places == {0: 1, 1: 1}
    assert found.rungs[found.lowest(found.offered())].places == {0: 1, 1: 0}


def test_a_stage_that_few_queries_reach_may_be_less_accurate() -> None:
    found = ladder(TIMES, {0: 0.9, 1: 0.8, 2: 0.9, 3: 0.8}, 1e6)
    flow = found.flows[0]
    for _ in range(100):
        flow.note_reached([1, 0])
    assert found.accuracy(flow, {0: 0, 1: 1}) == pytest.approx(0.9)
    found.build(found.choices, [(CHAIN, ms(95))])
    assert found.rungs[1].places == {0: 0, 1: 1}


def test_as_long() -> None:
    assert [as_long([0, 5, 6, 7], each) for each in (1, 5, 6, 100)] == [1, 1, 2, 3]


# The source


def test_a_mix_gives_each_variant_its_share() -> None:
    world = QueryWorld([CHAIN], variants=PAIR)
    source = world.engine.sources[0]
    other = BatchAim(1, 1, 1, 0, variant=1)
    source.aim_at(BatchAim(1, 1, 1, 0, variant=0, share=0.25, other=other))
    for rid in range(40):
        now_ns = ms(10 * rid)
        world.advance(now_ns)
        world.engine.on_requests(now_ns, [Request(1000 + rid, 0, now_ns, now_ns + ms(50))])
        world.advance(now_ns)
    world.advance(ms(1000))
    assert world.served_by.count(1) == 10
    assert world.served_by.count(0) == 30


def test_a_backend_runs_what_it_holds() -> None:
    world = QueryWorld([CHAIN], variants=PAIR)
    world.engine.on_resident(0, 0, frozenset((1, 3)))
    crowd(world, 20, 40)
    assert set(world.served_by) == CHEAPEST
    assert set(outcomes(world)) == {"good"}


def test_a_request_too_late_for_the_better_variant_is_run_by_the_quicker() -> None:
    world = QueryWorld([CHAIN], variants=PAIR)
    # One takes 5 ms, or 2.
    world.engine.on_requests(0, [Request(1, 0, 0, ms(3))])
    world.advance(ms(10))
    assert world.served_by == [1]
    assert world.drops == []


def test_a_kind_plans_batches_that_the_variant_takes() -> None:
    costs = Costs()
    costs.add(0, [ms(4 + size) for size in range(1, 33)])
    costs.add(1, [ms(2 + size) for size in range(1, 9)])
    candidate = KindCandidate(0, costs.of(0))
    candidate.target = candidate.full = candidate.window = 32
    candidate.take_cost(costs.of(1))
    assert (candidate.target, candidate.full, candidate.window) == (8, 8, 8)
    assert candidate.capacity_rps(2, ms(100)) == pytest.approx(1600)


# Configuration

APPLICATION = ApplicationSpec(
    "detect",
    ms(100),
    (VariantSpec("large", (ms(5),), accuracy=0.9), VariantSpec("small", (ms(2),), accuracy=0.8)),
    policy="stages",
)


@pytest.mark.parametrize(
    ("application", "chosen"),
    [
        (APPLICATION, (0, 1)),
        (replace(APPLICATION, serving="small"), ()),
        (replace(APPLICATION, accuracy_floor=0.85), (0,)),
        (replace(APPLICATION, variants=APPLICATION.variants[:1]), ()),
        (replace(APPLICATION, variants=(APPLICATION.variants[0], VariantSpec("x", (1,)))), ()),
    ],
    ids=("two", "serving is set", "below the floor", "one", "unknown accuracy"),
)
def test_which_variants_are_chosen_from(
    application: ApplicationSpec, chosen: tuple[int, ...]
) -> None:
    (source,) = assemble(RouterConfig((application,))).engine.sources
    assert isinstance(source, StageThread)
    assert isinstance(source, VariantStage) == bool(chosen)
    assert tuple(variant for variant, _ in source.choices) == chosen
