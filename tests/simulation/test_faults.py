"""Production processes in a simulated world: nothing breaks, and planted bugs are found."""

import os
import subprocess
import sys
from hashlib import blake2s

import pytest
from later_bugs import LATER
from more_bugs import LASTING, MORE
from seeded_bugs import PLANTED

from fermata.fault_simulator.faults.kinds import FAULTS
from fermata.fault_simulator.run import run_lasting, run_seed

SEEDS = range(24)
CHUNK = 6
SEARCH = 1000
EARLIER = tuple(FAULTS)[: list(FAULTS).index("part-one-way")]
"""Faults that there were when the seeds below were found: with others they tell other stories."""


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_no_invariant_breaks(first: int) -> None:
    for seed in range(first, first + CHUNK):
        story = run_seed(seed)
        assert not story.broken, f"seed {seed}: {story.broken}"
        assert story.outcomes.get("served", 0) > 0


def test_a_rack_that_loses_its_power_is_replaced() -> None:
    for seed in range(4):
        story = run_seed(seed, ("rack",))
        assert not story.broken, f"seed {seed}: {story.broken}"


@pytest.mark.parametrize("seed", [8, 12, 37])
def test_what_a_slow_backend_taught_is_unlearnt(seed: int) -> None:
    """An application was refused for ever, or for very long, after backends had been slow."""
    assert not run_seed(seed, ("slow",), scaled=True).broken


@pytest.mark.parametrize("seed", [514, 529, 3184, 5365, 7680])
def test_backends_that_follow_the_load_are_found_well_again(seed: int) -> None:
    assert not run_seed(seed, EARLIER).broken


def test_a_request_is_known_from_the_moment_it_is_granted() -> None:
    """It was queued anew when its frontend asked for it before the grant had been sent."""
    assert not run_seed(8957, EARLIER).broken


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_what_is_left_goes_on_serving_where_faults_never_end(first: int) -> None:
    for seed in range(first, first + CHUNK):
        story = run_lasting(seed)
        assert not story.broken, f"seed {seed}: {story.broken}"


@pytest.mark.parametrize("name", LASTING)
def test_a_planted_bug_is_found_where_faults_never_end(name: str) -> None:
    plant, kinds = LASTING[name]
    found = (seed for seed in range(SEARCH) if run_lasting(seed, kinds, plant).broken)
    seed = next(found, None)
    assert seed is not None, f"{name} was not found in {SEARCH} seeds"
    assert not run_lasting(seed, kinds).broken


@pytest.mark.parametrize("name", [*PLANTED, *MORE, *LATER])
def test_a_planted_bug_is_found(name: str) -> None:
    plant, kinds = {**PLANTED, **MORE, **LATER}[name]
    found = (seed for seed in range(SEARCH) if run_seed(seed, kinds, plant).broken)
    seed = next(found, None)
    assert seed is not None, f"{name} was not found in {SEARCH} seeds"
    # It is the bug that breaks this story, and nothing else.
    assert not run_seed(seed, kinds).broken


STORY = """
from hashlib import blake2s
from fermata.fault_simulator.run import run_seed
print(blake2s("\\n".join(run_seed(7, tell=True).said).encode()).hexdigest())
"""


def test_one_seed_is_one_story() -> None:
    here = blake2s("\n".join(run_seed(7, tell=True).said).encode()).hexdigest()
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", STORY],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == here
