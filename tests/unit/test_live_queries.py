"""Queries at a live router: parts that frontends submit, hand on and cancel; each ends once."""

from router_world import LOST, TABLE, FakeLink, FakeWake, World, rid

from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig
from fermata.router.core.events import DropReason
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.links.messages import (
    Cancel,
    Done,
    Dropped,
    HandedOn,
    Payload,
    QueryPart,
    Ready,
    Run,
    Submit,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.live.queries import LiveQueries
from fermata.router.policies.application import ApplicationSpec, VariantSpec

CHAIN = Pipeline((Stage(0, (1,)), Stage(1)), ms(200))
GAPS = Pipeline(CHAIN.stages, ms(200), partial=True)
JOINED = Pipeline((Stage(0, (1, 2)), Stage(1, (2,)), Stage(0, join=True)), ms(200), partial=True)
NAMES = ("detect", "classify")


class PipelineWorld(World):
    """A router with two stages in virtual time."""

    def __init__(self, pipeline: Pipeline = CHAIN, backends: int = 1) -> None:
        self.now_ns = ms(1000)
        self.soon = []
        self.wakes: list[FakeWake] = []
        applications = tuple(
            ApplicationSpec(
                name,
                ms(200),
                (VariantSpec(name[0], TABLE),),
                policy="stages",
                policy_options={"hold": "auto"},
            )
            for name in NAMES
        )
        config = RouterConfig(
            applications, lead_ns=0, fair_shares=True, pipelines={"objects": pipeline}
        )
        self.router = LiveRouter(config, 3, lambda: self.now_ns, self.soon.append, self._wake)
        self.frontend = self.link("frontend", 2)
        self.backends = [self.link("backend", 5 + number) for number in range(backends)]
        for each in self.backends:
            self.hear(each, Ready("emulated", ("d", "c")))

    @property
    def queries(self) -> LiveQueries:
        assert self.router.queries is not None
        return self.router.queries

    def query(self, counter: int, slo_ns: int = ms(200)) -> None:
        self.hear(self.frontend, self.part(counter, 0, -1, slo_ns))

    def part(self, counter: int, stage: int, parent: int, slo_ns: int = ms(200)) -> Submit:
        name = NAMES[0 if stage == 2 else stage]
        place = Payload(rid(counter), "FP32", (1,), segment="s", length=4)
        part = QueryPart("objects", stage, parent if parent < 0 else rid(parent))
        return Submit(rid(counter), name, slo_ns, slo_ns, payload=place, part=part)

    def hand_on(self, parent: int, *counters: int, stage: int = 1, lost: str = "") -> None:
        parts = [self.part(each, stage, parent) for each in counters]
        self.hear(self.frontend, *parts, HandedOn(rid(parent), lost))

    def runs(self) -> list[tuple[FakeLink, Run]]:
        """Batches that backends were sent since the last call, within 40 ms."""
        self.advance(ms(40))
        return [(each, run) for each in self.backends for run in each.take(Run)]

    def run(self) -> list[int]:
        """Run the batches that are due; returns the requests of all."""
        ran: list[int] = []
        for link, order in self.runs():
            self.hear(link, Done(order.batch, ms(5), 0))
            ran += [each - rid(0) for each in order.rids]
        return ran

    def dropped(self) -> dict[int, str]:
        return {each.rid - rid(0): each.reason for each in self.frontend.take(Dropped)}

    def ended(self) -> dict[str, int]:
        return self.queries.outcomes[0]

    def nothing_is_left(self) -> None:
        table, outbox = self.queries.table, self.router.engine.outbox
        left = [table.queries, table.parts, self.queries.arrived, outbox.queued]
        assert left == [{}, {}, {}, {}]
        assert not any(any(flow.open) for flow in table.flows)


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


def test_a_result_that_makes_nothing_ends_its_query() -> None:
    world = PipelineWorld()
    world.query(0)
    world.run()
    world.hand_on(0)
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
    world.query(0)
    world.run()
    world.hand_on(0, 1, 2)
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0, failed="it broke"))
    assert world.dropped() == {1: "failed", 2: "failed"}
    assert world.ended() == {"failed": 1}
    world.nothing_is_left()


def test_a_backend_that_dies_loses_nothing_that_can_run_again() -> None:
    world = PipelineWorld(backends=2)
    world.query(0)
    world.run()
    world.hand_on(0, 1, 2)
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
    world.query(0)
    world.run()
    world.hand_on(0, 1, 2)
    ((link, order),) = world.runs()
    world.hear(link, Done(order.batch, ms(5), 0, spoilt=(rid(2),), error="it broke"))
    world.run()
    world.advance(ms(200))
    assert world.ended() == {"good": 1}
    world.nothing_is_left()


def test_a_join_comes_with_the_last_part_before_it() -> None:
    world = PipelineWorld(JOINED)
    world.query(0)
    world.run()
    world.hand_on(0, 1, 2)
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
    world.query(0)
    world.run()
    world.hand_on(0, 1)
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
    world.query(0)
    world.run()
    world.hand_on(0, 1, 2)
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
