"""Which applications are served at all, by what backends say that they hold."""

from fermata.router.health.availability import FAILED, LOADING, UNLOADED, Availability


def two() -> Availability:
    return Availability({"a": ("a1", "a2"), "b": ("b1",)})


def test_what_no_backend_has_whole_is_absent() -> None:
    presence = two()
    assert not presence.absent, "before anybody has said anything, requests wait"
    assert presence.on_ready(1, {"a1", "b1"})
    assert presence.absent == {"a": UNLOADED}
    # Half here and half there is not whole anywhere.
    assert not presence.on_ready(2, {"a2"})
    assert presence.on_ready(2, {"a1", "a2"})
    assert presence.absent == {}


def test_a_lost_backend_takes_nothing_away() -> None:
    presence = two()
    presence.on_ready(1, {"a1", "a2", "b1"})
    presence.on_backend_down(1)
    assert presence.absent == {}
    # One that comes without it does.
    assert presence.on_ready(2, {"a1", "a2"})
    assert presence.absent == {"b": UNLOADED}


def test_what_no_backend_could_run_now_is_unheld_though_not_absent() -> None:
    presence = two()
    presence.on_ready(1, {"a1", "a2", "b1"})
    presence.on_ready(2, {"a1", "b1"})
    assert presence.unheld([1, 2]) == []
    assert presence.unheld([2]) == ["a"]
    presence.on_backend_down(1)
    assert presence.unheld([1]) == ["a", "b"]
    assert presence.absent == {}


def test_loading_ends_when_a_backend_has_it() -> None:
    presence = two()
    presence.on_ready(1, {"a1", "a2"})
    assert presence.on_ask("b", load=True)
    assert presence.absent == {"b": LOADING}
    assert not presence.on_ready(1, {"a1", "a2"}), "still at it"
    assert presence.on_ready(1, {"a1", "a2", "b1"})
    assert presence.absent == {}
    assert not presence.on_ask("b", load=True), "it is there already"


def test_what_was_unloaded_stays_so_until_asked_for() -> None:
    presence = two()
    presence.on_ready(1, {"a1", "a2", "b1"})
    assert presence.on_ask("b", load=False)
    # A backend that has not heard of it yet.
    assert not presence.on_ready(1, {"a1", "a2", "b1"})
    assert presence.absent == {"b": UNLOADED}
    presence.on_ask("b", load=True)
    presence.on_ready(1, {"a1", "a2", "b1"})
    assert presence.absent == {}


def test_why_it_could_not_be_loaded_is_told() -> None:
    presence = two()
    presence.on_ready(1, {"a1", "a2"})
    presence.on_ask("b", load=True)
    assert presence.on_ready(1, {"a1", "a2"}, {"b1": "no such file"})
    assert presence.absent == {"b": FAILED + "no such file"}
    # One backend that has it is enough.
    assert presence.on_ready(2, {"b1"})
    assert presence.absent == {}
