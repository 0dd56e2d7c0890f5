"""The router of one sub-cluster: it publishes the directory, and has its backends load models."""

import msgspec
import pytest
from router_world import LOST, TABLE, FakeLink, World, rid

from fermata.foundation.units import ms
from fermata.partitioner.plan import Plan
from fermata.router.assembly import RouterConfig
from fermata.router.core.events import DropReason, is_bad
from fermata.router.links.directory import Directory, Home
from fermata.router.links.messages import (
    Done,
    Dropped,
    LoadVariant,
    Payload,
    Ready,
    Run,
    Submit,
    UnloadVariant,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.live.requests.submissions import UNKNOWN
from fermata.router.policies.application import ApplicationSpec, VariantSpec

HERE = Directory(3, (Home(0), Home(1)), {"cats": ((0, 1.0),), "dogs": ((1, 1.0),)})


def test_frontends_hear_where_applications_live() -> None:
    world = World()
    world.router.set_directory(HERE)
    later = world.link("frontend", 3)
    world.settle()
    assert world.frontend.take(Directory) == later.take(Directory) == [HERE]
    # The directory comes first: what else is said is about applications that live here.
    newer = msgspec.structs.replace(HERE, version=4)
    world.router.set_directory(newer)
    world.router.set_directory(HERE)
    world.settle()
    assert world.frontend.take(Directory) == [newer]


def test_one_router_alone_says_nothing_of_homes() -> None:
    world = World()
    world.settle()
    assert world.frontend.take(Directory) == []


def test_peers_of_the_version_before_hear_no_directory() -> None:
    world = World()
    world.frontend.peer = msgspec.structs.replace(world.frontend.peer, protocol=8)
    world.router.set_directory(HERE)
    world.settle()
    assert world.frontend.take(Directory) == []


def test_a_request_of_an_application_that_lives_elsewhere_is_handed_back() -> None:
    world = World()
    world.router.set_directory(HERE)
    place = Payload(rid(1), "UINT8", (4,), segment="shm", length=4)
    world.hear(
        world.frontend,
        Submit(rid(1), "dogs", ms(20), ms(20), payload=place),
        Submit(rid(2), "birds", ms(20), ms(20)),
    )
    assert world.frontend.take(Dropped) == [
        Dropped(rid(1), DropReason.MOVED, unread=True),
        Dropped(rid(2), UNKNOWN),
    ]
    assert world.router.submissions.unknown == 1


def test_backends_are_told_to_load_all_that_lives_here() -> None:
    world = World(policy="eager")
    applications = tuple(
        ApplicationSpec(name, ms(50), (VariantSpec(f"{name}-1", TABLE),)) for name in ("a", "b")
    )
    config = RouterConfig(applications, "eager", loads_all=True)
    world.wakes.clear()
    world.router = LiveRouter(config, 4, lambda: world.now_ns, world.soon.append, world._wake)
    frontend, backend = world.link("frontend", 2), world.link("backend", 7)
    world.hear(backend, Ready("emulated", (), empty=True))
    assert backend.take(LoadVariant) == [LoadVariant("a-1"), LoadVariant("b-1")]
    world.hear(backend, Ready("emulated", ("a-1",)))
    world.hear(frontend, Submit(rid(1), "a", ms(50), ms(50)))
    world.advance(ms(2))
    assert [each.variant for each in backend.take(Run)] == ["a-1"]
    # One that comes later, with what another router has had it load.
    other = world.link("backend", 8)
    world.hear(other, Ready("emulated", ("b-1", "c-1")))
    assert other.take(LoadVariant) == [LoadVariant("a-1")]


def moving_world() -> tuple[World, FakeLink]:
    """A router of two applications which move, and its one backend, without models yet."""
    world = World(policy="eager")
    applications = tuple(
        ApplicationSpec(name, ms(500), (VariantSpec(f"{name}-1", TABLE),)) for name in ("a", "b")
    )
    config = RouterConfig(applications, "eager", loads_all=True, moves=True)
    world.wakes.clear()
    world.router = LiveRouter(config, 4, lambda: world.now_ns, world.soon.append, world._wake)
    world.router.set_directory(Directory(1, (Home(0), Home(1)), {"a": ((0, 1.0),)}))
    world.frontend, backend = world.link("frontend", 2), world.link("backend", 7)
    return world, backend


def test_an_application_that_comes_is_loaded_and_one_that_leaves_unloaded() -> None:
    world, backend = moving_world()
    world.hear(backend, Ready("emulated", (), empty=True))
    assert backend.take(LoadVariant) == []
    assert world.router.place(Plan({"a": 0})) == ["a"]
    world.settle()
    assert backend.take(LoadVariant) == [LoadVariant("a-1")]
    world.hear(backend, Ready("emulated", ("a-1",)))
    assert world.router.place(Plan({"a": 0, "b": 0})) == ["b"]
    world.settle()
    assert (backend.take(LoadVariant), backend.take(UnloadVariant)) == ([LoadVariant("b-1")], [])
    world.hear(backend, Ready("emulated", ("a-1", "b-1")))
    assert world.router.place(Plan({"b": 0})) == []
    world.settle()
    assert backend.take(UnloadVariant) == [UnloadVariant("a-1")]
    shown = world.router.fleet.placement.snapshot((7,))
    assert shown.applications == {"b": 0}


def test_what_is_named_first_is_loaded_first() -> None:
    world, backend = moving_world()
    world.router.place(Plan({"b": 0, "a": 0}))
    world.hear(backend, Ready("emulated", (), empty=True))
    assert backend.take(LoadVariant) == [LoadVariant("b-1"), LoadVariant("a-1")]


def test_a_new_router_serves_all_that_its_backends_hold_until_it_is_told() -> None:
    world, backend = moving_world()
    world.hear(backend, Ready("emulated", ("a-1",)))
    world.hear(world.frontend, Submit(rid(1), "a", ms(500), ms(500)))
    world.advance(ms(2))
    assert [each.variant for each in backend.take(Run)] == ["a-1"]
    assert world.router.fleet.placement.snapshot((7,)).applications == {"a": 0}
    # What nobody holds yet waits as well: another router may not have it either.
    world.hear(world.frontend, Submit(rid(2), "b", ms(500), ms(500)))
    assert world.frontend.take(Dropped) == []


def test_requests_that_wait_for_an_application_which_leaves_are_handed_back() -> None:
    world, backend = moving_world()
    world.hear(backend, Ready("emulated", ("a-1", "b-1")))
    world.router.place(Plan({"a": 0, "b": 0}))
    world.hear(world.frontend, Submit(rid(1), "a", ms(500), ms(500)))
    world.advance(ms(2))
    assert len(backend.take(Run)) == 1
    place = Payload(rid(2), "UINT8", (4,), segment="shm", length=4)
    more = [Submit(rid(each), "a", ms(500), ms(500)) for each in range(4, 80)]
    world.hear(world.frontend, Submit(rid(2), "a", ms(500), ms(500), payload=place), *more)
    given = {each for told in backend.take(Run) for each in told.rids}
    waiting = {rid(2), *(each.rid for each in more)} - given
    assert waiting
    world.router.place(Plan({"b": 0}))
    world.settle()
    handed = world.frontend.take(Dropped)
    assert {each.rid for each in handed} == waiting
    assert {each.reason for each in handed} == {DropReason.MOVED}
    # Its batch runs: it is unloaded once that has ended.
    assert backend.take(UnloadVariant) == []
    assert not is_bad(DropReason.MOVED)
    # What comes from now on is handed back at once.
    world.hear(world.frontend, Submit(rid(99), "a", ms(500), ms(500)))
    assert world.frontend.take(Dropped) == [Dropped(rid(99), DropReason.MOVED)]


def handed_back(world: World) -> list[int]:
    """Requests that the frontend has to ask for elsewhere, in order; nothing else has ended."""
    dropped = world.frontend.take(Dropped)
    assert {(each.reason, each.retried) for each in dropped} == {(DropReason.MOVED, True)}
    return [each.rid for each in dropped]


def left_with_a_batch() -> tuple[World, FakeLink, Run]:
    """A router whose application "a" has moved while a batch of it runs."""
    world, backend = moving_world()
    world.hear(backend, Ready("emulated", ("a-1", "b-1")))
    world.router.place(Plan({"a": 0, "b": 0}))
    world.hear(world.frontend, *(Submit(rid(each), "a", ms(500), ms(500)) for each in (1, 2, 3)))
    world.advance(ms(2))
    (run,) = backend.take(Run)
    world.router.place(Plan({"b": 0}))
    world.settle()
    assert world.frontend.take(Dropped) == []
    return world, backend, run


@pytest.mark.parametrize("others", [0, 1])
def test_requests_of_a_backend_that_dies_after_their_application_left_are_handed_back(
    others: int,
) -> None:
    world, backend, run = left_with_a_batch()
    for number in range(others):
        world.hear(world.link("backend", 20 + number), Ready("emulated", ("a-1", "b-1")))
    world.router.on_down(backend, LOST)
    world.settle()
    assert handed_back(world) == list(run.rids)
    assert not world.router.engine.outbox.queued


@pytest.mark.parametrize("others", [0, 1])
def test_requests_of_a_batch_that_fails_after_their_application_left_are_handed_back(
    others: int,
) -> None:
    world, backend, run = left_with_a_batch()
    for number in range(others):
        world.hear(world.link("backend", 20 + number), Ready("emulated", ("a-1", "b-1")))
    world.hear(backend, Done(run.batch, ms(3), 0, failed="RuntimeError: no"))
    assert handed_back(world) == list(run.rids)
    assert not world.router.engine.outbox.queued


def test_requests_left_out_of_a_batch_after_their_application_left_are_handed_back() -> None:
    world, backend, run = left_with_a_batch()
    world.hear(backend, Done(run.batch, ms(3), 0, left_out=run.rids[1:]))
    assert handed_back(world) == list(run.rids[1:])


def test_a_request_that_runs_where_its_application_left_is_not_handed_back_twice() -> None:
    world, backend, run = left_with_a_batch()
    # A frontend that has lost its link to the backend asks again.
    world.hear(world.frontend, Submit(run.rids[0], "a", ms(490), ms(490)))
    assert world.frontend.take(Dropped) == []
    world.router.on_down(backend, LOST)
    world.settle()
    assert handed_back(world) == list(run.rids)


def test_an_application_that_comes_back_is_queued_again_as_ever() -> None:
    world, backend, _ = left_with_a_batch()
    other = world.link("backend", 20)
    world.hear(other, Ready("emulated", ("a-1", "b-1")))
    world.router.place(Plan({"a": 0, "b": 0}))
    world.hear(other, Ready("emulated", ("a-1", "b-1")))
    world.router.on_down(backend, LOST)
    world.settle()
    assert world.frontend.take(Dropped) == []
    assert other.take(Run)


def test_a_request_that_has_cost_a_backend_at_another_home_costs_one_more_and_no_third() -> None:
    world, backend = moving_world()
    other = world.link("backend", 20)
    for each in (backend, other):
        world.hear(each, Ready("emulated", ("a-1", "b-1")))
    world.router.place(Plan({"a": 0, "b": 0}))
    world.hear(world.frontend, Submit(rid(1), "a", ms(500), ms(500), retried=True))
    world.advance(ms(2))
    (taken,) = (each for each in (backend, other) if each.take(Run))
    world.router.on_down(taken, LOST)
    world.settle()
    (told,) = world.frontend.take(Dropped)
    assert (told.reason, told.retried) == ("backend-lost", False)
