"""Two routers and applications that move between them, under simulated faults."""

from dataclasses import replace

import pytest

from fermata.autoscaler.placer import Placer
from fermata.deployments.control.sub_clusters.moves import HomeMoves
from fermata.deployments.frontend.requests.pending_request import PartTicket
from fermata.fault_simulator.environment.world import World
from fermata.fault_simulator.sub_clusters.run import run_sub_clusters
from fermata.fault_simulator.sub_clusters.system import Shape, drawn_shape
from fermata.router.leadership.role import StandbyMonitor
from fermata.router.live.notifier import FrontendNotifier
from fermata.router.live.separation import Separation

SEEDS = 6
MORE_SEEDS = 50
SEARCH = 3
LOOSE = Shape(standby=False, spread=(), room=3)
"""The plain shape, for what needs no other."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_death_is_noticed_by_its_own_sub_cluster_alone(seed: int) -> None:
    story = run_sub_clusters(seed)
    assert not story.broken, story
    assert story.outcomes["served"] > 80


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + MORE_SEEDS))
def test_many_more_seeds(seed: int) -> None:
    story = run_sub_clusters(seed)
    assert not story.broken, story


@pytest.mark.parametrize("seed", range(3))
def test_applications_move_where_there_is_room(seed: int) -> None:
    story = run_sub_clusters(seed, shape=LOOSE)
    assert not story.broken, story
    assert story.outcomes["homes seen"] > 1


def test_seeds_draw_every_shape() -> None:
    shapes = {drawn_shape(World(seed).rng("shape")) for seed in range(MORE_SEEDS)}
    assert {each.standby for each in shapes} == {False, True}
    assert {(len(each.spread), each.room) for each in shapes} == {
        *((0, room) for room in (2, 3, 4)),
        *((1, room) for room in (3, 4)),
    }


def test_moves_alone_refuse_nobody() -> None:
    story = run_sub_clusters(50, ("control",), shape=LOOSE)
    assert not story.broken, story
    assert story.outcomes.keys() == {"served", "homes seen"}
    assert story.outcomes["homes seen"] > 1


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old homes hand back at once what frontends have not yet been told of."""
    monkeypatch.setattr(HomeMoves, "on_time", lambda moves, now_ns: moves.leaving.clear())


def test_a_pipeline_moves_whole_and_loses_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_back: list[bool] = []
    on_moved = PartTicket.on_moved

    def noted(ticket: PartTicket, home: int, ran: bool) -> None:
        handed_back.append(True)
        on_moved(ticket, home, ran)

    hurry(monkeypatch)
    monkeypatch.setattr(PartTicket, "on_moved", noted)
    for seed in range(4):
        story = run_sub_clusters(seed, ("control",), shape=replace(LOOSE, pipeline=True))
        assert not story.broken, story
        assert story.outcomes.keys() == {"served", "homes seen"}
        assert story.outcomes["homes seen"] > 1
    assert len(handed_back) > 5


@pytest.mark.parametrize("seed", range(4))
def test_deaths_leave_nothing_of_queries_behind(seed: int) -> None:
    story = run_sub_clusters(seed, shape=replace(LOOSE, pipeline=True))
    assert not story.broken, story
    assert story.outcomes["served"] > 80


def test_queries_whose_router_has_forgotten_them_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(PartTicket, "on_moved", lambda *given: None)
    assert found(("control",), replace(LOOSE, pipeline=True))


@pytest.mark.parametrize(
    "policies",
    [("single-queue", "eager"), ("jellyfish", "routing"), ("sneakpeek", "eager"), ("ramsis",)],
)
def test_policies_with_backends_of_their_own_move_and_refuse_nobody(
    policies: tuple[str, ...],
) -> None:
    shape = replace(LOOSE, policies=policies)
    story = run_sub_clusters(50, ("control",), shape=shape)
    assert not story.broken, story
    assert story.outcomes.keys() == {"served", "homes seen"}
    assert story.outcomes["homes seen"] > 1
    for seed in (1, 2):
        story = run_sub_clusters(seed, shape=shape)
        assert not story.broken, story


def found(kinds: tuple[str, ...], shape: Shape) -> bool:
    """Whether some seed breaks."""
    return any(run_sub_clusters(seed, kinds, shape=shape).broken for seed in range(SEARCH))


def test_homes_that_are_told_before_they_have_loaded_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_loaded = HomeMoves.on_loaded

    def at_once(moves: HomeMoves, now_ns: int, wall_ms: int, loaded: object) -> None:
        everything = {name for names in moves.members.values() for name in names}
        on_loaded(moves, now_ns, wall_ms, dict.fromkeys(range(2), everything))

    monkeypatch.setattr(HomeMoves, "on_loaded", at_once)
    assert found(("control",), LOOSE)


def test_routers_that_refuse_what_has_moved_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrontendNotifier, "lives_elsewhere", lambda *given: False)
    monkeypatch.setattr(HomeMoves, "on_time", lambda moves, now_ns: moves.leaving.clear())
    assert found(("control",), LOOSE)


def test_links_that_never_heal_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Separation, "_join", lambda *given: None)
    assert found(("link",), LOOSE)


def test_a_standby_that_does_not_take_over_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandbyMonitor, "on_down", lambda monitor, link, closed: None)
    assert found(("router",), replace(LOOSE, standby=True))


def test_what_is_spread_and_left_out_by_a_plan_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served_at = HomeMoves.served_at

    def without(moves: HomeMoves, sub_cluster: int) -> tuple[str, ...]:
        return tuple(name for name in served_at(moves, sub_cluster) if name in moves.members)

    monkeypatch.setattr(HomeMoves, "served_at", without)
    assert found(("control",), replace(LOOSE, spread=("grey",)))


def test_moves_without_room_that_never_end_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placer, "_give_up", lambda *given: [])
    assert found(("backend",), replace(LOOSE, room=2))
