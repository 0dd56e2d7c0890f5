"""Which applications are served at all, by what backends say that they hold."""

from fermata.router.health.availability import Availability
from fermata.router.links.unavailability import (
    LOADING,
    UNLOADED,
    Unavailability,
    UnavailableCause,
)


def failed(reason: str) -> Unavailability:
    return Unavailability(UnavailableCause.LOAD_FAILED, reason)


def two() -> Availability:
    return Availability({"a": ("a1", "a2"), "b": ("b1",)})


def test_what_no_backend_has_whole_is_unavailable() -> None:
    availability = two()
    assert not availability.unavailable, "before anybody has said anything, requests wait"
    assert availability.on_ready(1, {"a1", "b1"})
    assert availability.unavailable == {"a": UNLOADED}
    # Half here and half there is not whole anywhere.
    assert not availability.on_ready(2, {"a2"})
    assert availability.on_ready(2, {"a1", "a2"})
    assert availability.unavailable == {}


def test_a_lost_backend_takes_nothing_away() -> None:
    availability = two()
    availability.on_ready(1, {"a1", "a2", "b1"})
    availability.on_backend_down(1)
    assert availability.unavailable == {}
    # One that comes without it does.
    assert availability.on_ready(2, {"a1", "a2"})
    assert availability.unavailable == {"b": UNLOADED}


def test_what_no_backend_could_run_now_is_not_loaded_though_not_unavailable() -> None:
    availability = two()
    availability.on_ready(1, {"a1", "a2", "b1"})
    availability.on_ready(2, {"a1", "b1"})
    assert availability.not_loaded([1, 2]) == []
    assert availability.not_loaded([2]) == ["a"]
    availability.on_backend_down(1)
    assert availability.not_loaded([1]) == ["a", "b"]
    assert availability.unavailable == {}


def test_loading_ends_when_a_backend_has_it() -> None:
    availability = two()
    availability.on_ready(1, {"a1", "a2"})
    assert availability.on_ask("b", load=True)
    assert availability.unavailable == {"b": LOADING}
    assert not availability.on_ready(1, {"a1", "a2"}), "still at it"
    assert availability.on_ready(1, {"a1", "a2", "b1"})
    assert availability.unavailable == {}
    assert not availability.on_ask("b", load=True), "it is there already"


def test_what_was_unloaded_stays_so_until_asked_for() -> None:
    availability = two()
    availability.on_ready(1, {"a1", "a2", "b1"})
    assert availability.on_ask("b", load=False)
    # A backend that has not heard of it yet.
    assert not availability.on_ready(1, {"a1", "a2", "b1"})
    assert availability.unavailable == {"b": UNLOADED}
    availability.on_ask("b", load=True)
    availability.on_ready(1, {"a1", "a2", "b1"})
    assert availability.unavailable == {}


def test_why_it_could_not_be_loaded_is_told() -> None:
    availability = two()
    availability.on_ready(1, {"a1", "a2"})
    availability.on_ask("b", load=True)
    assert availability.on_ready(1, {"a1", "a2"}, {"b1": "no such file"})
    assert availability.unavailable == {"b": failed("no such file")}
    # One backend that has it is enough.
    assert availability.on_ready(2, {"b1"})
    assert availability.unavailable == {}
