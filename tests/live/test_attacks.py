"""Attacks on a server of its own, beside an honest client; `make attack` runs all of them."""

import pytest

pytest.importorskip("ray")

from benchmarks.attack import ATTACKS, measure

pytestmark = pytest.mark.live

REDUCED = ("half_messages", "strangers", "bombs")
SOME = ("slow_handshakes", "strangers")
"""Those beside which an honest client misses nothing on a calm machine of two cores."""


def test_a_few_attacks_end_no_process_and_take_no_memory() -> None:
    """Whatever the machine is busy with."""
    figures = list(measure(REDUCED, quick=True))
    safe = [each for each in figures if each.unit != "%"]
    assert len(safe) == len(REDUCED) + 1
    assert [each for each in safe if not each.reached] == []


@pytest.mark.long
def test_no_stranger_takes_the_service_from_others() -> None:
    figures = list(measure(SOME, quick=True))
    assert len(figures) == 2 * len(SOME) + 1
    assert [each for each in figures if not each.reached] == []


@pytest.mark.long
def test_no_attack_ends_a_process_or_takes_memory_above_the_limits() -> None:
    figures = list(measure(list(ATTACKS), quick=True))
    safe = [each for each in figures if each.unit != "%"]
    assert len(safe) == len(ATTACKS) + 1
    assert [each for each in safe if not each.reached] == []
