"""Moves between sub-clusters: loaded there before it is served there, unloaded last."""

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Load, Request, Unload
from fermata.router.placement.sub_clusters import SubClusters
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import EAGER

A, B = 0, 1
ALL = frozenset((A, B))


def make() -> tuple[Engine, SubClusters]:
    """Two applications of one variant each on two sub-clusters; a batch of b runs b + 4 ms."""
    costs = Costs()
    engine = Engine(costs, ranks=2)
    for variant in (A, B):
        costs.add(variant, [ms(4 + size) for size in range(1, 9)])
        engine.add_application(ModelThread(variant, EAGER))
    return engine, SubClusters(engine, [(A,), (B,)])


def bring_up(engine: Engine, placed: SubClusters, backend: int) -> int:
    rank = placed.take(backend, frozenset())
    engine.on_backend_up(0, backend, rank=rank, resident=frozenset())
    placed.on_held(0, backend, frozenset())
    return rank


def loaded(placed: SubClusters, backend: int, now_ns: int = 0) -> None:
    """Everything asked for has been loaded."""
    held = placed.held[backend] | placed.asked[backend]
    placed.engine.on_resident(now_ns, backend, held)
    placed.on_held(now_ns, backend, held)


def orders(engine: Engine) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for effect in engine.take_effects():
        if isinstance(effect, Load | Unload):
            found.append((type(effect).__name__, effect.backend, effect.variant))
    return found


def both_up() -> tuple[Engine, SubClusters]:
    engine, placed = make()
    placed.place(0, {A: 0, B: 1})
    for backend in (7, 8):
        bring_up(engine, placed, backend)
    for backend in (7, 8):
        loaded(placed, backend)
    engine.take_effects()
    return engine, placed


def test_without_backends_a_plan_holds_at_once() -> None:
    engine, placed = make()
    placed.place(0, {A: 0, B: 1})
    assert placed.home == [0, 1]
    assert engine.sources[B].desk is engine.ranks[1]


def test_backends_go_where_they_are_missed_and_load_what_is_served_there() -> None:
    engine, placed = make()
    placed.place(0, {A: 0, B: 1})
    assert [bring_up(engine, placed, backend) for backend in (7, 8, 9)] == [0, 1, 0]
    assert orders(engine) == [("Load", 7, A), ("Load", 8, B), ("Load", 9, A)]


def test_wanted_backends_weigh() -> None:
    engine, placed = make()
    placed.weigh(0, [3, 1])
    ranks = [bring_up(engine, placed, backend) for backend in range(4)]
    assert sorted(ranks) == [0, 0, 0, 1]


def test_a_model_is_loaded_then_served_then_unloaded() -> None:
    engine, placed = both_up()
    placed.place(0, {A: 1})
    assert orders(engine) == [("Load", 8, A)]
    assert placed.home[A] == 0
    assert placed.going == {A: 1}
    loaded(placed, 8)
    assert placed.home[A] == 1
    assert not placed.going
    # Backend 7 has nothing else to hold: unloading its last would say that it drains.
    assert orders(engine) == []


def test_the_old_home_unloads_once_it_holds_something_else() -> None:
    engine, placed = both_up()
    placed.place(0, {A: 1, B: 0})
    assert orders(engine) == [("Load", 7, B), ("Load", 8, A)]
    loaded(placed, 7)
    assert placed.home == [0, 0]
    loaded(placed, 8)
    assert placed.home == [1, 0]
    assert sorted(orders(engine)) == [("Unload", 7, A), ("Unload", 8, B)]


def test_a_batch_under_way_keeps_its_model_until_it_ends() -> None:
    engine, placed = both_up()
    engine.on_request(0, Request(1, A, 0, ms(50)))
    engine.on_time(engine.wake_at_ns())
    (sent,) = [each for each in engine.take_effects() if isinstance(each, Dispatch)]
    assert sent.backend == 7
    placed.place(ms(1), {A: 1, B: 0})
    loaded(placed, 7, ms(1))
    loaded(placed, 8, ms(1))
    assert orders(engine) == [("Load", 7, B), ("Load", 8, A), ("Unload", 8, B)]
    engine.on_done(ms(5), 7, ms(5))
    placed.on_idle(ms(5), 7)
    assert orders(engine) == [("Unload", 7, A)]


def test_who_is_queued_goes_along_and_is_served_there() -> None:
    engine, placed = both_up()
    engine.on_request(0, Request(1, A, 0, ms(50)))
    engine.on_time(engine.wake_at_ns())
    engine.on_request(ms(1), Request(2, A, ms(1), ms(60)))
    engine.take_effects()
    placed.place(ms(1), {A: 1})
    loaded(placed, 8, ms(1))
    sent = [each for each in engine.take_effects() if isinstance(each, Dispatch)]
    engine.on_time(ms(2))
    sent += [each for each in engine.take_effects() if isinstance(each, Dispatch)]
    assert [(each.backend, [r.rid for r in each.batch.requests]) for each in sent] == [(8, [2])]


def test_a_move_waits_for_every_backend_of_the_new_home() -> None:
    engine, placed = both_up()
    placed.wanted = [1.0, 2.0]
    assert bring_up(engine, placed, 9) == 1
    placed.place(0, {A: 1})
    loaded(placed, 8)
    assert placed.home[A] == 0
    loaded(placed, 9)
    assert placed.home[A] == 1


def test_a_backend_that_dies_holds_no_move_up() -> None:
    engine, placed = both_up()
    placed.wanted = [1.0, 2.0]
    bring_up(engine, placed, 9)
    placed.place(0, {A: 1})
    loaded(placed, 8)
    engine.on_backend_down(0, 9)
    placed.on_gone(0, 9)
    assert placed.home[A] == 1


def test_a_backend_changes_sides_once_its_batch_has_ended() -> None:
    engine, placed = both_up()
    placed.wanted = [2.0, 1.0]
    assert bring_up(engine, placed, 9) == 0
    loaded(placed, 9)
    for rid in range(2):
        engine.on_request(0, Request(rid, A, 0, ms(50)))
        engine.on_time(engine.wake_at_ns())
    engine.take_effects()
    placed.weigh(ms(1), [1.0, 2.0])
    moving = next(iter(placed.leaving))
    assert moving == 9
    assert placed.of_backend[9] == 0
    engine.on_done(ms(6), 9, ms(6))
    placed.on_idle(ms(6), 9)
    assert placed.of_backend[9] == 1
    assert ("Load", 9, B) in orders(engine)


def test_load_that_ends_on_a_backend_that_has_been_retired_changes_nothing() -> None:
    engine, placed = both_up()
    engine.on_drain(0, 7)
    placed.on_gone(0, 7)
    placed.on_held(ms(1), 7, ALL)
    assert orders(engine) == []
    assert 7 not in placed.held
    placed.on_idle(ms(2), 7)
    assert orders(engine) == []
