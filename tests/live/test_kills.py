"""Real processes are killed under load; the client's ledger is the judge."""

import signal

import pytest

pytest.importorskip("ray")
from benchmarks.kills import CONFIG, LEADS, recovered, strike
from benchmarks.live_server import fermata
from benchmarks.soak import measure as soak

pytestmark = [pytest.mark.live, pytest.mark.long]
UNNOTICED = ("control plane", "Serve controller")


def test_nobody_is_left_without_an_answer_whatever_dies() -> None:
    with fermata(**CONFIG) as server:
        for role in ("backend", "router", *UNNOTICED):
            verdict = strike(server, role, signal.SIGKILL)
            assert verdict.lost == 0, role
            assert verdict.twice == 0, role
            assert verdict.cut == 0, role
            assert verdict.late_answers == 0, role
            assert verdict.gap_s <= 2.5, role
            recovered(server)


def test_a_router_with_a_standby_is_hardly_missed() -> None:
    with fermata(**CONFIG, router={"standby": True}) as server:
        recovered(server, standby=True)
        verdict = strike(server, LEADS, signal.SIGKILL)
        assert verdict.lost == 0
        assert verdict.twice == 0
        # The machine that tests run on may be slow itself.
        assert verdict.gap_s <= 0.5
        recovered(server, standby=True)


def test_nothing_grows_in_five_minutes_of_kills() -> None:
    found = {each.figure.rpartition(": ")[2]: each for each in soak(5)}
    assert found["bad beside them"].value <= 0.01
    assert found["requests without an answer"].value == 0
    assert found["answered twice"].value == 0
    assert found["memory grown after the warm-up"].value <= 0.02
    for what in ("files", "actors", "segments", "tasks"):
        assert found[f"more {what} than after the warm-up"].value <= 0, what
