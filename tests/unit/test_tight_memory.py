"""Sub-clusters on backends that cannot hold all models: starts, failovers, moves, newcomers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fermata.foundation.units import ms, seconds
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Effect, Load, Request, Unload
from fermata.router.placement.sub_clusters import SubClusters
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import EAGER

MODELS, ROOM = 4, 2
PLAN = {0: 0, 1: 0, 2: 1, 3: 1}


class Router:
    """A router in virtual time, and backends with room for some models each."""

    def __init__(
        self, held: dict[int, set[int]], room: int = ROOM, models: int = MODELS, ranks: int = 2
    ) -> None:
        self.room = room
        self.broken: set[tuple[int, int]] = set()
        """Backends and models that never load there."""
        self.stuck: set[tuple[int, int]] = set()
        """Backends and models whose load never ends."""
        self.held = held
        self.now_ns = 0
        self.loads: list[tuple[int, int]] = []
        self.refused: list[tuple[int, int]] = []
        costs = Costs()
        self.engine = Engine(costs, ranks=ranks)
        for model in range(models):
            costs.add(model, [ms(4 + size) for size in range(1, 9)])
            self.engine.add_application(ModelThread(model, EAGER))
        self.placed = SubClusters(self.engine, [(model,) for model in range(models)])
        self.sent: list[Dispatch] = []
        for backend in held:
            self.bring_up(backend)

    def bring_up(self, backend: int) -> None:
        holds = frozenset(self.held.setdefault(backend, set()))
        rank = self.placed.take(backend, holds)
        self.engine.on_backend_up(self.now_ns, backend, rank=rank, resident=holds)
        self.placed.on_held(self.now_ns, backend, holds)

    def place(self, plan: dict[int, int]) -> None:
        self.placed.place(self.now_ns, plan)
        self.play(0)

    def play(self, for_ns: int) -> None:
        until_ns = self.now_ns + for_ns
        while True:
            while effects := self.engine.take_effects():
                for effect in effects:
                    self._carry_out(effect)
            due_ns = self.engine.wake_at_ns()
            if due_ns > until_ns:
                break
            self.now_ns = max(self.now_ns, due_ns)
            self.engine.on_time(self.now_ns)
        self.now_ns = until_ns

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Dispatch):
            self.sent.append(effect)
            self.engine.on_done(self.now_ns, effect.backend, ms(5))
            self.placed.on_idle(self.now_ns, effect.backend)
        elif isinstance(effect, Unload):
            self.held[effect.backend].remove(effect.variant)
            self._announce(effect.backend, frozenset())
        elif isinstance(effect, Load):
            self._load(effect.backend, effect.variant)

    def _load(self, backend: int, model: int) -> None:
        self.loads.append((backend, model))
        if (backend, model) in self.stuck:
            return
        full = len(self.held[backend]) >= self.room
        if full or (backend, model) in self.broken:
            self.refused.append((backend, model))
            self._announce(backend, frozenset((model,)))
        else:
            self.held[backend].add(model)
            self._announce(backend, frozenset())

    def _announce(self, backend: int, failed: frozenset[int]) -> None:
        holds = frozenset(self.held[backend])
        self.engine.on_resident(self.now_ns, backend, self.placed.kept(backend, holds))
        self.placed.on_held(self.now_ns, backend, holds, failed)

    def serves(self, model: int) -> bool:
        """Whether a request of it runs, on a backend that holds it."""
        self.sent.clear()
        self.engine.on_request(self.now_ns, Request(1, model, self.now_ns, self.now_ns + ms(50)))
        self.play(ms(60))
        return [each.batch.variant for each in self.sent] == [model] and all(
            model in self.held[each.backend] for each in self.sent
        )


def all_served(router: Router) -> list[bool]:
    return [router.serves(model) for model in range(MODELS)]


def test_a_start_loads_what_the_plan_places_and_nothing_before() -> None:
    router = Router({7: set(), 8: set()})
    router.play(seconds(5))
    assert router.loads == []
    router.place(PLAN)
    assert router.refused == []
    assert router.held == {7: {0, 1}, 8: {2, 3}}
    assert all_served(router) == [True] * 4


def test_backends_that_come_after_the_plan_are_filled_too() -> None:
    router = Router({})
    router.place(PLAN)
    for backend in range(5):
        router.bring_up(backend)
        router.play(0)
    assert router.refused == []
    assert sorted(map(sorted, router.held.values())) == [[0, 1]] * 3 + [[2, 3]] * 2
    assert all_served(router) == [True] * 4


@pytest.mark.parametrize("first", [7, 8])
def test_a_new_router_serves_what_backends_hold_before_any_plan(first: int) -> None:
    held = {7: {0, 1}, 8: {2, 3}, 9: {0, 1}}
    router = Router({first: held.pop(first), **held})
    assert all_served(router) == [True] * 4
    # The plan has other numbers for them: nothing has to move.
    router.place(PLAN)
    assert router.loads == []
    assert router.placed.home == [0, 0, 1, 1]
    assert router.placed.of_backend == {7: 0, 8: 1, 9: 0}
    assert router.placed.counts == [2, 1]
    assert all_served(router) == [True] * 4


def test_a_failover_in_the_middle_of_a_move_serves_all_and_ends_it() -> None:
    # Model 1 was on its way to the second sub-cluster.
    router = Router({7: {0, 1}, 8: {1, 2, 3}}, room=3)
    assert all_served(router) == [True] * 4
    router.place({0: 0, 1: 1, 2: 1, 3: 1})
    assert router.held == {7: {0}, 8: {1, 2, 3}}
    assert all_served(router) == [True] * 4


def test_a_load_that_fails_is_tried_again() -> None:
    router = Router({7: set(), 8: set()})
    router.broken = {(7, 1)}
    router.place(PLAN)
    router.play(seconds(10))
    tries = router.refused.count((7, 1))
    assert 3 <= tries <= 5
    router.broken.clear()
    router.play(seconds(33))
    assert router.held[7] == {0, 1}
    assert not router.placed.retries


def test_a_backend_that_changes_sides_unloads_first_where_both_do_not_fit() -> None:
    router = Router({})
    router.place(PLAN)
    router.placed.weigh(0, [3, 1])
    for backend in range(4):
        router.bring_up(backend)
        router.play(0)
    assert sorted(router.placed.of_backend.values()) == [0, 0, 0, 1]
    router.placed.weigh(0, [1, 3])
    router.play(0)
    assert sorted(router.placed.of_backend.values()) == [0, 1, 1, 1]
    assert router.refused == []
    assert sorted(map(sorted, router.held.values())) == [[0, 1], [2, 3], [2, 3], [2, 3]]


def test_as_many_backends_change_sides_as_are_wanted_there() -> None:
    router = Router({})
    router.place(PLAN)
    router.placed.weigh(0, [48, 16])
    for backend in range(64):
        router.bring_up(backend)
    router.play(0)
    assert router.placed.counts == [48, 16]
    router.placed.weigh(router.now_ns, [16, 48])
    router.play(0)
    assert router.placed.counts == [16, 48]
    assert not router.placed.leaving
    assert all_served(router) == [True] * 4


def test_a_sub_cluster_without_backends_is_given_one() -> None:
    router = Router({})
    router.place(PLAN)
    for backend in range(3):
        router.bring_up(backend)
        router.play(0)
    (alone,) = [each for each, rank in router.placed.of_backend.items() if rank == 1]
    router.engine.on_backend_down(router.now_ns, alone)
    router.placed.on_gone(router.now_ns, alone)
    router.play(0)
    assert sorted(router.placed.of_backend.values()) == [0, 1]
    assert all_served(router) == [True] * 4


def test_backends_of_a_sub_cluster_that_serves_nothing_help_another() -> None:
    router = Router({7: set(), 8: set(), 9: set()}, room=4)
    router.place(dict.fromkeys(range(MODELS), 0))
    for backend in [each for each, rank in router.placed.of_backend.items() if rank == 0]:
        router.engine.on_backend_down(router.now_ns, backend)
        router.placed.on_gone(router.now_ns, backend)
    router.play(0)
    assert set(router.placed.of_backend.values()) == {0}
    router.bring_up(10)
    router.play(0)
    assert router.placed.of_backend[10] == 0
    assert all_served(router) == [True] * 4


def test_a_move_that_finds_no_room_leaves_the_application_where_it_is() -> None:
    router = Router({7: set(), 8: set()})
    router.place(PLAN)
    router.place({**PLAN, 1: 1})
    router.play(seconds(5))
    assert router.placed.going == {1: 1}
    assert all_served(router) == [True] * 4
    # The control plane gives it up after a while.
    router.place(PLAN)
    assert not router.placed.going
    router.play(seconds(40))
    assert router.held == {7: {0, 1}, 8: {2, 3}}
    assert all_served(router) == [True] * 4


def test_a_load_that_never_ends_holds_up_its_own_move_alone() -> None:
    router = Router({7: set(), 8: set()}, room=3)
    router.place(PLAN)
    router.stuck = {(8, 1)}
    router.place({0: 0, 1: 1, 2: 0, 3: 1})
    assert router.placed.home == [0, 0, 0, 1]
    assert all_served(router) == [True] * 4


@given(
    st.lists(
        st.tuples(
            st.permutations([0, 0, 1, 1]),
            st.lists(st.sampled_from([(1, 1), (2, 1), (1, 3)]), max_size=2),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(2, 7),
)
def test_whatever_is_planned_and_whoever_leads_each_plan_that_fits_holds(
    steps: list[tuple[list[int], list[tuple[int, int]], bool]], backends: int
) -> None:
    """Swaps have room for one model more; with it every plan can be reached."""
    router = Router({number: set() for number in range(backends)}, room=ROOM + 2)
    for homes, weights, fails_over in steps:
        router.place(dict(enumerate(homes)))
        for wanted in weights:
            router.placed.weigh(router.now_ns, wanted)
            router.play(ms(1))
        if fails_over:
            router = Router(router.held, router.room)
            assert all_served(router) == [True] * 4
            router.place(dict(enumerate(homes)))
        router.play(seconds(40))
        assert router.placed.home == homes
        for backend, rank in router.placed.of_backend.items():
            assert router.held[backend] == {m for m, home in enumerate(homes) if home == rank}
        assert all_served(router) == [True] * 4
