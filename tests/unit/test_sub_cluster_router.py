"""The router of one sub-cluster: it publishes the directory, and has its backends load models."""

import msgspec
from router_world import TABLE, World, rid

from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig
from fermata.router.links.directory import MOVED, Directory, Home
from fermata.router.links.messages import Dropped, LoadVariant, Payload, Ready, Run, Submit
from fermata.router.live.driver import UNKNOWN, LiveRouter
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
        Dropped(rid(1), MOVED, unread=True),
        Dropped(rid(2), UNKNOWN),
    ]
    assert world.router.unknown == 1


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
