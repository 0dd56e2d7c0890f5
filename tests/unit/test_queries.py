"""Queries: one deadline for several stages, admitted at the door, ended once."""

from query_world import QueryWorld

from fermata.foundation.units import ms
from fermata.router.core.events import DropReason, Request
from fermata.router.core.fairness.admission import Admission
from fermata.router.core.queries.budgets import StageBudget, fit
from fermata.router.core.queries.flow import QueryRules
from fermata.router.core.queries.pipeline import FanOut, Pipeline, Stage, visits

CHAIN = Pipeline((Stage(0, (1,)), Stage(1)), ms(100))
TREE = Pipeline((Stage(0, (1, 2)), Stage(1, (3,)), Stage(2, (3,)), Stage(3, join=True)), ms(200))


class Refusing(Admission):
    """Refuses every request that asks, and counts those that were let in elsewhere."""

    def __init__(self) -> None:
        self.let_in_count = 0

    def admit(self, now_ns: int, request: Request) -> str | None:
        return DropReason.SHED

    def let_in(self, now_ns: int, request: Request) -> None:
        self.let_in_count += 1


def test_a_query_ends_when_its_last_stage_has() -> None:
    world = QueryWorld([CHAIN], fan_out=lambda stage, edge: 2)
    query = world.send(0, ms(100))
    world.advance(ms(100))
    assert world.ends == {0: ["good"]}
    # One request of the first stage, then both of the second in one batch.
    assert [len(rids) for rids in world.ran] == [1, 2]
    assert query.ended == [1, 2]


def test_a_result_that_makes_nothing_completes_its_query() -> None:
    world = QueryWorld([CHAIN], fan_out=lambda stage, edge: 0)
    world.send(0, ms(100))
    world.advance(ms(100))
    assert world.ends == {0: ["good"]}
    assert len(world.ran) == 1


def test_requests_of_several_queries_meet_in_one_batch() -> None:
    world = QueryWorld([CHAIN], fan_out=lambda stage, edge: 3)
    for qid in range(4):
        world.send(qid, ms(100))
    world.advance(ms(100))
    assert [len(rids) for rids in world.ran] == [4, 12]
    assert all(ends == ["good"] for ends in world.ends.values())


def test_a_join_runs_once_when_all_before_it_has_ended() -> None:
    world = QueryWorld([TREE], backends=2, fan_out=lambda stage, edge: 2 + edge)
    query = world.send(0, ms(200))
    world.advance(ms(200))
    assert world.ends == {0: ["good"]}
    assert query.ended == [1, 2, 3, 1]


def test_a_join_runs_though_nothing_was_found_before_it() -> None:
    world = QueryWorld([TREE], fan_out=lambda stage, edge: 0)
    query = world.send(0, ms(200))
    world.advance(ms(200))
    assert query.ended == [1, 0, 0, 1]


def test_a_query_that_cannot_end_in_time_is_refused_before_anything_runs() -> None:
    world = QueryWorld([CHAIN])
    # Both stages take 5 ms at least, and half of it is more than all of its time.
    query = world.send(0, ms(4))
    assert world.ends == {0: ["shed"]}
    assert query.refused
    world.advance(ms(50))
    assert world.ran == []
    assert world.made == 0


def test_a_full_pipeline_refuses_at_the_door() -> None:
    world = QueryWorld([CHAIN], fan_out=lambda stage, edge: 10)
    queries = [world.send(qid, ms(100)) for qid in range(200)]
    refused = [query.refused for query in queries]
    assert not refused[0]
    assert refused[-1]
    # Work only grows while nothing ends, so all are refused from the first refusal on.
    assert refused == sorted(refused)
    world.advance(ms(200))
    assert sorted(world.ends) == list(range(200))


def test_children_of_a_lost_query_are_withdrawn() -> None:
    world = QueryWorld([CHAIN], fan_out=lambda stage, edge: 80)
    world.send(0, ms(60))
    world.advance(ms(60))
    # Eighty requests take three runs of 36 ms at the least.
    assert world.ends == {0: ["late"]}
    assert world.table.parts == {}
    assert not world.engine.outbox.queued
    assert len(world.drops) == 80 - sum(len(rids) for rids in world.ran[1:])


def test_a_partial_answer_tells_what_is_missing() -> None:
    partial = Pipeline(CHAIN.stages, CHAIN.slo_ns, partial=True)
    world = QueryWorld([partial], fan_out=lambda stage, edge: 80)
    query = world.send(0, ms(60))
    world.advance(ms(100))
    assert world.ends == {0: ["good"]}
    assert query.missing == 80 - query.ended[1] > 0


def test_a_cancelled_query_frees_everything() -> None:
    world = QueryWorld([CHAIN], fan_out=lambda stage, edge: 5)
    for qid in range(3):
        world.send(qid, ms(100))
    assert world.cancel(1)
    assert not world.cancel(1)
    world.advance(ms(100))
    assert world.ends == {1: ["cancelled"], 0: ["good"], 2: ["good"]}
    assert world.table.flows[0].open == [0, 0]


def test_a_query_survives_the_death_of_a_backend() -> None:
    world = QueryWorld([CHAIN], backends=2, fan_out=lambda stage, edge: 4)
    world.send(0, ms(100))
    world.advance(ms(1))
    world.kill(0)
    world.advance(ms(100))
    assert world.ends == {0: ["good"]}


def test_stages_leave_each_other_the_time_of_a_target_batch() -> None:
    world = QueryWorld([CHAIN])
    query = world.send(0, ms(100))
    (part,) = query.parts
    request = (
        world.engine.outbox.queued.get(part) or world.engine.backend(0).batches()[0].requests[0]
    )
    run_ns = world.table.budgets[1].run_ns
    assert request.deadline_ns == ms(100) - run_ns
    assert 0 <= request.start_by_ns <= request.deadline_ns - world.table.budgets[0].run_ns


def test_batches_grow_where_they_save_the_most_time() -> None:
    # A second stage with five times the requests and the same run times gets the larger batch.
    plan_ns = [0, *(ms(5 + size) for size in range(1, 65))]
    budgets = {0: StageBudget(plan_ns, 1e6), 1: StageBudget(plan_ns, 5e6)}
    fit([(CHAIN, ms(60))], budgets)
    assert budgets[1].size > budgets[0].size > 1
    assert sum(each.run_ns for each in budgets.values()) <= ms(60)


def test_a_batch_of_results_that_come_together_waits_for_nobody() -> None:
    plan_ns = [0, *(ms(5 + size) for size in range(1, 65))]
    first, second = StageBudget(plan_ns, 100.0), StageBudget(plan_ns, 500.0)
    second.makers = [(first, 5.0)]
    first.size = 2
    assert second.needs_ns(10) == plan_ns[10]
    assert second.needs_ns(15) == plan_ns[15] + ms(10)


def test_fan_out_is_learnt_as_a_mean() -> None:
    fan_out = FanOut()
    for made in (0, 4, 8):
        fan_out.learn(made)
    assert fan_out.mean == 4.0
    assert visits(CHAIN, [[fan_out], []]) == [1.0, 4.0]


def test_the_share_falls_while_queries_are_lost_after_they_have_cost_time() -> None:
    world = QueryWorld([CHAIN], rules=QueryRules(reviewed=4))
    flow = world.table.flows[0]
    before = flow.share
    flow.good, flow.lost = 3, 1
    flow.learn(0, world.table.rules)
    assert flow.share < before
    flow.good, flow.refused = 4, 1
    flow.learn(ms(200), world.table.rules)
    assert flow.share > before * (1.0 - world.table.rules.shrink_max)


def test_joins_after_joins_are_due_one_after_the_other() -> None:
    row = (Stage(0, (1,)), Stage(1, (2,), join=True), Stage(2, join=True))
    pipeline = Pipeline(row, ms(100))
    assert pipeline.due_joins([0, 0, 0], [1, 0, 0]) == [1]
    assert pipeline.due_joins([0, 1, 0], [1, 0, 0]) == []
    assert pipeline.due_joins([0, 0, 0], [1, 1, 0]) == [2]


def test_requests_of_a_query_pass_no_second_door() -> None:
    world = QueryWorld([CHAIN], fan_out=lambda stage, edge: 3)
    refusing = Refusing()
    world.engine.admissions = [refusing, refusing]
    world.engine.admits = True
    world.send(0, ms(100))
    world.advance(ms(100))
    assert world.ends == {0: ["good"]}
    assert refusing.let_in_count == 4


def test_a_lead_leaves_earlier_stages_less_time() -> None:
    world = QueryWorld([CHAIN])
    for budget in world.table.budgets.values():
        budget.lead_ns = ms(2)
    query = world.send(0, ms(100))
    run_ns = world.table.budgets[1].plan_ns[world.table.budgets[1].size]
    deadline_ns, _ = world.table.dates(0, query, 0)
    assert deadline_ns == ms(100) - run_ns - ms(2)


def test_what_waits_is_counted_by_mean_run_times() -> None:
    # One batch in ten takes three times as long: deadlines leave room for it, and the door is not
    # to believe that all of them do.
    for variants in ((), ((1.0, 0.9), (0.5, 0.8))):
        world = QueryWorld([CHAIN], variants=variants)
        for number in range(200):
            for size in (1, 2, 4, 8, 16, 32):
                ratio = 3.0 if number % 10 == 0 else 1.0
                world.engine.costs.of(0).learn(size, ratio, 1.0)
        world.send(0, ms(100))
        budget = world.table.budgets[0]
        mean_ns = 1.2 * world.engine.costs.of(0).p50_ns[budget.size] / budget.size
        assert budget.each_ns > 2.0 * mean_ns
        assert abs(budget.work_ns / mean_ns - 1.0) < 0.1
