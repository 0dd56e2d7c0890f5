"""Requests while no backend is up: refused for that, with when to try again; l(b) = 4 + b ms."""

import pytest
from router_world import LEFT, LOST, World

from fermata.foundation.units import ms, seconds
from fermata.router.core.events import DropReason
from fermata.router.health.recovery import Recovery
from fermata.router.links.messages import Done, Dropped, Ready, Run
from fermata.router.policies.catalog import POLICIES

SHARED = sorted(set(POLICIES) - {"rl", "sneakpeek", "model-switching"})
"""Policies that one plain application can have without files of its own."""


def lose_all(world: World) -> None:
    world.router.on_down(world.backend, LOST)
    world.settle()


def flood(world: World, first: int, count: int, every_ns: int = ms(1)) -> None:
    for each in range(first, first + count):
        world.submit(each)
        world.advance(every_ns)


@pytest.mark.parametrize("policy", SHARED)
def test_every_request_is_refused_for_want_of_a_backend(policy: str) -> None:
    world = World(policy, accuracy=0.8)
    lose_all(world)
    flood(world, 1, 200)
    world.advance(ms(200))
    dropped = world.frontend.take(Dropped)
    assert len(dropped) == 200
    assert {each.reason for each in dropped} == {DropReason.NO_BACKEND}
    assert all(each.retry_after_ns >= ms(100) for each in dropped)


def test_whoever_waited_in_vain_is_told_so_though_a_backend_has_come() -> None:
    world = World()
    lose_all(world)
    flood(world, 1, 16)
    back = world.link("backend", 6)
    world.hear(back, Ready("emulated", ("v",)))
    world.advance(ms(40))
    ran = {each for run in back.take(Run) for each in run.rids}
    dropped = world.frontend.take(Dropped)
    assert ran
    assert dropped
    assert {each.reason for each in dropped} == {DropReason.NO_BACKEND}


def test_once_a_backend_is_back_overload_is_called_so_again() -> None:
    world = World()
    lose_all(world)
    world.advance(seconds(2))
    back = world.link("backend", 6)
    world.hear(back, Ready("emulated", ("v",)))
    for burst in range(20):
        world.submit(*range(100 * burst, 100 * burst + 100))
        for run in back.take(Run):
            world.advance(run.plan_ns)
            world.hear(back, Done(run.batch, run.plan_ns, 0))
    reasons = {each.reason for each in world.frontend.take(Dropped)}
    assert reasons
    assert DropReason.NO_BACKEND not in reasons


def test_a_model_that_no_backend_holds_any_more_has_no_backend() -> None:
    """Others are up, but none of them has it."""
    world = World()
    other = world.link("backend", 6)
    world.hear(other, Ready("emulated", (), empty=True))
    lose_all(world)
    flood(world, 1, 50)
    world.advance(ms(40))
    assert {each.reason for each in world.frontend.take(Dropped)} == {DropReason.NO_BACKEND}


def test_a_backend_that_leaves_in_order_leaves_none_behind() -> None:
    world = World()
    world.hear(world.backend, Ready("emulated", ()))
    world.router.on_down(world.backend, LEFT)
    flood(world, 1, 50)
    world.advance(ms(40))
    assert {each.reason for each in world.frontend.take(Dropped)} == {DropReason.NO_BACKEND}


def test_the_hint_is_what_the_last_replacement_took() -> None:
    recovery = Recovery()
    recovery.on_up(seconds(1))
    recovery.on_lost(seconds(2))
    assert recovery.retry_after_ns(seconds(3)) == seconds(4)
    recovery.on_up(seconds(5))
    recovery.on_lost(seconds(10))
    assert recovery.retry_after_ns(seconds(11)) == seconds(2)
    assert recovery.retry_after_ns(seconds(13) - 1) == ms(100)
    # Nobody knows how much longer it takes than the one before.
    assert recovery.retry_after_ns(seconds(13)) == seconds(1)
    recovery.on_up(seconds(15))
    recovery.on_lost(seconds(20))
    assert recovery.retry_after_ns(seconds(20)) == seconds(4)
