"""What every policy must keep, under arrivals, cancels and failures that nobody would think of."""

import pytest
from hypothesis import given
from policy_zoo import POOLED, SOURCES
from small_world import LOADING, WORKLOADS, Workload, World, examples


def play(name: str, load: Workload) -> World:
    world = World(name, load)
    world.play()
    return world


@pytest.mark.parametrize("name", SOURCES)
@examples(150)
@given(load=WORKLOADS)
def test_every_policy_keeps_the_rules(name: str, load: Workload) -> None:
    world = play(name, load)
    world.check_end()
    assert play(name, load).digest == world.digest


@pytest.mark.parametrize("name", SOURCES)
@examples(40)
@given(load=WORKLOADS)
def test_every_policy_heeds_the_room_of_each_backend(name: str, load: Workload) -> None:
    world = World(name, load, room=2)
    world.play()
    world.check_end()


@pytest.mark.parametrize("name", POOLED)
@examples(100)
@given(load=LOADING)
def test_every_pooled_policy_runs_on_backends_that_hold_the_model(
    name: str, load: Workload
) -> None:
    world = World(name, load, placed=True)
    world.play()
    world.check_end()
