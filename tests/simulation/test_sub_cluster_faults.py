"""Two routers and applications that move between them, under simulated faults."""

import pytest

from fermata.deployments.control.sub_clusters.moves import HomeMoves
from fermata.fault_simulator.sub_clusters.run import run_sub_clusters
from fermata.router.live.notifier import FrontendNotifier

SEEDS = 3
SEARCH = 3


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_death_is_noticed_by_its_own_sub_cluster_alone(seed: int) -> None:
    story = run_sub_clusters(seed)
    assert not story.broken, story
    assert story.outcomes["served"] > 80
    assert story.outcomes["homes seen"] > 1


def test_moves_alone_refuse_nobody() -> None:
    story = run_sub_clusters(50, ("control",))
    assert not story.broken, story
    assert story.outcomes.keys() == {"served", "homes seen"}
    assert story.outcomes["homes seen"] > 1


def test_homes_that_are_told_before_they_have_loaded_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_loaded = HomeMoves.on_loaded

    def at_once(moves: HomeMoves, now_ns: int, wall_ms: int, loaded: object) -> None:
        everything = {name for names in moves.members.values() for name in names}
        on_loaded(moves, now_ns, wall_ms, dict.fromkeys(range(2), everything))

    monkeypatch.setattr(HomeMoves, "on_loaded", at_once)
    assert any(run_sub_clusters(seed, ("control",)).broken for seed in range(SEARCH))


def test_routers_that_refuse_what_has_moved_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrontendNotifier, "lives_elsewhere", lambda *given: False)
    monkeypatch.setattr(HomeMoves, "on_time", lambda moves, now_ns: moves.leaving.clear())
    assert any(run_sub_clusters(seed, ("control",)).broken for seed in range(SEARCH))
