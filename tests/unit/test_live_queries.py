"""Queries at a live router: parts that frontends submit, hand on and cancel; each ends once."""

from pipeline_world import GAPS, JOINED, SIDE_JOIN, PipelineWorld
from router_world import LOST, FakeLink, rid

from fermata.foundation.units import ms
from fermata.router.core.events import DropReason
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.links.messages import (
    Answered,
    Cancel,
    Done,
    Dropped,
    FrontendStats,
    HandedOn,
    Ready,
    Submit,
)
from fermata.router.live.snapshot import take_snapshot
from fermata.router.telemetry.histogram import LATENCY_NS


def test_results_are_handed_on_by_their_frontend() -> None:
    world = PipelineWorld()
    world.query(0)
    assert world.run() == [0]
    # Its batch has ended, and what it makes is not known yet.
    assert world.ended() == {}
    world.hand_on(0, 1, 2, 3)
    assert world.run() == [1, 2, 3]
    assert world.ended() == {"good": 1}
    assert world.dropped() == {}
    world.nothing_is_left()


def test_results_that_are_handed_on_together_run_together() -> None:
    world = PipelineWorld()
    world.query(9)
    world.hear(world.frontend, *(world.part(each, 0, -1) for each in range(3)))
    assert world.run() == [9]
    world.hand_on(9)
    assert world.run() == [0, 1, 2]
    told = [(world.part(3 + each, 1, each), HandedOn(rid(each))) for each in range(3)]
    world.hear(world.frontend, *(message for pair in told for message in pair))
    assert [order.rids for _, order in world.runs()] == [(rid(3), rid(4), rid(5))]


def test_a_part_that_comes_again_with_its_result_runs_once() -> None:
    world = PipelineWorld()
    world.query(0)
    world.run()
    again = world.part(1, 1, 0)
    world.hear(world.frontend, again, HandedOn(rid(0)), again, HandedOn(rid(0)))
    assert world.run() == [1]
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_result_that_makes_nothing_ends_its_query() -> None:
    world = PipelineWorld()
    world.begin()
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_inputs_that_lie_on_the_node_are_told_with_the_batch() -> None:
    world = PipelineWorld()
    world.query(0)
    ((link, order),) = world.runs()
    assert [each.rid for each in order.inputs] == [rid(0)]
    world.hear(link, Done(order.batch, ms(5), 0))
    world.hand_on(0, 1, 2)
    ((_, order),) = world.runs()
    assert [each.rid for each in order.inputs] == [rid(1), rid(2)]


def test_a_query_without_time_is_refused_at_the_door_and_its_input_freed() -> None:
    world = PipelineWorld()
    world.query(0, slo_ns=ms(4))
    (dropped,) = world.frontend.take(Dropped)
    assert dropped.reason == DropReason.SHED
    assert dropped.unread
    assert dropped.retry_after_ns > 0
    assert world.ended() == {"shed": 1}
    assert world.run() == []
    world.nothing_is_left()


def test_a_part_that_fails_takes_its_query_along() -> None:
    world = PipelineWorld()
    world.begin(1, 2)
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0, failed="it broke"))
    assert world.dropped() == {1: "failed", 2: "failed"}
    assert world.ended() == {"failed": 1}
    world.nothing_is_left()


def test_a_backend_that_dies_loses_nothing_that_can_run_again() -> None:
    world = PipelineWorld(backends=2)
    world.begin(1, 2)
    ((link, _),) = world.runs()
    world.router.on_down(link, LOST)
    world.backends.remove(link)
    world.settle()
    again: list[int] = []
    while not world.ended():
        ran = world.run()
        assert ran
        again += ran
    assert sorted(again) == [1, 2]
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_cancelled_query_frees_everything() -> None:
    world = PipelineWorld()
    world.query(0)
    world.run()
    world.hear(world.frontend, Cancel(rid(0)))
    assert world.ended() == {"cancelled": 1}
    # What is handed on after it runs nowhere, and its inputs are free.
    world.hand_on(0, 1, 2)
    assert {each.rid: each.unread for each in world.frontend.take(Dropped)} == {
        rid(1): True,
        rid(2): True,
    }
    assert world.run() == []
    world.nothing_is_left()


def test_a_frontend_takes_its_queries_with_it() -> None:
    world = PipelineWorld()
    world.query(0)
    world.query(7)
    world.run()
    world.hand_on(0, 1, 2)
    world.router.on_down(world.frontend, LOST)
    world.settle()
    assert world.ended() == {"cancelled": 2}
    world.nothing_is_left()


def test_a_partial_answer_may_lack_parts() -> None:
    world = PipelineWorld(GAPS)
    world.begin(1, 2)
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0, spoilt=(rid(2),), error="it broke"))
    world.run()
    world.advance(ms(200))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_join_comes_with_the_last_part_before_it() -> None:
    world = PipelineWorld(JOINED)
    world.begin(1, 2)
    assert sorted(world.run()) == [1, 2]
    world.hand_on(1)
    assert world.run() == []
    # The second part was lost: its frontend says so, and what the join gets.
    world.hand_on(2, 3, stage=2, lost="failed")
    assert world.run() == [3]
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_join_that_is_lost_is_not_tried_again() -> None:
    world = PipelineWorld(JOINED)
    world.begin(1)
    world.run()
    world.hand_on(1, 2, stage=2)
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0, spoilt=(rid(2),), error="it broke"))
    world.run()
    world.advance(ms(200))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_part_that_is_given_up_leaves_a_gap() -> None:
    world = PipelineWorld(GAPS)
    world.begin(1, 2)
    # Its input turned out to be broken; that of the other is sound.
    world.hear(world.frontend, Cancel(rid(2)))
    assert 1 in world.run()
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_frontend_that_hands_on_to_other_stages_is_cut_off() -> None:
    world = PipelineWorld(JOINED)
    world.query(0)
    world.run()
    # Nothing is left before the join, and it is not there.
    world.hand_on(0)
    assert world.frontend.closed is not None
    assert world.router.strays == 1


def test_a_result_that_was_lost_is_made_anew() -> None:
    world = PipelineWorld()
    world.query(0)
    world.run()
    world.hear(world.frontend, Submit(rid(0), "detect", ms(150), ms(150)))
    assert world.run() == [0]
    world.hand_on(0)
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_stage_takes_requests_that_are_no_part_of_queries() -> None:
    world = PipelineWorld()
    alone = Submit(rid(9), "detect", ms(200), ms(200))
    world.hear(world.frontend, world.part(0, 0, -1), alone)
    assert [*world.run(), *world.run()] == [0, 9]
    world.hand_on(0)
    assert world.ended() == {"good": 1}


def test_time_that_results_take_to_be_handed_on_is_planned_for() -> None:
    world = PipelineWorld()
    for counter in range(0, 40, 2):
        world.query(counter)
        ((link, order),) = world.runs()
        world.hear(link, Done(order.batch, ms(5), 0))
        world.advance(ms(3))
        world.hand_on(counter, counter + 1)
        world.run()
    assert world.queries.hand_on[0].mean_ns == ms(3)
    assert world.queries.table.budgets[0].lead_ns > ms(3)


def test_a_part_that_comes_again_before_its_result_is_handed_on_runs_once() -> None:
    world = PipelineWorld(SIDE_JOIN)
    world.query(0)
    world.run()
    # The join is still being made, and the link to the backend that may have the part is cut.
    again = Submit(rid(1), "classify", ms(150), ms(150))
    world.hear(world.frontend, world.part(1, 1, 0))
    world.hear(world.frontend, again)
    world.hand_on(0, 2, stage=2)
    assert sorted([*world.run(), *world.run()]) == [1, 2]
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_part_that_is_given_up_before_its_result_is_handed_on_is_never_run() -> None:
    pipeline = Pipeline(SIDE_JOIN.stages, ms(200), partial=True)
    world = PipelineWorld(pipeline)
    world.query(0)
    world.run()
    # Its input turns out to be broken while the join is being made.
    world.hear(world.frontend, world.part(1, 1, 0))
    world.hear(world.frontend, Cancel(rid(1)))
    world.hand_on(0, 2, stage=2)
    assert [*world.run(), *world.run()] == [2]
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_parts_that_do_not_fit_leave_nothing_though_one_was_given_up() -> None:
    world = PipelineWorld(SIDE_JOIN)
    world.query(0)
    world.run()
    world.hear(world.frontend, world.part(1, 1, 0))
    world.hear(world.frontend, Cancel(rid(1)))
    # Without the join that is due.
    world.hand_on(0)
    assert world.frontend.closed is not None
    world.router.on_down(world.frontend, world.frontend.closed)
    world.settle()
    world.nothing_is_left()


def lose(world: PipelineWorld, link: FakeLink) -> None:
    world.router.on_down(link, LOST)
    world.settle()


def test_a_result_that_outlived_its_backend_is_handed_on() -> None:
    world = PipelineWorld(backends=3)
    world.query(0)
    # The frontend has the result, and the router runs it again in vain.
    for _ in range(2):
        ((link, order),) = world.runs()
        assert order.rids == (rid(0),)
        lose(world, link)
    assert world.dropped() == {0: DropReason.LOST}
    world.hand_on(0, 1)
    assert world.run() == [1]
    assert world.dropped() == {}
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_result_that_has_been_handed_on_is_not_made_again() -> None:
    world = PipelineWorld()
    world.query(0)
    ((link, _),) = world.runs()
    lose(world, link)
    world.hand_on(0, 1)
    world.backends = [world.link("backend", 9)]
    world.hear(world.backends[0], Ready("emulated", ("d", "c")))
    assert world.run() == [1]
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_part_that_may_have_its_result_leaves_its_siblings_alone() -> None:
    both = Pipeline((Stage(0, (1, 2)), Stage(1), Stage(0)), ms(200))
    world = PipelineWorld(both, backends=3)
    world.query(0)
    world.run()
    world.hear(world.frontend, world.part(1, 1, 0), world.part(2, 2, 0), HandedOn(rid(0)))
    at = {order.rids[0] - rid(0): link for link, order in world.runs()}
    lose(world, at[1])
    ((link, _),) = world.runs()
    lose(world, at[2])
    lose(world, link)
    assert world.dropped() == {1: DropReason.LOST}
    world.backends = [world.link("backend", 9)]
    world.hear(world.backends[0], Ready("emulated", ("d", "c")))
    assert world.run() == [2]
    # The first one's result may have come, and may not: it is not told as good.
    assert world.ended() == {DropReason.LOST: 1}
    world.nothing_is_left()


def test_a_query_whose_part_was_lost_ends_for_that_reason() -> None:
    world = PipelineWorld(backends=2)
    world.query(0)
    for _ in range(2):
        ((link, _),) = world.runs()
        lose(world, link)
    # It has no result, and its frontend ends the query.
    world.hear(world.frontend, Cancel(rid(0)))
    assert world.ended() == {DropReason.LOST: 1}
    world.nothing_is_left()


def test_a_batch_whose_requests_were_all_answered_before_ends_their_parts() -> None:
    world = PipelineWorld()
    world.begin(1)
    ((link, order),) = world.runs()
    # The link of its frontend to the backend was cut, and it came again. The result came, too.
    world.hear(world.frontend, Submit(rid(1), "classify", ms(100), ms(100)))
    world.hear(link, Done(order.batch, ms(5), 0))
    ((link, order),) = world.runs()
    assert order.rids == (rid(1),)
    # Its frontend has no input for it any more, so that nothing runs.
    world.hear(link, Done(order.batch, 0, 0))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_stages_and_answers_of_pipelines_are_told() -> None:
    world = PipelineWorld()
    world.query(0)
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0))
    world.hand_on(0, 1, 2)
    buckets = (0,) * (len(LATENCY_NS) + 1)
    told = Answered("objects", {"good": 3, "shed": 1}, buckets, 0)
    world.router.meters.on_frontend(2, FrontendStats((told,)))
    seen = take_snapshot(world.router).pipelines["objects"]
    assert seen.answered == {"good": 3, "shed": 1}
    first, second = seen.stages
    assert (first.application, first.open, first.results) == ("detect", 0, 1)
    assert first.took_ns == ms(40)
    assert (second.application, second.open, second.results) == ("classify", 2, 0)


def test_a_slow_hand_on_is_forgotten_where_it_keeps_every_query_out() -> None:
    stages = Stage(0, (1,)), Stage(1, (2,)), Stage(0)
    world = PipelineWorld(Pipeline(stages, ms(200)))
    world.begin(1)
    assert world.run() == [1]
    # Its frontend was held up: this is learnt as the time that the last stage needs before it.
    world.advance(ms(110))
    world.hand_on(1, 2, stage=2)
    world.hear(world.frontend, Cancel(rid(0)))
    world.dropped()
    ran: list[int] = []
    for number in range(100, 160):
        world.query(number)
        ran += world.run()
        world.hear(world.frontend, Cancel(rid(number)))
    assert ran[-40:] == list(range(120, 160))
