"""Moves of applications between routers: load, tell, leave; and the way back."""

import pytest

from fermata.autoscaler.control_loop import ControlLoop
from fermata.autoscaler.options import EpochOptions
from fermata.autoscaler.placer import ApplyPlan
from fermata.autoscaler.readings import ApplicationReading, ClusterReading
from fermata.deployments.control.sub_clusters.homes import DirectoryKeeper
from fermata.deployments.control.sub_clusters.moves import LEAVE_NS, HomeMoves
from fermata.foundation.units import SECOND
from fermata.partitioner.plan import Move, MoveStage, PlacedModel, Plan
from fermata.router.links.directory import Directory, Home

MEMBERS = {"a": ("a@1", "a@2"), "b": ("b",)}


def begun() -> HomeMoves:
    homes = {"a@1": ((0, 1.0),), "a@2": ((0, 1.0),), "b": ((1, 1.0),), "all": ((0, 0.5), (1, 0.5))}
    return HomeMoves(DirectoryKeeper(Directory(5, (Home(0), Home(1)), homes)), MEMBERS)


def test_nothing_moves_without_an_order() -> None:
    moves = begun()
    assert moves.plan() == Plan({"a": 0, "b": 1})
    assert moves.on_their_way() == []
    assert moves.served_at(0) == ("a@1", "a@2", "all")
    assert moves.served_at(1) == ("all", "b")
    moves.on_loaded(0, 0, {0: {"a@1", "a@2", "b"}, 1: {"a@1", "a@2", "b"}})
    assert moves.keeper.directory.version == 5


def test_a_move_loads_then_tells_then_leaves() -> None:
    moves = begun()
    moves.order(Plan({"a": 1, "b": 1}))
    assert moves.on_their_way() == ["a"]
    # The new home loads it while the old one is still told to frontends.
    # It comes last there: what lives there must not want for room.
    assert moves.served_at(1) == ("all", "b", "a@1", "a@2")
    assert moves.served_at(0) == ("a@1", "a@2", "all")
    moves.on_loaded(0, 0, {1: {"a@1", "b"}})
    assert moves.home("a") == 0
    moves.on_loaded(10, 0, {1: {"a@1", "a@2", "b"}})
    directory = moves.keeper.directory
    assert (directory.version, directory.applications["a@2"]) == (6, ((1, 1.0),))
    assert directory.applications["all"] == ((0, 0.5), (1, 0.5))
    # What is on its way to the old home is served there.
    assert moves.served_at(0) == ("all", "a@1", "a@2")
    # From here on it goes on to its end, whatever time is left for it.
    assert moves.plan() == Plan({"a": 1, "b": 1})
    moves.on_time(9 + LEAVE_NS)
    assert moves.on_their_way() == ["a"]
    moves.on_time(10 + LEAVE_NS)
    assert moves.served_at(0) == ("all",)
    assert moves.plan() == Plan({"a": 1, "b": 1})
    assert moves.on_their_way() == []


def test_a_move_that_is_given_up_before_it_is_told_changes_nothing() -> None:
    moves = begun()
    moves.order(Plan({"a": 1, "b": 1}))
    moves.order(Plan({"a": 0, "b": 1}))
    assert moves.served_at(1) == ("all", "b")
    # A late word of the new home that it has loaded it counts no more.
    moves.on_loaded(0, 0, {1: {"a@1", "a@2"}})
    assert moves.keeper.directory.version == 5


def test_a_move_that_is_given_up_after_it_is_told_goes_back_the_same_way() -> None:
    moves = begun()
    moves.order(Plan({"a": 1, "b": 1}))
    moves.on_loaded(0, 0, {1: {"a@1", "a@2"}})
    moves.order(Plan({"a": 0, "b": 1}))
    moves.on_loaded(5, 0, {0: {"a@1", "a@2"}, 1: {"a@1", "a@2"}})
    assert moves.home("a") == 0
    assert moves.served_at(1) == ("all", "b", "a@1", "a@2")
    moves.on_time(5 + LEAVE_NS)
    assert moves.served_at(1) == ("all", "b")
    assert moves.on_their_way() == []


def test_two_may_change_places() -> None:
    moves = begun()
    moves.order(Plan({"a": 1, "b": 0}))
    moves.on_loaded(0, 0, {0: {"a@1", "a@2"}, 1: {"a@1", "a@2"}})
    assert (moves.home("a"), moves.home("b")) == (1, 1)
    moves.on_loaded(3, 0, {0: {"b"}, 1: {"a@1", "a@2"}})
    moves.on_time(3 + LEAVE_NS)
    assert moves.plan() == Plan({"a": 1, "b": 0})
    assert (moves.served_at(0), moves.served_at(1)) == (("all", "b"), ("a@1", "a@2", "all"))


def ordered(loop: ControlLoop, moves: HomeMoves, now_ns: int, loaded: dict[int, set[str]]) -> None:
    """Have a control loop read the moves, and carry its orders out."""
    moves.on_loaded(now_ns, 0, loaded)
    moves.on_time(now_ns)
    counts = {name: ApplicationReading(0, 0, 0) for name in MEMBERS}
    on_their_way = frozenset(moves.on_their_way())
    loop.on_reading(now_ns, ClusterReading(now_ns, 1, counts, (), moves.plan(), on_their_way))
    for effect in loop.take_effects():
        if isinstance(effect, ApplyPlan):
            moves.order(effect.plan)


@pytest.mark.parametrize("loaded_ns", range(2 * SECOND, 7 * SECOND, SECOND // 4))
def test_a_move_that_ends_about_when_its_time_does_is_whole_or_has_not_been(loaded_ns: int) -> None:
    options = EpochOptions(every_ns=100 * SECOND, move_ns=4 * SECOND)
    loop = ControlLoop(None, options, [PlacedModel(name, 1.0, 1) for name in MEMBERS])
    moves = begun()
    opened = {name: ApplicationReading(0, 0, 0) for name in MEMBERS}
    loop.on_start(0, ClusterReading(0, 1, opened, (), Plan({"a": 0, "b": 1})), 2)
    ordered(loop, moves, 0, {})
    assert loop.placer is not None
    loop.placer.stages_left = [MoveStage((Move("a", 0, 1, 1.0),))]
    loop.effects += loop.placer._next_stage()
    now_ns = 0
    while loop.is_placing:
        now_ns += SECOND // 5
        held = {0: {"a@1", "a@2"}, 1: {"a@1", "a@2"} if now_ns >= loaded_ns else set()}
        ordered(loop, moves, now_ns, held)
    moves.on_time(now_ns + LEAVE_NS)
    home = moves.home("a")
    assert loop.placer.plan.home["a"] == moves.wanted["a"] == home
    assert ("a@1" in moves.served_at(0), "a@1" in moves.served_at(1)) == (home == 0, home == 1)
    # The first reading is at 0.2 s, and the one that finds its time spent at 4.4 s.
    assert home == (1 if loaded_ns <= 4.4 * SECOND else 0)
    assert loop.placer.moved == home
