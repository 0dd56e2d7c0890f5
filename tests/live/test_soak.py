"""Five minutes of load, with processes killed: what is bad beside the kills, and what grows."""

import pytest

pytest.importorskip("ray")
from benchmarks.soak import measure

pytestmark = pytest.mark.soak


def test_nothing_grows_in_five_minutes_of_kills() -> None:
    found = {each.figure.rpartition(": ")[2]: each for each in measure(5)}
    assert found["bad beside them"].value <= 0.01
    assert found["requests without an answer"].value == 0
    assert found["answered twice"].value == 0
    assert found["memory grown after the warm-up"].value <= 0.02
    for what in ("files", "actors", "segments", "tasks"):
        assert found[f"more {what} than after the warm-up"].value <= 0, what
