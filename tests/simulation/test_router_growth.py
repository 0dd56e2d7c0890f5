"""The benchmark of a router's growth drives every source that the default policy makes."""

from benchmarks.router_growth import FULL_RPS, HIGH, LOW, World
from fermata.foundation.units import SECOND


def test_models_of_one_and_of_several_variants_run() -> None:
    world = World()
    world.play(LOW * FULL_RPS, lambda: world.batches >= 500, seed=1)
    assert world.solved > 0
    assert world.ran["m4-large"] > 0
    until_ns = world.now_ns + SECOND
    world.play(HIGH * FULL_RPS, lambda: world.now_ns >= until_ns, seed=2)
    # Under overload the cheapest serves.
    assert world.ran["m4-small"] > 0
    assert all(world.ran[f"m{number}-1"] > 0 for number in range(4))
