"""Jellyfish's worker side: queues by mapping, lazy drops, advice, plans made elsewhere."""

import random

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Advise, ClientReport, Dispatch, Drop, DropReason, Request
from fermata.router.policies.family import Family, family_of
from fermata.router.policies.jellyfish.dominance import accurate_order
from fermata.router.policies.jellyfish.options import JellyfishOptions
from fermata.router.policies.jellyfish.source import Jellyfish

SIZES = (128, 224, 320)
TABLES = ([10.0, 14.0, 18.0], [15.0, 22.0, 29.0], [25.0, 40.0, 55.0])


def family(accuracy: tuple[float, ...] = (0.3, 0.5, 0.6)) -> Family:
    return family_of(0, "cameras", ms(100), (0, 1, 2), 0, accuracy, SIZES)


def engine(backends: int = 1, **options: object) -> tuple[Engine, Jellyfish]:
    costs = Costs()
    for variant, table in enumerate(TABLES):
        costs.add(variant, [ms(value) for value in table], None)
    made = Engine(costs)
    source = Jellyfish(family(), JellyfishOptions(**options), random.Random(0))  # type: ignore[arg-type]
    made.add_application(source)
    for backend in range(backends):
        made.on_backend_up(0, backend, owner=0)
    return made, source


def report(client: int, mbps: float, slo_ms: float = 100, **more: object) -> ClientReport:
    # 100 kbit at 128 pixels.
    return ClientReport(client, ms(slo_ms), 10.0, mbps * 1e6, 128, 100_000, **more)  # type: ignore[arg-type]


def request(rid: int, client: int, now_ns: int, left_ms: float = 80) -> Request:
    return Request(rid, 0, now_ns, now_ns + ms(left_ms), client=client)


def decide(made: Engine, now_ns: int) -> list[Advise]:
    made.on_time(now_ns)
    return [each for each in made.take_effects() if isinstance(each, Advise)]


def test_client_on_a_good_network_is_told_to_send_large_frames() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50))
    advice = decide(made, 1)
    assert [(each.client, each.input_size, each.served) for each in advice] == [(1, 320, True)]
    # 100 ms less twice the run of a batch of 1.
    assert advice[0].network_ns == ms(50)


def test_client_on_a_poor_network_is_told_to_send_small_ones() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 1.5))
    assert [each.input_size for each in decide(made, 1)] == [128]


def test_client_below_the_size_of_its_dnn_is_told_to_leave_time_for_falls() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50))
    made.on_report(0, 0, report(2, 3.5))
    # 0.6 of what two runs at 320 pixels leave of 100 ms.
    advice = {each.client: (each.input_size, each.network_ns) for each in decide(made, 1)}
    assert advice == {1: (320, ms(30)), 2: (320, ms(30))}


def test_client_below_the_size_of_its_dnn_sends_no_frame_that_holds_the_next_up() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50, slo_ms=300))
    made.on_report(0, 0, ClientReport(2, ms(300), 32.0, 8e6, 128, 100_000))
    # Two runs of two at 320 pixels leave 220 ms; the next frame of the second comes after 31.25.
    advice = {each.client: (each.input_size, each.network_ns) for each in decide(made, 1)}
    assert advice == {1: (320, ms(100)), 2: (320, ms(31.25))}


def test_advice_is_given_once() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50))
    assert len(decide(made, 1)) == 1
    made.on_report(ms(400), 0, report(1, 50))
    assert decide(made, ms(600)) == []


def test_clients_that_fell_silent_are_forgotten_though_nobody_plans() -> None:
    made, source = engine(backends=0)
    for number in range(1000):
        made.on_report(ms(10 * number), 0, report(number, 50))
        made.on_report(ms(10 * number), 0, report(10_000, 50))
    # Those heard in the last two seconds.
    assert len(source.clients) == 202
    assert 10_000 in source.clients


def test_fall_of_bandwidth_is_planned_for_at_once() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50))
    decide(made, 1)
    made.on_report(ms(150), 0, report(1, 1.5))
    assert [each.input_size for each in decide(made, ms(151))] == [128]


def test_requests_run_on_the_dnn_of_their_client() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50))
    decide(made, 1)
    made.on_request(ms(2), request(7, 1, ms(2)))
    dispatches = [each for each in made.take_effects() if isinstance(each, Dispatch)]
    assert [(each.batch.variant, len(each.batch.requests)) for each in dispatches] == [(2, 1)]


def test_late_requests_are_dropped_and_the_others_run() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50))
    decide(made, 1)
    made.on_request(ms(2), request(1, 1, ms(2)))
    made.on_request(ms(3), request(2, 1, ms(3), left_ms=40))
    made.on_request(ms(4), request(3, 1, ms(4)))
    made.take_effects()
    made.on_done(ms(27), 0, ms(25))
    effects = made.take_effects()
    assert [each.request.rid for each in effects if isinstance(each, Drop)] == [2]
    ran = [each.batch.requests for each in effects if isinstance(each, Dispatch)]
    assert [request.rid for batch in ran for request in batch] == [3]


def test_unmapped_client_is_served_where_nobody_waits() -> None:
    made, _ = engine()
    made.on_request(ms(2), request(1, 9, ms(2)))
    assert [type(each) for each in made.take_effects()] == [Dispatch]


def test_floor_and_pin_of_a_client_hold() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 2, accuracy_floor=0.45))
    made.on_report(0, 0, report(2, 50, pinned=0))
    sizes = {each.client: (each.input_size, each.served) for each in decide(made, 1)}
    # The first client's network carries nothing above its floor: it is told that it is not served.
    assert sizes[1][1] is False
    assert sizes[2] == (128, True)
    # Nor is it answered with less.
    made.on_request(ms(2), request(7, 1, ms(2)))
    (drop,) = made.take_effects()
    assert isinstance(drop, Drop)
    assert drop.reason == DropReason.FLOOR


def test_stand_in_for_a_dnn_that_is_not_loaded_serves_only_who_allows_it() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50, pinned=2))
    made.on_report(0, 0, report(2, 50))
    decide(made, 1)
    made.on_resident(ms(2), 0, frozenset((1,)))
    made.on_request(ms(2), request(1, 1, ms(2), left_ms=90))
    assert made.take_effects() == []
    # The other client's frame neither waits for it nor takes it along.
    made.on_request(ms(3), request(2, 2, ms(3), left_ms=95))
    (stand_in,) = made.take_effects()
    assert isinstance(stand_in, Dispatch)
    assert (stand_in.batch.variant, [each.rid for each in stand_in.batch.requests]) == (1, [2])
    made.on_resident(ms(4), 0, frozenset((1, 2)))
    made.on_done(ms(18), 0, ms(15))
    (loaded,) = made.take_effects()
    assert isinstance(loaded, Dispatch)
    assert (loaded.batch.variant, [each.rid for each in loaded.batch.requests]) == (2, [1])


def test_stand_in_keeps_the_applications_floor() -> None:
    made, source = engine()
    source.floor = 0.55
    source.workers[0].dnn = 2
    made.on_resident(ms(2), 0, frozenset((0, 1)))
    made.on_request(ms(2), request(1, 9, ms(2)))
    assert made.take_effects() == []


def test_plan_may_be_made_elsewhere() -> None:
    made, source = engine()
    source.plan_elsewhere()
    made.on_report(0, 0, report(1, 50))
    assert decide(made, ms(600)) == []
    question = source.question(ms(600))
    assert [each.number for each in question.wishes] == [1]
    assert question.workers == 1


def test_silent_client_is_forgotten() -> None:
    made, source = engine()
    made.on_report(0, 0, report(1, 50))
    decide(made, 1)
    assert source.question(ms(2500)).wishes == ()


def test_dnn_that_is_larger_and_no_better_is_left_out() -> None:
    assert accurate_order(family((0.5, 0.4, 0.6))) == [0, 2]


def test_queue_of_a_lost_backend_moves() -> None:
    made, _ = engine(backends=2)
    made.on_report(0, 0, report(1, 50))
    decide(made, 1)
    made.on_request(ms(2), request(1, 1, ms(2)))
    first = [each for each in made.take_effects() if isinstance(each, Dispatch)]
    made.on_backend_down(ms(3), first[0].backend)
    again = [each for each in made.take_effects() if isinstance(each, Dispatch)]
    assert [each.backend for each in again] == [1 - first[0].backend]


def test_frames_that_piled_up_run_on_a_smaller_dnn() -> None:
    made, _ = engine()
    made.on_report(0, 0, report(1, 50))
    decide(made, 1)
    made.on_request(ms(2), request(1, 1, ms(2)))
    for rid in (2, 3):
        made.on_request(ms(3), request(rid, 1, ms(3), left_ms=60))
    made.take_effects()
    made.on_done(ms(27), 0, ms(25))
    # 36 ms are left: both take 40 at 320 pixels, and 22 at 224.
    (batch,) = [each.batch for each in made.take_effects() if isinstance(each, Dispatch)]
    assert (batch.variant, [each.rid for each in batch.requests]) == (1, [2, 3])
