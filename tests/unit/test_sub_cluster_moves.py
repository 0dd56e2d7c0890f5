"""Moves of applications between routers: load, tell, leave; and the way back."""

from fermata.deployments.control.sub_clusters.homes import DirectoryKeeper
from fermata.deployments.control.sub_clusters.moves import LEAVE_NS, HomeMoves
from fermata.partitioner.plan import Plan
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
    assert moves.plan() == Plan({"a": 0, "b": 1})
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
