"""A backend's pipeline: orders, inputs, ends and faults, by hand and at random."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from fermata.deployments.backend.batch_pipeline import (
    AnnounceReady,
    BatchPipeline,
    Effect,
    FetchInputs,
    PipelineJob,
    PipelineLimits,
    ReportDone,
    ReturnRequests,
    SendResults,
    StartBatch,
    Tensors,
)
from fermata.foundation.units import NEVER, ms
from fermata.router.links.messages import RID_BITS, Done, Fetch, Payload, Returned, Run

OUTPUT: Tensors = (("output", "FP32", (1,), b"\0\0\0\0"),)
FAR = 1 << RID_BITS
"""Requests of frontend 1; those below are of frontend 0."""


def ready(term: int = 1) -> BatchPipeline:
    pipeline = BatchPipeline(PipelineLimits(fetch_limit_ns=ms(100)))
    assert pipeline.on_router_up(term) is None
    assert pipeline.take_effects() == [AnnounceReady()]
    return pipeline


def order(
    pipeline: BatchPipeline, batch: int, *rids: int, now_ns: int = 0, start_in_ns: int = 0
) -> list[FetchInputs]:
    assert pipeline.on_run(now_ns, pipeline.term, Run(batch, "v", rids, start_in_ns, ms(5))) is None
    return [effect for effect in pipeline.take_effects() if isinstance(effect, FetchInputs)]


def give(pipeline: BatchPipeline, *rids: int, now_ns: int = 0) -> list[Effect]:
    for rid in rids:
        pipeline.on_payload(now_ns, Payload(rid, "UINT8", (1,), b"x"))
    return pipeline.take_effects()


def begun(effects: list[Effect]) -> list[PipelineJob]:
    return [effect.job for effect in effects if isinstance(effect, StartBatch)]


def finish(
    pipeline: BatchPipeline, job: PipelineJob, now_ns: int, run_ns: int = ms(5)
) -> list[Effect]:
    outputs = [OUTPUT] * len(job.inputs)
    pipeline.on_finished(now_ns, job, 0, now_ns - run_ns, run_ns, outputs)
    return pipeline.take_effects()


def replied(effects: list[Effect]) -> list[int]:
    return [each.result.rid for each in effects if isinstance(each, SendResults)]


def reported(effects: list[Effect]) -> list[Done]:
    return [effect.done for effect in effects if isinstance(effect, ReportDone)]


def test_asks_each_frontend_once_and_begins_when_all_inputs_are_there() -> None:
    pipeline = ready()
    assert order(pipeline, 7, 1, FAR + 1, 2) == [
        FetchInputs(0, Fetch(7, (1, 2))),
        FetchInputs(1, Fetch(7, (FAR + 1,))),
    ]
    assert give(pipeline, 2, FAR + 1) == []
    [job] = begun(give(pipeline, 1))
    assert [payload.rid for payload in job.payloads()] == [1, FAR + 1, 2]


def test_next_batch_is_fetched_while_the_first_runs() -> None:
    pipeline = ready()
    order(pipeline, 1, 1)
    [first] = begun(give(pipeline, 1))
    order(pipeline, 2, 2, now_ns=ms(2), start_in_ns=ms(3))
    # Handed on at once: the executor runs in order, without asking the pipeline in between.
    [second] = begun(give(pipeline, 2, now_ns=ms(3)))
    effects = finish(pipeline, first, ms(5))
    assert replied(effects) == [1]
    assert reported(effects) == [Done(1, ms(5), 0)]
    # It could have started 2 ms before it was planned to.
    assert reported(finish(pipeline, second, ms(10))) == [Done(2, ms(5), -ms(2))]


def test_what_a_frontend_has_not_sent_is_fetched_again() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, FAR + 1)
    order(pipeline, 2, FAR + 2, FAR + 3)
    give(pipeline, FAR + 1, FAR + 2)
    pipeline.fetch_again(1)
    assert pipeline.take_effects() == [FetchInputs(1, Fetch(2, (FAR + 3,)))]
    # Should both come, one is enough.
    [job] = begun(give(pipeline, FAR + 3, FAR + 3, 1))[:1]
    assert job.run.batch == 1
    pipeline.fetch_again(1)
    pipeline.fetch_again(0)
    assert pipeline.take_effects() == []


def test_late_inputs_show_as_a_late_start() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, start_in_ns=ms(1))
    [job] = begun(give(pipeline, 1, now_ns=ms(4)))
    assert reported(finish(pipeline, job, ms(9)))[0].start_late_ns == ms(3)


def test_missing_inputs_are_left_out() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, 2)
    pipeline.on_payload(0, Payload(1, "", (), missing=True))
    [job] = begun(give(pipeline, 2))
    effects = finish(pipeline, job, ms(5))
    assert replied(effects) == [2]
    assert [each.result.batch_size for each in effects if isinstance(each, SendResults)] == [1]


def test_batch_of_nobody_ends_at_once_and_in_order() -> None:
    pipeline = ready()
    order(pipeline, 1, 1)
    [first] = begun(give(pipeline, 1))
    order(pipeline, 2, 2)
    pipeline.on_payload(0, Payload(2, "", (), missing=True))
    assert pipeline.take_effects() == []
    assert [done.batch for done in reported(finish(pipeline, first, ms(5)))] == [1, 2]


def test_dead_frontend_is_not_waited_for() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, FAR + 1)
    assert give(pipeline, 1) == []
    pipeline.on_frontend_down(0, 1)
    [job] = begun(pipeline.take_effects())
    effects = finish(pipeline, job, ms(5))
    assert replied(effects) == [1]
    # Its frontend may only be out of this backend's reach.
    assert reported(effects)[0].left_out == (FAR + 1,)


def test_what_fails_after_its_router_went_is_given_back() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, FAR + 1)
    [job] = begun(give(pipeline, 1, FAR + 1))
    pipeline.on_router_down()
    pipeline.on_failed(ms(5), job, ms(5), "the kernel failed")
    # The router runs it elsewhere, or is gone: then the frontend submits it to the next one.
    assert pipeline.take_effects() == [
        ReturnRequests(0, Returned((1,))),
        ReturnRequests(1, Returned((FAR + 1,))),
    ]


def test_outputs_that_no_message_holds_are_refused_with_their_size() -> None:
    pipeline = ready()
    pipeline.limits = PipelineLimits(outputs_bytes_max=8)
    order(pipeline, 1, 5, 6)
    (job,) = begun(give(pipeline, 5, 6))
    outputs = [OUTPUT * 2, OUTPUT * 3]
    pipeline.on_finished(ms(5), job, 0, 0, ms(5), outputs)
    sent = [each.result for each in pipeline.take_effects() if isinstance(each, SendResults)]
    assert [(each.rid, each.error) for each in sent] == [
        (5, ""),
        (6, "its outputs take 12 bytes, a message holds 8"),
    ]


def test_an_input_that_does_not_come_is_left_to_the_router() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, 2, start_in_ns=ms(3))
    give(pipeline, 1)
    assert pipeline.wake_at_ns() == ms(103)
    pipeline.on_time(ms(103) - 1)
    assert pipeline.take_effects() == []
    pipeline.on_time(ms(103))
    [job] = begun(pipeline.take_effects())
    assert pipeline.wake_at_ns() == NEVER
    assert give(pipeline, 2) == []
    effects = finish(pipeline, job, ms(109))
    assert [each.result.rid for each in effects if isinstance(each, SendResults)] == [1]
    assert reported(effects)[0].left_out == (2,)


def test_a_step_whose_input_does_not_come_is_refused_and_its_state_kept() -> None:
    pipeline = ready()
    run = Run(1, "v", (1, 2), 0, ms(5))
    assert pipeline.on_run(0, pipeline.term, run, keeps_states=True) is None
    give(pipeline, 1)
    pipeline.on_time(ms(100))
    effects = pipeline.take_effects()
    [reply] = [each for each in effects if isinstance(each, SendResults)]
    assert (reply.result.rid, reply.result.error) == (2, "its input was not there in time")
    assert reply.result.input_late
    [job] = begun(effects)
    assert reported(finish(pipeline, job, ms(109)))[0].left_out == ()


def test_a_failure_is_left_to_the_router() -> None:
    pipeline = ready(term=7)
    order(pipeline, 1, 1, FAR + 1, 2)
    [job] = begun(give(pipeline, 1, FAR + 1, 2))
    pipeline.on_failed(ms(1), job, ms(1), "boom")
    # Frontends hear that the inputs are read no more, and who decides what becomes of them.
    assert pipeline.take_effects() == [
        ReturnRequests(0, Returned((1, 2), term=7)),
        ReturnRequests(1, Returned((FAR + 1,), term=7)),
        ReportDone(Done(1, ms(1), 0, "boom")),
    ]


def test_refuses_what_it_cannot_take() -> None:
    pipeline = ready(term=5)
    assert pipeline.on_run(0, 4, Run(1, "v", (1,), 0, 0)) == (
        "router term 4 is stale: this backend has met 5"
    )
    assert pipeline.on_router_up(4) == "router term 4 is stale: this backend has met 5"
    order(pipeline, 1, 1)
    order(pipeline, 2, 2)
    assert pipeline.on_run(0, 5, Run(3, "v", (), 0, 0)) is not None
    order(pipeline, 3, 3)
    assert pipeline.on_run(0, 5, Run(4, "v", (4,), 0, 0)) == "batch 4 came while 3 others are here"


def test_after_its_router_it_ends_what_runs_and_forgets_the_rest() -> None:
    pipeline = ready(term=1)
    order(pipeline, 1, 1)
    [running] = begun(give(pipeline, 1))
    order(pipeline, 2, 2)
    pipeline.on_router_down()
    assert pipeline.on_router_up(2) is None
    # Not ready before it is free: the new router would plan on a backend that is busy.
    assert pipeline.take_effects() == [ReturnRequests(0, Returned((2,)))]
    assert (
        pipeline.on_run(0, 2, Run(1, "v", (9,), 0, 0))
        == "batch 1 came before this backend was ready"
    )
    assert give(pipeline, 2) == []
    effects = finish(pipeline, running, ms(5))
    assert replied(effects) == [1]
    assert reported(effects) == []
    assert effects[-1] == AnnounceReady()


@dataclass
class World:
    """Drives a pipeline at random, and keeps account."""

    pipeline: BatchPipeline = field(default_factory=ready)
    wanted: set[int] = field(default_factory=set)
    """Requests that have to be answered."""
    answered: list[int] = field(default_factory=list)
    open_fetches: list[int] = field(default_factory=list)
    queue: list[PipelineJob] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    batches: int = 0
    now_ns: int = 0

    def settle(self) -> None:
        for effect in self.pipeline.take_effects():
            if isinstance(effect, FetchInputs):
                self.open_fetches += effect.fetch.rids
            elif isinstance(effect, StartBatch):
                self.queue.append(effect.job)
            elif isinstance(effect, SendResults):
                self.answered.append(effect.result.rid)
            elif isinstance(effect, ReturnRequests):
                self.answered += effect.returned.rids
            elif isinstance(effect, ReportDone):
                self.ended.append(effect.done.batch)
                # The router has these now, of frontends that are still there.
                self.answered += [each for each in effect.done.left_out if each in self.wanted]

    def step(self, act: str, pick: int) -> None:
        pipeline = self.pipeline
        self.now_ns += ms(1 + pick % 30)
        if act == "run" and len(pipeline.jobs) < 2:
            self.batches += 1
            size = 1 + pick % 4
            rids = tuple((k % 2) * FAR + self.batches * 10 + k for k in range(size))
            self.wanted.update(rids)
            pipeline.on_run(self.now_ns, 1, Run(self.batches, "v", rids, 0, 0))
        elif act in ("input", "missing") and self.open_fetches:
            rid = self.open_fetches.pop(pick % len(self.open_fetches))
            missing = act == "missing"
            if missing and rid not in self.answered:
                self.wanted.discard(rid)
            pipeline.on_payload(self.now_ns, Payload(rid, "UINT8", (1,), b"x", missing=missing))
        elif act == "down":
            gone = [rid for rid in self.open_fetches if rid >= FAR and rid not in self.answered]
            self.wanted.difference_update(gone)
            pipeline.on_frontend_down(self.now_ns, 1)
        elif act == "end" and self.queue:
            job = self.queue.pop(0)
            if pick % 3 == 0:
                pipeline.on_failed(self.now_ns, job, ms(1), "boom")
            else:
                outputs = [OUTPUT] * len(job.inputs)
                pipeline.on_finished(self.now_ns, job, 0, 0, ms(1), outputs)
        elif act == "time":
            pipeline.on_time(self.now_ns)
        self.settle()


ACTS = st.sampled_from(["run", "input", "input", "missing", "down", "end", "time"])


@given(st.lists(st.tuples(ACTS, st.integers(0, 1000)), max_size=80))
def test_every_request_is_answered_exactly_once(steps: list[tuple[str, int]]) -> None:
    world = World()
    for act, pick in steps:
        world.step(act, pick)
    while world.pipeline.jobs:
        world.now_ns = max(world.now_ns, min(world.pipeline.wake_at_ns(), world.now_ns + ms(200)))
        world.pipeline.on_time(world.now_ns)
        world.settle()
        world.step("end", 1)
    assert sorted(world.answered) == sorted(world.wanted)
    assert world.ended == list(range(1, world.batches + 1))


def test_requests_that_failed_together_are_returned_for_the_router_to_try_alone() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, 2, 3, FAR + 4)
    [job] = begun(give(pipeline, 1, 2, 3, FAR + 4))
    outputs = [OUTPUT, "not a number", "broke", "broke"]
    pipeline.on_finished(ms(5), job, 0, 0, ms(5), outputs, frozenset((2, 3)))
    effects = pipeline.take_effects()
    # The second has failed alone: that is its answer.
    assert replied(effects) == [1, 2]
    back = [each for each in effects if isinstance(each, ReturnRequests)]
    assert back == [
        ReturnRequests(0, Returned((3,), 1)),
        ReturnRequests(1, Returned((FAR + 4,), 1)),
    ]
    [done] = reported(effects)
    assert (done.failed, done.spoilt, done.error) == ("", (3, FAR + 4), "broke")


def test_a_frontend_out_of_reach_is_neither_asked_nor_answered() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, FAR + 1)
    [job] = begun(give(pipeline, 1, FAR + 1))
    pipeline.unreachable = frozenset((1,))
    effects = finish(pipeline, job, ms(5))
    assert replied(effects) == [1]
    assert [done.left_out for done in reported(effects)] == [(FAR + 1,)]
    assert order(pipeline, 2, FAR + 2) == []
    assert pipeline.jobs == []


def test_what_a_running_batch_left_out_goes_back_when_its_router_is_lost() -> None:
    pipeline = ready()
    order(pipeline, 1, 1, 2)
    give(pipeline, 1)
    pipeline.on_time(ms(100))
    (job,) = begun(pipeline.take_effects())
    assert job.left_out == (2,)
    # Nobody hears of the end of the batch, so the frontend has to hear of it now.
    pipeline.on_router_down()
    assert pipeline.take_effects() == [ReturnRequests(0, Returned((2,)))]
    assert replied(finish(pipeline, job, ms(110))) == [1]
