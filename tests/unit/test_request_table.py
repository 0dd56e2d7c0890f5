"""The request table: one answer for each request, in time, whatever happens around it."""

from request_tables import (
    LIMITS,
    admit,
    answers,
    arrival,
    make,
    payload,
    released,
    result,
    shared,
    to_router,
)

from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.pending_request import (
    Release,
    RequestTerms,
    SendAnswer,
    ToBackend,
    ToRouter,
)
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import NEVER, ms, seconds
from fermata.router.links.messages import (
    RID_BITS,
    Cancel,
    Dropped,
    Fetch,
    Payload,
    Result,
    Returned,
    Submit,
)


def test_no_tenant_takes_the_memory_of_others() -> None:
    table = make(limits=TableLimits(payload_bytes_max=1000, tenant_share=3.0))

    def of(tenant: int) -> RequestTerms:
        return RequestTerms("resnet", ms(50), ms(50), 50, tenant=tenant)

    taken = [table.admit(0, of(1)) for _ in range(20)]
    # Alone, one has three quarters.
    assert [isinstance(each, int) for each in taken] == [True] * 15 + [False] * 5
    refusal = taken[-1]
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, "its tenant holds 750 of 1000" in refusal.message) == ("memory", True)
    # Another finds room, and a third too.
    assert isinstance(table.admit(0, of(2)), int)
    assert isinstance(table.admit(0, of(3)), int)
    for rid in taken[:15]:
        assert isinstance(rid, int)
        table.on_cancel(0, rid)
    assert table.memory.tenants == {2: 50, 3: 50}


def test_without_tenants_all_memory_is_for_everybody() -> None:
    table = make()
    assert all(isinstance(table.admit(0, arrival()), int) for _ in range(10))
    assert isinstance(table.admit(0, arrival()), Refusal)


def test_an_input_is_not_held_for_as_long_as_its_client_would_wait() -> None:
    table = make(limits=TableLimits(reply_ns=ms(1), hold_ns_max=seconds(10)))

    def told(terms: RequestTerms) -> tuple[int, int]:
        admit(table, 0, terms)
        (effect,) = table.take_effects()
        assert isinstance(effect, ToRouter)
        assert isinstance(effect.message, Submit)
        return effect.message.slo_ns, effect.message.hard_limit_ns

    minutes = seconds(500)
    patient = RequestTerms("resnet", minutes, minutes, 10)
    assert told(patient) == (seconds(10) - ms(1), minutes - ms(1))
    # An application that is slow itself holds requests for its own SLO.
    slow = RequestTerms("large", minutes, minutes, 10, usual_slo_ns=seconds(60))
    assert told(slow) == (seconds(60) - ms(1), minutes - ms(1))
    assert told(arrival(ms(50))) == (ms(49), ms(49))


def test_a_request_is_submitted_with_the_reply_taken_off() -> None:
    table = make()
    rid = admit(table, ms(3), arrival(ms(50)))
    assert rid == 7 << RID_BITS
    assert to_router(table) == [Submit(rid, "resnet", ms(49), ms(49))]


def test_a_floor_and_a_pin_travel_again_with_a_request() -> None:
    table = make()
    given = RequestTerms("resnet", ms(50), ms(50), 1, accuracy_floor=0.7, pinned="r50")
    rid = admit(table, 0, given)
    first = Submit(rid, "resnet", ms(49), ms(49), accuracy_floor=0.7, pinned="r50")
    assert to_router(table) == [first]
    table.on_router_down(ms(1))
    table.on_router_up(ms(2), 2)
    again = Submit(rid, "resnet", ms(47), ms(47), accuracy_floor=0.7, pinned="r50")
    assert to_router(table) == [again]


def test_the_grpc_deadline_bounds_slo_and_hard_limit() -> None:
    table = make()
    rid = admit(table, 0, RequestTerms("resnet", ms(50), ms(200), 1, left_ns=ms(30)))
    assert to_router(table) == [Submit(rid, "resnet", ms(29), ms(29))]
    rid = admit(table, 0, RequestTerms("resnet", ms(50), ms(200), 1, left_ns=ms(100)))
    assert to_router(table) == [Submit(rid, "resnet", ms(49), ms(99))]


def test_a_result_answers_and_frees_memory_once() -> None:
    table = make()
    rid = admit(table, 0, arrival(size=600))
    table.on_payload(ms(1), rid, payload(rid))
    table.take_effects()
    table.on_result(ms(20), 1, result(rid))
    effects = table.take_effects()
    assert effects == [SendAnswer(rid, result(rid)), Release(payload(rid))]
    assert table.payload_bytes == 0
    table.on_result(ms(21), 1, result(rid))
    table.on_dropped(ms(21), Dropped(rid, "late"))
    table.on_cancel(ms(21), rid)
    table.on_time(seconds(1))
    assert table.take_effects() == []
    assert table.counts.of("resnet").good == 1
    assert table.counts.stale_results == 1


def test_a_fetch_before_the_payload_waits_for_it() -> None:
    table = make()
    rid = admit(table, 0, arrival())
    table.take_effects()
    table.on_fetch(ms(1), 3, Fetch(1, (rid,)))
    assert table.take_effects() == []
    table.on_payload(ms(2), rid, payload(rid))
    assert table.take_effects() == [ToBackend(3, payload(rid))]


def test_a_fetch_of_an_ended_request_is_told_so() -> None:
    table = make()
    rid = admit(table, 0, arrival())
    table.on_fetch(ms(1), 3, Fetch(1, (rid,)))
    table.take_effects()
    table.on_cancel(ms(2), rid)
    gone = Payload(rid, "", (), missing=True)
    effects = table.take_effects()
    assert effects[0] == ToRouter(Cancel(rid))
    assert effects[1] == ToBackend(3, gone)
    table.on_fetch(ms(3), 4, Fetch(2, (rid,)))
    assert table.take_effects() == [ToBackend(4, gone)]


def test_the_last_word_comes_before_the_client_hangs_up() -> None:
    table = make()
    rid = admit(table, 0, arrival(ms(50), left_ns=ms(50)))
    table.take_effects()
    table.on_time(ms(49))
    assert answers(table) == []
    table.on_time(ms(50) - 1)
    assert answers(table) == [(rid, "DEADLINE_EXCEEDED")]


def test_silence_ends_in_deadline_exceeded_within_the_grace() -> None:
    table = make()
    rid = admit(table, 0, arrival(ms(50)))
    table.take_effects()
    assert table.wake_at_ns() == ms(70)
    table.on_time(ms(70) - 1)
    assert table.take_effects() == []
    table.on_time(ms(70))
    effects = table.take_effects()
    assert effects[0] == ToRouter(Cancel(rid))
    assert isinstance(effects[1], SendAnswer)
    assert isinstance(effects[1].outcome, Refusal)
    assert effects[1].outcome.message == "expired: its input was still being decoded after 70 ms"
    assert table.wake_at_ns() == NEVER


def test_each_reason_has_its_status_and_overload_a_retry_hint() -> None:
    wanted = {
        "late": "DEADLINE_EXCEEDED",
        "window": "RESOURCE_EXHAUSTED",
        "shed": "RESOURCE_EXHAUSTED",
        "superseded": "CANCELLED",
        "cancelled": "CANCELLED",
        "backend-lost": "UNAVAILABLE",
        "no-backend": "UNAVAILABLE",
        "something new": "UNAVAILABLE",
    }
    table = make()
    for reason, status in wanted.items():
        rid = admit(table, 0, arrival())
        table.on_dropped(0, Dropped(rid, reason))
        (answer,) = [each for each in table.take_effects() if isinstance(each, SendAnswer)]
        assert isinstance(answer.outcome, Refusal)
        assert answer.outcome.status == status
        assert answer.outcome.message.startswith(f"{reason}: ")
        hinted = answer.outcome.retry_after_ns > 0
        assert hinted == (status in ("RESOURCE_EXHAUSTED", "UNAVAILABLE"))
    assert table.counts.of("resnet").refused == dict.fromkeys(wanted, 1)


def test_a_model_error_and_a_bad_input_are_told_apart() -> None:
    table = make()
    failed, bad = admit(table, 0, arrival()), admit(table, 0, arrival())
    table.on_result(0, 1, result(failed, "out of memory"))
    table.on_bad_payload(0, bad, "no JPEG")
    assert answers(table) == [(failed, "INTERNAL"), (bad, "INVALID_ARGUMENT")]


def test_an_input_that_was_late_is_worth_a_retry_whatever_the_error_says() -> None:
    table = make()
    late, raised = admit(table, 0, arrival()), admit(table, 0, arrival())
    told = admit(table, 0, arrival())
    prose = "its input was not there in time"
    table.on_result(0, 1, Result(late, "r50", 8, 0, 0, error="too slow", input_late=True))
    # A model may raise anything, this too.
    table.on_result(0, 1, result(raised, prose))
    table.on_dropped(0, Dropped(told, "failed", 0, prose))
    found = [each for each in table.take_effects() if isinstance(each, SendAnswer)]
    refusals = [each.outcome for each in found if isinstance(each.outcome, Refusal)]
    assert [each.reason for each in refusals] == ["input-late", "failed", "failed"]
    assert [each.retry_after_ns > 0 for each in refusals] == [True, False, False]


def test_a_failure_where_it_was_given_up_does_not_end_a_request() -> None:
    table = make()
    rid = admit(table, 0, arrival())
    table.on_payload(0, rid, payload(rid))
    table.on_fetch(0, 1, Fetch(1, (rid,)))
    # The router has given backend 1 up, and another one has the request.
    table.on_fetch(ms(5), 2, Fetch(2, (rid,)))
    table.on_result(ms(6), 1, result(rid, "the kernel failed"))
    assert answers(table) == []
    table.on_result(ms(9), 2, result(rid))
    assert answers(table) == [(rid, "OK")]


def test_memory_that_a_backend_may_still_read_is_kept_until_it_answers() -> None:
    table = make()
    gone, late, unread = (admit(table, 0, arrival()) for _ in range(3))
    for rid in (gone, late, unread):
        table.on_payload(0, rid, shared(rid))
    table.on_fetch(0, 1, Fetch(1, (gone, late)))
    for rid in (gone, late, unread):
        table.on_cancel(ms(1), rid)
    assert released(table) == [unread]
    table.on_result(ms(2), 1, result(gone))
    assert released(table) == [gone]
    # Backend 1 has died; nobody will say that it reads no more.
    assert table.wake_at_ns() == ms(1) + TableLimits().lent_ns
    table.on_time(table.wake_at_ns())
    assert released(table) == [late]
    assert table.wake_at_ns() == NEVER


def test_memory_is_kept_for_the_backend_that_was_given_up_too() -> None:
    table = make()
    rid = admit(table, 0, arrival())
    table.on_fetch(0, 1, Fetch(1, (rid,)))
    table.on_payload(0, rid, shared(rid))
    table.on_fetch(0, 2, Fetch(2, (rid,)))
    table.on_result(ms(5), 2, result(rid))
    assert released(table) == []
    table.on_returned(ms(6), 1, Returned((rid,)))
    assert released(table) == [rid]


def test_memory_is_bounded_and_the_excess_told_when_to_come_back() -> None:
    table = make()
    admit(table, 0, arrival(ms(50), size=600))
    refused = table.admit(ms(10), arrival(size=401))
    assert isinstance(refused, Refusal)
    assert refused.status == "RESOURCE_EXHAUSTED"
    assert refused.retry_after_ns == ms(60)
    assert isinstance(table.admit(ms(10), arrival(size=400)), int)


def test_bad_slos_and_hopeless_deadlines_are_refused_on_arrival() -> None:
    table = make()
    for slo_ns in (0, -ms(1), LIMITS.slo_ns_max + 1):
        refused = table.admit(0, arrival(slo_ns))
        assert isinstance(refused, Refusal)
        assert refused.status == "INVALID_ARGUMENT"
    late = table.admit(0, arrival(left_ns=ms(1)))
    assert isinstance(late, Refusal)
    assert late.status == "DEADLINE_EXCEEDED"


def test_a_returning_router_gets_what_no_backend_has_and_time_allows() -> None:
    table = make()
    running, queued = admit(table, 0, arrival(ms(900))), admit(table, 0, arrival(ms(900)))
    admit(table, 0, arrival(ms(50)))
    table.on_fetch(ms(1), 3, Fetch(1, (running,)))
    table.on_router_down(ms(10))
    table.take_effects()
    held = admit(table, ms(20), arrival(ms(500)))
    assert table.take_effects() == []
    table.on_router_up(ms(100), 2)
    assert to_router(table) == [
        Submit(queued, "resnet", ms(799), ms(799)),
        Submit(held, "resnet", ms(419), ms(419)),
    ]
    # The new router has never heard of the batch that dies here, so its request comes from us.
    table.on_backend_down(ms(200), 3)
    assert to_router(table) == [Submit(running, "resnet", ms(699), ms(699))]
    # Of this batch it knows, and ignores what it has; but a result may have been lost.
    table.on_fetch(ms(250), 4, Fetch(2, (running,)))
    table.on_backend_down(ms(300), 4)
    assert to_router(table) == [Submit(running, "resnet", ms(599), ms(599))]


def test_what_a_backend_returns_goes_to_the_router_that_came_since() -> None:
    table = make()
    early, late = admit(table, 0, arrival(ms(900))), admit(table, 0, arrival(ms(900)))
    table.on_fetch(ms(1), 3, Fetch(1, (early, late)))
    table.on_router_down(ms(10))
    table.take_effects()
    # Before there is another router: it waits for one.
    table.on_returned(ms(20), 3, Returned((early, 12345)))
    assert to_router(table) == []
    table.on_router_up(ms(100), 2)
    assert to_router(table) == [Submit(early, "resnet", ms(799), ms(799))]
    # Somebody else's word counts for nothing.
    table.on_returned(ms(200), 4, Returned((late,)))
    assert to_router(table) == []
    table.on_returned(ms(200), 3, Returned((late,)))
    assert to_router(table) == [Submit(late, "resnet", ms(699), ms(699))]


def test_what_failed_on_a_backend_is_the_routers_to_decide() -> None:
    table = make()
    again, told = admit(table, 0, arrival()), admit(table, 0, arrival())
    table.on_fetch(ms(1), 3, Fetch(1, (again, told)))
    table.take_effects()
    table.on_returned(ms(5), 3, Returned((again, told), term=1))
    assert table.take_effects() == []
    table.on_dropped(ms(6), Dropped(told, "failed", 0, "ValueError: thirteen"))
    [answer] = [each for each in table.take_effects() if isinstance(each, SendAnswer)]
    assert isinstance(answer.outcome, Refusal)
    assert (answer.outcome.status, answer.outcome.reason) == ("INTERNAL", "failed")
    assert answer.outcome.message == "the model failed: ValueError: thirteen"
    # It runs elsewhere, and what the first backend says of it comes too late to matter.
    table.on_fetch(ms(7), 4, Fetch(2, (again,)))
    table.on_returned(ms(8), 3, Returned((again,), term=1))
    table.on_result(ms(12), 4, result(again))
    assert answers(table) == [(again, "OK")]


def test_what_failed_is_submitted_anew_where_its_router_may_have_forgotten_it() -> None:
    table = make()
    rid = admit(table, 0, arrival(ms(900)))
    table.on_fetch(ms(1), 3, Fetch(1, (rid,)))
    table.on_router_down(ms(10))
    # The same router; but it forgets whoever's frontend is away when a batch ends.
    table.on_router_up(ms(20), 1)
    table.take_effects()
    table.on_returned(ms(100), 3, Returned((rid,), term=1))
    assert to_router(table) == [Submit(rid, "resnet", ms(799), ms(799))]


def test_without_a_router_requests_end_unavailable() -> None:
    table = make(router=False)
    refused = table.admit(0, arrival())
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.reason) == ("UNAVAILABLE", "no-router")
    table = make()
    table.on_router_down(ms(1))
    rid = admit(table, ms(2), arrival(ms(50)))
    table.on_time(ms(72))
    assert answers(table) == [(rid, "UNAVAILABLE")]


def test_a_draining_table_finishes_what_it_has() -> None:
    table = make()
    rid = admit(table, 0, arrival())
    table.on_drain()
    refused = table.admit(0, arrival())
    assert isinstance(refused, Refusal)
    assert refused.reason == "draining"
    table.on_result(ms(1), 1, result(rid))
    assert answers(table) == [(rid, "OK")]


def test_timers_of_answered_requests_do_not_pile_up() -> None:
    table = make()
    first = admit(table, 0, arrival(seconds(500), size=0))
    for _ in range(3000):
        rid = admit(table, 0, arrival(seconds(600), size=0))
        table.on_result(0, 1, result(rid))
    assert table.wake_at_ns() == seconds(500) + LIMITS.grace_ns
    assert len(table._timers) == 1
    assert first in table.entries
